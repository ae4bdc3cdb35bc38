"""Learning from replay as a Lightning module, from a network of another run if asked; advice where memory is short."""

from __future__ import annotations

import gc
import logging
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal, NamedTuple, cast

import torch
from lightning.pytorch.cli import LRSchedulerCallable, OptimizerCallable
from tensordict import TensorDict, TensorDictBase
from torch import Tensor, nn
from torchrl.data import TensorDictReplayBuffer
from torchrl.envs.utils import ExplorationType, set_exploration_type

from torchrl_gpu.envs.memory import free_bytes
from torchrl_gpu.policies.encoders.from_clips import FromClips
from torchrl_gpu.policies.encoders.settings import ClipEncoder
from torchrl_gpu.policies.spaces import AgentSpace
from torchrl_gpu.policies.weights import is_dense
from torchrl_gpu.system import arguments
from torchrl_gpu.system.archives import read_archive
from torchrl_gpu.system.sections import in_section, section
from torchrl_gpu.training.accelerated.choice import GraphOption
from torchrl_gpu.training.agent_run import AgentFactory, AgentRun
from torchrl_gpu.training.collect.rollout import Rollout
from torchrl_gpu.training.replay.buffer import DeviceReplay, ReplayFactory
from torchrl_gpu.training.run import EnvFactory, ReplayRun, check_counts
from torchrl_gpu.training.updates.graphed import GraphedLearning

_LOG = logging.getLogger(__name__)

_MOST_TENSORS = 10_000  # whose names are compared


@torch.no_grad()
def take_network(module: nn.Module, path: str) -> list[str]:
    """Copies the weights that a checkpoint has of a network into it; the names of those taken.

    Networks have other prefixes in other agents: the prefixes of checkpoint and module under which most names are the
    same are laid upon each other. Layers that the checkpoint does not have stay as they are; targets are never taken.
    Parameters are copied, and buffers that checkpoints keep.

    Raises:
        FileNotFoundError: There is no such file.
        ValueError: It is neither a checkpoint nor a file with `model_state_dict`, has no layer of the module, or one of
            another shape.
    """
    where = f"warm_start {path}"
    content = read_archive(Path(path), "warm_start")
    state = content.get("state_dict", content.get("model_state_dict"))
    if not isinstance(state, Mapping):
        raise ValueError(f"{where}: want a checkpoint with a state_dict; got none in it")
    if len(state) > _MOST_TENSORS:
        raise ValueError(f"{where}: want at most {_MOST_TENSORS:,} tensors; got {len(state):,}")
    given = {str(name): value for name, value in state.items() if is_dense(value) and "target" not in str(name)}
    own = _saved_tensors(module)
    inside, outside = _best_prefixes(own, given)
    pairs = {
        name: given[outside + name.removeprefix(inside)]
        for name in own
        if name.startswith(inside) and outside + name.removeprefix(inside) in given
    }
    if not pairs:
        raise ValueError(f"{where}: want layers such as {next(iter(own), 'none')}; got {', '.join(list(given)[:3])}")
    for name, value in pairs.items():
        if value.shape != own[name].shape or value.is_floating_point() is not own[name].is_floating_point():
            wanted, came = tuple(own[name].shape), tuple(value.shape)
            raise ValueError(f"{where}: want {name} of shape {wanted}; got {came}")
        if not value.isfinite().all():
            raise ValueError(f"{where}: want finite weights; {outside + name.removeprefix(inside)} has others")
    for name, value in pairs.items():
        own[name].copy_(value)
    left = [name for name in own if name not in pairs]
    _LOG.info("warm_start: %d tensors taken from %s%s", len(pairs), path, f"; not {', '.join(left)}" if left else "")
    return list(pairs)


def _saved_tensors(module: nn.Module) -> dict[str, Tensor]:
    """Parameters and persistent buffers by name; `state_dict` leaves out those that a loss of TorchRL holds instead."""
    found: dict[str, Tensor] = dict(module.named_parameters())
    for prefix, each in module.named_modules():
        kept = {name: value for name, value in each.named_buffers(recurse=False)}
        kept = {name: value for name, value in kept.items() if name not in each._non_persistent_buffers_set}
        found |= {f"{prefix}.{name}" if prefix else name: value for name, value in kept.items()}
    return found


