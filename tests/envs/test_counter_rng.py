"""Numbers by counter: uniform, and each one by itself."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from tests.native.compilers import need_compiler
from torchrl_gpu import native
from torchrl_gpu.envs.counter_rng import draw_bits, draw_integers, draw_uniform, episode_key, mix, seed_bits
from torchrl_gpu.envs.packing.items.source import EndlessSequences


def assert_uniform(drawn: Tensor, high: int) -> None:
    """Chi-square of the counts over [0, high).

    It must be within five standard deviations √(2·df) of its mean, df = high − 1.
    """
    assert drawn.min() >= 0
    assert drawn.max() < high
    expected = drawn.numel() / high
    chi_square = ((drawn.flatten().bincount(minlength=high) - expected) ** 2 / expected).sum()
    freedom = high - 1
    assert abs(chi_square - freedom) < 5 * (2 * freedom) ** 0.5


@pytest.mark.parametrize("high", [2, 6, 64, 125, 1000])
def test_integers_are_uniform_along_a_stream_and_across_streams(high: int) -> None:
    many, few = torch.arange(100_000), torch.tensor([5])
    assert_uniform(draw_integers(few, many, high), high)
    assert_uniform(draw_integers(many, few, high), high)


def test_neighbouring_draws_are_independent() -> None:
    # Pairs of neighbours, in the stream and across streams, are uniform over the 16×16 pairs.
    drawn = draw_integers(torch.arange(300)[:, None], torch.arange(400), 16)
    assert_uniform(drawn[:, 1:] * 16 + drawn[:, :-1], 256)
    assert_uniform(drawn[1:] * 16 + drawn[:-1], 256)


def test_every_bit_is_fair() -> None:
    bits = draw_bits(torch.tensor(3), torch.arange(100_000))
    share = (bits[:, None] >> torch.arange(32) & 1).double().mean(0)
    # Five standard deviations.
    assert ((share - 0.5).abs() < 5 * 0.5 / 100_000**0.5).all()


def test_mix_is_what_unbounded_integers_give() -> None:
    def scalar(x: int) -> int:
        x = ((x ^ x >> 16) * 0x7FEB352D) % 2**32
        x = ((x ^ x >> 15) * 0x846CA68B) % 2**32
        return x ^ x >> 16

    values = [0, 1, 2, 12345, 2**31, 2**32 - 1]
    assert mix(torch.tensor(values)).tolist() == [scalar(v) for v in values]
    # The low 32 bits count.
    assert mix(torch.tensor([-1, 2**32 + 7])).tolist() == [scalar(2**32 - 1), scalar(7)]


EXTREMES = torch.tensor([0, 1, -1, 2**31 - 1, 2**31, 2**32 - 1, 2**32, -(2**31), 2**63 - 1, -(2**63)])


@pytest.mark.parametrize(
    ("key", "counter"),
    [
        (torch.tensor(3), torch.tensor(-8)),
        (EXTREMES, EXTREMES.flip(0)),
        (EXTREMES[:, None], EXTREMES),
        (EXTREMES[::3], torch.tensor(2**32 - 1)),
        (torch.tensor(9), EXTREMES[::2].view(5, 1).expand(5, 3)),
        (torch.arange(24).view(2, 3, 4).mT, torch.arange(3)),
        (torch.zeros(0, 3, dtype=torch.int64), torch.arange(3)),
        tuple(torch.randint(-(2**63), 2**63 - 1, (2, 50_000), generator=torch.Generator().manual_seed(0))),
    ],
)
def test_compiled_draws_are_those_of_torch(key: Tensor, counter: Tensor, monkeypatch: pytest.MonkeyPatch) -> None:
    need_compiler()
    came = draw_bits(key, counter)
    monkeypatch.setattr(native, "runs_on", lambda tensor: False)
    expected = draw_bits(key, counter)
    assert came.dtype == expected.dtype
    assert torch.equal(came, expected)


@pytest.mark.gpu
def test_a_gpu_draws_the_numbers_of_a_cpu_under_compilation_and_in_graphs_too() -> None:
    def drawn(key: Tensor, counter: Tensor) -> list[Tensor]:
        bits, keys = draw_bits(key[:, None], counter), episode_key(2**40 + 7, key, counter)
        return [bits, keys, draw_integers(key, counter, 1000, end=30), draw_uniform(key[:, None], counter)]

    key, counter = torch.arange(3000) * 77_777, torch.arange(3000) - 20
    wanted, on_gpu = drawn(key, counter), (key.cuda(), counter.cuda())
    plain, compiled = drawn(*on_gpu), torch.compile(drawn, fullgraph=True)(*on_gpu)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        replayed = drawn(*on_gpu)
    graph.replay()
    for made in (plain, compiled, replayed):
        for ours, theirs in zip(made, wanted, strict=True):
            assert torch.equal(ours.cpu(), theirs)


def test_episode_keys_do_not_depend_on_how_many_environments_there_are() -> None:
    few, many = torch.arange(4), torch.arange(16)
    for episode in (0, 1, 1000):
        keys = [episode_key(9, env, torch.full_like(env, episode)) for env in (few, many)]
        assert torch.equal(keys[0], keys[1][:4])


def test_seeds_environments_and_episodes_all_make_a_difference() -> None:
    env, episode = torch.arange(100).repeat(100), torch.arange(100).repeat_interleave(100)
    keys = torch.cat([episode_key(seed, env, episode) for seed in (0, 1)])
    # 20,000 of 2³² keys: 0.05 chance collisions are to be expected.
    assert len(keys.unique()) > 0.9999 * len(keys)


def test_items_of_an_endless_stream_are_uniform_and_end_at_its_length() -> None:
    stream = EndlessSequences(num_types=64, length=90)
    env = torch.arange(2000)
    items = stream.items(stream.begin(0, env, torch.zeros_like(env)), torch.arange(100).expand(2000, -1))
    assert_uniform(items[:, :90], 64)
    assert (items[:, 90:] == -1).all()


@pytest.mark.parametrize("seed", [7, 2**32 - 1, 0])
def test_a_seed_of_32_bits_stands_for_itself_and_others_of_64_for_others(seed: int) -> None:
    env = torch.arange(5)
    assert seed_bits(seed) == seed
    others = [seed + 2**32, seed + 2**63 - 2**32, seed - 2**32, seed - 2**63]
    keys = {tuple(episode_key(each, env, torch.zeros_like(env)).tolist()) for each in (seed, *others)}
    assert len(keys) == 5
    assert all(0 <= seed_bits(each) < 2**32 for each in others)
