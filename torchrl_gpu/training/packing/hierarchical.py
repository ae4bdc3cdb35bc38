"""The two stages of the hierarchical packer's training as a Lightning module."""

from __future__ import annotations

import copy
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import count
from typing import cast, final

import torch
from lightning.pytorch.cli import OptimizerCallable
from lightning.pytorch.utilities.types import OptimizerLRScheduler
from tensordict import TensorDict, TensorDictBase
from torch import Tensor
from torch.nn.functional import smooth_l1_loss
from torchrl.data import TensorDictReplayBuffer
from torchrl.envs.utils import ExplorationType, set_exploration_type

from torchrl_gpu.envs import BatchedEnv, PackingEnv
from torchrl_gpu.policies.packing.heuristics import irregular_baselines
from torchrl_gpu.policies.packing.hierarchical.packer import HierarchicalPacker, PackerNetworks
from torchrl_gpu.policies.policy import Policy
from torchrl_gpu.system import arguments
from torchrl_gpu.system.sections import in_section, section
from torchrl_gpu.training.accelerated.choice import GraphOption
from torchrl_gpu.training.collect.rollout import Rollout
from torchrl_gpu.training.packing.heightmap_codec import HeightmapCodec
from torchrl_gpu.training.replay.buffer import DeviceReplay, ReplayFactory
from torchrl_gpu.training.run import EnvFactory, ReplayRun, check_counts
from torchrl_gpu.training.updates.graphed import GraphedLearning
from torchrl_gpu.training.updates.learner import ModuleLearner
from torchrl_gpu.training.updates.optimizers import keep_capturable

_STATE = ["box_heightmap", "item_id", "item_mask", "utilization", "num_packed"]
_TAU = 0.01
_SLOPES = ("slope", "box_slope", "waste_slope")
_DECISION = ["slot", "variant", "place", "least", "candidates", "waste"]


