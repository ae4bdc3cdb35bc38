from __future__ import annotations

import http.client
import json
import re
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.numpy import load, save

from tests.policies import checkpoints
from torchrl_gpu.cli import main
from torchrl_gpu.serving import command


def test_from_a_checkpoint_to_an_answer_and_an_end(tmp_path: Path, child_environment: dict[str, str]) -> None:
    path, _ = checkpoints.saved(tmp_path, "SAC washes")
    words = [sys.executable, "-m", "torchrl_gpu.cli", "serve-policy", str(path), "--port", "0", "--device", "cpu"]
    with subprocess.Popen(
        words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=child_environment
    ) as served:
        assert served.stdout is not None
        assert served.stderr is not None
        line = served.stdout.readline()
        found = re.fullmatch(r"serve-policy: SAC on cpu at http://127.0.0.1:(\d+)/\n", line)
        assert found, line
        connection = http.client.HTTPConnection("127.0.0.1", int(found[1]), timeout=20)
        connection.request("POST", "/act", save({"observation": np.zeros((2, 6), np.float32)}))
        assert load(connection.getresponse().read())["action"].shape == (2, 2)
        connection.close()
        served.send_signal(signal.SIGTERM)
        assert served.wait(120) == 0
        assert served.stderr.read() == "", "Triton's bindings told of everything that had been frozen"


@pytest.mark.parametrize("words", [[], ["--page"]])
def test_the_page_shows_requests_where_that_is_asked_for(
    words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def made(_: object, **options: object) -> None:
        raise ValueError(f"page is {options['page']}")

    monkeypatch.setattr("torchrl_gpu.serving.server.policy_server", made)
    path, _ = checkpoints.saved(tmp_path, "SAC washes")
    with pytest.raises(ValueError, match=f"page is {bool(words)}"):
        command.main([str(path), "--device", "cpu", *words])


@pytest.mark.parametrize(("words", "wanted"), [([], 3), (["--threads", "2"], 2)])
def test_threads_of_a_pass_are_torchs_where_none_are_asked_for(
    words: list[str], wanted: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = torch.get_num_threads()
    path, _ = checkpoints.saved(tmp_path, "SAC washes")
    monkeypatch.setattr("torchrl_gpu.serving.server.policy_server", lambda *_, **__: 1 / 0)
    torch.set_num_threads(3)
    try:
        with pytest.raises(ZeroDivisionError):
            command.main([str(path), "--device", "cpu", *words])
        assert torch.get_num_threads() == wanted
    finally:
        torch.set_num_threads(before)


def test_threads_of_a_pass_are_at_least_one(tmp_path: Path) -> None:
    path, _ = checkpoints.saved(tmp_path, "SAC washes")
    with pytest.raises(ValueError, match="threads must be at least 1; got 0"):
        command.main([str(path), "--threads", "0"])


def test_what_cannot_be_served_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "bad.ckpt").write_text("no checkpoint")
    assert main(["serve-policy", str(tmp_path / "bad.ckpt")], "torchrl-gpu") == 2
    said = capsys.readouterr().err
    assert said.startswith("error: policy ")
    assert said.count("\n") == 1


def test_export_from_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path, _ = checkpoints.saved(tmp_path, "SAC washes")
    assert main(["export", str(path), "--format", "pt2"], "torchrl-gpu") is None
    assert capsys.readouterr().out.count("\n") == 1
    assert json.loads((tmp_path / "last.json").read_text())["file"] == "last.pt2"
    assert main(["export", str(path), "--format", "onnx", "--output", str(tmp_path / "a.pt")], "torchrl-gpu") == 2


def test_what_a_packing_wants_computed_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path, _ = checkpoints.saved(tmp_path, "DQN packs")
    assert main(["export", str(path), "--format", "pt2"], "torchrl-gpu") is None
    assert "It takes z_map, legal_mask, action_mask, too" in capsys.readouterr().out
    computed = json.loads((tmp_path / "last.json").read_text())["computed_inputs"]
    assert set(computed) == {"by", "z_map", "legal_mask", "action_mask"}
