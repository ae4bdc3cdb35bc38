"""Self-tests of compiled operators before their use."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch

from tests.native.compilers import need_compiler
from torchrl_gpu import native
from torchrl_gpu.envs.counter_rng import draw_bits
from torchrl_gpu.native import operators, self_test
from torchrl_gpu.system.self_tests import SelfTest


@pytest.fixture(autouse=True)
def asked_anew() -> Iterator[None]:
    need_compiler()
    yield
    native.problem.cache_clear()


def test_operators_that_are_right_pass() -> None:
    assert self_test.wrong_operator() == ""


@pytest.mark.parametrize(
    "name", ["draw_bits", "pick_true", "first_best", "any_true", "count_at_most", "cut_boxes", "cut_items"]
)
def test_one_that_is_wrong_is_named(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    right = getattr(operators, name)

    def wrong(*arguments: object) -> Any:
        out = right(*arguments)
        if isinstance(out, tuple):
            return out[0], out[1] + 1
        return out.logical_not() if out.dtype == torch.bool else out + 1

    monkeypatch.setattr(operators, name, wrong)
    assert self_test.wrong_operator() == f"{name} gives wrong numbers"


def test_where_they_fail_torch_draws_the_same_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    key, counter = torch.arange(5)[:, None], torch.arange(7)
    expected = draw_bits(key, counter)
    native.problem.cache_clear()
    monkeypatch.setattr(SelfTest, "failure", lambda test: "died of SIGILL")
    assert native.problem() == "died of SIGILL"
    assert not native.runs_on(key)
    monkeypatch.setattr(operators, "draw_bits", None)
    assert torch.equal(draw_bits(key, counter), expected)
