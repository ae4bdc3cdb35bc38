"""Boxes that are cut when they are asked for.

They are packings of the whole bin, by the law of the pool, decided by the key alone.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from tests.no_host_reads import NoHostReads
from torchrl_gpu import native
from torchrl_gpu.envs import PackingEnv
from torchrl_gpu.envs.counter_rng import draw_bits
from torchrl_gpu.envs.packing.items import CutBoxes
from torchrl_gpu.envs.packing.items.cutting import CutSequences, most_cuts, most_parts
from torchrl_gpu.envs.packing.types import Bin

BPP10 = Bin((10.0, 10.0, 10.0), (10, 10))
BINS = [((10, 10, 10), 2, 5), ((5, 4, 6), 1, 3), ((6, 5, 7), 1, 3), ((12, 9, 4), 2, 5)]
BINS += [((9, 10, 11), 3, 5), ((2, 3, 4), 1, 1), ((4, 4, 4), 2, 5)]
compiled = pytest.mark.skipif(bool(native.problem()), reason="the compiled operators do not run here")


def sequences(whole: tuple[int, int, int] = (10, 10, 10), low: int = 2, high: int = 5, layers: bool = False) -> Any:
    return CutSequences(whole, low, high, layers, 100)


def keys(number: int, seed: int = 0) -> Tensor:
    return torch.randint(2**32, (number,), generator=torch.Generator().manual_seed(seed))


def test_into_how_many_parts_a_side_may_be_cut() -> None:
    sides = {(5, 2, 5): (1, 0), (10, 2, 5): (4, 3), (4, 1, 1): (4, 3), (1500, 200, 600): (6, 5)}
    # 10 = 2 + 8, 8 = 2 + 6, 6 = 2 + 4: four parts by three cuts in a row. 1,500 = 200 + 1,300, … , 200 + 700, 200 +
    # 500.
    assert {side: (most_parts(*side), most_cuts(*side)) for side in sides} == sides
    # Twos, and a four, which stays whole. No stack is needed for so many.
    assert most_parts(4096, 2, 5) == 2047


# Corner and size of each piece.
Episode = list[tuple[tuple[int, int, int], tuple[int, int, int]]]


def listed_pieces(made: CutSequences, key: Tensor) -> list[Episode]:
    found = made.cut(key)
    rows = zip(found[0].tolist(), found[1].tolist(), found[2].tolist(), strict=True)
    return [list(zip(corners[:n], sizes[:n], strict=True)) for corners, sizes, n in rows]


@pytest.mark.parametrize("pooled", [True, False])
@pytest.mark.parametrize("layers", [True, False])
@pytest.mark.parametrize(("whole", "low", "high"), BINS)
def test_pieces_tile_the_bin_and_stand_on_those_before(
    whole: tuple[int, int, int], low: int, high: int, layers: bool, pooled: bool
) -> None:
    if pooled:
        # Cells of half a metre.
        bin_ = Bin((whole[0] / 2, whole[1] / 2, whole[2] / 2), whole[:2])
        episodes = CutBoxes(low, high, "layers" if layers else "stack", pool=5).cut(bin_)
    else:
        episodes = listed_pieces(sequences(whole, low, high, layers), keys(20))
    for episode in episodes:
        heights, bases = np.zeros(whole[:2], dtype=int), []
        for (x, y, z), (p, q, h) in episode:
            under = heights[x : x + p, y : y + q]
            assert low <= min(p, q, h)
            assert max(p, q, h) <= high
            assert under.shape == (p, q)
            assert (under == z).all()
            under += h
            bases.append(z)
        assert (heights == whole[2]).all()
        assert not layers or bases == sorted(bases)


@compiled
@pytest.mark.parametrize("layers", [True, False])
@pytest.mark.parametrize(("whole", "low", "high"), BINS)
def test_compiled_and_torch_cut_alike(whole: tuple[int, int, int], low: int, high: int, layers: bool) -> None:
    made, key = sequences(whole, low, high, layers), keys(300)
    corner, rows = native.cut_boxes(key, made.numbers)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(native, "runs_on", lambda tensor: False)
        assert rows.equal(made.rows(key))
        assert corner.equal(made.cut(key).corner)


def listed(made: CutSequences, key: int) -> tuple[list[list[int]], int]:
    """Cut layers by a plain list.

    Returns (corner, size) of each piece in order, and the number of steps.
    """
    draws = draw_bits(torch.tensor(key), torch.arange(2 * made.steps)).tolist()
    waiting = [[0, 0, 0, *made.whole]]
    finished = []
    at = 0
    steps = 0
    if max(made.whole) <= made.max_side:
        waiting, finished = [], waiting
    pieces = 1
    while waiting:
        box = waiting[at]
        axes = [axis for axis in range(3) if box[3 + axis] > made.max_side]
        axis = axes[draws[2 * steps] * len(axes) // 2**32]
        side = box[3 + axis]
        lengths = range(1, side + 1)
        if made.steps - steps <= made.most_pieces - pieces:
            lengths = range(made.min_side, side - made.min_side + 1)
        length = lengths[draws[2 * steps + 1] * len(lengths) // 2**32]
        steps += 1
        if length >= made.min_side and side - length >= made.min_side:
            waiting.remove(box)
            pieces += 1
            first, second = list(box), list(box)
            first[3 + axis] = side - length if axis == 2 else length
            second[3 + axis] = side - first[3 + axis]
            second[axis] += first[3 + axis]
            for part in (first, second):
                (waiting if max(part[3:]) > made.max_side else finished).append(part)
        at = at + 1 if at + 1 < len(waiting) else 0
    return sorted(finished, key=lambda piece: piece[2]), steps


@pytest.mark.parametrize(("whole", "low", "high"), BINS)
def test_layers_are_those_of_a_plain_list(whole: tuple[int, int, int], low: int, high: int) -> None:
    made, key = sequences(whole, low, high, layers=True), keys(200)
    cut = made.cut(key)
    found = torch.cat([cut.corner, cut.size], 2).tolist()
    for each, pieces, number in zip(key.tolist(), found, cut.number.tolist(), strict=True):
        assert pieces[:number] == listed(made, each)[0]


def test_steps_that_run_out_are_told_apart_from_those_that_do_not() -> None:
    # Six cubes need five cuts, each of which is made at once by one length in two or two in three: with a step for each
    # cut lengths are drawn only from those that can be cut, with 28 steps almost never.
    made, key = sequences((2, 1, 3), 1, 1, layers=True), keys(200)
    assert made.steps == 28
    assert max(listed(made, each)[1] for each in key.tolist()) > 6
    made.__dict__["steps"] = 5
    assert {listed(made, each)[1] for each in key.tolist()} == {5}
    cut = made.cut(key)
    assert cut.number.eq(6).all()
    for each, corner in zip(key.tolist(), cut.corner.tolist(), strict=True):
        assert corner == [piece[:3] for piece in listed(made, each)[0]]
    if not native.problem():
        assert native.cut_boxes(key, made.numbers)[0].equal(cut.corner)


def test_rows_are_places_among_the_sizes() -> None:
    made, key = sequences((10, 4, 10)), keys(5)
    sizes = torch.tensor(made.sizes())
    cut, rows = made.cut(key), made.rows(key)
    assert sizes.amax(0).tolist() == [5, 4, 5]
    assert sizes[rows.clamp_min(0)][rows >= 0].equal(cut.size[rows >= 0])
    assert (rows >= 0).sum(1).equal(cut.number)


@pytest.mark.parametrize("layers", [True, False])
def test_chunks_do_not_change_what_is_cut(layers: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(native, "runs_on", lambda tensor: False)
    made, key = sequences(layers=layers), keys(7)
    wanted = made.rows(key)
    monkeypatch.setattr("torchrl_gpu.envs.packing.items.cutting._CHUNK", {"cpu": 1})
    assert made.rows(key).equal(wanted)


# -- the law -----------------------------------------------------------------------------------------------------------


def within(ours: Tensor, theirs: Tensor, errors: float = 4.5) -> bool:
    """Check that the means of two samples (E, …) agree within some standard errors."""
    ours, theirs = ours.double(), theirs.double()
    error = (ours.var(0) / len(ours) + theirs.var(0) / len(theirs)).sqrt()
    return bool(((ours.mean(0) - theirs.mean(0)).abs() <= errors * error + 1e-9).all())


@pytest.mark.parametrize("order", ["layers", "stack"])
def test_same_law_as_the_pool(order: str) -> None:
    number, most = 1500, 64
    drawn = CutBoxes(2, 5, order, pool=number, seed=3).cut(BPP10)
    theirs = torch.zeros(number, most, 6, dtype=torch.int64)
    for row, episode in zip(theirs, drawn, strict=True):
        row[: len(episode)] = torch.tensor([[*corner, *size] for corner, size in episode])
    cut = sequences(layers=order == "layers").cut(keys(8000))
    ours = torch.cat([cut.corner, cut.size], 2)
    assert within(cut.number[:, None], (theirs[..., 3] > 0).sum(1, keepdim=True))
    sides = [(each[..., 3:, None] == torch.arange(2, 6)).float().mean((1,)).flatten(1) for each in (ours, theirs)]
    # How often each side occurs along each axis.
    assert within(*sides)
    places = torch.tensor([16, 4, 1])
    # They are below 0 behind the last piece.
    rows = [((each[..., 3:] - 2) * places).sum(2) for each in (ours, theirs)]
    # How often each size occurs.
    assert within(*((each[:, :, None] == torch.arange(64)).float().mean(1) for each in rows))
    # No episode is shorter.
    early = [each[:, :18].float().flatten(1) for each in (ours, theirs)]
    # Corners and sizes by place in the sequence.
    assert within(*early)
    assert within(*(each.pow(2) for each in early))


def test_every_box_that_could_be_next_is_equally_likely() -> None:
    # Two stacks of three cubes. By equal chances the first three come from one stack with 2 · (1/2)³ = 1/4; were all
    # whole orders equally likely, with 2/20. 20,000 sequences: standard deviation √(0.25 · 0.75 / 20,000) = 0.003.
    corner, _, _ = sequences((2, 1, 3), 1, 1).cut(keys(20000))
    first = corner[:, :3, 0].sum(1)
    assert abs(((first == 0) | (first == 3)).double().mean() - 0.25) < 0.012


def test_boxes_of_a_layer_come_as_they_were_finished() -> None:
    # A slab of 2×1×2 cells is cut into cubes. Cut along z first, its rows give their left cubes first. Cut along x
    # first, the left column leads the list but is passed over, and the right one is at hand: it is cut with chance
    # 1/2, else the left one is with 1/2, and so on, so that the right one comes first with 2/3. Left ones lead with
    # 1/2 + 1/2 · 1/3 = 2/3, in both layers or in none.
    corner, _, _ = sequences((2, 1, 2), 1, 1, layers=True).cut(keys(20000))
    assert abs((corner[:, 0, 0] == 0).double().mean() - 2 / 3) < 0.015
    assert corner[:, 0, 0].equal(corner[:, 2, 0])


# -- keys, and what is kept --------------------------------------------------------------------------------------------


def test_the_key_alone_decides() -> None:
    made, key = sequences(), keys(9)
    rows = made.rows(key)
    position = torch.arange(3).expand(9, 3)
    assert made.items(key, position).equal(rows[:, :3])
    # Other keys are in the rows that are kept.
    assert made.items(key.flip(0), position).equal(rows.flip(0)[:, :3])
    assert made.items(key[:4], position[:4] + 64).eq(-1).all()
    assert sequences().rows(key[3:4]).equal(rows[3:4])
    assert len({tuple(each) for each in rows.tolist()}) == 9


@compiled
def test_what_is_kept_is_read_and_not_cut_again() -> None:
    made, key = sequences(), keys(2)
    position = torch.zeros(2, 1, dtype=torch.int64)
    wanted = [made.items(each, position) for each in (key, key + 1)]
    ((_, _, kept),) = made.recent
    kept += 100
    assert [made.items(each, position).tolist() for each in (key, key + 1)] == [
        (each + 100).tolist() for each in wanted
    ]
    # It takes the place of `key`, which was asked for before `key + 1`.
    made.items(key + 2, position)
    assert made.items(key + 1, position).equal(wanted[1] + 100)
    assert made.items(key, position).equal(wanted[0])


def test_episodes_depend_on_seed_and_environment_and_never_come_again() -> None:
    number, episode = torch.arange(3).repeat_interleave(50), torch.arange(50).repeat(3)
    rows = [sequences().rows(sequences().begin(seed, number, episode)) for seed in (0, 1)]
    assert len({tuple(each) for each in torch.cat(rows).tolist()}) == 300


def test_the_device_is_never_read() -> None:
    source = CutBoxes(2, 5, "stack", pool=None)
    env = PackingEnv(3, items=source, device="cpu", seed=0, include=(), backend="eager")
    state = env.reset()
    with NoHostReads():
        env.step_and_maybe_reset(state.set("action", state["action_mask"].int().argmax(1)))


@pytest.mark.parametrize(("order", "stability"), [("layers", "corners"), ("stack", "support")])
@pytest.mark.parametrize("pool", [8, None])
def test_the_known_packing_fills_the_bin(pool: int | None, order: str, stability: str) -> None:
    source = CutBoxes(order=order, pool=pool)
    env = PackingEnv(4, items=source, stability=stability, orientations="fixed", device="cpu", seed=3)
    state, total = env.reset(), torch.zeros(4, 1)
    made: Any = env.item_sequences
    episodes = [source.cut(env.bin)[int(row)] for row in env.state.key] if pool else listed_pieces(made, env.state.key)
    for turn in range(max(map(len, episodes))):
        action = torch.full((4,), -1)
        for n, episode in enumerate(episodes):
            if turn < len(episode):
                (x, y, z), size = episode[turn]
                assert env.catalogue.extent[state["item_id"][n, 0], 0].tolist() == list(size[:2])
                assert state["legal_mask"][n, 0, 0, x, y]
                assert state["z_map"][n, 0, 0, x, y] == z
                action[n] = x * 10 + y
        after = env.step(state.set("action", action))["next"]
        assert after["terminated"].flatten().tolist() == [turn >= len(episode) - 1 for episode in episodes]
        total += after["reward"]
        state = after.exclude("reward")
    assert torch.allclose(state["utilization"], torch.ones(4, 1))
    assert torch.allclose(total, torch.ones(4, 1))
    # Steps past the end leave the record of placements alone.
    for n, episode in enumerate(episodes):
        assert env.placements[n, : len(episode), 2:].tolist() == [list(corner[:2]) for corner, _ in episode]
        assert env.placement_z[n, : len(episode)].tolist() == [corner[2] for corner, _ in episode]


@pytest.mark.parametrize("pool", [8, None])
def test_pieces_beyond_the_episode_are_left_out(pool: int | None) -> None:
    env = PackingEnv(3, items=CutBoxes(pool=pool), num_items=6, device="cpu", seed=0, include=())
    env.reset()
    assert env.item_sequences.length == 6
    assert env.item_sequences.items(env.state.key, torch.tensor([[5, 6]]).expand(3, 2))[:, 1].tolist() == [-1] * 3


def test_without_a_pool_there_is_none_to_give() -> None:
    source = CutBoxes(pool=None)
    assert source.reseeded(3) is source
    with pytest.raises(ValueError, match=r"cut .*pool"):
        source.cut(BPP10)
    with pytest.raises(ValueError, match=r"bin .*1,024 boxes.*13,824"):
        source.build(Bin((50.0, 50.0, 50.0), (50, 50)), "fixed", 10, 1)
