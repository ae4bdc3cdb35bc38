"""Behaviour cloning as a Lightning module."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import cast

import torch
from lightning.pytorch.cli import LRSchedulerCallable, OptimizerCallable
from lightning.pytorch.utilities.types import OptimizerLRScheduler
from rich.console import Console
from tensordict import TensorDict, TensorDictBase
from tensordict.nn import TensorDictModuleBase
from torch import Tensor

from torchrl_gpu.demonstrations import Demonstrations
from torchrl_gpu.demonstrations.untrusted import refuse
from torchrl_gpu.envs.base import BatchedEnv
from torchrl_gpu.envs.state_validation import Bounds, Entry, entries_of
from torchrl_gpu.evaluation.episodes import score_names
from torchrl_gpu.evaluation.suite import Suite
from torchrl_gpu.policies.agents.base import NetworkFactory
from torchrl_gpu.policies.cloning import BCPolicy, Cloned, ClonedChoice
from torchrl_gpu.policies.spaces import AgentSpace
from torchrl_gpu.policies.wrapper import PolicyWrapper
from torchrl_gpu.system import arguments
from torchrl_gpu.system.sections import in_section, section
from torchrl_gpu.training.accelerated.choice import GraphOption
from torchrl_gpu.training.agent_run import means_of
from torchrl_gpu.training.data.demonstrations import DemonstrationEpisodes, HeldOut
from torchrl_gpu.training.lightning_callbacks import adapt_resumed
from torchrl_gpu.training.run import EnvFactory, EnvRun, check_counts
from torchrl_gpu.training.step_log import on_host
from torchrl_gpu.training.trainer_fields import datamodule_of
from torchrl_gpu.training.updates.graphed import GraphedLearning
from torchrl_gpu.training.updates.learner import ModuleLearner

# Rows of validation that are looked at together.
_CHUNK = 1024

# Rows that statistics are taken of together.
_STATISTICS_CHUNK = 1 << 16


class BehaviourCloning(EnvRun):
    """Supervised learning of demonstrated actions, on the device.

    Actions are vectors (`policy`), or choices among those of an environment (`network`). An epoch is a pass over the
    rows that are learned from, in an order that seed and number of the pass decide; with `data.steps_per_epoch` it has
    so many steps of `updates_per_step` each. Rows are gathered by index on the device; the environment makes again what
    demonstrations leave out, such as maps and masks. `trainer.max_steps` counts updates.

    Validation logs `val/loss` and `val/agreement` (share of held-out rows whose action is the greedy one) or, of
    vectors, `val/error`, and the scores of episodes where there is an environment.

    Args:
        policy: Of vectors; None for a choice among actions.
        network: Makes the network of a choice, such as `PlacementScores`, whose weights a Q-learner can begin with.
        env: As in `EnvRun`; a choice needs it. None where there is none.
        optimizer: Makes the optimizer.
        lr_scheduler: Makes a schedule that is stepped at every update.
        temperature: As in `ClonedChoice`.
        batch_size: Rows of an update.
        updates_per_step: Updates of a training step, over which Lightning's own cost is spread.
        max_grad_norm: Gradients are clipped to this norm; None leaves them.
        seed: Decides the order of the rows.
        graph_updates: Whether all updates of a training step on CUDA are one launch of a graph; "auto" where nothing
            speaks against it, which a line says otherwise.
    """

    learner_name = "BC"
    # The rows of an update follow from its number.
    exact_anywhere = True

    def __init__(
        self,
        policy: BCPolicy | None = None,
        network: NetworkFactory | None = None,
        env: EnvFactory | None = None,
        optimizer: OptimizerCallable = torch.optim.Adam,
        lr_scheduler: LRSchedulerCallable | None = None,
        *,
        temperature: float = 1.0,
        batch_size: int = 256,
        updates_per_step: int = 10,
        max_grad_norm: float | None = 10.0,
        seed: int = 0,
        graph_updates: GraphOption = "auto",
    ) -> None:
        where = type(self).__name__
        super().__init__(cast("EnvFactory", env))
        check_counts(where, batch_size=batch_size, updates_per_step=updates_per_step)
        if (policy is None) is (network is None) or (network is not None and env is None):
            given = [name for name, value in (("policy", policy), ("network", network), ("env", env)) if value]
            wanted = "policy (of vectors), or network (of a choice among actions) and env"
            raise ValueError(f"{where}: give {wanted}, not {', '.join(given) or 'none of them'}")
        self.has_env = env is not None
        self.make_network = network
        self.temperature = arguments.number(where, "temperature", temperature, above=0)
        if network is None:
            arguments.check_effect(where, "network, a choice among actions", temperature=(temperature, 1.0))
        self.make_optimizer = optimizer
        self.make_scheduler = lr_scheduler
        self.batch_size = batch_size
        self.updates_per_step = updates_per_step
        self.max_grad_norm = arguments.optional(arguments.number, where, "max_grad_norm", max_grad_norm, above=0)
        self.seed = arguments.seed(where, "seed", seed)
        self.graph_updates = graph_updates
        self._graphed: GraphedLearning | None = None
        self.learner: BCPolicy | ClonedChoice
        if policy is not None:
            self.learner = policy
        self.take_made_env()

    # -- what is learned ----------------------------------------------------------------------------------------------

    def make_env(self, device: torch.device, rank: int = 0) -> None:
        if self.has_env:
            super().make_env(device, rank)

    def build(self) -> None:
        self.space = AgentSpace.of(self.env)
        if self.make_network is not None:
            network = self.make_network(self.space)
            self.learner = ClonedChoice(self.space, network, self.temperature)
        elif self.space.num_actions is not None or self.space.action_shape != (self._vectors.action_dim,):
            wanted = f"{self._vectors.action_dim} continuous actions"
            raise ValueError(f"{type(self).__name__}: {self.space.source} must have {wanted}, as the policy has")

    @property
    def _vectors(self) -> BCPolicy:
        return cast("BCPolicy", self.learner)

    @property
    def observed(self) -> list[str] | None:
        """Names of the observations that are learned from, or None for all."""
        return None if self.has_env else self._vectors.in_keys

    @property
    def trained(self) -> bool:
        return self.trainer.global_step > 0 or self.trainer.ckpt_path is not None

    @property
    def has_values(self) -> bool:
        return isinstance(self.learner, ClonedChoice)

    def policy_for(self, env: BatchedEnv) -> PolicyWrapper:
        return PolicyWrapper(Cloned(self.space, cast("TensorDictModuleBase", self.learner.policy)))

    def configure_optimizers(self) -> OptimizerLRScheduler:
        optimizer = self.make_optimizer(self.learner.parameters())
        return self.scheduled(optimizer, self.make_scheduler)

    # -- demonstrations ---------------------------------------------------------------------------------------------

    def setup(self, stage: str) -> None:
        if self.has_env:
            super().setup(stage)
        else:
            self.check_precision()
        data = datamodule_of(self.trainer)
        if not isinstance(data, DemonstrationEpisodes):
            if stage == "fit":
                came = type(data).__name__
                raise ValueError(f"{type(self).__name__}: data must be DemonstrationEpisodes, not {came}")
            return
        if data.demonstrations is None:
            return
        self.demonstrations = data.put_on(self.trainer.strategy.root_device)
        self.train_rows = data.train_rows
        self._check_demonstrations()
        if stage == "fit" and isinstance(self.learner, BCPolicy):
            self._take_statistics(self.learner)

    def _take_statistics(self, policy: BCPolicy) -> None:
        """Take means and deviations of the rows that are learned from, to normalise by."""
        vectors = []
        actions = []
        for index in self.train_rows.split(_STATISTICS_CHUNK):
            part = self.demonstrations.batch(index)
            observed = [part[key].flatten(1).float() for key in policy.in_keys]
            vectors.append(torch.cat(observed, 1))
            actions.append(part["action"])
        policy.to(self.train_rows.device)
        policy.set_statistics(torch.cat(vectors), torch.cat(actions))

    def _check_demonstrations(self) -> None:
        """Raise where demonstrations do not fit the environment or the policy."""
        found = self.demonstrations
        name = found.name
        if isinstance(self.learner, BCPolicy):
            _check_vectors(found, self.learner)
            return
        if found.about.get("meaning", self.env.stored_meaning) != self.env.stored_meaning:
            refuse(name, f"rows of the items of this {type(self.env).__name__}", "those of others: item_id counts them")
        group = self.space.group
        shown = self.env.observation_spec[group] if group else self.env.observation_spec
        stored = [key if isinstance(key, str) else key[-1] for key in self.env.stored_keys]
        needed = list(self.learner.in_keys)
        if self.space.masked:
            needed.append("action_mask")
        if not set(needed) <= set(stored):
            needed = stored
        entries = entries_of(shown, 1 + len(group))
        wanted = {key: entries[key] for key in needed}
        wanted["action"] = Entry(torch.int64, (), Bounds(0, cast("int", self.space.num_actions) - 1))
        for key, entry in wanted.items():
            # Iterating over a tensordict would give its rows.
            if key not in found.rows.keys():  # noqa: SIM118
                shown_by = type(self.env).__name__
                refuse(name, f"an entry {key}, which {shown_by} shows", ", ".join(sorted(found.rows.keys())))
            _check_entry(found, key, entry)
        device = found.rows["action"].device
        rows = torch.arange(len(found), device=device, dtype=torch.int64)
        for index in rows.split(_CHUNK):
            # The environment raises where it cannot make again what a row leaves out.
            batch = self._batch(index)
            if self.space.masked:
                self._check_legal(index, batch)

    def _check_legal(self, index: Tensor, batch: TensorDictBase) -> None:
        """Raise where an action of a batch, the rows `index`, is not legal."""
        found = self.demonstrations
        legal = batch["action_mask"].gather(1, batch["action"][:, None])
        if legal.all():
            return
        first_illegal = (~legal[:, 0]).byte().argmax()
        row = int(index[first_illegal])
        came = f"{int(found.rows['action'][row])} in row {row}"
        refuse(f"{found.name}: action", f"actions that are legal in this {type(self.env).__name__}", came)

    def _batch(self, index: Tensor) -> TensorDictBase:
        batch = self.demonstrations.batch(index)
        return self.env.restore(batch) if self.has_env else batch

    # -- fit --------------------------------------------------------------------------------------------------------

    def steps_of(self, rows: int) -> int:
        """Number of training steps of a pass over some rows."""
        return -(-self._updates_of(rows) // self.updates_per_step)

    def _updates_of(self, rows: int) -> int:
        return max(1, rows // (self.batch_size * self.trainer.world_size))

    def step_names(self) -> Sequence[str]:
        return self._score_names()

    def validation_names(self) -> Sequence[str] | None:
        of_episodes = score_names(self.env) if self.has_env else ()
        return None if of_episodes is None else (*self._score_names(), *of_episodes)

    def _score_names(self) -> tuple[str, ...]:
        measure = "agreement" if isinstance(self.learner, ClonedChoice) else "error"
        return ("loss", measure)

    def on_fit_start(self) -> None:
        self.step_log.begin()
        self.check_monitors()
        adapt_resumed(self.trainer)
        self._clock = self._cut = None
        self._pass: tuple[int, Tensor] | None = None
        self._graphed = self._make_graphed() if self.takes_graphed_updates(self.graph_updates) else None

    def _make_graphed(self) -> GraphedLearning:
        def batches(data: TensorDictBase) -> Iterator[TensorDictBase]:
            return (self._batch(index) for index in data["index"].unbind())

        return GraphedLearning(
            ModuleLearner(self.learner, self._means),
            self.torch_optimizer,
            self.max_grad_norm,
            batches=batches,
            updates=self.updates_per_step,
            schedule=self.rate_schedule,
        )

    def _means(self, batch: TensorDictBase) -> dict[str, Tensor]:
        """Mean scores of a batch, of which the loss alone has a gradient."""
        means = {name: values.mean() for name, values in self.learner.scores(batch).items()}
        return {name: value if name == "loss" else value.detach() for name, value in means.items()}

    def draw_rows(self, update: int) -> Tensor:
        """Numbers of the rows of an update, (B,).

        They follow from the seed and from how many updates were made before.
        """
        num_rows = len(self.train_rows)
        number, place = divmod(update, self._updates_of(num_rows))
        if self._pass is None or self._pass[0] != number:
            device = self.train_rows.device
            # Each pass has a seed of its own, so that a resumed run draws it without those before.
            generator = torch.Generator(device).manual_seed((self.seed * 1_000_003 + number) % 2**63)
            order = torch.randperm(num_rows, generator=generator, device=device, dtype=torch.int64)
            self._pass = number, self.train_rows[order]
        together = self.batch_size * self.trainer.world_size
        begin = place * together
        rows = self._pass[1][begin : begin + together]
        # All processes draw the same pass, and each takes its share of every batch.
        return rows[self.global_rank :: self.trainer.world_size]

    @in_section("step")
    def training_step(self, batch: object, batch_idx: int) -> dict[str, Tensor]:
        most = self.updates_per_step
        data = datamodule_of(self.trainer)
        assert isinstance(data, DemonstrationEpisodes), "`setup` takes no other"
        # Without a number of steps an epoch is a pass.
        if data.asked_steps is None:
            a_pass = self._updates_of(len(self.train_rows))
            most = min(most, a_pass - self.trainer.global_step % a_pass)
        made = self._learn(self.updates_now(most))
        if self.logs_this_step:
            self.log_step(means_of(made))
        return {"loss": made[-1]["loss"]} if made else {}

    def _learn(self, updates: int) -> list[dict[str, Tensor]]:
        """Make some updates, and give the means of each."""
        graphed = self._graphed
        if graphed is None or updates < self.updates_per_step:
            return [self.update_once() for _ in range(updates)]
        first = self.trainer.global_step
        with section("replay"):
            drawn = [self.draw_rows(first + number) for number in range(updates)]
            index = torch.stack(drawn)
        with section("update"):
            made = self.learn_in_graph(graphed, TensorDict({"index": index}), updates)
        if made is None:
            return [self.update_once() for _ in range(updates)]
        for batch in graphed.batches_seen:
            self.note_batch(batch)
        return made

    @in_section("update")
    def update_once(self) -> dict[str, Tensor]:
        with section("replay"):
            batch = self._batch(self.draw_rows(self.trainer.global_step))
        self.note_batch(batch)
        means = self._means(batch)
        weights = list(self.learner.parameters())
        self.descend(means["loss"], [weights], self.max_grad_norm)
        self.step_schedule()
        return {name: value.detach() for name, value in means.items()}

    # -- evaluation -------------------------------------------------------------------------------------------------

    @in_section("validation")
    def validation_step(self, suite: Suite | HeldOut, batch_idx: int) -> None:
        if isinstance(suite, HeldOut):
            self._score(suite, "val")
        else:
            super().validation_step(suite, batch_idx)

    def test_step(self, suite: Suite | HeldOut, batch_idx: int) -> None:
        if isinstance(suite, HeldOut):
            self._score(suite, "test")
        else:
            super().test_step(suite, batch_idx)

    @torch.no_grad()
    def _score(self, held: HeldOut, stage: str) -> None:
        sums: dict[str, list[Tensor]] = {}
        for index in held.index.split(_CHUNK):
            for name, values in self.learner.scores(self._batch(index)).items():
                sums.setdefault(name, []).append(values.double().sum())
        totals = [torch.stack(parts).sum() for parts in sums.values()]
        together = torch.stack(totals) / len(held.index)
        # The device is waited for once.
        means = dict(zip(sums, together.tolist(), strict=True))
        for name, value in means.items():
            on_bar = name != "loss"
            self.log(f"{stage}/{name}", on_host(value), prog_bar=on_bar, batch_size=1)
        if self.trainer.state.fn != "fit":
            listed = ", ".join(f"{name} {value:.4f}" for name, value in means.items())
            Console().print(f"{self.policy_name} on {len(held.index):,} rows held back: {listed}", soft_wrap=True)

    # -- checkpoints ------------------------------------------------------------------------------------------------

    def begins_anew(self, saved: int, now: int) -> str:
        return "the pass over the demonstrations goes on at another row"

    def rank_state(self) -> dict[str, object]:
        """Nothing more: which rows come next follows from the number of updates."""
        return {}

    def part_state(self, rank: int, replay: bool) -> dict[str, object] | None:
        return None

    def on_save_checkpoint(self, checkpoint: dict[str, object]) -> None:
        super().on_save_checkpoint(checkpoint)
        if isinstance(self.learner, BCPolicy):
            settings = self.learner.settings
            checkpoint["bc_policy"] = settings
            found: Demonstrations | None = getattr(self, "demonstrations", None)
            if found is not None:
                settings["widths"] = [found.rows[name].shape[1] for name in self.learner.in_keys]


def _check_entry(found: Demonstrations, key: str, wanted: Entry) -> None:
    value = found.rows[key]
    first = 0
    for part in value.split(_STATISTICS_CHUNK):
        entry = wanted._replace(shape=(len(part), *wanted.shape))
        where = f"demonstrations: {found.name}, rows from {first} on"
        dtype = found.dtypes.get(key, part.dtype)
        entry.check(where, key, part.to(dtype))
        first += len(part)


def _check_vectors(found: Demonstrations, policy: BCPolicy) -> None:
    names = {name: value for name, value in found.rows.items() if value.ndim == 2}
    for key in (*policy.in_keys, "action"):
        if key not in names:
            shapes = [f"{name} {tuple(value.shape[1:])}" for name, value in found.rows.items()]
            came = ", ".join(shapes)
            refuse(found.name, f"an entry {key} that is a vector, as policy.observations has it", came)
    sizes = ("obs_dim", policy.in_keys, policy.obs_dim), ("action_dim", ["action"], policy.action_dim)
    for what, keys, wanted in sizes:
        width = sum(names[key].shape[1] for key in keys)
        if width != wanted:
            refuse(f"{found.name}: {', '.join(keys)}", f"{wanted} numbers in each row, policy.{what}", f"{width}")
