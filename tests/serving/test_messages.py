from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load, save

from torchrl_gpu.policies import AgentSpace, InferencePolicy
from torchrl_gpu.policies.networks.vectors import perceptron
from torchrl_gpu.policies.policy import Entry
from torchrl_gpu.serving.messages import BadMessage, Messages

SEEN: dict[str, Any] = {"place": ((2,), "float32"), "mask": ((3,), "bool"), "pixel": ((1,), "uint8")}
GOOD = {"place": [[0.5, 2]], "mask": [[True, False, True]], "pixel": [[255]]}


def messages(max_rows: int = 4) -> Messages:
    policy = Entry("action", perceptron([1, 1]))
    policy.in_keys = list(SEEN)
    return Messages(InferencePolicy(policy, AgentSpace("test", (), SEEN, num_actions=3), "test"), max_rows)


def arrays(**changes: Any) -> dict[str, np.ndarray]:
    found = {name: np.asarray(value, SEEN[name][1]) for name, value in GOOD.items()}
    return found | changes


def test_both_kinds_say_the_same() -> None:
    ours = messages().parse(save(arrays()), False)
    theirs = messages().parse(json.dumps(GOOD), True)
    for name, value in arrays().items():
        assert ours[name].dtype == theirs[name].dtype == value.dtype
        np.testing.assert_array_equal(ours[name], value)
        np.testing.assert_array_equal(theirs[name], value)


def test_actions_are_packed_as_they_are_asked_for() -> None:
    action = np.array([[0.25, -1.0]], np.float32)
    assert json.loads(messages().pack(action, True)) == {"action": [[0.25, -1.0]]}
    np.testing.assert_array_equal(load(messages().pack(action, False))["action"], action)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"place": [[1, 2, 3]]}, r"place must be float32 of shape \(rows, 2\), not .*3"),
        ({"place": [1, 2]}, "place must"),
        ({"place": 1}, "place must"),
        ({"place": [["1", "2"]]}, "place must"),
        ({"place": [[1], [2, 3]]}, "place must"),
        ({"place": [[1, None]]}, "place must"),
        ({"place": [[1, float("nan")]]}, "place .*NaN or infinity.*nan$"),
        ({"place": [[1, float("inf")]]}, "place .*NaN or infinity.* inf$"),
        ({"place": [[-float("inf"), 1]]}, "place .*NaN or infinity.*-inf$"),
        ({"pixel": [[float("inf")]]}, "pixel must"),
        ({"place": [[1, 1e300]]}, "place must"),
        ({"place": [[True, False]]}, "place must"),
        ({"place": [[1, 2], [3, 4]]}, r"rows, from 1 to 4, not \[1, 2\]"),
        ({"place": [], "mask": [], "pixel": []}, "(place|mask|pixel) must"),
        ({"mask": [[1, 0, 1]]}, "mask must be bool"),
        ({"pixel": [[256]]}, "pixel must"),
        ({"pixel": [[-1]]}, "pixel must"),
        ({"pixel": [[0.5]]}, "pixel must"),
        ({"more": 1}, "entries must be place, mask, pixel, not .*more"),
        ({name: value * 5 for name, value in GOOD.items()}, r"rows, from 1 to 4, not \[5\]"),
    ],
)
def test_other_json_is_refused(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(BadMessage, match=said):
        messages().parse(json.dumps(GOOD | changes), True)


@pytest.mark.parametrize("body", [b"", b"{", b"[1]", b"3", b'"x"', b"[" * 100_000, b"\xff\xfe", b"1" * 5000])
def test_message_that_is_no_json_is_refused(body: bytes) -> None:
    with pytest.raises(BadMessage, match=r"invalid JSON: |entries .*, not "):
        messages().parse(body, True)


@pytest.mark.parametrize(
    "body",
    [
        *(b"", b"\x80\x04N.", b"\xff" * 64, (2**62).to_bytes(8, "little") + b"{}", save(arrays())[:-1]),
        *(save(arrays(place=np.zeros((1, 2)))), save(arrays(place=np.zeros((1, 3), np.float32))), save({})),
        *(save(arrays(place=np.full((1, 2), bad, np.float32))) for bad in (np.nan, np.inf, -np.inf)),
        save({f"entry {i}": np.zeros(1) for i in range(200)}),
    ],
)
def test_other_tensors_are_refused(body: bytes) -> None:
    with pytest.raises(BadMessage, match=r"invalid safetensors: |(place|mask|pixel|entries) must .*"):
        messages().parse(body, False)


def test_a_number_of_json_that_is_infinite_as_float32_is_refused() -> None:
    for number in ("1e999", "-1e999", "1e39", "1" * 400):
        text = json.dumps(GOOD).replace("0.5", number)
        with pytest.raises(BadMessage, match="place must"):
            messages().parse(text, True)
    assert messages().parse(json.dumps(GOOD).replace("0.5", "1e-60"), True)["place"][0, 0] == 0


@pytest.mark.parametrize("piece", ["[]", "{}", '""', "1", "true", "[1,[2]]", "null"])
def test_numbers_that_no_row_needs_are_not_parsed(piece: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Four MiB of empty lists took two seconds, in which nobody else had an answer."""
    ours, text = messages(), '{"place": [' + ",".join([piece] * 1000) + "]}"
    monkeypatch.setattr(json, "loads", lambda *_, **__: pytest.fail("parsed"))
    with pytest.raises(BadMessage, match=r"4 rows do"):
        ours.parse(text, True)


def test_actions_that_json_cannot_hold_are_not_packed() -> None:
    with pytest.raises(ValueError, match="JSON"):
        messages().pack(np.array([[np.nan]]), True)
