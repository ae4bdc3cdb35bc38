from __future__ import annotations

import http.client
import json
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.numpy import load, save
from tensordict import TensorDict
from torch import Tensor

from tests.cli.serving import Serving
from tests.policies import checkpoints
from tests.policies.packing.packer_scenes import NARROW, trained
from tests.serving.test_pallets import client_of_the_document
from torchrl_gpu.cli import main, serve_policy
from torchrl_gpu.palletizing.sessions import PackingSessions
from torchrl_gpu.policies import InferencePolicy
from torchrl_gpu.policies.export import exporter
from torchrl_gpu.policies.export.exporter import Run
from torchrl_gpu.policies.export.manifest import manifest_of
from torchrl_gpu.system.archives import ENTRY


def test_from_a_checkpoint_to_an_answer_and_an_end(tmp_path: Path) -> None:
    path, _ = checkpoints.saved(tmp_path, "SAC washes")
    words = [sys.executable, "-m", "torchrl_gpu.cli", "serve-policy", str(path), "--port", "0", "--device", "cpu"]
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as served:
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


def test_a_cell_packs_on_where_a_killed_server_was(tmp_path: Path) -> None:
    """By the client of the documentation, which sends again what was not answered."""
    words = ["serve-policy", "--pallets", str(tmp_path / "kept"), "--device", "cpu", "--port"]
    boxes = [[300, 200, 100 + 10 * number] for number in range(6)]
    told = r"serve-policy: packing sessions in .* \({} open\) at http://127.0.0.1:(\d+)/"
    with Serving([*words, "0"], tmp_path / "first") as first:
        port = first.says(told.format(0))[1]
        cell = client_of_the_document()("cell-3", port=int(port))
        cell.ask("open")
        found = packed(cell.ask, boxes[:3])
        found.append(cell.ask("offer", boxes=[{"sides": boxes[3]}])["center"])
        first.process.kill()
        first.process.join()
    with ThreadPoolExecutor(1) as thread:
        # Nobody is there.
        confirmed = thread.submit(cell.ask, "confirm")
        with Serving([*words, port], tmp_path / "second") as second:
            second.says(told.format(1))
            assert confirmed.result()["packed"] == 4
            found += packed(cell.ask, boxes[4:])
    alone = PackingSessions(tmp_path / "alone", device="cpu")

    def asked(do: str, **given: Any) -> dict[str, Any]:
        return alone.answer(json.dumps({"do": do, "session": "cell-3", **given}))[1]

    asked("open")
    assert found == packed(asked, boxes)


def packed(ask: Callable[..., dict[str, Any]], boxes: list[list[int]]) -> list[list[float]]:
    """Places of boxes, each of which is confirmed."""
    found = []
    for sides in boxes:
        found.append(ask("offer", boxes=[{"sides": sides}])["center"])
        ask("confirm")
    return found


