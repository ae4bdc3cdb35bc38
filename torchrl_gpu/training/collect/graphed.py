"""Many steps of an environment and its policy as one launch: a CUDA graph of a whole rollout."""

from __future__ import annotations

import logging
import textwrap
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

import torch
from tensordict import NestedKey, TensorDict, TensorDictBase
from torch import Tensor
from torch.torch_version import TorchVersion
from torch.utils._python_dispatch import TorchDispatchMode
from torchrl.envs.utils import exploration_type

from torchrl_gpu.envs.base import BatchedEnv
from torchrl_gpu.envs.workers.pool import WorkerPool
from torchrl_gpu.policies.generators import generators_kept
from torchrl_gpu.policies.policy import Policy
from torchrl_gpu.system.sections import section

RESULTS: tuple[NestedKey, ...] = ("reward", "done", "terminated")

Body = Callable[[], TensorDictBase]

_LOG = logging.getLogger(__name__)
_WANTED = (
    "GraphedRollout: want an environment and a policy whose steps never make the host wait, so that a CUDA graph can"
    " hold them"
)
MOST_OTHER = 0.1  # of the environments: where two values are alike to rounding, either may be taken
_LONGEST = 400  # characters of a reason
_WARM_UPS = 3  # the first loads libraries and compiles kernels, later ones settle what is chosen by timing


@dataclass(frozen=True)
class Graph:
    """A captured CUDA graph and its outputs: `replay` runs it again and leaves them in `result`."""

    replay: Callable[[], object]
    result: TensorDictBase


Capture = Callable[[Body, torch.device], Graph]


def play_steps(
    env: BatchedEnv | WorkerPool,
    policy: Policy,
    current: TensorDictBase,
    steps: int,
    keys: Sequence[NestedKey],
    decisions: Sequence[NestedKey] = ("action",),
    outcomes: Sequence[NestedKey] | None = None,
) -> tuple[TensorDictBase, TensorDictBase]:
    """Plays `steps` steps (T) of a policy in an environment that shows `current` (N,) and restarts its own rows.

    Args:
        keys: Observations to keep.
        decisions: What else to keep of the state acted in: what the policy writes, observations not wanted in `next`.
        outcomes: What to keep of `next`, where it is there; None for reward, ends and the environment's outcomes.

    Returns:
        The steps (N, T) with `next` holding the outcomes and the observations kept, and what `env` shows then.
    """
    made = []
    for _ in range(steps):
        kept, current = step_once(env, policy, current, keys, decisions, outcomes)
        made.append(kept)
    return torch.stack(made, 1), current


def step_once(
    env: BatchedEnv | WorkerPool,
    policy: Policy,
    current: TensorDictBase,
    keys: Sequence[NestedKey],
    decisions: Sequence[NestedKey],
    outcomes: Sequence[NestedKey] | None,
) -> tuple[TensorDictBase, TensorDictBase]:
    """One step as in `play_steps`, (N,)."""
    outcomes = [*RESULTS, *env.outcomes] if outcomes is None else outcomes
    with section("policy"):
        acted = policy(current)
    with section("environment"):
        stepped, current = env.step_and_maybe_reset(acted)
    kept = stepped.select(*keys, *decisions)
    kept["next"] = stepped["next"].select(*keys, *outcomes, strict=False)
    return kept, current


