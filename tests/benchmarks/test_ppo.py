"""The benchmark of PPO, in small.

Its checks tell what differs, and both sides are measured in turn.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

pytest.importorskip("rsl_rl")

from benchmarks import ppo
from torchrl_gpu.envs import BatchedEnv, DishwashingEnv


def sink(num_envs: int) -> BatchedEnv:
    return DishwashingEnv(num_envs, observe_as="state", max_steps=20, device="cpu", seed=0)


def test_another_adapter_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    step = ppo.RslRlVecEnv.step

    def off(self: ppo.RslRlVecEnv, actions: torch.Tensor) -> object:
        seen, reward, *rest = step(self, actions)
        return seen, reward + 1e-3, *rest

    monkeypatch.setattr(ppo.RslRlVecEnv, "step", off)
    with pytest.raises(ValueError, match=r"rewards, .* adapter"):
        ppo.check_adapter(sink)


def test_other_learning_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    advantage = ppo.generalized_advantage
    monkeypatch.setattr(ppo, "generalized_advantage", lambda *args, lam, **more: advantage(*args, lam=0.5, **more))
    with pytest.raises(ValueError, match=r"advantages .*rsl_rl"):
        ppo.check_learning(sink, [8])


@pytest.mark.filterwarnings("ignore:You defined a `validation_step` but have no")
def test_it_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(ppo, "ENVS", {"sink": sink})
    measure = ppo.measure
    # A compiler would take a minute.
    monkeypatch.setattr(ppo, "measure", lambda *args: measure(*args[:-1], compiled=False))
    path, threads = tmp_path / "ppo.json", torch.get_num_threads()
    try:
        ppo.main(["--envs", "4", "--hidden", "8", "--turns", "2", "--output", str(path)])
    finally:
        torch.set_num_threads(threads)
    (section,) = json.loads(path.read_text(encoding="utf-8"))["sections"]
    (row,) = section["rows"]
    assert (row["env"], row["num_envs"], row["hidden"]) == ("sink", 4, [8])
    assert row["ratio"] == pytest.approx(row["ours"] / row["rsl_rl"], abs=0.02)
    assert f"| sink | 4 | {row['ours']:,} | {row['compiled']:,} | {row['rsl_rl']:,} |" in capsys.readouterr().out
