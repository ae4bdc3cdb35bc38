"""Rollouts that one native function plays whole, with no Python between steps."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from typing import NamedTuple, Protocol, final

import torch
from tensordict import NestedKey, TensorDictBase
from torch import Tensor

from torchrl_gpu.envs.base import BatchedEnv
from torchrl_gpu.policies.policy import Policy
from torchrl_gpu.system.sections import section
from torchrl_gpu.training.accelerated.machine import Accelerator
from torchrl_gpu.training.collect.graphed import copies
from torchrl_gpu.training.collect.steps import play_steps

_LOG = logging.getLogger(__name__)


class WholePlayer(Protocol):
    """Native function that plays whole rollouts: C++ on a CPU, a kernel on a GPU.

    It names a task, so that the learner of that task hands it to its `Rollout`; this room knows the protocol alone.
    """

    def problem(self, env: BatchedEnv, policy: Policy, keys: Sequence[NestedKey], more: Sequence[NestedKey]) -> str:
        """Reason why it does not play this policy in this environment, else "".

        Args:
            env, policy: Asked once for each pair, before the first step.
            keys: Observations to keep, before and after each step.
            more: What else to keep: decisions, and outcomes of `next`.
        """

    def play(
        self, env: BatchedEnv, policy: Policy, current: TensorDictBase, steps: int
    ) -> tuple[TensorDictBase, TensorDictBase]:
        """Play steps as `play_steps` does, to the same bits.

        It may keep more than was asked for. The environment's state afterwards is that behind the last step; what
        `current` shows is that state, and whatever a policy or a user has set in it stays.
        """


class Left(NamedTuple):
    """What a rollout gives and leaves.

    Attributes:
        played: The steps (N, T).
        after: What the environment shows behind them.
        state: Of the environment.
    """

    played: TensorDictBase
    after: TensorDictBase
    state: dict[str, Tensor]


@final
class FusedRollout(Accelerator[WholePlayer, tuple[TensorDictBase, int], dict[str, Tensor], Left]):
    """`play_steps` by a native function, where there is one.

    The first rollout is tried both ways. Where anything differs by a bit, in what is kept, shown, or in the
    environment's state, a warning says so, and steps run one by one from then on.

    Args:
        env, policy: What the function plays; `policy` must not explore.
        player: The function.
        keys, decisions, outcomes: As in `play_steps`.
    """

    instead = "steps run one by one"

    def __init__(
        self,
        env: BatchedEnv,
        policy: Policy,
        player: WholePlayer,
        keys: Sequence[NestedKey],
        decisions: Sequence[NestedKey] = ("action",),
        outcomes: Sequence[NestedKey] = (),
    ) -> None:
        self.env = env
        self.policy = policy
        self.player = player
        self._kept = list(keys), list(decisions), list(outcomes)
        more = [*decisions, *outcomes]
        problem = player.problem(env, policy, list(keys), more)
        super().__init__(env.device, active=not problem)
        if problem:
            _LOG.info("steps run one by one: %s", problem)

    @torch.no_grad()
    def __call__(self, current: TensorDictBase, steps: int) -> tuple[TensorDictBase, TensorDictBase]:
        """As `play_steps`."""
        player = self.form_for(None, (current, steps))
        if player is None:
            return play_steps(self.env, self.policy, current, steps, *self._kept)
        with section("rollout"):
            return self._play(player, current, steps)

    def _play(self, player: WholePlayer, current: TensorDictBase, steps: int) -> tuple[TensorDictBase, TensorDictBase]:
        keys, decisions, outcomes = self._kept
        played, after = player.play(self.env, self.policy, current, steps)
        kept = played.select(*keys, *decisions)
        kept["next"] = played["next"].select(*keys, *outcomes, strict=False)
        return kept, after

    # -- the machine's methods --

    def _saved(self) -> dict[str, Tensor]:
        return copies(self.env.env_state())

    def _restore(self, saved: dict[str, Tensor]) -> None:
        self.env.set_env_state(copies(saved))

    def _made(self, data: tuple[TensorDictBase, int]) -> WholePlayer:
        return self.player

    def _tried(self, form: WholePlayer | None, data: tuple[TensorDictBase, int]) -> Left:
        current, steps = data
        # TensorDict.clone adds 0, which turns -0 into 0.
        shown = current.apply(Tensor.clone)
        if form is None:
            played, after = play_steps(self.env, self.policy, shown, steps, *self._kept)
        else:
            played, after = self._play(form, shown, steps)
        return Left(played, after, copies(self.env.env_state()))

    # To the bit, where a graph may round otherwise: the native function does the same arithmetic in the same order, so
    # that any difference is a fault.
    def _compare(self, plain: Left, found: Left) -> None:
        for name, ours, theirs in _pairs(plain, found):
            if not _same_bits(ours, theirs):
                raise RuntimeError(f"{name} of the rollout has other bits than that of steps one by one")


def _pairs(wanted: Sequence[object], found: Sequence[object]) -> Iterator[tuple[str, Tensor | None, Tensor | None]]:
    """Name and both values of every tensor in two sequences.

    Their elements are tensordicts and dicts of tensors; a value that one lacks is None.
    """
    parts = zip(map(_leaves, wanted), map(_leaves, found), strict=True)
    for ours, theirs in parts:
        for name in sorted(ours.keys() | theirs.keys()):
            yield name, ours.get(name), theirs.get(name)


def _leaves(given: object) -> dict[str, Tensor]:
    if isinstance(given, TensorDictBase):
        return {str(key): value for key, value in given.items(True, True)}
    assert isinstance(given, dict)
    return given


def _same_bits(wanted: Tensor | None, found: Tensor | None) -> bool:
    """Whether two tensors have the same shape, type and bits, -0 and NaN included."""
    if wanted is None or found is None or wanted.shape != found.shape or wanted.dtype != found.dtype:
        return False
    if wanted.is_floating_point():
        words = {4: torch.int32, 8: torch.int64}[wanted.element_size()]
        wanted = wanted.contiguous().view(words)
        found = found.contiguous().view(words)
    return torch.equal(wanted, found)
