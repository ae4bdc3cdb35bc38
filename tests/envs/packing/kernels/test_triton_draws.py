"""Random numbers by counter in Triton: the numbers of torch, and checked accesses.

They run in the process that `test_triton.py` starts.
"""

from __future__ import annotations

import os

import pytest
import torch
from torch import Tensor

if os.environ.get("TRITON_INTERPRET") != "1":
    pytest.skip("checks interpreted kernels, in the process of test_triton.py", allow_module_level=True)

from tests.envs.packing.kernels.access_checker import AccessChecker
from torchrl_gpu.envs import counter_rng, triton_draws
from torchrl_gpu.envs.counter_rng import bits_in_torch, draw_bits, draw_integers, draw_uniform, episode_key
from torchrl_gpu.envs.packing.items.source import EndlessSequences

EXTREMES = torch.tensor([0, 1, -1, 2**31 - 1, 2**31, 2**32 - 1, 2**32, -(2**31), 2**63 - 1, -(2**63)])
MATRIX = torch.arange(24).view(2, 3, 4).mT
FOUR_AXES = torch.arange(6).view(1, 3, 1, 2)
PAIRS: dict[str, tuple[torch.Tensor, torch.Tensor]] = {}
PAIRS["numbers"] = (torch.tensor(3), torch.tensor(-8))
PAIRS["vectors"] = (EXTREMES, EXTREMES.flip(0))
PAIRS["a table"] = (EXTREMES[:, None], EXTREMES)
PAIRS["every third"] = (EXTREMES[::3], torch.tensor(2**32 - 1))
PAIRS["expanded"] = (torch.tensor(9), EXTREMES[::2].view(5, 1).expand(5, 3))
PAIRS["transposed"] = (MATRIX, torch.arange(3))
PAIRS["four axes"] = (FOUR_AXES, torch.arange(10).view(5, 1, 2, 1))
PAIRS["none"] = (torch.zeros(0, 3, dtype=torch.int64), torch.arange(3))
PAIRS["two programs"] = (torch.arange(300), torch.arange(300).flip(0))
every_pair = pytest.mark.parametrize("pair", list(PAIRS))


@pytest.fixture
def in_triton(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every draw that the kernel covers is the kernel's."""

    def kernels(key: Tensor, counter: Tensor) -> object:
        return triton_draws if triton_draws.covers(key, counter) else None

    monkeypatch.setattr(counter_rng, "_kernels", kernels)
    monkeypatch.setattr(counter_rng.native, "runs_on", lambda tensor: False)


@every_pair
def test_bits_are_those_of_torch(pair: str, in_triton: None) -> None:
    key, counter = PAIRS[pair]
    drawn = draw_bits(key, counter)
    assert torch.equal(drawn, bits_in_torch(key, counter))
    assert drawn.is_contiguous()


@every_pair
@pytest.mark.parametrize("high", [1, 7, 2**31 - 1, 2**31])
def test_integers_are_those_of_torch_and_end_where_they_should(pair: str, high: int, in_triton: None) -> None:
    key, counter = PAIRS[pair]
    wanted = bits_in_torch(key, counter) * high >> 32
    assert torch.equal(draw_integers(key, counter, high), wanted)
    assert torch.equal(draw_integers(key, counter, high, end=2), torch.where(counter < 2, wanted, -1))


@every_pair
def test_uniform_numbers_are_those_of_torch_to_the_bit(pair: str, in_triton: None) -> None:
    key, counter = PAIRS[pair]
    wanted = (bits_in_torch(key, counter) >> 8).float() * 2.0**-24
    drawn = draw_uniform(key, counter)
    assert drawn.dtype == torch.float32
    assert torch.equal(drawn, wanted)


@pytest.mark.parametrize("seed", [0, 7, 2**31 - 1, 2**31, 2**32 - 1, 2**40 + 3, -5])
def test_keys_of_episodes_are_those_of_torch(seed: int, in_triton: None, monkeypatch: pytest.MonkeyPatch) -> None:
    env, episode = torch.arange(9), torch.arange(9) * 1000
    drawn = episode_key(seed, env, episode)
    monkeypatch.setattr(counter_rng, "_kernels", lambda key, counter: None)
    assert torch.equal(drawn, episode_key(seed, env, episode))


def test_items_of_a_stream_take_one_launch_and_keys_another(in_triton: None) -> None:
    stream, env = EndlessSequences(num_types=64, length=3), torch.arange(5)
    with AccessChecker() as checker:
        items = stream.items(stream.begin(4, env, env), torch.arange(4).expand(5, -1))
    assert len(checker.launches) == 2
    assert (items[:, 3] == -1).all()
    assert (items[:, :3] >= 0).all()


def test_what_the_kernel_does_not_cover_is_drawn_in_torch(in_triton: None) -> None:
    five_axes = torch.arange(4).view(1, 2, 1, 2, 1)
    assert torch.equal(draw_bits(five_axes, torch.arange(2)), bits_in_torch(five_axes, torch.arange(2)))
    short = torch.arange(5, dtype=torch.int32)
    assert torch.equal(draw_bits(short.long(), short), bits_in_torch(short.long(), short))


@pytest.mark.parametrize("kind", ["bits", "uniform", "integers", "until", "episode"])
def test_no_draw_accesses_what_is_outside_its_tensor(kind: str) -> None:
    with AccessChecker() as checker:
        triton_draws.draw(kind, torch.arange(7)[:, None], torch.arange(41)[1::2], seed=3, high=9, end=5)
    assert not checker.faults, checker.describe()
    assert [launch.kernel for launch in checker.launches] == ["draw_kernel"]


def test_draws_are_tried_before_they_are_used(monkeypatch: pytest.MonkeyPatch) -> None:
    assert triton_draws.self_test("cpu") == ""
    right = triton_draws.draw
    monkeypatch.setattr(triton_draws, "draw", lambda kind, *given, **more: right(kind, *given, **more) + 1)
    assert "bits drawn for (7,) keys" in triton_draws.self_test("cpu")
