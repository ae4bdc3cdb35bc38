"""Learning from replay as a Lightning module."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal, cast

import torch
from lightning.pytorch.cli import LRSchedulerCallable, OptimizerCallable
from tensordict import NestedKey, TensorDict, TensorDictBase
from torch import Tensor
from torchrl.data import TensorDictReplayBuffer
from torchrl.envs.utils import ExplorationType, set_exploration_type

from torchrl_gpu.policies.encoders.from_clips import FromClips
from torchrl_gpu.policies.encoders.settings import ClipEncoder
from torchrl_gpu.policies.spaces import AgentSpace
from torchrl_gpu.system import arguments
from torchrl_gpu.system.sections import in_section, section
from torchrl_gpu.training.accelerated.choice import GraphOption
from torchrl_gpu.training.agent_run import AgentFactory, AgentRun
from torchrl_gpu.training.collect.rollout import Rollout
from torchrl_gpu.training.memory_advice import advice
from torchrl_gpu.training.replay.buffer import DeviceReplay, ReplayFactory
from torchrl_gpu.training.run import EnvFactory, ReplayRun, check_counts
from torchrl_gpu.training.updates.graphed import GraphedLearning
from torchrl_gpu.training.warm_start import take_network


class OffPolicy(AgentRun, ReplayRun):
    """Train any `Agent` from replay, with the whole loop on one device.

    A training step plays `rollout_steps` steps in every environment and then makes `updates_per_step` updates;
    `trainer.max_steps` counts updates and is met exactly. A frame is a step of one environment with all its robots.
    Where the environment groups its robots, replay holds the transitions of each by itself, and updates draw only those
    in which the robot took part.

    Args:
        env: Makes the environment, as in `EnvRun`.
        agent: Makes the agent of an environment's space.
        encoder: Of clips, where the environment shows them: the agent then sees `features` instead, see `FromClips`.
        shift: Pixels that clips are moved by in updates at most.
        reconstruction: How much the encoder learns from drawing clips again, beside values; see `FromClips`.
        optimizer: Makes the optimizer of the agent's weights, in a group for each of its losses.
        lr_scheduler: Makes a schedule that is stepped at every update.
        learning_rates: Learning rate of a loss's weights over that of the optimizer, such as `{actor: 0.1}`.
        rollout_steps: Steps in every environment per training step.
        updates_per_step: Updates per training step.
        batch_size: Transitions per update.
        replay: Makes the replay, see `ReplayFactory`; `DeviceReplay` by default.
        warmup_frames: Frames, over all environments, played at random before the first update.
        reward_scale: Factor on rewards in the loss.
        max_grad_norm: Gradients of each loss's weights are clipped to this norm; None leaves them.
        cuda_graphs: Whether a rollout on CUDA is one launch of a graph; see `training.collect.graphed`. "auto" where
            nothing speaks against it, which a line says otherwise.
        graph_updates: Whether all updates of a training step on CUDA are one launch of a graph, draws from the replay
            included; see `training.updates.graphed`. "auto" as above. Where the replay is on the host, or targets
            follow every so many updates, each update is a launch.
        torch_compile: Whether steps of the environment (on a CPU, where they are not C++ already) and losses go through
            torch.compile, which takes a minute or two at the start and is checked there; see
            `training.collect.compiled.CompiledSteps` and `training.updates.compiled.CompiledLosses`. "auto" compiles in
            runs of 5,000 updates or more.
        warm_start: Checkpoint whose network the policy begins with, layer by layer, see `take_network`; a run
            that goes on from a checkpoint of its own leaves it alone.
    """

    def __init__(
        self,
        env: EnvFactory,
        agent: AgentFactory,
        optimizer: OptimizerCallable = torch.optim.Adam,
        lr_scheduler: LRSchedulerCallable | None = None,
        *,
        encoder: ClipEncoder | None = None,
        shift: int = 4,
        reconstruction: float = 0.0,
        learning_rates: dict[str, float] | None = None,
        rollout_steps: int = 4,
        updates_per_step: int = 8,
        batch_size: int = 128,
        replay: ReplayFactory = DeviceReplay,
        warmup_frames: int = 4_000,
        reward_scale: float = 1.0,
        max_grad_norm: float | None = 10.0,
        cuda_graphs: GraphOption = "auto",
        graph_updates: GraphOption = "auto",
        torch_compile: bool | Literal["auto"] = False,
        warm_start: str | None = None,
    ) -> None:
        super().__init__(env, warmup_frames)
        where = type(self).__name__
        check_counts(where, rollout_steps=rollout_steps, updates_per_step=updates_per_step, batch_size=batch_size)
        if encoder is None:
            arguments.check_effect(where, "an encoder", shift=(shift, 4), reconstruction=(reconstruction, 0.0))
        self.make_agent = agent
        self.make_replay = replay
        self.encoder = encoder
        self.shift = arguments.whole(where, "shift", shift, 0)
        self.reconstruction = arguments.number(where, "reconstruction", reconstruction, 0)
        self.make_optimizer = optimizer
        self.make_scheduler = lr_scheduler
        self.learning_rates = dict(learning_rates or {})
        self.rollout_steps = rollout_steps
        self.updates_per_step = updates_per_step
        self.batch_size = batch_size
        self.reward_scale = arguments.number(where, "reward_scale", reward_scale, above=0)
        self.max_grad_norm = arguments.optional(arguments.number, where, "max_grad_norm", max_grad_norm, above=0)
        self.cuda_graphs = cuda_graphs
        self.graph_updates = graph_updates
        self.warm_start = warm_start
        self.torch_compile = torch_compile
        self.take_made_env()

    def build(self) -> None:
        space = AgentSpace.of(self.env)
        if self.encoder is None:
            self.agent = self.make_agent(space)
        else:
            self.agent = FromClips(
                space,
                encoder=self.encoder.make,
                agent=self.make_agent,
                shift=self.shift,
                reconstruction=self.reconstruction,
            )
        if not self.agent.learns_from_replay:
            raise ValueError(f"{type(self).__name__}: {self.agent.name} does not learn from replay")
        self.check_rates()
        # It takes no memory yet: what is wrong with it is told before anything runs.
        self._new_replay()

    def _new_replay(self) -> TensorDictReplayBuffer:
        # Robots that take no part leave transitions that must not be drawn.
        leaves_out = bool(self.group)
        replay = self.make_replay(self.batch_size, self.env.device, leaves_out)
        played = self.num_trajectories * self.rollout_steps
        self.check_replay(replay, max(self.batch_size, played))
        if self.group and not hasattr(replay, "leave_out"):
            raise ValueError(
                f"{type(self).__name__}: replay {type(replay).__name__} has no `leave_out`, which transitions of robots"
                " that take no part need"
            )
        return replay

    @property
    def updates_of_step(self) -> int:
        return self.updates_per_step

    # -- fit --------------------------------------------------------------------------------------------------------

    def on_fit_start(self) -> None:
        super().on_fit_start()
        if self.warm_start is not None and self.trainer.ckpt_path is None:
            take_network(self.agent.policy, self.warm_start)
            self.agent.reset_targets()
        self.replay = self._new_replay()
        keys: list[NestedKey] = list(self.env.stored_keys)
        if self.group:
            of_robots = {*self.agent.observations, "active"}
            keys = [key for key in keys if key[-1] in of_robots]
        codec = self.replay.codec_for(self.env) if isinstance(self.replay, DeviceReplay) else None
        self.rollout = Rollout(
            self.env,
            keys,
            self.agent.n_steps,
            self.agent.gamma,
            self.takes_graphed_steps(self.cuda_graphs),
            store=codec,
            group=self.group,
            compiled=self._compiled,
        )

    def on_train_start(self) -> None:
        self.fill(self.extend_replay, self.batch_size)

    @in_section("step")
    def training_step(self, batch: object, batch_idx: int) -> dict[str, Tensor]:
        self.extend_replay()
        with advice(type(self).__name__, self.env.device, self.batch_size, self.replay):
            losses = self._learn_from_replay()
        return self.log_losses(losses)

    def _learn_from_replay(self) -> list[dict[str, Tensor]]:
        self._set_updates()
        if self.graphed_update is not None and self.graphed_learning is None and self._draws_on_device:
            written = cast("DeviceReplay", self.replay).written_by_draws
            self.graphed_learning = self._make_graphed_learning(
                self._draws, learned=self._take_errors, also_written=written
            )
        with section("update"):
            losses = self.learn_in_graph(self.graphed_learning, TensorDict(), self.updates_of_step)
        if losses is None:
            updates = self.updates_now(self.updates_per_step)
            return [self.update_once() for _ in range(updates)]
        for batch in cast("GraphedLearning", self.graphed_learning).batches_seen:
            self.note_batch(batch)
        return losses

    @property
    def _draws_on_device(self) -> bool:
        return isinstance(self.replay, DeviceReplay) and self.replay.draws_on_device

    def extend_replay(self) -> None:
        self.agent.anneal(self.frames)
        with set_exploration_type(ExplorationType.RANDOM):
            transitions = self.collect(self.policy, self.rollout_steps)
        if not len(transitions):
            return
        with section("replay"):
            index = self.replay.extend(transitions)
            if self.group:
                cast("DeviceReplay", self.replay).leave_out(index, ~transitions["active"])

    def update_once(self) -> dict[str, Tensor]:
        with section("replay"):
            batch = self._sample()
        with section("update"):
            losses = self.learn(batch)
        with section("replay"):
            self._take_errors(batch)
        return losses

    # Priorities are the errors of the update that was just made. Errors of all transitions by the present weights would
    # be truer, and cost a pass over the whole replay.
    def _take_errors(self, batch: TensorDictBase) -> None:
        """Give the errors of a batch to the replay, as priorities."""
        # Iterating over a tensordict would give its rows.
        if "index" in batch.keys():  # noqa: SIM118
            self.replay.update_priority(batch["index"], batch["td_error"])

    def _draws(self, data: TensorDictBase) -> Iterator[TensorDictBase]:
        while True:
            yield self._drawn()

    def _set_updates(self) -> None:
        set_updates = getattr(self.replay, "set_updates", None)
        if set_updates is not None:
            set_updates(self.trainer.global_step)

    def _sample(self) -> TensorDictBase:
        self._set_updates()
        return self._drawn()

    # The replay leaves out what the environment can compute again from the rest, such as masks and clips, so that more
    # transitions fit. It is made again for the batch alone.
    def _drawn(self) -> TensorDictBase:
        batch = self.replay.sample()
        for part in (batch, batch["next"]):
            self.env.restore(part, self.replay)
        batch["next", "reward"] = batch["next", "reward"] * self.reward_scale
        return batch
