"""An environment that only says how episodes begin and advance.

What the base class makes of that.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import cycle
from types import MappingProxyType
from typing import Any

import pytest
import torch
from tensordict import TensorDict
from torch import Tensor
from torchrl.data import Binary, Bounded, Categorical, Unbounded
from torchrl.envs.utils import check_env_specs

from torchrl_gpu.envs import Advanced, EpisodicEnv


class Walk(EpisodicEnv):
    """A walker that goes `stride` to the right or stays, and is blown by chance.

    It arrives beyond 1.
    """

    def __init__(self, num_envs: int = 4, *, stride: float = 0.3, noise: float = 0.0, **arguments: object) -> None:
        super().__init__(
            num_envs,
            observations={"place": Unbounded(())},
            action=Categorical(2),
            outcomes={"arrived": Binary(1, (1,), dtype=torch.bool)},
            **{"max_steps": 5, "device": "cpu", "seed": 3} | arguments,
        )
        self.stride, self.noise = stride, noise

    def begin(self) -> dict[str, Tensor]:
        return {"place": self.uniform()}

    def advance(self, state: dict[str, Tensor], action: Tensor) -> Advanced:
        place = state["place"] + self.stride * action + self.noise * self.uniform()
        return Advanced({"place": place}, place, place > 1, {"arrived": place > 1})


def acted(env: EpisodicEnv, action: list[int]) -> Any:
    return env.step(TensorDict({"action": torch.tensor(action)}, [env.num_envs]))["next"]


def test_episodes_by_hand() -> None:
    env = Walk(2)
    start = env.reset()["place"]
    after = acted(env, [1, 0])
    assert after["place"].tolist() == pytest.approx([start[0].item() + 0.3, start[1].item()])
    assert torch.equal(after["reward"][:, 0], after["place"])
    assert after["arrived"].tolist() == (after["place"] > 1).unsqueeze(1).tolist()
    for _ in range(3):
        assert not acted(env, [0, 0])["truncated"][1]
    last = acted(env, [0, 0])
    assert last["truncated"][1].item()
    assert last["done"][1].item()
    assert not last["terminated"][1].item()
    assert env.metrics()["step"].tolist() == [5, 5]
    assert env.metrics()["return"][1].item() == pytest.approx(5 * start[1].item())


def test_an_end_is_no_cut() -> None:
    env = Walk(1, stride=2.0, max_steps=1)
    env.reset()
    after = acted(env, [1])
    assert after["terminated"].item()
    assert not after["truncated"].item()


def test_rows_that_are_not_done_go_on() -> None:
    env = Walk(2)
    env.reset()
    before = acted(env, [1, 0])["place"]
    shown = env.maybe_reset(TensorDict({"done": torch.tensor([[True], [False]])}, [2]))["place"]
    assert shown[1] == before[1]
    assert shown[0] != before[0]
    assert env.metrics()["step"].tolist() == [0, 1]
    assert env.metrics()["episode"].tolist() == [2, 1]


def test_what_is_drawn_depends_on_the_environments_number_alone() -> None:
    whole, part = Walk(5, noise=0.1), Walk(2, noise=0.1, first_env=3)
    assert torch.equal(whole.reset()["place"][3:], part.reset()["place"])
    assert torch.equal(acted(whole, [0] * 5)["place"][3:], acted(part, [0, 0])["place"])
    drawn = torch.stack([acted(whole, [0] * 5)["place"].diff() for _ in range(3)])
    # Another number in each step and environment.
    assert len(drawn.unique()) == drawn.numel()


def test_another_like_it_keeps_class_and_arguments() -> None:
    other = Walk(3, stride=0.7, noise=0.1, max_steps=9, first_env=2).like(5, stride=0.1)
    assert (type(other), other.num_envs, other.stride, other.noise) == (Walk, 5, 0.1, 0.1)
    assert (other.max_steps, other.first_env, other.seed) == (9, 2, 3)
    with pytest.raises(ValueError, match=r"^Walk.like: .*num_envs.* wind$"):
        other.like(5, wind=1.0)


class Forgetful(Walk):
    def __init__(self, num_envs: int = 4, *, hidden: int = 1, **arguments: object) -> None:
        super().__init__(num_envs, **arguments)


def test_an_argument_that_is_not_kept_is_named() -> None:
    with pytest.raises(ValueError, match=r"^Forgetful.like: .*argument hidden "):
        Forgetful().like(2)


class Glider(Walk):
    def __init__(self, num_envs: int = 4) -> None:
        EpisodicEnv.__init__(
            self, num_envs, observations={"place": Unbounded(())}, action=Bounded(-1.0, 1.0, (2,)), device="cpu", seed=1
        )

    def advance(self, state: dict[str, Tensor], action: Tensor) -> Advanced:
        place = state["place"] + action.sum(-1)
        return Advanced({"place": place}, place, place > 1)


def test_continuous_actions() -> None:
    env = Glider()
    check_env_specs(env)
    with pytest.raises(ValueError, match=r"Glider.step: action .*real .*\(4, 2\)"):
        env.step(TensorDict({"action": torch.zeros(4, 3)}, [4]))


# -- what a subclass gives, held against what it declared --------------------------------------------------------------


class PointEnv(EpisodicEnv):
    """Returns what the test puts in place of what is right.

    `speed` is part of the state, but not observed.
    """

    instead: Mapping[str, Any] = {}

    def __init__(self, num_envs: int = 64) -> None:
        super().__init__(
            num_envs,
            observations={"place": Unbounded((2,))},
            action=Categorical(4),
            outcomes={"arrived": Binary(1, (1,), dtype=torch.bool), "far": Unbounded(())},
            device="cpu",
            seed=0,
        )
        # `begin` may use what a constructor makes after that of the base class.
        self.start = torch.zeros(num_envs, 2)

    def begin(self) -> dict[str, Tensor]:
        return {"place": self.start, "speed": self.start[:, 0]}

    def advance(self, state: dict[str, Tensor], action: Tensor) -> Advanced:
        n = self.num_envs
        outcomes = {"arrived": torch.zeros(n, dtype=torch.bool), "far": torch.zeros(n)}
        right = {"state": state, "reward": torch.zeros(n), "terminated": outcomes["arrived"], "outcomes": outcomes}
        changed = {name: right[name] | each if isinstance(each, dict) else each for name, each in self.instead.items()}
        return Advanced(**right | changed)  # type: ignore[arg-type]


def only(**entries: object) -> Mapping[str, Any]:
    """A mapping that stands for itself: none of what is right is added."""
    return MappingProxyType(entries)


PLACE = torch.zeros(64, 2)
SPEED = torch.zeros(64)
FLAG = torch.zeros(64, dtype=torch.bool)
# What `advance` returns instead of what is right, and the message: its argument and value.
ADVANCED: dict[str, tuple[dict[str, Any], str]] = {}
ADVANCED["a number as reward"] = ({"reward": torch.zeros(())}, r"reward .*\(64, 1\).* \(\)")
ADVANCED["a square of rewards"] = ({"reward": torch.zeros(64, 64)}, r"reward .*\(64, 1\).* \(64, 64\)")
ADVANCED["rewards elsewhere"] = ({"reward": torch.zeros(64, device="meta")}, "reward .* cpu.* meta")
ADVANCED["no reward"] = ({"reward": None}, "reward .* tensor.* none")
ADVANCED["ends as numbers"] = ({"terminated": SPEED}, "terminated .* bool.* float32")
ADVANCED["one end for all"] = ({"terminated": False}, "terminated .* tensor.* False")
ADVANCED["another name"] = ({"state": only(plac=PLACE, speed=SPEED)}, "state .*place, speed.* plac, speed")
ADVANCED["one name more"] = ({"state": {"more": SPEED}}, "state .*place, speed.* place, speed, more")
ADVANCED["no state"] = ({"state": None}, "state .*place, speed.* None")
ADVANCED["another dtype"] = ({"state": {"place": PLACE.double()}}, "place .* float32.* float64")
ADVANCED["another outcome"] = ({"outcomes": only(arived=FLAG, far=SPEED)}, "outcomes .*arrived, far.* arived, far")
ADVANCED["two columns"] = (
    {"outcomes": {"arrived": torch.zeros(64, 2, dtype=torch.bool)}},
    r"arrived .*\(64, 1\).* \(64, 2\)",
)


@pytest.mark.parametrize("name", ADVANCED)
def test_a_mistake_of_advance_is_told_in_one_line(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    instead, message = ADVANCED[name]
    env = PointEnv()
    env.reset()
    acted(env, [0] * 64)
    # Mistakes are found even if the first steps were right.
    monkeypatch.setattr(PointEnv, "instead", instead)
    with pytest.raises(ValueError, match=rf"^PointEnv\.advance: {message}$"):
        acted(env, [0] * 64)


def test_advance_may_give_columns_but_nothing_other_than_an_advanced(monkeypatch: pytest.MonkeyPatch) -> None:
    env = PointEnv(3)
    env.reset()
    reward, flag = torch.tensor([[1.0], [2.0], [3.0]]), torch.tensor([[True], [False], [False]])
    outcomes = {"arrived": flag, "far": reward}
    monkeypatch.setattr(PointEnv, "instead", {"reward": reward, "terminated": flag, "outcomes": outcomes})
    after = acted(env, [0, 0, 0])
    for name, value in {"reward": reward, "terminated": flag, "done": flag, **outcomes}.items():
        assert torch.equal(after[name], value)
    assert env.metrics()["return"].tolist() == [1.0, 2.0, 3.0]
    monkeypatch.setattr(PointEnv, "advance", lambda self, state, action: None)
    with pytest.raises(ValueError, match=r"^PointEnv\.advance: .*Advanced.*None$"):
        acted(env, [0, 0, 0])


# What a method returns, and the message: its argument and value.
MADE: dict[str, tuple[str, Any, str]] = {}
MADE["another name"] = ("begin", {"plac": PLACE}, "the state .*place.* plac")
MADE["a tensor"] = ("begin", PLACE, r".*dict .* Tensor of torch\.float32 \(64, 2\)")
MADE["another shape"] = ("begin", {"place": torch.zeros(64, 3)}, r"place .*\(64, 2\).* \(64, 3\)")
MADE["another device"] = ("begin", {"place": PLACE.to("meta")}, "place .* cpu.* meta")
MADE["too few rows"] = ("begin", {"place": PLACE, "speed": torch.zeros(63)}, r"speed .*\(64,\).* \(63,\)")
MADE["a number"] = ("begin", {"place": PLACE, "speed": 1}, "speed .* tensor.* 1")
MADE["one more than is observed"] = ("observe", {"place": PLACE, "speed": SPEED}, "observations .*place.* place, speed")
MADE["another dtype"] = ("observe", {"place": PLACE.long()}, "place .* float32.* int64")
MADE["nothing"] = ("observe", None, "observations .*place.* None")
for taken in ("step_count", "episode", "score", "seed"):
    MADE[f"the name {taken}"] = ("begin", {"place": PLACE, taken: SPEED}, f"{taken} .*name.*")


@pytest.mark.parametrize("name", MADE)
def test_a_mistake_is_told_when_the_environment_is_made(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    method, given, message = MADE[name]
    monkeypatch.setattr(PointEnv, method, lambda *_: given)
    with pytest.raises(ValueError, match=rf"^PointEnv\.{method}: {message}$"):
        PointEnv()


def test_episodes_begin_as_the_first_did(monkeypatch: pytest.MonkeyPatch) -> None:
    env = PointEnv()
    for begun, message in (
        ({"place": PLACE}, "state .*place, speed.* place"),
        ({"place": PLACE, "speed": SPEED.double()}, "speed .* float32.* float64"),
    ):
        monkeypatch.setattr(PointEnv, "begin", lambda _, given=begun: given)
        with pytest.raises(ValueError, match=rf"^PointEnv\.begin: {message}$"):
            env.reset()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"observations": None}, "observations must be specs by name, .*; got None"),
        ({"observations": {"place": (2,)}}, r"observations must be specs by name, .*; got \{'place': \(2,\)\}"),
        ({"observations": {"reward": Unbounded(())}}, "reward .*name.*"),
        ({"observations": {"arrived": Unbounded(())}}, "arrived .*name.*"),
        ({"outcomes": {"done": Unbounded(())}}, "done .*name.*"),
        ({"outcomes": {"arrived": Unbounded((2,))}}, r"outcome arrived .*shape \(1,\).*\(2,\)"),
        ({"outcomes": ["arrived"]}, r"outcomes must be specs by name, .*; got \['arrived'\]"),
        ({"action": 4}, "action must be a Categorical or Bounded of TorchRL; got 4"),
        ({"action": Unbounded((2,))}, "action must be a Categorical or Bounded of TorchRL; got Unbounded.*"),
    ],
)
def test_what_cannot_be_declared(changes: dict[str, object], message: str, monkeypatch: pytest.MonkeyPatch) -> None:
    init = EpisodicEnv.__init__
    monkeypatch.setattr(
        EpisodicEnv, "__init__", lambda self, num_envs, **given: init(self, num_envs, **given | changes)
    )
    with pytest.raises(ValueError, match=rf"^Walk: {message}$"):
        Walk()


NAMES = ["state", "entries", "stored_keys", "shape", "action_keys", "step", "observe", "begin", "like", "restore"]


@pytest.mark.parametrize(("name", "first"), list(zip(NAMES, cycle([True, False]), strict=False)))
def test_names_that_are_taken(name: str, first: bool) -> None:
    class Named(PointEnv):
        """Keeps an attribute under a name of the base class.

        Before its constructor, or after it.
        """

        def __init__(self) -> None:
            if first:
                setattr(self, name, torch.zeros(3))
            super().__init__()
            setattr(self, name, torch.zeros(3))

    message = rf"^Named: attribute {name} "
    with pytest.raises(ValueError, match=message):
        Named()
    with pytest.raises(ValueError, match=message.replace("Named", "PointEnv")):
        setattr(PointEnv(), name, torch.zeros(3))


def test_a_seed_of_none_that_is_kept_over_the_one_drawn_is_told() -> None:
    class Kept(PointEnv):
        def __init__(self, seed: int | None = None) -> None:
            super().__init__()
            self.seed = seed  # type: ignore[assignment]

    with pytest.raises(ValueError, match=r"^Kept: seed .*whole number.* None$"):
        Kept()
    assert Kept(4).seed == 4


def test_a_method_may_be_put_in_the_place_of_one() -> None:
    class Wrapped(Walk):
        def __init__(self) -> None:
            super().__init__()
            self.advance = self.counted  # type: ignore[method-assign]

        def counted(self, state: dict[str, Tensor], action: Tensor) -> Advanced:
            return Walk.advance(self, state, 2 * action)

    check_env_specs(Wrapped())


def test_actions_of_another_precision_are_those_of_the_spec() -> None:
    env = Glider()
    env.reset()
    env.step(TensorDict({"action": torch.zeros(4, 2, dtype=torch.float64)}, [4]))


def test_its_state_is_read_and_assigned_as_a_dict() -> None:
    env, other = Walk(noise=0.1), Walk(noise=0.1)
    env.reset()
    acted(env, [1, 0, 1, 0])
    assert set(env.state) == {"place", "step_count", "episode", "score"}
    other.state = env.state
    assert all(torch.equal(value, other.state[name]) for name, value in env.state.items())
    assert torch.equal(acted(env, [0] * 4)["place"], acted(other, [0] * 4)["place"])
    with pytest.raises(ValueError, match=r"^Walk\.state: .*entries .*'place'.*\['seed', 'spot'\]$"):
        env.state = {"spot": torch.zeros(4)}
