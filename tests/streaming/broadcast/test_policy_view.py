"""What a policy saw and did, as metadata and as pictures."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch

from torchrl_gpu.streaming import PolicyView, observation_picture
from torchrl_gpu.streaming.broadcast.frames import clean_meta, with_facts


def test_facts_are_what_was_given_and_no_more() -> None:
    view = PolicyView(action=[0.5, -1], inference_ms=4.25, message_age_s=0.03, stale=False, confidence=0.9, policy="a")
    facts = {"policy": "a", "stale": False, "inference_ms": 4.25, "message_age_ms": 30.0, "confidence": 0.9}
    assert view.facts() == facts | {"action/0": 0.5, "action/1": -1.0}
    assert PolicyView().facts() == {}
    assert PolicyView(stale=np.True_, action={"turn": 2}).facts() == {"stale": True, "action/turn": 2.0}


@pytest.mark.parametrize(
    "action",
    [
        3,
        np.int64(3),
        torch.tensor(3),
        [3],
        torch.tensor([[3.0]]),
        torch.tensor([3.0]).bfloat16(),
        torch.ones(1).mul(3).requires_grad_(),
    ],
)
def test_actions_of_any_shape(action: Any) -> None:
    assert PolicyView(action=action).facts() == {"action/0": 3.0}


def test_whatever_comes_is_finite_short_and_printable() -> None:
    hostile = "<script>\n\x1b[31m" + "x" * 1000
    view = PolicyView(
        action={hostile: math.nan} | {str(i): i for i in range(1000)},
        inference_ms=math.inf,
        message_age_s=-math.inf,
        confidence="high",  # type: ignore[arg-type]
        policy=hostile,
    )
    facts = view.facts()
    assert clean_meta(facts) == facts
    assert [facts[name] for name in ("inference_ms", "message_age_ms", "confidence")] == [None] * 3
    actions = {name: value for name, value in facts.items() if name.startswith("action/")}
    assert len(actions) == 32
    assert next(iter(actions.items())) == ("action/" + (hostile[:32]).replace("\n", "?").replace("\x1b", "?"), None)
    assert all(name.isprintable() and len(name) <= 39 for name in facts)
    assert facts["policy"] == hostile[:64].replace("\n", "?").replace("\x1b", "?")
    wide = PolicyView(action=np.zeros(100_000)).facts()
    assert len(wide) == 32


def test_observations_as_pictures() -> None:
    small = np.arange(2 * 3 * 4 * 5, dtype=np.uint8).reshape(2, 3, 4, 5)
    assert np.array_equal(observation_picture(small), small.transpose(0, 2, 3, 1))
    assert np.array_equal(observation_picture(torch.from_numpy(small)), small.transpose(0, 2, 3, 1))
    normalised = torch.tensor([[[-2.0, 0.0, 2.0]]])
    assert observation_picture(normalised)[..., 0].tolist() == [[0, 128, 255]]
    assert observation_picture(normalised.bfloat16())[..., 0].tolist() == [[0, 128, 255]]
    assert observation_picture(torch.tensor([[[math.nan, 1.0, 2.0]]]))[..., 0].tolist() == [[0, 0, 255]]
    assert observation_picture(np.full((1, 2, 2), np.nan)).max() == 0
    assert observation_picture(np.ones((3, 2, 2))).max() == 0


@pytest.mark.parametrize("shape", [(4, 4), (2, 4, 4), (1, 2, 3, 4, 4), (0, 3, 4, 4)])
def test_shapes_that_are_no_picture(shape: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="observation_picture: want"):
        observation_picture(np.zeros(shape))


def test_several_integers_are_choices_and_no_sizes() -> None:
    assert PolicyView(action=torch.tensor([3, 0])).facts() == {"choices": True, "action/0": 3.0, "action/1": 0.0}
    for action in (np.array([3.0, 0.0]), [7], torch.tensor([[2]]), {"turn": 2, "go": 1}):
        assert "choices" not in PolicyView(action=action).facts()  # type: ignore[arg-type]


def test_facts_of_a_policy_never_push_out_the_metadata_of_a_program() -> None:
    facts = PolicyView(action=np.zeros(32)).facts()
    meta = {f"m{i}": i for i in range(50)}
    found = with_facts(meta, facts)
    assert len(clean_meta(found)) == 64
    assert found.items() >= meta.items()
    with pytest.raises(ValueError, match="want at most 64 values of metadata; got 65"):
        clean_meta(with_facts({f"m{i}": i for i in range(65)}, facts))
