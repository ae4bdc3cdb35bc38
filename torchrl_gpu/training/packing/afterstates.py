"""TD(λ) on the values of bins after placements, as a Lightning module."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple, cast, final

import torch
from lightning.pytorch.cli import LRSchedulerCallable, OptimizerCallable
from lightning.pytorch.utilities.types import OptimizerLRScheduler
from tensordict import TensorDict, TensorDictBase
from torch import Tensor, nn
from torch.nn.functional import mse_loss

from torchrl_gpu.envs import BatchedEnv, PackingEnv
from torchrl_gpu.policies.packing.ntuple.greedy_rollouts import GREEDY_ROLLOUTS
from torchrl_gpu.policies.packing.ntuple.packed_tables import pack_tables
from torchrl_gpu.policies.packing.ntuple.refined import RefinedTables
from torchrl_gpu.policies.packing.ntuple.tables import PatchTables
from torchrl_gpu.policies.packing.pretrained import PackingPolicy
from torchrl_gpu.policies.policy import Policy
from torchrl_gpu.policies.spaces import AgentSpace
from torchrl_gpu.policies.weights import unpacked_state
from torchrl_gpu.system import arguments
from torchrl_gpu.system.sections import in_section, section
from torchrl_gpu.system.threads import single_threaded
from torchrl_gpu.training.accelerated.choice import GraphOption
from torchrl_gpu.training.accelerated.functions import GraphedFunction
from torchrl_gpu.training.collect.rollout import Rollout
from torchrl_gpu.training.run import EnvFactory, EnvRun, check_counts
from torchrl_gpu.training.updates.graphed import GraphedLearning
from torchrl_gpu.training.updates.learner import ModuleLearner
from torchrl_gpu.training.updates.optimizers import keep_capturable

TablesFactory = Callable[[AgentSpace], PatchTables]
"""Makes the tables of an environment's space."""

_RATE = 0.5
_BATCH_SIZE = 1024

# Entries of a checkpoint that hold tables: the second where the first is an average of `WeightAveraging`.
_STATES = {"state_dict", "current_model_state"}


class Played(NamedTuple):
    """Rollout of N environments and T steps, in the form that tables learn from.

    Attributes:
        levels: (N, T, X, Y) uint8, the bins after each step as the tables see them.
        reward: (N, T) float32.
        done: (N, T) bool, whether the episode ended with the step.
    """

    levels: Tensor
    reward: Tensor
    done: Tensor


