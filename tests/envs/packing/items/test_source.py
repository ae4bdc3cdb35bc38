"""Sources by name, and streams of items: the same at any place, in any order."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from torchrl_gpu.envs.packing.items import (
    BoxSequences,
    CutBoxes,
    OrderBoxes,
    ProceduralSolids,
    RandomBoxes,
    item_source,
)
from torchrl_gpu.envs.packing.items.orders import OrderSequences
from torchrl_gpu.envs.packing.items.source import EndlessSequences, PooledSequences, SortedSequences

SEQUENCES = torch.tensor([[0, 1, 2], [3, 4, -1], [5, -1, -1]])


def zeros(n: int) -> torch.Tensor:
    return torch.zeros(n, dtype=torch.int64)


def test_a_pool_ends_where_its_sequences_do() -> None:
    stream = PooledSequences(SEQUENCES)
    items = stream.items(torch.tensor([0, 1, 2]), torch.arange(5).expand(3, -1))
    assert items.tolist() == [[0, 1, 2, -1, -1], [3, 4, -1, -1, -1], [5, -1, -1, -1, -1]]
    assert stream.length == 3


def test_in_order_each_environment_takes_every_so_manieth_sequence() -> None:
    # 2 environments over 3 sequences: 0, 2, 4 = 1, … and 1, 3 = 0, 5 = 2, …
    stream = PooledSequences(SEQUENCES, in_order=True, stride=2)
    env = torch.arange(2)
    keys = [stream.begin(0, env, zeros(2) + episode).tolist() for episode in range(3)]
    assert keys == [[0, 1], [2, 0], [1, 2]]


def test_draws_from_a_pool_are_spread_and_reproducible() -> None:
    stream = PooledSequences(torch.arange(10)[:, None])
    env = torch.arange(5000)
    drawn = stream.begin(7, env, zeros(5000))
    counts = drawn.bincount(minlength=10)
    assert (counts > 400).all()
    assert (counts < 600).all()
    assert torch.equal(drawn, stream.begin(7, env, zeros(5000)))
    assert not torch.equal(drawn, stream.begin(8, env, zeros(5000)))
    assert not torch.equal(drawn, stream.begin(7, env, zeros(5000) + 1))


def test_an_item_does_not_depend_on_those_asked_for_beside_it() -> None:
    pool = PooledSequences(torch.randint(64, (20, 50)))
    for stream in (EndlessSequences(64, 50), pool, OrderSequences(64, 6, 0.7, 50)):
        key = stream.begin(1, torch.arange(8), zeros(8))
        together = stream.items(key, torch.arange(50).expand(8, -1))
        for n, place in ((0, 0), (7, 49), (3, 17)):
            assert stream.items(key[n : n + 1], torch.tensor([[place]])) == together[n, place]


def test_streams_move(device: torch.device) -> None:
    for stream in (EndlessSequences(64, 50), PooledSequences(SEQUENCES, True, 2), OrderSequences(64, 6, 0.7, 50)):
        there = stream.to(device)
        env = torch.arange(3, device=device)
        items = there.items(there.begin(0, env, torch.zeros_like(env)), env.expand(3, -1))
        assert items.device.type == device.type
        here = stream.items(stream.begin(0, torch.arange(3), zeros(3)), torch.arange(3).expand(3, -1))
        assert torch.equal(items.cpu(), here)


def test_a_sorted_stream_gives_the_same_episodes_from_large_to_small() -> None:
    volume = torch.rand(64, generator=torch.Generator().manual_seed(0))
    plain = EndlessSequences(64, 9)
    ordered = SortedSequences(plain, volume)
    key = ordered.begin(3, torch.arange(5), zeros(5))
    whole = torch.arange(9).expand(5, -1)
    items = ordered.items(key, whole)
    assert torch.equal(items.sort(1).values, plain.items(key, whole).sort(1).values)
    assert (volume[items].diff(dim=1) <= 0).all()
    assert torch.equal(ordered.items(key, whole[:, 4:6]), items[:, 4:6])
    assert ordered.items(key, torch.full((5, 1), 9)).eq(-1).all()
    assert not torch.equal(items, ordered.items(ordered.begin(4, torch.arange(5), zeros(5)), whole))
    # By hand, 5 m³ twice, the earlier first; the end stays the end.
    pool = SortedSequences(PooledSequences(torch.tensor([[0, 3, 1, 2], [2, 0, -1, -1]])), torch.tensor([1.0, 5, 3, 5]))
    assert pool.items(torch.arange(2), torch.arange(4).expand(2, -1)).tolist() == [[3, 1, 2, 0], [2, 0, -1, -1]]


# -- words and paths --------------------------------------------------------------------------------------------------


def test_words_name_sources() -> None:
    words = {"random": RandomBoxes, "cut": CutBoxes, "orders": OrderBoxes, "procedural": ProceduralSolids}
    assert {word: type(item_source(word)) for word in words} == words


def test_a_source_is_itself_and_anything_else_a_path(tmp_path: Path) -> None:
    source = RandomBoxes()
    assert item_source(source) is source
    np.save(tmp_path / "boxes.npy", np.ones((1, 1, 3), dtype=int))
    assert isinstance(item_source(str(tmp_path / "boxes.npy")), BoxSequences)
    with pytest.raises(FileNotFoundError, match=r"^BoxSequences: randon: "):
        item_source("randon")
    with pytest.raises(ValueError, match=r"^item_source: .* 3$"):
        item_source(3)  # type: ignore[arg-type]