def _best_prefixes(own: Iterable[str], given: Mapping[str, Tensor]) -> tuple[str, str]:
    """The beginnings of names behind which most names are the same; of equally good ones the longest."""
    names = list(own)
    best, found = (0, 0), ("", "")
    for inside in _prefixes(names):
        rest = [name.removeprefix(inside) for name in names if name.startswith(inside)]
        for outside in _prefixes(given):
            score = sum(outside + name in given for name in rest), len(inside)
            if score > best:
                best, found = score, (inside, outside)
    return found


def _prefixes(names: Iterable[str]) -> list[str]:
    parts = (name.split(".") for name in names)
    return list(dict.fromkeys(["", *(".".join(p[:i]) + "." for p in parts for i in range(1, len(p)))]))


_SPARE = 0.9  # of what there is: allocators leave gaps
_TRIED = re.compile(r"Tried to allocate ([0-9.]+) (bytes|KiB|MiB|GiB|TiB)")
_UNITS = {"bytes": 0, "KiB": 10, "MiB": 20, "GiB": 30, "TiB": 40}


class OutOfMemoryAdvice(torch.OutOfMemoryError):
    """Error of an update that did not fit, with the batch or the replay that would have."""


class Memory(NamedTuple):
    """Memory of a device, bytes: available to this process, and taken by it."""

    total: int
    taken: int


def device_memory(device: torch.device) -> Memory | None:
    """Memory of a device; None on one that does not count it."""
    if device.type != "cuda":
        return None
    taken, free = torch.cuda.memory_allocated(device), free_bytes(device)
    return None if free is None else Memory(free + taken, taken)


@contextmanager
def advice(where: str, device: torch.device, batch_size: int, replay: TensorDictReplayBuffer) -> Iterator[None]:
    """Context manager that turns an update that does not fit into an `OutOfMemoryAdvice`, where memory is counted."""
    try:
        yield
    except torch.OutOfMemoryError as error:
        message, failing = str(error), device_memory(device)  # what the update has made so far is there yet
        if failing is None:
            raise
        error.__traceback__ = None  # it holds what the update had made
        gc.collect()
        left = device_memory(device) or failing
        share = replay.storage.max_size, getattr(replay, "num_bytes", 0)
        made = failing.taken - left.taken
        raise OutOfMemoryAdvice(advised(where, device, left, made, message, batch_size, share)) from None


