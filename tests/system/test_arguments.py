"""Arguments that users give.

What is taken, as what, and what the message says of the rest.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from torchrl_gpu.system import arguments

CPU = torch.device("cpu")
# It has more digits than Python writes out.
HUGE = 10**5000


@pytest.mark.parametrize("three", [3, 3.0, np.int64(3), np.uint8(3), np.float32(3.0), np.array(3), torch.tensor(3)])
def test_whole_takes_integers_of_every_kind(three: Any) -> None:
    found = arguments.whole("Here", "n", three, 1, 3)
    assert (found, type(found)) == (3, int)


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (2.5, "a whole number, at least 1; got 2.5"),
        (True, "a whole number, at least 1; got True"),
        (torch.tensor(True), "a whole number, at least 1; got tensor(True)"),
        (float("nan"), "a whole number, at least 1; got nan"),
        ("3", "a whole number, at least 1; got '3'"),
        (None, "a whole number, at least 1; got None"),
        (3 + 0j, "a whole number, at least 1; got (3+0j)"),
        (np.array([3]), "a whole number, at least 1; got ndarray of int64 (1,)"),
        (torch.zeros(2), "a whole number, at least 1; got Tensor of torch.float32 (2,)"),
        (0, "at least 1; got 0"),
        (-3.0, "at least 1; got -3.0"),
        (6000, "at most 5,000; got 6000"),
        (1e300, "at most 5,000; got 1e+300"),
        (HUGE, "at most 5,000; got a int that cannot be written out"),
    ],
    # pytest could not write them all out.
    ids=lambda _: "",
)
def test_whole_refuses_other_values(value: Any, message: str) -> None:
    with pytest.raises(ValueError) as error:
        arguments.whole("Here", "n", value, 1, 5000)
    assert str(error.value) == f"Here: n must be {message}"


@pytest.mark.parametrize("half", [0.5, np.float64(0.5), np.float32(0.5), torch.tensor(0.5)])
def test_number_takes_numbers_of_every_kind(half: Any) -> None:
    found = arguments.number("Here", "x", half, 0, 1)
    assert (found, type(found)) == (0.5, float)
    assert arguments.number("Here", "x", 2) == 2.0


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (float("nan"), "a finite number; got nan"),
        (-float("inf"), "a finite number; got -inf"),
        (HUGE, "a finite number; got a int that cannot be written out"),
        (False, "a finite number; got False"),
        ("1", "a finite number; got '1'"),
        ((1.0,), "a finite number; got (1.0,)"),
        (0.0, "above 0; got 0.0"),
        (1.5, "at most 1; got 1.5"),
    ],
    ids=lambda _: "",
)
def test_number_refuses_other_values(value: Any, message: str) -> None:
    with pytest.raises(ValueError) as error:
        arguments.number("Here", "x", value, high=1, above=0)
    assert str(error.value) == f"Here: x must be {message}"


def test_seeds_fit_64_bits() -> None:
    assert arguments.seed("Here", "seed", -(2**63)) == -(2**63)
    with pytest.raises(ValueError, match=r"^Here: seed .*9,223,372,036,854,775,807; got 92"):
        arguments.seed("Here", "seed", 2**63)
    with pytest.raises(ValueError, match=r"^Here: seed .*; got 'a'$"):
        arguments.seed("Here", "seed", "a")


def test_flags_words_and_lists() -> None:
    assert arguments.flag("Here", "f", np.bool_(True)) is True
    assert arguments.choices("Here", "w", ["a", "b"], ("a", "b", "c")) == ("a", "b")
    assert arguments.listed("Here", "l", "a list", np.array([1, 2])) == (1, 2)
    for given in (1, "no"):
        with pytest.raises(ValueError, match=rf"^Here: f .*true or false; got {given!r}$"):
            arguments.flag("Here", "f", given)
    with pytest.raises(ValueError, match=r"^Here: w .*one of a; got \['a'\]$"):
        arguments.choice("Here", "w", ["a"], ("a",))
    for given in ("ab", 3):
        with pytest.raises(ValueError, match=rf"^Here: w .*list of .* a, b; got {given!r}$"):
            arguments.choices("Here", "w", given, ("a", "b"))
    with pytest.raises(ValueError, match=r"^Here: w .*one of a, b; got 3$"):
        arguments.choices("Here", "w", ["a", 3], ("a", "b"))
    with pytest.raises(ValueError, match=r"^Here: l .*a list; got 3$"):
        arguments.listed("Here", "l", "a list", 3)


def test_a_message_is_one_short_line_whatever_came() -> None:
    class Odd:
        def __repr__(self) -> str:
            raise RuntimeError("no")

    assert arguments.shown(Odd()) == "a Odd that cannot be written out"
    assert arguments.shown("a\nb" * 100).isprintable()
    assert len(arguments.shown(list(range(10_000)))) == 80


def test_a_tensor_that_is_as_wanted_is_given_back_itself() -> None:
    for dtype in (torch.float32, torch.int64, torch.bool):
        value = torch.zeros(2, 3, dtype=dtype)
        for shape in ((2, 3), (None, 3), (None, None)):
            for device in (CPU, None):
                assert arguments.tensor("Here", "t", value, dtype, shape, device, contiguous=True) is value
        # Strides do not matter.
        assert arguments.tensor("Here", "t", value.T, dtype, (3, 2), CPU).shape == (3, 2)


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int8, torch.int16, torch.int32, torch.uint16, torch.uint32])
def test_integers_become_int64_where_they_may(dtype: torch.dtype) -> None:
    value = torch.tensor([1, 2, 100]).to(dtype)
    came = arguments.tensor("Here", "t", value, torch.int64, (3,), CPU, cast=True)
    assert came.dtype == torch.int64
    assert came.tolist() == [1, 2, 100]
    with pytest.raises(ValueError, match=rf"^Here: t .*int64; got {str(dtype)[6:]}$"):
        arguments.tensor("Here", "t", value, torch.int64, (3,), CPU)
    with pytest.raises(ValueError, match=r"^Here: t .*int32; got "):
        arguments.tensor("Here", "t", torch.tensor([1]), torch.int32, (1,), CPU, cast=True)


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (torch.zeros(2), "of dtype int64; got float32"),
        (torch.zeros(2, dtype=torch.bool), "of dtype int64; got bool"),
        (torch.zeros(3, dtype=torch.int64), r"shape \(2,\); got \(3,\)"),
        (torch.zeros(2, 1, dtype=torch.int64), r"shape \(2,\); got \(2, 1\)"),
        (torch.zeros(2, dtype=torch.int64, device="meta"), "on cpu; got meta"),
        (torch.zeros(2, dtype=torch.int64).to_sparse(), "a dense tensor with data; got one of layout sparse_coo"),
        ([0, 0], r"a tensor; got \[0, 0\]"),
        (None, "a tensor; got none"),
    ],
    ids=lambda _: "",
)
def test_tensor_refuses_other_tensors(value: Any, message: str) -> None:
    with pytest.raises(ValueError, match=rf"^Here: t must (be|have) {message}$"):
        arguments.tensor("Here", "t", value, torch.int64, (2,), CPU, cast=True)


def test_a_tensor_of_any_device_holds_data() -> None:
    with pytest.raises(ValueError, match=r"^Here: t .*dense tensor .*; got"):
        arguments.tensor("Here", "t", torch.zeros(2, device="meta"), torch.float32, (2,))
    with pytest.raises(ValueError, match=r"^Here: t .*shape \(any, 3\); got \(2, 2\)$"):
        arguments.tensor("Here", "t", torch.zeros(2, 2), torch.float32, (None, 3))


def test_tensor_for_output_must_be_contiguous() -> None:
    with pytest.raises(ValueError, match=r"^Here: t .*contiguous; got strides \(2,\)$"):
        arguments.tensor("Here", "t", torch.zeros(4)[::2], torch.float32, (2,), CPU, contiguous=True)


def test_length_of_values_that_are_no_tensors_is_zero() -> None:
    assert arguments.length(None) == arguments.length(torch.tensor(1)) == arguments.length(torch.zeros(2), 1) == 0
    assert arguments.length(torch.zeros(2, 3), 1) == 3
