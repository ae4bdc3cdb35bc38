"""Heightmaps in replay: what goes in comes out, in as few bytes as that takes."""

from __future__ import annotations

import pytest
import torch
from tensordict import TensorDict

from tests.policies.packing.packer_scenes import boxes_env, random_states, solids_env
from torchrl_gpu.envs import PackingEnv
from torchrl_gpu.training.replay.codecs import HeightmapCodec

# Cells of a centimetre: 16 and 253 counts in a byte, 300 and 30 000 in 16 bits, 40 000 in none.
DTYPES = {0.16: torch.uint8, 2.53: torch.uint8, 2.54: torch.int16, 3.0: torch.int16, 300.0: torch.int16}


def env_of(height: float) -> PackingEnv:
    return solids_env(1, bin_size=(0.2, 0.2, height))


def transitions(heightmap: torch.Tensor, following: torch.Tensor | None = None) -> TensorDict:
    """Some transitions; without `following` the state after them is not kept."""
    after = {"reward": torch.zeros(len(heightmap), 1)} | ({} if following is None else {"box_heightmap": following})
    return TensorDict({"box_heightmap": heightmap, "next": after}, batch_size=[len(heightmap)])


@pytest.mark.parametrize(("height", "dtype"), DTYPES.items())
def test_every_count_up_to_the_bins_height_comes_back(height: float, dtype: torch.dtype) -> None:
    store = HeightmapCodec(env_of(height))
    counts = torch.arange(round(height / 0.01) + 1)
    heightmap = counts.float() * 0.01
    packed = store.packed(transitions(heightmap[:, None, None], heightmap.flip(0)[:, None, None]))
    assert packed["box_heightmap"].dtype == packed["next", "box_heightmap"].dtype == dtype
    assert torch.equal(packed["box_heightmap"].long().flatten(), counts)
    back = store.unpacked(packed)
    assert back["box_heightmap"].dtype == torch.float32
    assert torch.equal(back["box_heightmap"].flatten(), heightmap)
    assert torch.equal(back["next", "box_heightmap"].flatten(), heightmap.flip(0))


@pytest.mark.parametrize(
    "env", [env_of(400.0), boxes_env(1), solids_env(1, orientations=45.0)], ids=["high", "boxes", "45°"]
)
def test_other_heights_are_left_as_they_are(env: PackingEnv) -> None:
    store, heightmap = HeightmapCodec(env), torch.rand(3, 4, 4)
    packed = store.packed(transitions(heightmap.clone()))
    assert packed["box_heightmap"].dtype == torch.float32
    assert torch.equal(store.unpacked(packed)["box_heightmap"], heightmap)


def test_piles_of_the_environment_come_back_to_the_rounding_of_their_sums() -> None:
    env = solids_env()
    store = HeightmapCodec(env)
    for steps in (1, 4, 7):
        heightmap = random_states(env, steps)["box_heightmap"]
        back = store.unpacked(store.packed(transitions(heightmap)))
        assert (back["box_heightmap"] - heightmap).abs().max() < 1e-6
        again = store.unpacked(store.packed(back.clone()))  # a second time loses nothing
        assert torch.equal(again["box_heightmap"], back["box_heightmap"])


def test_the_state_after_may_be_left_out_and_all_else_is_untouched() -> None:
    store, heightmap = HeightmapCodec(env_of(0.16)), torch.zeros(2, 3, 3)
    given = transitions(heightmap)
    kept = given["box_heightmap"]
    packed = store.packed(given)
    assert set(packed["next"].keys()) == {"reward"}
    assert packed["next", "reward"].dtype == torch.float32
    assert kept.dtype == torch.float32  # others that hold the heightmap keep it
