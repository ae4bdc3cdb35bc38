from __future__ import annotations

import ast
import os
from pathlib import Path

from tests import forks
from tests.examples.running import in_fork


def test_the_spot_is_followed(tmp_path: Path) -> None:
    domain, log = str(1 + os.getpid() % 200), tmp_path / "log"
    words = ["--simulate", "--seconds", "2", "--domain", domain, "--port", "0"]
    assert not forks.run(in_fork, "ros2_policy.py", words, {"ROS_LOCALHOST_ONLY": "1"}, log=log), log.read_text()
    said = log.read_text()
    assert "FollowTheSpot decides; watch at http://127.0.0.1:" in said
    metrics = ast.literal_eval(said.splitlines()[-1])
    assert metrics["actions"] > 0
    assert metrics["camera_frames"] > 0
    assert not {"last_error", "policy_errors", "bad_messages"} & set(metrics)