class GraphedRollout:
    """`play_steps` as a function of the environment's observations; on CUDA one replay of a graph of all T steps.

    A call copies the environment's state and observations into tensors of the graph, unless they are there already, so
    that whatever happens to the environment between calls counts. Weights and buffers of the policy are read where they
    are; random numbers come from torch's generator of the device.

    The graph is made at the first call, and again where the seed, the exploration type, the policy's mode or autocast
    has changed. Steps run one by one on other devices and, after a warning, where no graph can be made or its first
    replay gives something else.

    Args:
        env, policy: Neither may read the device back.
        steps: T.
        keys, decisions, outcomes: As in `play_steps`.
        capture: Makes a graph of a function without arguments; None takes `capture_cuda` on a CUDA device, else no
            graph.
    """

    def __init__(
        self,
        env: BatchedEnv,
        policy: Policy,
        steps: int,
        keys: Sequence[NestedKey],
        decisions: Sequence[NestedKey] = ("action",),
        outcomes: Sequence[NestedKey] | None = None,
        *,
        capture: Capture | None = None,
    ) -> None:
        if env.reads_host:
            raise ValueError(f"{_WANTED}; got one that does: {env.reads_host}")
        self.env, self.policy, self.steps = env, policy, steps
        self._kept = list(keys), tuple(decisions), outcomes
        self._capture = capture_cuda if capture is None and env.device.type == "cuda" else capture
        self._shown_keys = [*env.full_observation_spec.keys(True, True), *env.full_done_spec.keys(True, True)]
        self._state: dict[str, Tensor] = {}
        self._shown: dict[Any, Tensor] = {}
        self._groups: TensorDictBase = TensorDict()  # that hold what is shown, empty
        self._graph: Graph | None = None
        self._fixed: tuple[Any, ...] = ()

    @torch.no_grad()
    def __call__(self, current: TensorDictBase) -> tuple[TensorDictBase, TensorDictBase]:
        """As `play_steps`, from what the environment shows now, (N,); the next call overwrites what it shows then."""
        state, shown = self.env._env_state(), {key: current.get(key) for key in self._shown_keys}
        if not self._state:
            self._state, self._shown = copies(state), copies(shown)
            self._groups = current.select(*self._shown_keys).empty(recurse=True)
        self._put(state, shown)
        graph = None if self._capture is None else self._graph_for_now(self._capture)
        if graph is None:
            return self._play(), self._showing()
        with section("rollout graph"):
            graph.replay()
            return graph.result.clone(), self._showing()

    def _put(self, state: dict[str, Tensor], shown: dict[Any, Tensor]) -> None:
        _write(state, self._state)
        _write(shown, self._shown)
        self.env._set_env_state(self._state)

    def _showing(self) -> TensorDictBase:
        """New tensordict over what the environment shows: keys that others set in it stay out of the next call."""
        out = self._groups.copy()
        for key, value in self._shown.items():
            out.set(key, value)
        return out

    def _play(self) -> TensorDictBase:
        played, after = play_steps(self.env, self.policy, self._showing(), self.steps, *self._kept)
        self._put(self.env._env_state(), {key: after.get(key) for key in self._shown})
        return played

    def _graph_for_now(self, capture: Capture) -> Graph | None:
        fixed = self.env.seed, exploration_type(), getattr(self.policy, "training", None), casts(self.env.device)
        if self._graph is None or self._fixed != fixed:
            self._graph = None  # its memory is free before the next one takes as much
            state, shown = copies(self._state), copies(self._shown)
            try:
                with uncached_casts(self.env.device):
                    graph = capture(self._play, self.env.device)
                    self._put(state, shown)
                    self._check(graph, state, shown)
                self._graph, self._fixed = graph, fixed
            except Exception as error:  # whatever a capture, a driver or a launch raises
                self._capture = None
                say_plain(type(self).__name__, error)
            finally:
                self._put(state, shown)  # as if nothing had been played
        return self._graph

    def _rows(self, played: TensorDictBase) -> list[Tensor]:
        values = [*played.values(True, True), *self._state.values(), *self._shown.values()]
        return [value.clone() for value in values if value.ndim and len(value) == self.env.num_envs]

    def _check(self, graph: Graph, state: dict[str, Tensor], shown: dict[Any, Tensor]) -> None:
        with generators_kept(self.env.device):
            played = self._rows(self._play())
        self._put(state, shown)
        with generators_kept(self.env.device):
            graph.replay()
            replayed = self._rows(graph.result)
        other = torch.stack([rows_that_differ(*pair) for pair in zip(played, replayed, strict=True)]).any(0)
        if int(other.sum()) > MOST_OTHER * self.env.num_envs:
            raise RuntimeError(
                "GraphedRollout: want a graph that plays what the steps play one by one; got another rollout in"
                f" {int(other.sum())} of {self.env.num_envs} environments"
            )


