from __future__ import annotations

import os
import re
import signal
import threading
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.cli.serving import Serving
from tests.policies import checkpoints
from tests.streaming.ros2.robots import MESSAGES, until
from torchrl_gpu.cli import main
from torchrl_gpu.cli.ros import make_parser, print_line, swap
from torchrl_gpu.streaming.ros2.cyclone import CycloneDds
from torchrl_gpu.streaming.ros2.messages import FLOATS, JOINTS

DOMAIN = 1 + os.getpid() % 200


def test_from_a_config_to_actions_a_swap_and_an_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("cyclonedds", reason="cyclonedds has no wheel for this Python on this processor")
    monkeypatch.setenv("ROS_LOCALHOST_ONLY", "1")
    path, _ = checkpoints.saved(tmp_path, "SAC washes")
    config = tmp_path / "robot.yaml"
    config.write_text(
        f"policy: {path}\ndevice: cpu\nobservation_topic: /sink\nsafe_action: [0.0, 1.0]\nmax_age: 60.0\n"
        f"action_names: [speed, care]\ntransport: cyclonedds\ndomain: {DOMAIN}\nserver: {{port: 0}}\n"
    )
    words = ["ros", "--config", str(config), "--rate", "20"]
    with Serving(words, tmp_path / "log", ROS_LOCALHOST_ONLY="1") as run:
        run.says(r"ros: SAC on cpu, actions to /policy/action, watch at http://127.0.0.1:\d+/")
        robot, came = CycloneDds(DOMAIN), threading.Event()
        actions: list[dict[str, float]] = []

        def take(data: bytes) -> None:
            message = MESSAGES.store.deserialize_cdr(data, JOINTS)
            actions.append(dict(zip(message.name, message.position.tolist(), strict=True)))
            came.set()

        robot.subscribe("/policy/action", JOINTS, take)
        assert came.wait(20)
        assert [actions[0][name] for name in ("speed", "care", "safe")] == [0.0, 1.0, 1.0]
        sent = MESSAGES.floats([0.1] * 6)
        until(lambda: robot.publish("/sink", FLOATS, sent) or actions[-1]["safe"] == 0)
        # They come one after the other, as some are taken together.
        for _ in range(20):
            run.tell(signal.SIGHUP)
        run.says(rf"ros: SAC of {path} decides now")
        path.write_text("no checkpoint")
        run.tell(signal.SIGHUP)
        run.says("ros: the policy before goes on; policy .*")
        at = len(actions)
        until(lambda: robot.publish("/sink", FLOATS, sent) or any(each["safe"] == 0 for each in actions[at:]))
        *_, line = run.ends()
        assert re.fullmatch(r"ros: \d+ actions, \d+ safe ones; no error", line)
        until(lambda: actions[-1]["safe"] == 1)
        robot.close()


class Bridge:
    def __init__(self, error: Exception | None = None) -> None:
        self.error, self.policies = error, []  # type: ignore[var-annotated]

    def swap(self, policy: Any) -> None:
        if self.error is not None:
            raise self.error
        self.policies.append(policy.name)


@pytest.mark.parametrize(
    "error",
    [
        ValueError("another width"),
        torch.OutOfMemoryError("of\nthe device"),
        RuntimeError("mat1 and mat2"),
        KeyError("action"),
        MemoryError(),
    ],
)
def test_a_swap_that_fails_changes_nothing(error: Exception, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, _ = checkpoints.saved(tmp_path, "SAC washes")
    bridge: Any = Bridge(error)
    said = swap(bridge, str(path), "cpu")
    assert said.startswith("ros: the policy before goes on; ")
    assert "\n" not in said
    bridge.error = None
    assert swap(bridge, str(path), "cpu") == f"ros: SAC of {path} decides now"
    assert bridge.policies == ["SAC"]
    monkeypatch.setattr("torchrl_gpu.policies.load_policy", lambda *_, **__: (_ for _ in ()).throw(error))
    assert swap(bridge, str(path), "cpu").startswith("ros: the policy before goes on; ")


def test_a_terminal_that_has_gone_ends_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is what sends the first SIGHUP of all."""

    def gone(*_: Any, **__: Any) -> None:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr("builtins.print", gone)
    print_line("ros: a line")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("policy: missing.ckpt\n", "checkpoint missing.ckpt: there is no such file"),
        ("max_age: old\n", "max_age"),
        ("maximum_age: 1\n", "maximum_age"),
        ("{page: false}\n", "policy, image_topic, camera_topic and pallets are None"),
        ("{camera_topic: /a, page: false, transport: pigeon}\n", "transport must be one of auto, cyclonedds"),
        ("- 1\n", ""),
    ],
)
def test_ros_that_cannot_run_is_refused_in_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str, said: str
) -> None:
    (tmp_path / "robot.yaml").write_text(text)
    assert main(["ros", "--config", str(tmp_path / "robot.yaml")], "torchrl-gpu") == 2
    error = capsys.readouterr().err
    assert error.startswith("error: ")
    assert said in error
    assert error.count("\n") == 1


def test_help_lists_the_options(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["ros", "--help"], "torchrl-gpu") == 0
    assert {"--safe_action", "--max_age", "--server.token"} <= set(re.findall(r"--[\w.]+", capsys.readouterr().out))


def test_the_documented_config_is_one() -> None:
    text = (Path(__file__).parents[2] / "docs" / "deploy.md").read_text(encoding="utf-8")
    found = make_parser().parse_string(text.partition("```yaml\npolicy:")[2].partition("```")[0].join(("policy:", "")))
    assert (found.image_topic, found.safe_action, found.server.port) == ("/camera/image_raw", [0.0, 1.0], 8080)
