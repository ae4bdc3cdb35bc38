"""Learning what a network adds to the values of bins after placements, as a Lightning module."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, final

import torch
from lightning.pytorch.cli import LRSchedulerCallable, OptimizerCallable
from tensordict import TensorDictBase
from torch import Tensor

from torchrl_gpu import arguments
from torchrl_gpu.envs import PackingEnv
from torchrl_gpu.policies.loading import load_policy
from torchrl_gpu.policies.packing.conv_values import ConvValues
from torchrl_gpu.policies.packing.next_items import pretrained_next_items
from torchrl_gpu.policies.packing.patch_tables import PatchTables
from torchrl_gpu.policies.packing.pretrained import PackingPolicy
from torchrl_gpu.policies.spaces import AgentSpace
from torchrl_gpu.sections import in_section, section
from torchrl_gpu.training.afterstate_run import AfterstateRun
from torchrl_gpu.training.collect.rollout import Rollout
from torchrl_gpu.training.run import EnvFactory, check_counts
from torchrl_gpu.training.updates.capturable import keep_capturable

ValuesFactory = Callable[[AgentSpace], ConvValues]
"""Makes the values of an environment's space."""


@final
class ConvAfterstateLearning(AfterstateRun):
    """Learns by TD(λ) what a convolutional network adds to what tables say that a bin is worth after a placement.

    A training step plays `rollout_steps` steps in every environment, finds the λ-returns of the bins by the values of
    that moment, and goes once over them in `minibatches` updates of rows drawn without replacement, each bin mirrored
    at random. The tables stay as they are: those of a policy that comes with the package, or of a run of
    `AfterstateLearning`. `trainer.max_steps` counts updates. The reward of the environment must be "utilization".

    Args:
        env: Makes the `PackingEnv`, as in `EnvRun`; it includes z_map and, where the next item is foretold,
            packed_items.
        values: Makes the values, once the environment is there.
        optimizer: Makes the optimizer of the network's weights.
        lr_scheduler: Makes a schedule that is stepped at every update.
        tables_of: Name of a policy that comes with the package, or a file of `PackingPolicy.save` or of a run, whose
            tables are taken when a run begins; a resumed run has them in its checkpoint. None where there are none.
        rollout_steps: Steps in every environment per training step.
        minibatches: Updates of a training step.
        lam: λ of the returns.
        max_grad_norm: Gradients are clipped to this norm; None leaves them.
    """

    policy: PackingPolicy

    def __init__(
        self,
        env: EnvFactory,
        values: ValuesFactory = ConvValues,
        optimizer: OptimizerCallable = torch.optim.Adam,
        lr_scheduler: LRSchedulerCallable | None = None,
        *,
        tables_of: str | None = None,
        rollout_steps: int = 32,
        minibatches: int = 8,
        lam: float = 0.8,
        max_grad_norm: float | None = 1.0,
    ) -> None:
        super().__init__(env)
        where = type(self).__name__
        check_counts(where, rollout_steps=rollout_steps, minibatches=minibatches)
        self.make_values, self.make_optimizer, self.make_scheduler = values, optimizer, lr_scheduler
        self.tables_of, self.rollout_steps, self.minibatches = tables_of, rollout_steps, minibatches
        self.lam = arguments.number(where, "lam", lam, 0, 1)
        self.max_grad_norm = arguments.optional(arguments.number, where, "max_grad_norm", max_grad_norm, above=0)
        self.take_made_env()

    def build(self) -> None:
        """Makes the values.

        Raises:
            ValueError: The environment is no `PackingEnv` of boxes whose reward is the utilization, leaves out what the
                values are of, or minibatches would not be of the same size.
        """
        env = self.packing_env("z_map")
        self.space = AgentSpace.of(env)
        self.values = self.make_values(self.space)
        self.packing_env(*self.values.included)
        if (rows := env.num_envs * self.rollout_steps) % self.minibatches:
            where = type(self).__name__
            raise ValueError(f"{where}: minibatches must divide the {rows} steps of a rollout; got {self.minibatches}")

    @property
    def placement_values(self) -> ConvValues:
        """Network and tables."""
        return self.values

    def configure_optimizers(self) -> Any:
        """Of the network's weights."""
        optimizer = self.make_optimizer(self.values.network.parameters())
        keep_capturable(optimizer)
        return self.scheduled(optimizer, self.make_scheduler)

    # -- fit --

    def on_fit_start(self) -> None:
        """Takes tables and what foretells, and starts rollouts."""
        super().on_fit_start()
        env = self.packing_env()
        if self.trainer.ckpt_path is None:
            self._take_tables()
            self._take_next_items(env)
        self.__dict__["policy"] = PackingPolicy(self.space, self.values)  # no submodule: weights are saved once
        self.rollout = Rollout(env, self.values.state_keys, n_steps=1, gamma=1.0)

    def _take_tables(self) -> None:
        own, where = self.values.tables, f"{type(self).__name__}: tables_of"
        if (own is None) != (self.tables_of is None):
            raise ValueError(
                f"{where} wants a policy where values have patches, and none elsewhere; got {self.tables_of}"
            )
        if own is None or self.tables_of is None:
            return
        if self.tables_of in PackingPolicy.names() or Path(self.tables_of).suffix == ".safetensors":
            policy: Any = PackingPolicy.from_pretrained(self.tables_of, self.device, space=self.space)
        else:
            policy = load_policy(self.tables_of, self.device)
        found = next((each for each in policy.modules() if isinstance(each, PatchTables)), None)
        if found is None or (found.plan, found.pool) != (own.plan, own.pool):
            came = "none" if found is None else f"{list(found.plan.shapes)} of {found.plan.levels} levels"
            wanted = f"tables of {list(own.plan.shapes)} of {own.plan.levels} levels"
            raise ValueError(f"{where} must be a policy with {wanted}; got {came}")
        own.load_state_dict(found.state_dict())

    def _take_next_items(self, env: PackingEnv) -> None:
        own = self.values.next_items
        if own is None:
            return
        found = pretrained_next_items(env)
        if found is None or (found.num_items, found.ages, found.width) != (own.num_items, own.ages, own.width):
            came = "none" if found is None else f"those of {found.num_items} items"
            wanted = f"{own.num_items} items that the package foretells, see `pretrained_next_items`"
            raise ValueError(f"{type(self).__name__}: values with foretold want an env of {wanted}; got {came}")
        own.load_state_dict(found.state_dict())

    def on_train_start(self) -> None:
        """Goes on where a checkpoint was saved."""
        self.restore_run()

    @in_section("step")
    def training_step(self, batch: Any, batch_idx: int) -> dict[str, Tensor]:
        """Plays, and learns from what was played; the loss of the last update, for callbacks that look at it."""
        steps = self.play(self.policy, self.rollout_steps)
        with section("update"):
            rows = self._targets(steps)
            pairs = zip(range(self.updates_now(self.minibatches)), self._batches(rows), strict=False)
            losses = [self._learn(each) for _, each in pairs]
        if self.logs_now:
            self.log_step({"loss": torch.stack(losses).mean(), **self.outcomes, "frames": self.frames})
        return {"loss": losses[-1]} if losses else {}

    @torch.no_grad()
    def _targets(self, steps: TensorDictBase) -> TensorDictBase:
        """States (N·T,) of a rollout (N, T), with `target`, what the network should add, and `counts`.

        The last bin of a trajectory that goes on does not count: what came after it is not known yet.
        """
        after = steps["next"]
        states = self.values.states(after)
        by_tables = self.values.table_values(states)
        value = by_tables + self.values.network(states["levels"], states["context"])
        shape = steps.shape
        goals = lambda_returns(value.view(shape), after["reward"][..., 0], after["done"][..., 0], self.lam)
        counts = after["done"][..., 0].clone()
        counts[:, :-1] = True
        return states.update({"target": goals.flatten() - by_tables, "counts": counts.flatten()})

    def _batches(self, rows: TensorDictBase) -> Iterator[TensorDictBase]:
        order = torch.rand(len(rows), device=self.env.device, dtype=torch.float32).argsort()
        yield from rows[order].split(len(rows) // self.minibatches)

    def _learn(self, rows: TensorDictBase) -> Tensor:
        self.note_batch(rows)
        added = self.values.network(mirrored(rows["levels"]), rows["context"])
        loss = torch.where(rows["counts"], (added - rows["target"]).square(), 0.0).mean()
        self.descend(loss, [list(self.values.network.parameters())], self.max_grad_norm)
        scheduler: Any = self.lr_schedulers()
        if scheduler is not None:
            scheduler.step()
        return loss.detach()


def lambda_returns(value: Tensor, reward: Tensor, done: Tensor, lam: float) -> Tensor:
    """What bins after placements were worth: TD(λ) along trajectories, undiscounted.

    Args:
        value: (N, T) float32, of the bin after each step.
        reward: (N, T) float32, of each step.
        done: (N, T) bool, whether an episode ended with it.
        lam: From 0, the next reward and value alone, to 1, all rewards until the trajectory's end.

    Returns:
        (N, T) float32; 0 where an episode ended, and in the last step, of which nothing is known else.
    """
    last = value.shape[1] - 1
    goals, known = [torch.zeros_like(value[:, 0])], value[:, last].masked_fill(done[:, last], 0.0)
    for t in range(last, 0, -1):
        following = reward[:, t] + torch.lerp(value[:, t], known, lam)
        known = following.masked_fill(done[:, t - 1], 0.0)
        goals.append(known)
    return torch.stack(goals[::-1], 1)


def mirrored(levels: Tensor) -> Tensor:
    """Bins (B, X, Y), each mirrored along x and along y with even chances."""
    for axis in (1, 2):
        turned = torch.rand(len(levels), 1, 1, device=levels.device, dtype=torch.float32) < 0.5
        levels = torch.where(turned, levels.flip(axis), levels)
    return levels
