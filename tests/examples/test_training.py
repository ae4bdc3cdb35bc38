"""The examples that train.

Each learns, says on which device, and goes on with what it wrote.
"""

from __future__ import annotations

import math
import re
from functools import partial
from pathlib import Path

import pytest
import torch

from examples import packing_from_pixels
from tests.demonstrations import row_files
from tests.examples.running import EXAMPLES, printed
from torchrl_gpu import envs
from torchrl_gpu.envs import MarineNavEnv
from torchrl_gpu.training import Episodes, OffPolicy

CPU = ("--device", "cpu")


def test_it_clones_writes_and_loads(tmp_path: Path) -> None:
    path, output = row_files.write_robomimic(tmp_path / "a.hdf5"), tmp_path / "bc.pt"
    words = ["--observations", "state", "hand", "--updates", "20", "--output", str(output)]
    said = printed("train_bc.py", str(path), *words, *CPU)
    assert said.startswith("device: cpu\n")
    losses = [float(loss) for loss in re.findall(r"^update \d+: loss (\S+),", said, re.MULTILINE)]
    assert len(losses) == 10
    assert losses[-1] < losses[0]
    content = torch.load(output, weights_only=True)
    assert (content["obs_dim"], content["action_dim"]) == (6, 3)
    assert content["model_state_dict"]["action_mean"].abs().sum() > 0
    assert "bc.pt: 6 numbers in, 3 out" in printed("train_bc.py", "--check", str(output), *CPU)


def test_maskable_ppo_learns_writes_and_packs(tmp_path: Path) -> None:
    pytest.importorskip("sb3_contrib")
    path = tmp_path / "packer.zip"
    words = ["--num_envs", "8", "--rollout", "16", "--steps", "256", "--output", str(path)]
    said = printed("train_maskable_ppo.py", *CPU, *words)
    assert said.startswith("Device: cpu\n")
    assert re.search(r"total_timesteps +\| 256 ", said)
    full = re.search(r"^(\d+) unseen bins: ([\d.]+)% full$", said, re.MULTILINE)
    assert full
    assert int(full[1]) >= 8
    assert 10 < float(full[2]) < 100
    assert path.stat().st_size > 10_000


def test_rsl_rl_learns_writes_and_goes_on(tmp_path: Path) -> None:
    pytest.importorskip("rsl_rl")
    words = [*CPU, "--num_envs", "8", "--log_dir", str(tmp_path), "--iterations"]
    said = printed("train_rsl_rl.py", *words, "2")
    assert said.startswith("Device: cpu\n")
    assert "/profit" in said
    files = sorted(tmp_path.glob("model_*.pt"))
    assert files
    assert torch.load(files[-1], weights_only=True)["iter"] == 1
    again = printed("train_rsl_rl.py", *words, "1", "--checkpoint", str(files[-1]))
    assert re.search(r"teration 1/2", again)


def test_the_plain_loop_runs_from_the_first_reset_to_the_last_figure(monkeypatch: pytest.MonkeyPatch) -> None:
    short = {"max_steps": 40}
    monkeypatch.setattr(envs, "MarineNavEnv", lambda _, **sea: MarineNavEnv(16, **sea | short))
    said = printed("plain_loop.py", "--updates", "10", "--worlds", "1", *CPU)
    rates = dict(re.findall(r"^(untrained|trained|careful): (\d+)%", said, re.MULTILINE))
    assert set(rates) == {"untrained", "trained", "careful"}
    assert all(0 <= int(rate) <= 100 for rate in rates.values())
    told = re.findall(r"^update (\d+): loss (\S+)$", said, re.MULTILINE)
    assert [int(update) for update, _ in told] == list(range(1, 11))
    losses = [float(loss) for _, loss in told]
    assert all(math.isfinite(loss) for loss in losses)
    assert len(set(losses)) > 1
    lines = (EXAMPLES / "plain_loop.py").read_text(encoding="utf-8").split("def main")[1].splitlines()
    assert len([line for line in lines if line.strip()]) <= 50, "it fits on a screen"


def test_the_picture_of_a_bin_tells_bin_and_box() -> None:
    env = packing_from_pixels.SeenBins(2, device="cpu", seed=0)
    env.reset()
    heights = torch.zeros(2, 10, 10)
    heights[0, 2, 3] = 4
    env.state.heightmap = heights
    sides = env.sizes_of(env.state.item_id)[:, 0, 0]
    red, green, blue = env.pictures([0, 1], 10, 10).long().unbind(-1)
    assert torch.equal(red, (heights / 10 * 255).long())
    for row in range(2):
        x, y, z = sides[row, :3].round().int().tolist()
        assert (green[row, :x, :y] == 255).all()
        assert green[row].count_nonzero() == x * y
        assert blue[row, 0, 0] == int(z / 10 * 255)


def test_it_packs_from_pixels_and_says_how_full_the_bins_are(
    capfd: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The example writes its report here.
    monkeypatch.chdir(tmp_path)
    few = {"num_val_episodes": 2, "num_episodes": 2}
    monkeypatch.setattr(packing_from_pixels, "Episodes", lambda **options: Episodes(**options | few))
    monkeypatch.setattr(packing_from_pixels, "OffPolicy", partial(OffPolicy, warmup_frames=256))
    packing_from_pixels.main(["--updates", "2", "--num_envs", "8"])
    assert "utilization" in capfd.readouterr().out
