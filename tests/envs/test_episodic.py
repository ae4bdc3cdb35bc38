"""An environment that only says how episodes begin and go on: what the base makes of that."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tensordict import TensorDict
from torch import Tensor
from torchrl.data import Binary, Bounded, Categorical, Unbounded
from torchrl.envs.utils import check_env_specs

from tests.no_host_reads import NoHostReads
from torchrl_gpu.envs import Advanced, EpisodicEnv


class Walk(EpisodicEnv):
    """A walker that gets `stride` to the right or stays, is blown by chance, and arrives beyond 1."""

    def __init__(self, num_envs: int = 4, *, stride: float = 0.3, noise: float = 0.0, **arguments: Any) -> None:
        super().__init__(
            num_envs,
            observations={"place": Unbounded(())},
            action=Categorical(2),
            outcomes={"arrived": Binary(1, (1,), dtype=torch.bool)},
            **{"max_steps": 5, "device": "cpu", "seed": 3} | arguments,
        )
        self.stride, self.noise = stride, noise

    def begin(self) -> dict[str, Tensor]:
        """Somewhere in [0, 1)."""
        return {"place": self.uniform()}

    def advance(self, state: dict[str, Tensor], action: Tensor) -> Advanced:
        """A stride, and what the wind adds."""
        place = state["place"] + self.stride * action + self.noise * self.uniform()
        return Advanced({"place": place}, place, place > 1, {"arrived": place > 1})


def acted(env: EpisodicEnv, action: list[int]) -> Any:
    return env.step(TensorDict({"action": torch.tensor(action)}, [env.num_envs]))["next"]


def test_specs_are_those_of_what_it_gives() -> None:
    check_env_specs(Walk())
    assert Walk(6).observation_spec["place"].shape == (6,)


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
    assert len(drawn.unique()) == drawn.numel()  # another number in each step and environment


def test_episodes_of_one_environment_differ_and_another_seed_has_others() -> None:
    env, other = Walk(1), Walk(1, seed=4)
    first, second = env.reset()["place"], env.reset()["place"]
    assert len({first.item(), second.item(), other.reset()["place"].item()}) == 3
    env.set_seed(3)
    assert torch.equal(env.reset()["place"], first)


def test_it_goes_on_from_a_saved_state() -> None:
    env = Walk(3, noise=0.2)
    env.reset()
    acted(env, [1, 0, 1])
    other = env.like(3)
    other.load_state_dict(env.state_dict())
    assert torch.equal(acted(env, [0, 1, 0])["place"], acted(other, [0, 1, 0])["place"])
    assert torch.equal(env.reset()["place"], other.reset()["place"])


def test_another_like_it_keeps_class_and_arguments() -> None:
    other = Walk(3, stride=0.7, noise=0.1, max_steps=9, first_env=2).like(5, stride=0.1)
    assert (type(other), other.num_envs, other.stride, other.noise) == (Walk, 5, 0.1, 0.1)
    assert (other.max_steps, other.first_env, other.seed) == (9, 2, 3)
    with pytest.raises(ValueError, match=r"^Walk.like: want arguments of the constructor, num_envs.*; got wind$"):
        other.like(5, wind=1.0)


class Forgetful(Walk):
    """Keeps no argument of its own."""

    def __init__(self, num_envs: int = 4, *, hidden: int = 1, **arguments: Any) -> None:
        super().__init__(num_envs, **arguments)


def test_an_argument_that_is_not_kept_is_named() -> None:
    with pytest.raises(ValueError, match=r"^Forgetful.like: want every .* kept as an attribute; hidden is none$"):
        Forgetful().like(2)


def test_steps_and_restarts_read_nothing_back() -> None:
    env = Walk(4, noise=0.1)
    shown = env.reset()
    with NoHostReads():
        for _ in range(8):
            _, shown = env.step_and_maybe_reset(shown.set("action", torch.ones(4, dtype=torch.int64)))


def test_continuous_actions() -> None:
    class Glide(Walk):
        """Actions are strides."""

        def __init__(self, num_envs: int = 4) -> None:
            EpisodicEnv.__init__(
                self,
                num_envs,
                observations={"place": Unbounded(())},
                action=Bounded(-1.0, 1.0, (2,)),
                device="cpu",
                seed=1,
            )

        def advance(self, state: dict[str, Tensor], action: Tensor) -> Advanced:
            place = state["place"] + action.sum(-1)
            return Advanced({"place": place}, place, place > 1)

    env = Glide()
    check_env_specs(env)
    with pytest.raises(ValueError, match=r"Glide.step: action must be real numbers of shape \(4, 2\)"):
        env.step(TensorDict({"action": torch.zeros(4, 3)}, [4]))


def test_what_cannot_be_a_limit_is_refused() -> None:
    with pytest.raises(ValueError, match=r"Walk: max_steps must be .*; got 0"):
        Walk(max_steps=0)
