"""Small operators against their torch forms.

Some tests give them tensors of a wrong form.
"""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.envs.packing.scenes import LAW
from tests.native.compilers import need_compiler, threads
from torchrl_gpu import native
from torchrl_gpu.envs import counter_rng


@pytest.fixture(autouse=True, scope="module")
def compiler() -> None:
    need_compiler()


def bytes_as_bool(*values: int) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.uint8).view(torch.bool)


# -- any_true ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("length", [1, 7, 63, 64, 65, 127, 128, 130, 200])
def test_a_single_true_value_is_found_wherever_it_is(length: int) -> None:
    masks = torch.eye(length, dtype=torch.bool)
    assert native.any_true(masks).all()
    assert not native.any_true(~masks & False).any()


def test_any_byte_but_zero_is_true() -> None:
    values = torch.zeros(4, 130, dtype=torch.uint8)
    values[0, 3] = 2
    values[1, 129] = 128
    values[2, 70] = 255
    assert native.any_true(values.view(torch.bool)).tolist() == [True, True, True, False]


def test_rows_of_no_length_hold_nothing() -> None:
    assert native.any_true(torch.ones(3, 0, dtype=torch.bool)).tolist() == [False] * 3
    assert native.any_true(torch.ones(0, 5, dtype=torch.bool)).shape == (0,)
    assert native.any_true(torch.ones(0, 5, 0, dtype=torch.bool)).shape == (0,)


@pytest.mark.parametrize("wrong", [torch.ones(3, 4), torch.ones(3, 4).byte(), torch.tensor(True), [True]])
def test_any_true_refuses_what_is_no_mask(wrong: torch.Tensor) -> None:
    with pytest.raises(ValueError, match=r"^any_true: values must .*; got "):
        native.any_true(wrong)


# -- count_at_most -----------------------------------------------------------------------------------------------------


def test_counts_are_those_of_python() -> None:
    g = torch.Generator().manual_seed(0)
    values = torch.randint(-3, 4, (33, 101), generator=g).float()
    values[0, :3] = torch.tensor([math.nan, math.inf, -math.inf])
    # Any byte but zero is true.
    there = torch.randint(0, 3, (33, 101), generator=g).to(torch.uint8) * 100
    bounds = [-2.5, 0.0, 1.0, math.inf]
    for num in (1, 3):
        with threads(num):
            found = native.count_at_most(values, there.view(torch.bool), bounds).tolist()
        rows = zip(values.tolist(), there.tolist(), strict=True)
        for (of_row, is_there), counts in zip(rows, found, strict=True):
            shown = [value for value, there_too in zip(of_row, is_there, strict=True) if there_too]
            for bound, count in zip(bounds, counts, strict=True):
                assert count == sum(value <= bound for value in shown)
    assert (
        native.count_at_most(torch.zeros(2, 300), torch.ones(2, 300, dtype=torch.bool), [0.0]).tolist() == [[255]] * 2
    )
    assert native.count_at_most(torch.zeros(0, 3), torch.ones(0, 3, dtype=torch.bool), bounds).shape == (0, 4)
    with pytest.raises(ValueError, match="count_at_most: mask must"):
        native.count_at_most(values, there.view(torch.bool)[:, 1:], bounds)
    with pytest.raises(ValueError, match="count_at_most: values must"):
        native.count_at_most(values[0], there.view(torch.bool), bounds)


# -- pick_true ---------------------------------------------------------------------------------------------------------


@LAW
@given(st.integers(0, 2**32 - 1), st.integers(1, 90), st.floats(0, 1))
def test_the_entry_of_the_drawn_rank_is_picked(seed: int, length: int, share: float) -> None:
    generator = torch.Generator().manual_seed(seed)
    mask = torch.rand(5, length, generator=generator) < share
    draw = torch.rand(5, dtype=torch.float64, generator=generator)
    for row, number, picked in zip(mask, draw, native.pick_true(mask, draw), strict=True):
        true = row.nonzero().flatten().tolist()
        assert int(picked) == (true[math.floor(float(number) * len(true))] if true else 0)


@pytest.mark.parametrize("length", [5, 40])
def test_draws_outside_their_range_pick_the_nearest(length: int) -> None:
    mask = torch.zeros(9, length, dtype=torch.bool)
    mask[:, 1], mask[:, length - 2] = True, True
    wild = [-0.5, -1e300, -math.inf, math.nan, 0.0, 1.0, 2.5, 1e300, math.inf]
    picked = native.pick_true(mask, torch.tensor(wild, dtype=torch.float64))
    assert picked.tolist() == [1] * 5 + [length - 2] * 4


def test_odd_bytes_count_as_one() -> None:
    mask = bytes_as_bool(0, 2, 0, 255, 1).expand(3, 5)
    assert native.pick_true(mask, torch.tensor([0.0, 0.4, 0.9], dtype=torch.float64)).tolist() == [1, 3, 4]
    long = torch.zeros(64, dtype=torch.uint8)
    long[::3] = 200
    draw = torch.arange(22, dtype=torch.float64) / 22 + 1e-9
    assert native.pick_true(long.view(torch.bool).expand(22, 64), draw).tolist() == list(range(0, 64, 3))


def test_rows_of_no_length_give_zero() -> None:
    draw = torch.full((4,), 0.5, dtype=torch.float64)
    assert native.pick_true(torch.ones(4, 0, dtype=torch.bool), draw).tolist() == [0] * 4
    assert native.pick_true(torch.ones(0, 4, dtype=torch.bool), draw[:0]).shape == (0,)
    assert native.pick_true(torch.ones(2, 2, 3, dtype=torch.bool), draw.view(2, 2)).tolist() == [[1, 1], [1, 1]]


