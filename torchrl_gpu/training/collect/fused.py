"""Rollouts that one native function plays whole: all steps of environment and policy, with no Python between them."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from typing import Protocol, final

import torch
from tensordict import NestedKey, TensorDictBase
from torch import Tensor

from torchrl_gpu.envs.base import BatchedEnv
from torchrl_gpu.policies.policy import Policy
from torchrl_gpu.system.sections import section
from torchrl_gpu.training.collect.graphed import copies, play_steps, say_plain

_LOG = logging.getLogger(__name__)


class WholePlayer(Protocol):
    """Native function that plays whole rollouts of some environments and policies: C++ on a CPU, a kernel on a GPU.

    It names a task, so that the learner of that task hands it to its `Rollout`; this room knows the protocol alone.
    """

    def problem(self, env: BatchedEnv, policy: Policy, keys: Sequence[NestedKey], more: Sequence[NestedKey]) -> str:
        """Reason why it does not play this policy in this environment; "" where it does.

        Args:
            env, policy: Asked once for each pair, before the first step.
            keys: Observations to keep, before and after each step.
            more: What else to keep: decisions, and outcomes of `next`.
        """

    def play(
        self, env: BatchedEnv, policy: Policy, current: TensorDictBase, steps: int
    ) -> tuple[TensorDictBase, TensorDictBase]:
        """As `play_steps`, to the same bits: steps (N, T), and what the environment shows then.

        It may keep more than was asked for. The environment's state afterwards is that behind the last step; what
        `current` shows is that state, and whatever a policy or a user has set in it stays.
        """


@final
class FusedRollout:
    """`play_steps` by a native function, where there is one for this environment and policy.

    The first rollout is played both ways. Where anything differs by a bit, in what is kept, shown, or in the
    environment's state, a warning says so, and steps run one by one from then on.

    Args:
        env, policy: What the function plays; `policy` must not explore.
        player: The function.
        keys, decisions, outcomes: As in `play_steps`.
    """

    def __init__(
        self,
        env: BatchedEnv,
        policy: Policy,
        player: WholePlayer,
        keys: Sequence[NestedKey],
        decisions: Sequence[NestedKey] = ("action",),
        outcomes: Sequence[NestedKey] = (),
    ) -> None:
        self.env, self.policy, self.player = env, policy, player
        self._kept = list(keys), list(decisions), list(outcomes)
        self._checked = False
        self.problem = player.problem(env, policy, list(keys), [*decisions, *outcomes])
        if self.problem:
            _LOG.info("steps run one by one: %s", self.problem)

    @property
    def plays(self) -> bool:
        """True where the function plays; else other ways of playing steps do."""
        return not self.problem

    @torch.no_grad()
    def __call__(self, current: TensorDictBase, steps: int) -> tuple[TensorDictBase, TensorDictBase]:
        """As `play_steps`."""
        if not self._checked:
            return self._checked_play(current, steps)
        with section("rollout"):
            return self._play(current, steps)

    def _play(self, current: TensorDictBase, steps: int) -> tuple[TensorDictBase, TensorDictBase]:
        keys, decisions, outcomes = self._kept
        played, after = self.player.play(self.env, self.policy, current, steps)
        kept = played.select(*keys, *decisions)
        kept["next"] = played["next"].select(*keys, *outcomes, strict=False)
        return kept, after

    def _checked_play(self, current: TensorDictBase, steps: int) -> tuple[TensorDictBase, TensorDictBase]:
        """Plays both ways; what the steps one by one give, and the state that they leave."""
        env, state = self.env, copies(self.env._env_state())
        shown = current.apply(Tensor.clone)  # TensorDict.clone adds 0, which turns -0 into 0
        plain = play_steps(env, self.policy, current, steps, *self._kept)
        left = env._env_state()
        env._set_env_state(state)
        try:
            whole = self._play(shown, steps)
            for name, wanted, found in _pairs([*plain, left], [*whole, env._env_state()]):
                if not _same_bits(wanted, found):
                    raise RuntimeError(f"want a rollout of the same bits as steps one by one; got another {name}")
            self._checked = True
        except Exception as error:  # whatever a compiler, a driver or a kernel raises
            self.problem = str(error) or type(error).__name__
            say_plain(type(self).__name__, error)
        finally:
            env._set_env_state(left)
        return plain


def _pairs(wanted: Sequence[object], found: Sequence[object]) -> Iterator[tuple[str, Tensor | None, Tensor | None]]:
    """Name and both values of every tensor in either of two sequences of tensordicts and dicts of tensors."""
    for ours, theirs in zip(map(_leaves, wanted), map(_leaves, found), strict=True):
        for name in sorted(ours.keys() | theirs.keys()):
            yield name, ours.get(name), theirs.get(name)


def _leaves(given: object) -> dict[str, Tensor]:
    if isinstance(given, TensorDictBase):
        return {str(key): value for key, value in given.items(True, True)}
    assert isinstance(given, dict)
    return given


def _same_bits(wanted: Tensor | None, found: Tensor | None) -> bool:
    if wanted is None or found is None or wanted.shape != found.shape or wanted.dtype != found.dtype:
        return False
    if wanted.is_floating_point():
        words = {4: torch.int32, 8: torch.int64}[wanted.element_size()]
        wanted, found = wanted.contiguous().view(words), found.contiguous().view(words)
    return torch.equal(wanted, found)