@final
class HierarchicalPacking(ReplayRun):
    """Q-learning of the worker by bounding boxes, then of manager and worker.

    Huang et al., RA-L 8(1), 2023: stage one with a learning rate of 1e-3; stage two with 1e-4, the manager once in four
    updates; masks in acting and in bootstrapping; batch 128, Adam. Departs from the paper: returns are summed over
    `n_steps`, and where that is a whole episode nothing is bootstrapped; exploration is drawn from placements about as
    good as the best (see `HierarchicalPacker`); until `warmup_frames` the rules alone decide.

    `trainer.max_steps` counts updates; the last `max_steps − worker_updates` are of stage two.

    Args:
        env: Makes the `PackingEnv`, as in `EnvRun`; its reward should be "objective", and several items visible.
        networks: Makes the weights, once the environment is there; or the weights themselves.
        optimizer: Makes the optimizer of all weights.
        worker_updates: Updates of stage one.
        joint_rate: Learning rate of stage two, over that of stage one.
        deep_rate: Learning rate of U-Net and ResNet, over that of the other weights.
        manager_period: Updates of the worker for each of the manager, in stage two.
        rollout_steps: Steps in every environment per training step.
        updates_per_step: Updates per training step.
        batch_size: Transitions per update.
        replay: Makes the replay, see `ReplayFactory`; `DeviceReplay` by default.
        warmup_frames: Frames, over all environments, played before the first update.
        n_steps: Rewards of one return.
        gamma: Discount of a step.
        tau: Share of the online weights that the targets take at each update.
        epsilon: Share of placements drawn at random within the margin.
        item_epsilon: Share of items drawn at random, in stage two.
        margin: Of the placements that the worker considers, in bin volumes.
        shortlist: Orientations that it considers, see `HierarchicalPacker`; None for all.
        item_shortlist: Items that the manager considers, likewise.
        reward_scale: Factor on rewards in the loss.
        max_grad_norm: Gradients are clipped to this norm.
        cuda_graphs: Whether a rollout on CUDA is one launch of a graph; "auto" where nothing speaks against it, which a
            line says otherwise.
        graph_updates: Whether all updates of a training step on CUDA are one launch of a graph, draws from the replay
            included; "auto" as above.
    """

    learner_name = "manager + worker"
    has_values = True
    # Those of the manager, in most updates.
    leaves_weights_out = True

    rule: HierarchicalPacker
    worker: HierarchicalPacker
    both: HierarchicalPacker
    make_networks: Callable[[], PackerNetworks] | PackerNetworks

    def __init__(
        self,
        env: EnvFactory,
        networks: Callable[[], PackerNetworks],
        optimizer: OptimizerCallable = torch.optim.Adam,
        *,
        worker_updates: int = 2000,
        joint_rate: float = 0.1,
        deep_rate: float = 0.1,
        manager_period: int = 4,
        rollout_steps: int = 4,
        updates_per_step: int = 4,
        batch_size: int = 128,
        replay: ReplayFactory = DeviceReplay,
        warmup_frames: int = 10_000,
        n_steps: int = 50,
        gamma: float = 1.0,
        tau: float = _TAU,
        epsilon: float = 0.3,
        item_epsilon: float = 0.3,
        margin: float = 0.002,
        shortlist: int | None = None,
        item_shortlist: int | None = None,
        reward_scale: float = 100.0,
        max_grad_norm: float = 10.0,
        cuda_graphs: GraphOption = "auto",
        graph_updates: GraphOption = "auto",
    ) -> None:
        super().__init__(env, warmup_frames)
        where = type(self).__name__
        check_counts(
            where,
            rollout_steps=rollout_steps,
            updates_per_step=updates_per_step,
            batch_size=batch_size,
            n_steps=n_steps,
            manager_period=manager_period,
        )
        # No submodule, where they are the weights themselves.
        self.__dict__["make_networks"] = networks
        self.make_optimizer = optimizer
        self.worker_updates = arguments.whole(where, "worker_updates", worker_updates, 0)
        self.manager_period = manager_period
        self.joint_rate = arguments.number(where, "joint_rate", joint_rate, 0)
        self.deep_rate = arguments.number(where, "deep_rate", deep_rate, 0)
        self.rollout_steps = rollout_steps
        self.updates_per_step = updates_per_step
        self.batch_size = batch_size
        self.make_replay = replay
        self.n_steps = n_steps
        self.gamma = arguments.number(where, "gamma", gamma, 0, 1, above=0)
        self.tau = arguments.number(where, "tau", tau, 0, 1, above=0)
        self.epsilon = arguments.number(where, "epsilon", epsilon, 0, 1)
        self.item_epsilon = arguments.number(where, "item_epsilon", item_epsilon, 0, 1)
        self.margin = arguments.number(where, "margin", margin, 0)
        self.shortlist = arguments.optional(arguments.whole, where, "shortlist", shortlist, 1)
        self.item_shortlist = arguments.optional(arguments.whole, where, "item_shortlist", item_shortlist, 1)
        self.reward_scale = arguments.number(where, "reward_scale", reward_scale, above=0)
        self.max_grad_norm = arguments.number(where, "max_grad_norm", max_grad_norm, above=0)
        self.cuda_graphs = cuda_graphs
        self.graph_updates = graph_updates
        self._graphed: GraphedLearning | None = None
        # Of the update whose loss is computed.
        self._number = 0
        self.take_made_env()

    def build(self) -> None:
        if not isinstance(self.env, PackingEnv):
            raise ValueError(f"HierarchicalPacking: env must be a PackingEnv; got {type(self.env).__name__}")
        # It takes no memory yet: what is wrong with it is told before anything runs.
        self._new_replay()
        made = self.make_networks
        self.networks: PackerNetworks = made if isinstance(made, PackerNetworks) else made()
        self.bootstraps = self.n_steps < self.env.num_items
        if not self.bootstraps:
            wanted = f"targets, which n_steps below the {self.env.num_items} items of an episode bring"
            arguments.check_effect("HierarchicalPacking", wanted, tau=(self.tau, _TAU))
        self.targets = copy.deepcopy(self.networks).requires_grad_(False) if self.bootstraps else None

    def _new_replay(self) -> TensorDictReplayBuffer:
        replay = self.make_replay(self.batch_size, self.env.device, False)
        played = self.env.num_envs * self.rollout_steps
        self.check_replay(replay, self.batch_size + played)
        return replay

    def baselines(self, env: BatchedEnv) -> Mapping[str, Policy]:
        """Rows of the paper's table, those of the networks once they are trained."""
        assert isinstance(env, PackingEnv)
        return irregular_baselines(env, self.policy_for(env), learned=self.trained)

    def policy_for(self, env: BatchedEnv) -> HierarchicalPacker:
        """The packer of the environment that was asked for last.

        It is made once, since the maps of its items take seconds.
        """
        made = self.__dict__.get("_made")
        if made is None or made[0]() is not env:
            made = weakref.ref(env), self._new_packer(env)
            # It is no submodule, so that weights are saved once.
            self.__dict__["_made"] = made
        return made[1]

    def _new_packer(self, env: BatchedEnv) -> HierarchicalPacker:
        assert isinstance(env, PackingEnv)
        packer = HierarchicalPacker(
            env, self.networks, margin=self.margin, shortlist=self.shortlist, item_shortlist=self.item_shortlist
        )
        return packer.to(env.device)

    def configure_optimizers(self) -> OptimizerLRScheduler:
        deep = self.networks.deep()
        ids = {id(weight) for weight in deep}
        few = [weight for weight in self.networks.parameters() if id(weight) not in ids]
        optimizer = self.make_optimizer([{"params": few}, {"params": deep}])
        for group, factor in zip(optimizer.param_groups, (1.0, self.deep_rate), strict=True):
            group.setdefault("initial_lr", group["lr"] * factor)
        keep_capturable(optimizer)
        return self.scheduled(optimizer, None)

    # -- fit --------------------------------------------------------------------------------------------------------

    @property
    def joint(self) -> bool:
        """Whether stage two has begun."""
        return self.trainer.global_step >= self.worker_updates

    def on_fit_start(self) -> None:
        super().on_fit_start()
        env = self.env
        assert isinstance(env, PackingEnv)
        state = [*_STATE, *_DECISION, "action"]
        self.codec = HeightmapCodec(env)
        kept = _STATE if self.bootstraps else []
        both = self._new_packer(env)
        written = both.written()
        by_graphs = self.takes_graphed_steps(self.cuda_graphs)
        self.rollout = Rollout(env, kept, self.n_steps, self.gamma, by_graphs, state, self.codec, written=written)
        self.replay = self._new_replay()
        both.epsilon.fill_(self.epsilon)
        both.item_epsilon.fill_(self.item_epsilon)
        rule = both.choosing("box", "growth")
        worker = both.choosing("box", "learned")
        # They are no submodules, so that weights are saved once.
        self.__dict__ |= {"rule": rule, "worker": worker, "both": both}
        self._graphed = None
        self._takes_graphs = self.takes_graphed_updates(self.graph_updates)

    @property
    def kept_options(self) -> Sequence[str]:
        slopes = [f"networks.{each}" for each in _SLOPES]
        return (*super().kept_options, "deep_rate", *slopes)

    def step_names(self) -> Sequence[str]:
        return ("loss", "stage", "frames", *_SLOPES, "utilization")

    def on_train_start(self) -> None:
        self.fill(lambda: self.extend_replay(self.rule), self.batch_size)

    @in_section("step")
    def training_step(self, batch: object, batch_idx: int) -> dict[str, Tensor]:
        self.extend_replay(self.both if self.joint else self.worker)
        updates = self.updates_now(self.updates_per_step)
        losses = torch.stack(self._learn(updates))
        if self.logs_this_step:
            slopes = {name: getattr(self.networks, name).detach() for name in _SLOPES}
            values = {"loss": losses.mean(), "stage": 2 if self.joint else 1, "frames": self.frames, **slopes}
            self.log_step(values | {"utilization": self.outcomes["utilization"]})
        return {"loss": losses[-1]}

    @torch.no_grad()
    def extend_replay(self, packer: HierarchicalPacker) -> None:
        with set_exploration_type(ExplorationType.RANDOM):
            transitions = self.collect(packer, self.rollout_steps)
        if len(transitions):
            with section("replay"):
                self.replay.extend(transitions)

    def _learn(self, updates: int) -> list[Tensor]:
        """Make some updates, and give their losses."""
        if self._graphed is None and self._takes_graphs and self._draws_on_device:
            self._graphed = self._make_graphed(cast("DeviceReplay", self.replay))
        graphed = self._graphed
        first = self.trainer.global_step
        # A graph holds the updates of one stage.
        changes_stage = first < self.worker_updates < first + updates
        if graphed is None or changes_stage:
            return [self.update_once() for _ in range(updates)]
        self._set_rates(self.joint)
        with section("update"):
            made = self.learn_in_graph(graphed, TensorDict(), self.updates_per_step)
        if made is None:
            return [self.update_once() for _ in range(updates)]
        for batch in graphed.batches_seen:
            self.note_batch(batch)
        return [each["loss"] for each in made]

    @property
    def _draws_on_device(self) -> bool:
        return isinstance(self.replay, DeviceReplay) and self.replay.draws_on_device

    def _make_graphed(self, replay: DeviceReplay) -> GraphedLearning:
        others = [] if self.targets is None else [self.targets]
        return GraphedLearning(
            ModuleLearner(self.networks, self._losses, self.follow, others),
            self.torch_optimizer,
            updates=self.updates_per_step,
            batches=self._draws,
            also_written=replay.written_by_draws,
            numbers=self._losses_of_step,
            max_grad_norm=self.max_grad_norm,
            clips_together=True,
        )

    def _losses(self, batch: TensorDictBase) -> dict[str, Tensor]:
        # What later states are worth is not explored.
        with set_exploration_type(ExplorationType.DETERMINISTIC):
            return {"loss": self._loss(batch)}

    def _losses_of_step(self) -> list[tuple[bool, bool]]:
        """What differs between the updates of a training step.

        Returns:
            Of each whether stage two has begun, and whether the manager learns.
        """
        first = self.trainer.global_step
        numbers = range(first, first + self.updates_per_step)
        return [(number >= self.worker_updates, self._with_manager(number)) for number in numbers]

    def _draws(self, data: TensorDictBase) -> Iterator[TensorDictBase]:
        """Batches of a training step, whose numbers decide which loss each has."""
        for number in count(self.trainer.global_step):
            self._number = number
            yield self.codec.unpacked(self.replay.sample())

    def _with_manager(self, update: int) -> bool:
        return update >= self.worker_updates and update % self.manager_period == 0

    @in_section("update")
    def update_once(self) -> Tensor:
        with section("replay"):
            batch = self.codec.unpacked(self.replay.sample())
        self.note_batch(batch)
        self._number = self.trainer.global_step
        loss = self._loss(batch)
        self._set_rates(self.joint)
        weights: list[Tensor] = []
        for group in self.lightning_optimizer.param_groups:
            weights += group["params"]
        self.descend(loss, [weights], self.max_grad_norm)
        self.follow()
        return loss.detach()

    def _set_rates(self, joint: bool) -> None:
        """Set the learning rates of a stage."""
        for group in self.lightning_optimizer.param_groups:
            group["lr"] = group["initial_lr"] * (self.joint_rate if joint else 1.0)

    def _loss(self, batch: TensorDictBase) -> Tensor:
        """Loss of update `_number`, with the manager's where it is its turn."""
        target = batch["next", "reward"][:, 0] * self.reward_scale
        if self.bootstraps:
            target = target + self.later_returns(batch)
        loss = self.worker_loss(batch, target)
        if self._with_manager(self._number):
            loss = loss + self.manager_loss(batch, target)
        return loss

    def worker_loss(self, batch: TensorDictBase, target: Tensor) -> Tensor:
        """Huber loss of the Q-values of the placements that were chosen.

        Only their orientation is looked at. The rule's part is centred: what a placement grows beyond the least is the
        worker's doing, the rest the state's.
        """
        scores = self.worker.scores_of(batch["box_heightmap"], batch["variant"][:, None]).flatten(1)
        place = batch["place"][:, None]
        chosen = scores.gather(1, place)[:, 0]
        advantage = chosen + self.networks.slope * batch["least"]
        value = self.networks.value(self._state_features(batch)) + advantage
        return smooth_l1_loss(value * self.reward_scale, target)

    def manager_loss(self, batch: TensorDictBase, target: Tensor) -> Tensor:
        """Huber loss of the Q-values of the items that the manager chose.

        Values count over the mean of those that it chose from.
        """
        candidates = batch["candidates"]
        # Packers that pick by the box alone compute no waste, which the replay then holds as infinite.
        known = ~batch["waste"].isinf().any(1)
        allowed = batch["item_mask"].gather(1, candidates) & known[:, None]
        item = batch["item_id"].gather(1, candidates)
        waste = torch.where(allowed, batch["waste"], 0.0)
        scores = self.both.item_scores(batch["box_heightmap"], item, waste)
        total = (scores * allowed).sum(1)
        mean = total / allowed.sum(1).clamp_min(1)
        is_chosen = candidates == batch["slot"][:, None]
        advantage = (scores * is_chosen).sum(1) - mean
        # The value of the state learns from the worker's loss, which every update has.
        value = self.networks.value(self._state_features(batch)).detach() + advantage
        each = smooth_l1_loss(value * self.reward_scale, target, reduction="none")
        return (each * known).sum() / known.sum().clamp_min(1)

    def _state_features(self, state: TensorDictBase) -> Tensor:
        values = [state[key] for key in _STATE if key != "item_mask"]
        return self.both.state_features(*values)

    # Double Q-learning (van Hasselt et al. 2016): the largest value of the targets would be simpler, and too large, as
    # a maximum takes errors along. What the online weights choose is judged by others.
    @torch.no_grad()
    def later_returns(self, batch: TensorDictBase) -> Tensor:
        """Discounted value (B,) of the state after the return.

        It is by the targets, of the placement that the online weights choose.
        """
        assert self.targets is not None
        after = batch["next"]
        packer = self.both if self._number >= self.worker_updates else self.worker
        heightmap = after["box_heightmap"]
        item_id = after["item_id"]
        item_mask = after["item_mask"]
        slot = packer.pick(heightmap, item_id, item_mask).slot
        item = item_id.gather(1, slot[:, None])[:, 0]
        value = packer.best_advantage(heightmap, item, self.targets)
        value = value + self.targets.value(self._state_features(after))
        # A state in which no item fits has the value 0, whether the episode was terminated or not.
        alive = ~after["terminated"][:, 0] & item_mask.any(1)
        discounted = self.gamma ** batch["steps_to_next_obs"][:, 0] * value * self.reward_scale
        return torch.where(alive, discounted, 0.0)

    @torch.no_grad()
    def follow(self) -> None:
        if self.targets is not None:
            pairs = zip(self.targets.parameters(), self.networks.parameters(), strict=True)
            for late, online in pairs:
                late.lerp_(online, self.tau)
