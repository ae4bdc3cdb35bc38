"""The example that packs from pictures: what it draws, and that it runs."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from examples.packing_from_pixels import SeenBins, main


def test_the_picture_tells_bin_and_box() -> None:
    env = SeenBins(2, device="cpu", seed=0)
    env.reset()
    heights = torch.zeros(2, 10, 10)
    heights[0, 2, 3] = 4
    env._state.heightmap = heights
    sides = env._sizes_of(env.state.item_id)[:, 0, 0]
    red, green, blue = env.pictures([0, 1], 10, 10).long().unbind(-1)
    assert torch.equal(red, (heights / 10 * 255).long())
    for row in range(2):
        x, y, z = (round(side) for side in sides[row, :3].tolist())
        assert (green[row, :x, :y] == 255).all()
        assert green[row].count_nonzero() == x * y
        assert blue[row, 0, 0] == int(z / 10 * 255)


def test_it_trains_and_says_how_full_the_bins_are(
    capfd: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)  # where its report goes
    main(["--updates", "2", "--num_envs", "8"])
    assert "utilization" in capfd.readouterr().out