class _Unsaved(nn.Module):
    """Dummy weight, in no loss and no checkpoint, since DDP wants one."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros((), dtype=torch.float32, device="cpu"))

    def _save_to_state_dict(self, *args: object) -> None:
        """Save nothing."""

    def _load_from_state_dict(self, *args: object) -> None:
        """Miss nothing."""


@final
class AfterstateLearning(EnvRun):
    """Values of the bins that placements leave, learned by temporal differences.

    The greedy policy plays. If items are independent of each other, what follows a placement depends on the bin alone,
    and the values of bins compare all placements (Sutton and Barto 2018, 6.8, "afterstates"). A training step plays
    `rollout_steps` steps in every environment and goes over them from the last to the first, `sweeps` times, by TD(λ)
    on `PatchTables`. There is no exploration, no optimizer and no gradient; `trainer.max_steps` counts sweeps, and the
    reward must be "utilization".

    The network of `RefinedTables` learns by gradients instead, from the same returns, `sweeps` times from `batch_size`
    bins drawn from the rollout; the tables stay as they are.

    Of several processes each plays in environments of its own and learns some of the tables from the rollouts of all,
    to the last bit those of one process with as many environments. Gradients of a network are averaged over all, as
    Lightning's strategy does.

    Args:
        env: Makes the `PackingEnv`, as in `EnvRun`.
        tables: Makes the tables, once the environment is there.
        rollout_steps: Steps in every environment per training step.
        sweeps: Times that a rollout is gone over.
        rate: Of the steps of plain tables: the share of a bin's error that one takes away, if it were alone; 0.5 by
            default.
        lam: λ of the returns: 0 for the next bin's value alone, 1 for what was gained until the rollout's end.
        warm_start: Trained policy whose tables a run begins with: a name or a file, as in
            `PackingPolicy.from_pretrained`; a run that goes on has its own.
        optimizer, lr_scheduler, batch_size: Of the network of `RefinedTables`: makes the optimizer, Adam by default,
            and its schedule, which is stepped at every update; bins of an update, 1,024 by default.
        cuda_graphs: Whether a rollout on CUDA is one launch of a graph, where no kernel plays all of it; "auto" where
            nothing speaks against it, which a line says otherwise.
        graph_updates: Whether all sweeps or updates of a training step on CUDA are one launch of a graph; "auto" as
            above.
    """

    learner_name = "afterstate values"
    has_values = True

    # As many environment steps teach as much with 1,024 as with 64, and less with 4,096: benchmarks/num_envs.py.
    num_envs_on_cuda = 1024

    policy: PackingPolicy

    def __init__(
        self,
        env: EnvFactory,
        tables: TablesFactory = PatchTables,
        *,
        rollout_steps: int = 32,
        sweeps: int = 1,
        rate: float | None = None,
        lam: float = 0.8,
        warm_start: str | Path | None = None,
        optimizer: OptimizerCallable | None = None,
        lr_scheduler: LRSchedulerCallable | None = None,
        batch_size: int | None = None,
        cuda_graphs: GraphOption = "auto",
        graph_updates: GraphOption = "auto",
    ) -> None:
        super().__init__(env)
        where = type(self).__name__
        check_counts(where, rollout_steps=rollout_steps, sweeps=sweeps)
        self.make_tables = tables
        self.rollout_steps = rollout_steps
        self.sweeps = sweeps
        self.lam = arguments.number(where, "lam", lam, 0, 1)
        self.warm_start = warm_start
        self.cuda_graphs = cuda_graphs
        self.graph_updates = graph_updates
        self._graphed_sweeps: GraphedFunction | None = None
        self._graphed_updates: GraphedLearning | None = None
        # Those of plain tables, and those of a network: what is given for the other kind would do nothing.
        self._of_tables = {"rate": (rate, None)}
        self._of_network = {
            "optimizer": (optimizer, None),
            "lr_scheduler": (lr_scheduler, None),
            "batch_size": (batch_size, None),
        }
        share = _RATE if rate is None else rate
        self.rate = arguments.number(where, "rate", share, 0, 2, above=0)
        bins = _BATCH_SIZE if batch_size is None else batch_size
        self.batch_size = arguments.whole(where, "batch_size", bins, 1)
        self.make_optimizer: OptimizerCallable = torch.optim.Adam if optimizer is None else optimizer
        self.make_scheduler = lr_scheduler
        self.take_made_env()

    def build(self) -> None:
        env = self.env
        where = type(self).__name__
        if not isinstance(env, PackingEnv) or not env.catalogue.flat or env.reward != "utilization":
            came = f"{type(env).__name__} with reward {getattr(env, 'reward', 'of its own')!r}"
            raise ValueError(f"{where}: env must be a PackingEnv of boxes with reward 'utilization', not {came}")
        if "z_map" not in env.include:
            raise ValueError(f"{where}: include of env must have z_map, and is {list(env.include)}")
        self.space = AgentSpace.of(env)
        self.tables = self.make_tables(self.space)
        if isinstance(self.tables, RefinedTables):
            arguments.check_effect(where, "plain tables, PatchTables", **self._of_tables)
        else:
            arguments.check_effect(where, "tables with a network, RefinedTables", **self._of_network)
        if isinstance(self.tables, RefinedTables) and self.rollout_steps < 2:
            raise ValueError(f"{where}: rollout_steps must be 2 or more for refined tables, not {self.rollout_steps}")

    def policy_for(self, env: BatchedEnv) -> Policy:
        return PackingPolicy(self.space, self.tables)

    def on_save_checkpoint(self, checkpoint: dict[str, object]) -> None:
        """Pack tables to the weights that have learned."""
        super().on_save_checkpoint(checkpoint)
        for name in _STATES & set(checkpoint):
            checkpoint[name] = pack_tables(self, cast("Mapping[str, object]", checkpoint[name]))

    def on_load_checkpoint(self, checkpoint: dict[str, object]) -> None:
        super().on_load_checkpoint(checkpoint)
        for name in _STATES & set(checkpoint):
            checkpoint[name] = unpacked_state("checkpoint", self, cast("Mapping[str, object]", checkpoint[name]))

    def configure_optimizers(self) -> OptimizerLRScheduler:
        weights = list(self.tables.parameters())
        if not weights:
            return None
        optimizer = self.make_optimizer(weights)
        keep_capturable(optimizer)
        return self.scheduled(optimizer, self.make_scheduler)

    # -- fit --

    def make_env(self, device: torch.device, rank: int = 0) -> None:
        """Make environment and tables, the same tables in each of several processes."""
        super().make_env(device, rank)
        trainer = self._trainer
        several = trainer is not None and trainer.state.fn == "fit" and trainer.world_size > 1
        if several and not hasattr(self, "_unsaved"):
            if not isinstance(self.tables, RefinedTables):
                self.add_module("_unsaved", _Unsaved())
            # DDP copies no buffers.
            self._ddp_params_and_buffers_to_ignore = [name for name, _ in self.named_buffers()]

    def on_fit_start(self) -> None:
        super().on_fit_start()
        if self.warm_start is not None and self.trainer.ckpt_path is None:
            self.take_tables(PackingPolicy.from_pretrained(self.warm_start, "cpu").tables)
        # It is no submodule, so that tables are saved once.
        self.__dict__["policy"] = PackingPolicy(self.space, self.tables)
        by_graphs = self.takes_graphed_steps(self.cuda_graphs)
        self.rollout = Rollout(
            self.env, ["box_heightmap"], n_steps=1, gamma=1.0, cuda_graphs=by_graphs, player=GREEDY_ROLLOUTS
        )
        self._make_graphs()

    def _make_graphs(self) -> None:
        """Make what learns in graphs, sweeps of tables or updates of a network."""
        self._graphed_sweeps = None
        self._graphed_updates = None
        if not self.takes_graphed_updates(self.graph_updates):
            return
        if not isinstance(self.tables, RefinedTables):
            name = type(self).__name__
            self._graphed_sweeps = GraphedFunction(name, self._swept, self.tables.learned, self.device)
            return
        self._graphed_updates = GraphedLearning(
            ModuleLearner(self.tables, self._network_loss),
            self.torch_optimizer,
            batches=self._draws,
            updates=self.sweeps,
            schedule=self.rate_schedule,
        )

    @property
    def kept_options(self) -> Sequence[str]:
        return (*super().kept_options, "tables.initial")

    def step_names(self) -> Sequence[str]:
        return ("loss", *self.env.outcome_names, "frames")

    def take_tables(self, trained: nn.Module) -> None:
        plan = trained.plan if isinstance(trained, PatchTables) else None
        if plan != self.tables.plan:
            came = plan or type(trained).__name__
            raise ValueError(f"warm_start {self.warm_start}: tables must have {self.tables.plan}, and it has {came}")
        for name in ("weight", "drift", "path"):
            getattr(self.tables, name).copy_(getattr(trained, name))
        if isinstance(trained, RefinedTables):
            self._take_network(trained)

    def _take_network(self, trained: RefinedTables) -> None:
        where = f"warm_start {self.warm_start}"
        given = _settings_of_network(trained)
        if not isinstance(self.tables, RefinedTables):
            raise ValueError(
                f"{where}: its values are those of tables and a network: model.tables must be RefinedTables ({given}),"
                f" not {type(self.tables).__name__}"
            )
        own = _settings_of_network(self.tables)
        if own != given:
            raise ValueError(f"{where}: model.tables must have {given}, as its network has, and has {own}")
        self.tables.network.load_state_dict(trained.network.state_dict())

    @in_section("step")
    def training_step(self, batch: object, batch_idx: int) -> dict[str, Tensor]:
        by_gradients = isinstance(self.tables, RefinedTables)
        # The operators of plain tables are small; a network's products gain from threads.
        with single_threaded(active=self.device.type == "cpu" and not by_gradients):
            errors = self._learn_from_rollout()
        if self.logs_this_step:
            self.log_step({"loss": torch.stack(errors).mean(), **self.outcomes, "frames": self.frames})
        return {"loss": errors[-1]} if errors else {}

    def _learn_from_rollout(self) -> list[Tensor]:
        """Play a rollout and learn from it.

        Returns:
            Mean square of the errors of each update.
        """
        after = self.play(self.policy, self.rollout_steps)["next"]
        levels = self.tables.levels_of(after["box_heightmap"])
        played = Played(levels, after["reward"][..., 0], after["done"][..., 0])
        with section("update"):
            if isinstance(self.tables, RefinedTables):
                errors = self._descend(played)
            else:
                errors = self._sweep(self._of_all(played))
        return errors

    # Tables are learned from whole trajectories, from the last step to the first. Processes therefore exchange what
    # they have played, and not gradients, which tables do not have.
    def _of_all(self, played: Played) -> Played:
        """Rollouts of all processes, in the order of the processes."""
        if self.trainer.world_size == 1:
            return played
        kinds = [each.dtype for each in played]
        shapes = [each[0].shape for each in played]
        # One message holds all parts.
        parts = [each.contiguous().view(torch.uint8).flatten(1) for each in played]
        sent = torch.cat(parts, 1)
        found = [torch.empty_like(sent) for _ in range(self.trainer.world_size)]
        torch.distributed.all_gather(found, sent)
        sizes = [each[0].numel() * each.element_size() for each in played]
        parts = torch.cat(found).split(sizes, 1)
        received = []
        for part, kind, shape in zip(parts, kinds, shapes, strict=True):
            flat = part.contiguous().view(kind)
            received.append(flat.unflatten(1, shape))
        return Played(*received)

    def _sweep(self, played: Played) -> list[Tensor]:
        """Learn from trajectories, from their last steps to their first.

        Returns:
            The mean square of the errors of each sweep.
        """
        updates = self.updates_now(self.sweeps)
        graphed = self._graphed_sweeps
        if graphed is not None and updates == self.sweeps:
            found = graphed(TensorDict(played._asdict()))
            errors = list(found["errors"].unbind())
        else:
            errors = [self.tables.sweep(*played, self.rate, self.lam) for _ in range(updates)]
        self.count_updates(updates)
        return errors

    def _swept(self, data: TensorDictBase) -> TensorDictBase:
        """All sweeps of a training step, as one function."""
        played = Played(data["levels"], data["reward"], data["done"])
        errors = [self.tables.sweep(*played, self.rate, self.lam) for _ in range(self.sweeps)]
        return TensorDict({"errors": torch.stack(errors)})

    def _descend(self, played: Played) -> list[Tensor]:
        """Learn the network from bins drawn from trajectories.

        Returns:
            Mean square of the errors of each update.
        """
        data = TensorDict(played._asdict())
        found = self.learn_in_graph(self._graphed_updates, data, self.sweeps)
        if found is not None:
            return [each["loss"] for each in found]
        losses = []
        updates = range(self.updates_now(self.sweeps))
        for _, batch in zip(updates, self._draws(data), strict=False):
            loss = self._network_loss(batch)["loss"]
            self.descend(loss, [], None)
            self.step_schedule()
            losses.append(loss.detach())
        return losses

    # The values to reach are computed once for a rollout, by the network as it was before. To compute them anew for
    # every batch would follow the network closer, at the cost of all bins of all trajectories each time.
    def _draws(self, data: TensorDictBase) -> Iterator[TensorDictBase]:
        """Batches of bins drawn from trajectories, with the values that they are to reach."""
        tables = cast("RefinedTables", self.tables)
        levels = data["levels"]
        reward = data["reward"]
        with torch.no_grad():
            value = tables.values(levels.flatten(0, 1)).view(reward.shape)
            goal = goals(value, reward, data["done"], self.lam).flatten()
            known = levels[:, :-1].flatten(0, 1)
            by_tables = PatchTables.values(tables, known)
        while True:
            row = torch.randint(len(goal), (self.batch_size,), device=goal.device, dtype=torch.int64)
            yield TensorDict({"levels": known[row], "by_tables": by_tables[row], "goal": goal[row]})

    def _network_loss(self, batch: TensorDictBase) -> dict[str, Tensor]:
        tables = cast("RefinedTables", self.tables)
        value = tables.corrected(batch["levels"], batch["by_tables"])
        return {"loss": mse_loss(value, batch["goal"])}


def _settings_of_network(tables: RefinedTables) -> str:
    """Settings that decide the shapes of a network, in words."""
    return f"sides {tables.sides}, width {tables.width}"


def goals(value: Tensor, reward: Tensor, done: Tensor, lam: float) -> Tensor:
    """λ-returns that the values of bins are to reach, of all steps but the last.

    Args:
        value: Of the bin after each step, (N, T).
        reward: Of each step, (N, T).
        done: Whether the episode ended with the step, (N, T) bool.
        lam: λ.

    Returns:
        Goals, (N, T − 1). Sutton and Barto 2018, 12.1, without a discount.
    """
    following = torch.where(done, 0.0, value).unbind(1)
    goal = following[-1]
    found = []
    for t in range(len(following) - 1, 0, -1):
        mixed = torch.lerp(following[t], goal, lam)
        ahead = reward[:, t] + mixed
        goal = torch.where(done[:, t - 1], 0.0, ahead)
        found.append(goal)
    return torch.stack(found[::-1], 1)
