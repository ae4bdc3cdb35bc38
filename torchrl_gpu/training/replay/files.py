"""Replay for checkpoints, as tensors and plain values."""

from __future__ import annotations

from collections.abc import Mapping

from tensordict import NestedKey, TensorDict
from torch import Tensor
from torchrl.data import TensorDictReplayBuffer

from torchrl_gpu.envs.state_validation import Entry, check_entries
from torchrl_gpu.system.arguments import shown, whole
from torchrl_gpu.training.replay.buffer import DeviceReplay
from torchrl_gpu.training.replay.priorities import DevicePrioritySampler

_MOST_WRITTEN = 2**62
_ENTRIES = {"capacity", "size", "transitions", "writer", "sampler"}


def replay_state(replay: TensorDictReplayBuffer) -> dict[str, object]:
    """Transitions of a replay, where the next go, and priorities, as plain data.

    TorchRL's own `dumps` leaves a pickle that its `loads` would run; this can be read with `weights_only`.
    """
    size = len(replay)
    capacity = replay.storage.max_size
    transitions = replay.storage[:size] if size else TensorDict(batch_size=[0])
    # A view would save all of it; TensorDict.clone adds 0, which turns -0 into 0.
    if size < capacity:
        transitions = transitions.apply(Tensor.clone)
    return {
        "capacity": capacity,
        "size": size,
        "transitions": transitions.to_dict(),
        "writer": replay.writer.state_dict(),
        "sampler": replay.sampler.state_dict(),
        "extra": replay.extra_state() if isinstance(replay, DeviceReplay) else {},
    }


def restore_replay(
    replay: TensorDictReplayBuffer,
    state: object,
    where: str = "replay",
    entries: Mapping[NestedKey, Entry] | None = None,
) -> None:
    """Fill an empty replay from a state of `replay_state`.

    Raises:
        ValueError: It is something else, or of transitions that cannot be of this run. Nothing has changed then.
    """
    if not isinstance(state, dict):
        raise ValueError(f"{where}: not a replay but a {type(state).__name__}")
    missing = _ENTRIES - set(state)
    if missing:
        raise ValueError(f"{where}: not a replay, as there is no {min(missing)} in it")
    most = replay.storage.max_size
    capacity = whole(where, "capacity", state["capacity"], 0)
    if capacity != most:
        raise ValueError(
            f"{where}: for {capacity} transitions, where this run keeps {most}: go on with"
            f" --model.replay.capacity {capacity}, or delete the .rank0.pt beside the checkpoint and name that in"
            " --ckpt_path, so that replay is filled again"
        )
    size = whole(where, "size", state["size"], 0, most)
    transitions = None
    if size:
        behind = {key: entry.behind(size) for key, entry in (entries or {}).items()}
        check_entries(where, state["transitions"], behind, more=True)
        try:
            transitions = TensorDict(state["transitions"], batch_size=[size])
        except (RuntimeError, TypeError, ValueError) as error:
            reason = str(error).splitlines()[0]
            raise ValueError(f"{where}: entries are not of {size} transitions: {reason}") from error
    writer = state["writer"]
    present = sorted(replay.writer.state_dict())
    if not isinstance(writer, Mapping) or set(writer) != set(present):
        raise ValueError(f"{where}: writer must have {present}, and is {shown(writer)}")
    places = {}
    for name, value in writer.items():
        largest = most if name == "_cursor" else _MOST_WRITTEN
        places[name] = whole(where, f"writer {name}", value, 0, largest)
    if state["sampler"] and isinstance(replay.sampler, DevicePrioritySampler):
        try:
            replay.sampler.check_state_dict(state["sampler"])
        except ValueError as error:
            raise ValueError(f"{where}: {error}") from error
    extra = state.get("extra", {})
    if isinstance(replay, DeviceReplay):
        if not isinstance(extra, Mapping):
            raise ValueError(f"{where}: extra must be a mapping; got {shown(extra)}")
        replay.load_extra_state(where, extra)
    # All has been checked by now, so that a wrong file changes nothing.
    if transitions is not None:
        replay.extend(transitions.to(replay.storage.device))
    replay.writer.load_state_dict(places)
    # Without it the run that wrote it drew uniformly, and all are equally likely.
    if state["sampler"]:
        replay.sampler.load_state_dict(state["sampler"])
