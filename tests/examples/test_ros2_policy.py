from __future__ import annotations

import ast
import os
import subprocess
import sys
from pathlib import Path

SCRIPT = Path(__file__).parents[2] / "examples" / "ros2_policy.py"


def test_the_spot_is_followed() -> None:
    domain = str(1 + os.getpid() % 200)
    command = [sys.executable, str(SCRIPT), "--simulate", "--seconds", "2", "--domain", domain, "--port", "0"]
    environment = os.environ | {"ROS_LOCALHOST_ONLY": "1"}
    run = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=600, check=True)
    assert run.stdout.startswith("FollowTheSpot decides; watch at http://127.0.0.1:")
    metrics = ast.literal_eval(run.stdout.splitlines()[-1])
    assert metrics["actions"] > 0
    assert metrics["camera_frames"] > 0
    assert not {"last_error", "policy_errors", "bad_messages"} & set(metrics)