def advised(
    where: str, device: torch.device, memory: Memory, made: int, message: str, batch_size: int, replay: tuple[int, int]
) -> str:
    """Error message with the batch or the replay that would have fitted.

    What an update takes grows with its batch and is known to be at least what it had made and could not have, so that
    what is advised is the most that can fit.
    """
    capacity, replay_bytes = replay
    tried = _TRIED.search(message)
    more = int(float(tried[1]) * 2 ** _UNITS[tried[2]]) if tried else 0
    needed, room = made + more, int(memory.total * _SPARE) - memory.taken
    lines = []
    if 0 < (batch := batch_size * room // max(1, needed)) < batch_size:
        lines.append(f"--model.batch_size {batch}")
    left = replay_bytes - (needed - room)
    if 0 < left < replay_bytes and (fitting := capacity * left // replay_bytes) > batch_size:
        lines.append(f"--model.replay.init_args.capacity {fitting}")
    what = " or ".join(lines) or "fewer environments, smaller frames or a smaller network"
    return (
        f"{where}: want an update that fits into {memory.total / 2**30:.1f} GiB of {device}; got one of {batch_size}"
        f" transitions that takes {needed / 2**30:.1f} GiB or more, beside {memory.taken / 2**30:.1f} GiB that stay, of"
        f" which replay has {replay_bytes / 2**30:.1f}; at most this can fit: {what}"
    )


class OffPolicy(AgentRun, ReplayRun):
    """Trains any `Agent` in an environment; environment, agent, replay and update are on one device.

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
        self.make_agent, self.make_replay = agent, replay
        self.encoder, self.shift = encoder, arguments.whole(where, "shift", shift, 0)
        self.reconstruction = arguments.number(where, "reconstruction", reconstruction, 0)
        self.make_optimizer, self.make_scheduler = optimizer, lr_scheduler
        self.learning_rates = dict(learning_rates or {})
        self.rollout_steps, self.updates_per_step, self.batch_size = rollout_steps, updates_per_step, batch_size
        self.reward_scale = arguments.number(where, "reward_scale", reward_scale, above=0)
        self.max_grad_norm = arguments.optional(arguments.number, where, "max_grad_norm", max_grad_norm, above=0)
        self.cuda_graphs, self.graph_updates, self.warm_start = cuda_graphs, graph_updates, warm_start
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
            raise ValueError(f"{type(self).__name__}: want an agent that learns from replay; got {self.agent.name}")
        self.check_rates()
        self._new_replay()  # takes no memory yet: what is wrong with it is told before anything runs

    def _new_replay(self) -> TensorDictReplayBuffer:
        replay = self.make_replay(self.batch_size, self.env.device, bool(self.group))
        self.check_replay(replay, max(self.batch_size, self.num_trajectories * self.rollout_steps))
        if self.group and not hasattr(replay, "leave_out"):
            raise ValueError(
                f"{type(self).__name__}: replay must have `leave_out`, for transitions of robots that take no part; got"
                f" {type(replay).__name__}"
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
        keys: list[Any] = list(self.env.stored_keys)
        if self.group:
            keys = [key for key in keys if key[-1] in {*self.agent.observations, "active"}]
        self.rollout = Rollout(
            self.env,
            keys,
            self.agent.n_steps,
            self.agent.gamma,
            self.takes_graphed_steps(self.cuda_graphs),
            store=self.replay.codec_for(self.env) if isinstance(self.replay, DeviceReplay) else None,
            group=self.group,
            compiled=self._compiled,
        )

    def on_train_start(self) -> None:
        self.fill(self._play, self.batch_size)

    @in_section("step")
    def training_step(self, batch: Any, batch_idx: int) -> dict[str, Tensor]:
        self._play()
        with advice(type(self).__name__, self.env.device, self.batch_size, self.replay):
            losses = self._learn_from_replay()
        return self.log_losses(losses)

    def _learn_from_replay(self) -> list[dict[str, Tensor]]:
        self._set_updates()
        if self.graphed_update is not None and self.graphed_learning is None and self._draws_on_device:
            self.graphed_learning = self._make_graphed_learning(
                self._draws, learned=self._take_errors, also_written=cast("DeviceReplay", self.replay).written_by_draws
            )
        with section("update"):
            losses = self.learn_in_graph(self.graphed_learning, TensorDict(), self.updates_of_step)
        if losses is None:
            return [self._update() for _ in range(self.updates_now(self.updates_per_step))]
        for batch in cast("GraphedLearning", self.graphed_learning).batches_seen:
            self.note_batch(batch)
        return losses

    @property
    def _draws_on_device(self) -> bool:
        return isinstance(self.replay, DeviceReplay) and self.replay.draws_on_device

    def _play(self) -> None:
        self.agent.anneal(self.frames)
        with set_exploration_type(ExplorationType.RANDOM):
            transitions = self.collect(self.policy, self.rollout_steps)
        if len(transitions):
            with section("replay"):
                index = self.replay.extend(transitions)
                if self.group:
                    cast("DeviceReplay", self.replay).leave_out(index, ~transitions["active"])

    def _update(self) -> dict[str, Tensor]:
        with section("replay"):
            batch = self._sample()
        with section("update"):
            losses = self.learn(batch)
        with section("replay"):
            self._take_errors(batch)
        return losses

    def _take_errors(self, batch: TensorDictBase) -> None:
        """Gives the errors of a batch to the replay, as priorities."""
        if "index" in batch.keys():  # noqa: SIM118  # of a tensordict
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

    def _drawn(self) -> TensorDictBase:
        batch = self.replay.sample()
        for part in (batch, batch["next"]):
            self.env.restore(part, self.replay)
        batch["next", "reward"] = batch["next", "reward"] * self.reward_scale
        return batch