def copies(tensors: dict[Any, Tensor]) -> dict[Any, Tensor]:
    return {key: value.clone(memory_format=torch.contiguous_format) for key, value in tensors.items()}


def _write(values: dict[Any, Tensor], into: dict[Any, Tensor]) -> None:
    for key, value in values.items():
        if value is not into[key]:
            into[key].copy_(value)


def rows_that_differ(one: Tensor, other: Tensor) -> Tensor:
    """Rows (N,) bool in which two tensors (N, …) differ by more than rounding in another order makes."""
    if one.is_floating_point():
        differ = ~torch.isclose(one, other, rtol=1e-2, atol=1e-3, equal_nan=True)
    else:
        differ = one != other
    return differ.flatten(1).any(1) if differ.ndim > 1 else differ


# -- graphs --


def casts(device: torch.device) -> tuple[bool, torch.dtype]:
    """Autocast state: on or off, and its dtype."""
    return torch.is_autocast_enabled(device.type), torch.get_autocast_dtype(device.type)


def uncached_casts(device: torch.device) -> torch.autocast:
    """Autocast as it is, but without its cache: a graph would go on with weights that were cast before it was made."""
    enabled, dtype = casts(device)
    return torch.autocast(device.type, dtype, enabled, cache_enabled=False)


def say_plain(where: str, error: Exception, instead: str = "operators are launched one by one") -> None:
    """Warns, in one line, that there is no graph."""
    reason = textwrap.shorten(str(error), _LONGEST, placeholder=" …") or type(error).__name__
    _LOG.warning("%s; %s instead", reason if reason.startswith(where) else f"{where}: {reason}", instead)


def capture_cuda(body: Body, device: torch.device, wanted: str = _WANTED) -> Graph:
    """A CUDA graph of `body`, which is run a few times before; the generator of the device is left as it was.

    Raises:
        RuntimeError: `body` does what no graph can hold; the message says what is `wanted` and names the operator.
    """
    graph, pool = torch.cuda.CUDAGraph(), torch.cuda.graph_pool_handle()
    with generators_kept(device), torch.cuda.device(device):
        here, aside = torch.cuda.current_stream(), torch.cuda.Stream()
        aside.wait_stream(here)
        with torch.cuda.stream(aside):
            for _ in range(_WARM_UPS):
                body()
        here.wait_stream(aside)
        try:
            with operator_named(wanted), torch.cuda.graph(graph, pool=pool, capture_error_mode="thread_local"):
                result = body()
        except Exception:
            # Else random numbers could not be drawn outside of graphs, and the allocator would go on to keep memory for
            # this one.
            graph.reset()
            with suppress(RuntimeError, AttributeError):  # it has ended in order, or torch has no such function
                torch._C._cuda_endAllocateToPool(device.index or 0, pool)
                torch._C._cuda_releasePool(device.index or 0, pool)
            if torch.__version__ < TorchVersion("2.15"):  # its generator ends a capture only with one that succeeds
                with torch.cuda.graph(torch.cuda.CUDAGraph()):
                    torch.zeros(1, dtype=torch.float32, device=device)
            raise
    return Graph(graph.replay, result)


@contextmanager
def operator_named(wanted: str = _WANTED) -> Iterator[None]:
    """Context manager that turns an exception during a capture into an error that names the operator."""
    last = _LastOperator()
    try:
        with last:
            yield
    except Exception as error:
        cause = last.error or error  # the end of a broken capture raises, too, and says less
        reason = next(iter(str(cause).strip().splitlines()), type(cause).__name__)
        raise RuntimeError(f"{wanted}; got {last.name}: {reason}") from error


class _LastOperator(TorchDispatchMode):
    """Record of the operator that was called last, and of its exception."""

    def __init__(self) -> None:
        super().__init__()
        self.name = "no operator"
        self.error: Exception | None = None

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.name, self.error = str(func), None
        try:
            return func(*args, **(kwargs or {}))
        except Exception as error:
            self.error = error
            raise