def test_threads_share_out_large_masks() -> None:
    mask = torch.rand(700, 300, generator=torch.Generator().manual_seed(0)) < 0.1
    draw = torch.rand(700, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    with threads(2):
        picked = native.pick_true(mask, draw)
    with threads(1):
        assert torch.equal(native.pick_true(mask, draw), picked)
    assert mask.gather(1, picked[:, None]).all()


@pytest.mark.parametrize(
    ("mask", "draw"),
    [
        (torch.ones(3, 4), torch.zeros(3).double()),
        (torch.ones(3, 4).byte(), torch.zeros(3).double()),
        (torch.ones(3, 4).bool(), torch.zeros(3)),
        (torch.ones(3, 4).bool(), torch.zeros(2).double()),
        (torch.ones(3, 4).bool(), torch.zeros(3, 1).double()),
        (torch.tensor(True), torch.zeros(()).double()),
        (torch.ones(3, 4).bool(), torch.zeros(3, device="meta").double()),
        (torch.ones(3, 4, device="meta").bool(), torch.zeros(3).double()),
    ],
)
def test_pick_true_refuses_what_it_cannot_read(mask: torch.Tensor, draw: torch.Tensor) -> None:
    with pytest.raises(ValueError, match=r"^pick_true: (mask|draw) must .*; got "):
        native.pick_true(mask, draw)


# -- first_best --------------------------------------------------------------------------------------------------------


@LAW
@given(st.integers(0, 2**32 - 1), st.integers(1, 90), st.integers(0, 3), st.floats(0, 1))
def test_the_legal_entry_with_the_least_scores_is_best(seed: int, length: int, number: int, share: float) -> None:
    generator = torch.Generator().manual_seed(seed)
    legal = torch.rand(5, length, generator=generator) < share
    scores = [torch.randint(-2, 3, (5, length), generator=generator).double() for _ in range(number)]
    scores = [torch.where(score == 2, torch.inf, score) for score in scores]
    for n, found in enumerate(native.first_best(scores, legal).tolist()):
        ranked = []
        for i in range(length):
            if legal[n, i]:
                key = [score[n, i].item() for score in scores]
                ranked.append((*key, i))
        assert found == (min(ranked)[-1] if ranked else 0)


def test_threads_share_out_large_scores() -> None:
    generator = torch.Generator().manual_seed(0)
    legal = torch.rand(700, 2, 150, generator=generator, dtype=torch.float64)
    score = torch.rand(700, 2, 150, generator=generator, dtype=torch.float64)
    with threads(2):
        found = native.first_best([score], legal < 0.1)
    assert torch.equal(found, torch.where(legal < 0.1, score, 2.0).flatten(1).argmin(1))


def test_odd_bytes_are_legal_and_rows_of_no_length_give_zero() -> None:
    legal = bytes_as_bool(*[0] * 20, 2, *[0] * 20, 200, *[0] * 20).expand(2, 62)
    assert native.first_best([-torch.arange(62.0, dtype=torch.float64).expand(2, 62)], legal).tolist() == [41, 41]
    assert native.first_best([], legal).tolist() == [20, 20]
    assert native.first_best([], torch.ones(3, 0, dtype=torch.bool)).tolist() == [0] * 3


@pytest.mark.parametrize("wrong", [torch.ones(3, 4), torch.ones(3, 5).double(), [1.0]])
def test_first_best_refuses_other_scores(wrong: torch.Tensor) -> None:
    with pytest.raises(ValueError, match=r"^first_best: scores must .*; got "):
        native.first_best([wrong], torch.ones(3, 4, dtype=torch.bool))


# -- draw_bits ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int16, torch.int32])
def test_bits_are_those_of_the_torch_form(dtype: torch.dtype) -> None:
    key = torch.tensor([0, 1, 100, 127])
    counter = torch.arange(5)[:, None]
    wanted = counter_rng.mix(counter_rng.mix(key) ^ counter_rng.mix(counter + 0x9E3779B9))
    assert torch.equal(native.draw_bits(key, counter), wanted)
    assert torch.equal(native.draw_bits(key.to(dtype), counter.to(dtype)), wanted)
    wild = torch.tensor([-1, -(2**63), 2**63 - 1, 2**40])
    assert torch.equal(
        native.draw_bits(wild, wild), counter_rng.mix(counter_rng.mix(wild) ^ counter_rng.mix(wild + 0x9E3779B9))
    )


@pytest.mark.parametrize(
    ("key", "counter", "message"),
    [
        (torch.zeros(3), torch.zeros(3).long(), "key must be of dtype int64; got float32"),
        (torch.zeros(3).long(), torch.zeros(3).bool(), "counter must be of dtype int64; got bool"),
        (torch.zeros(3).long(), torch.zeros(3, device="meta").long(), "counter must be on cpu; got meta"),
        (torch.zeros(3).long(), 7, "counter must be a tensor; got 7"),
        (
            torch.zeros(3).long(),
            torch.zeros(4).long(),
            r"key and counter of shapes \(3,\) and \(4,\) do not broadcast",
        ),
    ],
)
def test_draw_bits_refuses_what_it_cannot_read(key: torch.Tensor, counter: torch.Tensor, message: str) -> None:
    with pytest.raises(ValueError, match=f"^draw_bits: {message}"):
        native.draw_bits(key, counter)
