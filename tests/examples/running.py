"""Examples as they are run, in this process, which has loaded already what takes them seconds."""

from __future__ import annotations

import runpy
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"


def printed(name: str, *words: str, capsys: pytest.CaptureFixture[str]) -> str:
    """What an example says on these words of the command line."""
    capsys.readouterr()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", [name, *words])
        runpy.run_path(str(EXAMPLES / name), run_name="__main__")
    return capsys.readouterr().out


def help_of(name: str, capsys: pytest.CaptureFixture[str]) -> str:
    """What an example says to `--help`."""
    with pytest.raises(SystemExit, match="0"):
        printed(name, "--help", capsys=capsys)
    return capsys.readouterr().out
