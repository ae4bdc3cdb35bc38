"""Uniform draws: from torch's generator, or for each row from a stream of its own."""

from __future__ import annotations

import torch

from torchrl_gpu.policies.uniform_draws import keyed_draws, uniform

CPU = torch.device("cpu")
KEYS = torch.arange(100, 108)


def drawn(keys: torch.Tensor, shapes: tuple[tuple[int, ...], ...] = ((3,), (), (2, 2))) -> list[torch.Tensor]:
    with keyed_draws(keys):
        return [uniform((len(keys), *shape), CPU) for shape in shapes]


def test_they_are_torchs_own_where_nothing_is_keyed() -> None:
    torch.manual_seed(0)
    expected = torch.rand(3, 2, dtype=torch.float64)
    torch.manual_seed(0)
    assert torch.equal(uniform((3, 2), CPU), expected)


def test_a_row_draws_the_same_whatever_rows_are_beside_it() -> None:
    whole = drawn(KEYS)
    for rows in (slice(0, 2), slice(2, 5), slice(7, 8)):
        assert all(torch.equal(a[rows], b) for a, b in zip(whole, drawn(KEYS[rows]), strict=True))


def test_what_is_drawn_later_differs() -> None:
    first, second = drawn(KEYS, ((3,), (3,)))
    assert torch.cat([first, second]).unique().numel() == 48


def test_torchs_generator_is_left_alone() -> None:
    torch.manual_seed(0)
    expected = torch.rand(2)
    torch.manual_seed(0)
    drawn(KEYS)
    assert torch.equal(torch.rand(2), expected)


def test_other_rows_than_the_keyed_ones_draw_from_torch() -> None:
    torch.manual_seed(0)
    expected = torch.rand(3, dtype=torch.float64)
    torch.manual_seed(0)
    with keyed_draws(KEYS):
        assert torch.equal(uniform((3,), CPU), expected)


def test_they_are_uniform() -> None:
    (values,) = drawn(torch.arange(2000), ((50,),))
    assert 0 <= values.min() < 1e-3
    assert 0.999 < values.max() < 1
    counts = torch.histc(values, 20, 0, 1)
    assert ((counts - 5000) ** 2 / 5000).sum() < 50  # χ² of 19 degrees of freedom; 43.8 in one case of 1000
    assert values.std(0).min() > 0.27  # 1/√12 = 0.289, over the streams at any place
    assert torch.corrcoef(values[:, :2].T)[0, 1].abs() < 0.1