def test_without_a_checkpoint_pallets_are_served(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert main(["serve-policy"], "torchrl-gpu") == 2
    assert "name a checkpoint, --pallets or both" in capsys.readouterr().err
    (tmp_path / "a.json").write_text("{}")
    assert main(["serve-policy", "--pallets", str(tmp_path)], "torchrl-gpu") == 2
    assert f"{tmp_path / 'a.json'} is not a packing session" in capsys.readouterr().err


@pytest.mark.parametrize("words", [[], ["--page"]])
def test_the_page_shows_requests_if_asked(words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def made(_: object, **options: object) -> None:
        raise ValueError(f"page is {options['page']}")

    monkeypatch.setattr("torchrl_gpu.serving.server.policy_server", made)
    path, _ = checkpoints.saved(tmp_path, "SAC washes")
    with pytest.raises(ValueError, match=f"page is {bool(words)}"):
        serve_policy.main([str(path), "--device", "cpu", *words])


@pytest.mark.parametrize(("words", "wanted"), [([], 3), (["--threads", "2"], 2)])
def test_threads_of_a_pass(words: list[str], wanted: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = torch.get_num_threads()
    path, _ = checkpoints.saved(tmp_path, "SAC washes")
    monkeypatch.setattr("torchrl_gpu.serving.server.policy_server", lambda *_, **__: 1 / 0)
    torch.set_num_threads(3)
    try:
        with pytest.raises(ZeroDivisionError):
            serve_policy.main([str(path), "--device", "cpu", *words])
        assert torch.get_num_threads() == wanted
    finally:
        torch.set_num_threads(before)


def test_policy_that_cannot_be_served_is_refused_in_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "bad.ckpt").write_text("no checkpoint")
    assert main(["serve-policy", str(tmp_path / "bad.ckpt")], "torchrl-gpu") == 2
    said = capsys.readouterr().err
    assert said.startswith("error: policy ")
    assert said.count("\n") == 1


def test_export_tells_what_a_packing_wants_computed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def written(graph: Any, example: list[Tensor], path: Path, names: list[str], chunk: int | None) -> Run:
        path.write_bytes(b"a program, which takes long to be traced")
        return lambda observations: graph(*observations)

    monkeypatch.setitem(exporter.WRITERS, "pt2", written)
    monkeypatch.setattr(exporter, "milliseconds_a_row", lambda policy, path: (2.5, 0.25))
    path, _ = checkpoints.saved(tmp_path, "DQN packs")
    assert main(["export", str(path), "--format", "pt2"], "torchrl-gpu") is None
    assert "It takes z_map, legal_mask, action_mask, too" in capsys.readouterr().out
    about = json.loads((tmp_path / "last.json").read_text())
    assert about["file"] == "last.pt2"
    assert set(about["computed_inputs"]) == {"by", "z_map", "legal_mask", "action_mask"}
    assert main(["export", str(path), "--format", "onnx", "--output", str(tmp_path / "a.pt")], "torchrl-gpu") == 2


CONFIG = """
model:
  class_path: torchrl_gpu.training.HierarchicalPacking
  init_args:
    env:
      class_path: torchrl_gpu.envs.PackingEnv
      init_args:
        bin_size: [0.20, 0.20, 0.16]
        resolution: 20
        grid_step: 3
        items:
          class_path: torchrl_gpu.envs.packing.items.ProceduralSolids
          init_args: {num_objects: 12, min_size: 0.04, max_size: 0.09, seed: 2}
        num_items: 12
        visible_items: 5
        include: [z_map]
    networks:
      class_path: torchrl_gpu.policies.packing.PackerNetworks
      init_args: {channels: [16, 8]}
data: {class_path: torchrl_gpu.training.PackingEpisodes}
"""


@pytest.fixture(scope="module")
def packer_checkpoint(tmp_path_factory: pytest.TempPathFactory) -> str:
    networks = {"class_path": "torchrl_gpu.policies.packing.PackerNetworks", "init_args": {"channels": list(NARROW)}}
    content = {
        "state_dict": {f"networks.{name}": value for name, value in trained().state_dict().items()},
        ENTRY: {"config": {"model": {"init_args": {"networks": networks, "shortlist": 3, "item_shortlist": 2}}}},
    }
    path = tmp_path_factory.mktemp("trained") / "packer.ckpt"
    torch.save(content, path)
    return str(path)


def test_the_packer_is_served_with_the_config_of_its_run(
    packer_checkpoint: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    served = []

    def made(policy: InferencePolicy, **_: object) -> None:
        served.append(policy)
        raise ZeroDivisionError

    monkeypatch.setattr("torchrl_gpu.serving.server.policy_server", made)
    (tmp_path / "run.yaml").write_text(CONFIG)
    words = [packer_checkpoint, "--device", "cpu", "--config", str(tmp_path / "run.yaml")]
    with pytest.raises(ZeroDivisionError):
        serve_policy.main([*words, "--model.env.visible_items", "3"])
    told = manifest_of(served[0])
    assert told["action_shape"] == {"visible_items": 3, "orientations": 4, "placements_x": 7, "placements_y": 7}
    assert told["environment_settings"]["init_args"]["visible_items"] == 3
    assert told["environment_settings"]["init_args"]["items"]["init_args"]["num_objects"] == 12
    assert told["catalogue"]["num_items"] == len(told["catalogue"]["names"]) == 12
    assert told["choice"]["orientations_considered"] == 3
    assert "legal_mask" in told["mask"]
    assert len(told["orientation_table"]) == 4
    assert all(entry["meaning"] != "an entry of the environment's own" for entry in told["inputs"])
    shown = {name: served[0].space.zeros(name, 2) for name in served[0].in_keys}
    assert served[0](TensorDict(shown, [2]))["action"].shape == (2,)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["serve-policy"], "--config to `torchrl-gpu serve-policy`"),
        (["export"], "--config to `torchrl-gpu serve-policy`"),
        (["serve-policy", "--config", "no.yaml"], "no.yaml"),
        (["serve-policy", "--config", "run.yaml", "--model.env.num_envz", "3"], "num_envz"),
        (["serve-policy", "--config", "dishwashing_feasible.yaml"], "--config must be of a run that packs"),
    ],
)
def test_hierarchical_packer_with_wrong_words_is_refused_in_one_line(
    words: list[str],
    said: str,
    packer_checkpoint: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "run.yaml").write_text(CONFIG)
    assert main([words[0], packer_checkpoint, *words[1:]], "torchrl-gpu") == 2
    found = capsys.readouterr().err
    assert said in found
    assert found.count("\n") == 1
