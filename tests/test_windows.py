"""Windows, as far as Linux can stand for it.

Everything imports and runs without the names that Windows lacks.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

for module in ("aiohttp", "cv2", "av"):
    pytest.importorskip(module)


def test_no_command_needs_a_posix_name(tmp_path: Path) -> None:
    words = [sys.executable, "-m", "tests.posix_taken_away", str(tmp_path)]
    said = subprocess.run(
        words,
        # Windows writes to a pipe like this.
        env=os.environ | {"PYTHONIOENCODING": "cp1252"},
        capture_output=True,
        encoding="cp1252",
        check=False,
        timeout=600,
    )
    assert said.returncode == 0, said.stderr
    for line in ("usage: torchrl-gpu SUBCOMMAND", "2 of 2 updates", "play: afterstate values at", "serve-policy: "):
        assert line in said.stdout + said.stderr
