"""The page "An environment of your own".

Its thirty lines train, are evaluated, stream and resume, as it says.
"""

from __future__ import annotations

import json
import re
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torchrl.envs.utils import check_env_specs

from tests.conftest import ROOT
from torchrl_gpu import cli

PAGE = (ROOT / "docs" / "environments" / "your_own.md").read_text()


def first_block(kind: str) -> str:
    found = re.search(rf"```{kind}\n(.*?)```", PAGE, re.DOTALL)
    assert found is not None
    return found[1]


CODE = first_block("python")
CONFIG = first_block("yaml")
SMALL = ["--model.env.num_envs=8", "--model.warmup_frames=64", "--data.steps_per_epoch=2", "--data.num_episodes=6"]
SMALL += ["--data.num_val_episodes=4", "--trainer.accelerator=cpu", "--trainer.enable_progress_bar=false"]
SMALL += ["--trainer.log_every_n_steps=1"]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The two files of the page, in a folder where the programs are called."""
    (tmp_path / "point.py").write_text(CODE)
    (tmp_path / "point.yaml").write_text(CONFIG)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    yield tmp_path
    sys.modules.pop("point", None)


def run(*arguments: str) -> None:
    assert cli.main([*arguments], "lightning") in (None, 0)


def test_the_class_has_thirty_lines_and_true_specs(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(folder)
    from point import PointEnv  # type: ignore[import-not-found]

    body = CODE[CODE.index("class PointEnv") :]
    assert sum(bool(line.strip()) for line in body.splitlines()) <= 32
    env = PointEnv(3, device="cpu", seed=0)
    check_env_specs(env)
    assert env.pictures([0, 2], 64, 48).shape == (2, 48, 64, 3)


def test_arriving_pays_more_than_hovering(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Arriving pays more than hovering.

    A rule that solves the task always earns clearly more than one that goes close and then back and forth.
    """
    monkeypatch.syspath_prepend(folder)
    from point import PointEnv

    env = PointEnv(256, device="cpu", seed=1)
    # The action by side of the square and axis.
    nearer = 2 * torch.tensor([0, 1]) + torch.tensor([[1], [0]])

    def earned(nearest: float) -> tuple[torch.Tensor, torch.Tensor]:
        current = env.set_seed(1) and env.reset()
        playing = torch.ones(256, dtype=torch.bool)
        total = torch.zeros(256)
        arrived = torch.zeros(256)
        for step in range(30):
            place = current["place"]
            axis = place.abs().argmax(1)
            action = nearer[(place.gather(1, axis[:, None])[:, 0] < 0).long(), axis]
            hover = place.norm(dim=1) < nearest
            current.set("action", torch.where(hover, step % 2, action))
            after, current = env.step_and_maybe_reset(current)
            total += playing * after["next", "reward"][:, 0]
            arrived += playing * after["next", "arrived"][:, 0]
            playing &= ~after["next", "done"][:, 0]
        return total, arrived

    (total, arrived), (hovering, _) = earned(0.0), earned(0.25)
    assert arrived.all()
    assert (total >= hovering).all()
    assert (total - hovering).mean() > 1


def test_it_trains_streams_resumes_and_is_evaluated(folder: Path, monkeypatch: pytest.MonkeyPatch, capfd: Any) -> None:
    pytest.importorskip("aiohttp")
    pytest.importorskip("cv2")
    from torchrl_gpu.callbacks import FrameStream

    pictures: list[bytes] = []
    before = FrameStream.on_train_end

    def look(self: Any, *args: Any) -> None:
        with urllib.request.urlopen(
            f"{self.server.url.partition('?')[0]}snapshot.jpg?stream=env0", timeout=20
        ) as reply:
            pictures.append(reply.read())
        before(self, *args)

    monkeypatch.setattr(FrameStream, "on_train_end", look)
    run("fit", "--config", "point.yaml", *SMALL, "--trainer.max_steps=16")
    assert pictures[0].startswith(b"\xff\xd8")
    checkpoints = folder / "runs" / "point" / "checkpoints"
    assert {"last.ckpt", "best.ckpt"} <= {path.name for path in checkpoints.iterdir()}
    saved = torch.load(checkpoints / "last.ckpt", weights_only=True)
    assert saved["agent_space"]["observations"]["place"] == [[2], "float32"]
    run("fit", "--config", "point.yaml", *SMALL, "--ckpt_path=last", "--trainer.max_steps=32")
    again = torch.load(checkpoints / "last.ckpt", weights_only=True)
    assert again["global_step"] == 32
    # Two training steps, four steps of eight environments each.
    assert again["frames"] == saved["frames"] + 2 * 4 * 8
    capfd.readouterr()
    run("test", "--config", "point.yaml", *SMALL, "--ckpt_path=best")
    said = capfd.readouterr().out
    assert "arrived" in said
    assert "random" in said
    report = json.loads((folder / "runs" / "point" / "evaluation.json").read_text())
    assert [each["policy"] for each in report["policies"]] == ["random", "DQN"]
    assert {path.suffix for path in (folder / "runs" / "point").iterdir()} >= {".png", ".gif"}
