"""Graphed rollouts have the steps of the plain loop.

Replay after replay, whatever happens in between.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from tensordict import TensorDict, TensorDictBase
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map
from torchrl.envs.utils import ExplorationType, set_exploration_type

from tests.no_host_reads import HostRead, NoHostReads
from tests.training.tiny import dqn, packing_env
from torchrl_gpu import native
from torchrl_gpu.envs import PackingEnv
from torchrl_gpu.policies import EpsilonGreedy, PolicyWrapper
from torchrl_gpu.policies.generators import generators_kept
from torchrl_gpu.policies.packing import DeepestBottomLeft
from torchrl_gpu.training.accelerated.graphs import Graph, operator_named
from torchrl_gpu.training.collect import rollout
from torchrl_gpu.training.collect.graphed import WHAT, GraphedRollout
from torchrl_gpu.training.collect.rollout import Rollout
from torchrl_gpu.training.collect.steps import play_steps

Policy = Callable[[TensorDictBase], TensorDictBase]
STEPS = 2


class _Recorder(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.tape: list[tuple[Any, Any, Any, Any]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        self.tape.append((func, args, kwargs or {}, out))
        return out

    def replay(self) -> None:
        with torch.no_grad():
            for func, args, kwargs, out in self.tape:
                tree_map(_copy_into, out, func(*args, **kwargs))


def _copy_into(old: Any, new: Any) -> None:
    if isinstance(old, Tensor) and old.data_ptr() != new.data_ptr():
        old.copy_(new)


def capture_on_cpu(body: Callable[[], TensorDictBase], device: torch.device) -> Graph:
    """A stand-in for a CUDA graph.

    Replays know no Python, only operators and addresses.
    """
    assert device.type == "cpu"
    recorder, random = _Recorder(), torch.get_rng_state()
    with recorder:
        result = body()
    torch.set_rng_state(random)
    return Graph(recorder.replay, result)


@pytest.fixture(autouse=True)
def only_operators(monkeypatch: pytest.MonkeyPatch) -> None:
    """The helpers written in C++ are no operators, so that no recorder would see them."""
    monkeypatch.setattr(native, "runs_on", lambda tensor: False)


def tiny_env(**changes: Any) -> PackingEnv:
    return packing_env(4, **{"backend": "eager", **changes})


def cuda_env(**changes: Any) -> PackingEnv:
    return packing_env(64, **{"device": "cuda", **changes})


everywhere = pytest.mark.parametrize(
    ("env_of", "capture"),
    [
        pytest.param(tiny_env, None, id="step by step"),
        pytest.param(tiny_env, capture_on_cpu, id="recorded"),
        pytest.param(cuda_env, None, id="CUDA", marks=pytest.mark.gpu),
    ],
)
by_graphs = pytest.mark.parametrize(
    ("env_of", "capture"),
    [
        pytest.param(tiny_env, capture_on_cpu, id="recorded"),
        pytest.param(cuda_env, None, id="CUDA", marks=pytest.mark.gpu),
    ],
)


def explorer(env: PackingEnv, epsilon: float = 0.5) -> Any:
    with torch.random.fork_rng():
        torch.manual_seed(11)
        agent = dqn(env, exploration=EpsilonGreedy(1.0, 0.0))
    agent.exploration.epsilon.fill_(epsilon)
    return agent.to(env.device)


def graphed(env: PackingEnv, policy: Policy, capture: Any = None) -> GraphedRollout:
    return GraphedRollout(env, policy, STEPS, env.stored_keys, capture=capture)


def plain(env: PackingEnv, policy: Policy, current: TensorDictBase) -> tuple[TensorDictBase, TensorDictBase]:
    with torch.no_grad():
        return play_steps(env, policy, current, STEPS, env.stored_keys)


def assert_same(ours: TensorDictBase, theirs: TensorDictBase) -> None:
    assert set(ours.keys(True, True)) == set(theirs.keys(True, True))
    assert (ours == theirs).all()


def assert_same_env(ours: PackingEnv, theirs: PackingEnv) -> None:
    mine, other = ours.state_dict(), theirs.state_dict()
    assert all(torch.equal(mine[name], other[name]) for name in mine)


@everywhere
def test_greedy_replays_are_the_plain_loop(env_of: Callable[..., PackingEnv], capture: Any) -> None:
    env, twin = env_of(), env_of()
    play, policy = graphed(env, DeepestBottomLeft(env), capture), DeepestBottomLeft(twin)
    ours = env.reset()
    theirs = twin.reset()
    ends = 0
    for _ in range(7):
        (played, ours), (wanted, theirs) = play(ours), plain(twin, policy, theirs)
        assert played.batch_size == (env.num_envs, STEPS)
        assert_same(played, wanted)
        assert_same_env(env, twin)
        ends += int(played["next", "done"].sum())
    assert ends > 2
    assert_same(ours, theirs.select(*ours.keys(True, True)))


def test_graphed_rollout_reads_nothing_back() -> None:
    env = tiny_env()
    play, current = graphed(env, PolicyWrapper(explorer(env))), env.reset()
    with NoHostReads(), set_exploration_type(ExplorationType.RANDOM):
        for _ in range(3):
            _, current = play(current)


class Copies(TorchDispatchMode):
    count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += func is torch.ops.aten.copy_.default
        return func(*args, **(kwargs or {}))


def test_a_replay_goes_on_without_copies_from_outside(monkeypatch: pytest.MonkeyPatch) -> None:
    env = tiny_env()
    nothing = TensorDict({}, batch_size=[4])

    def capture_nothing(body: Callable[[], TensorDictBase], device: torch.device) -> Graph:
        return Graph(lambda: None, nothing)

    monkeypatch.setattr(GraphedRollout, "_compare", lambda *_: None)
    play = graphed(env, DeepestBottomLeft(env), capture_nothing)
    _, current = play(env.reset())
    with Copies() as copies:
        _, current = play(current)
    assert copies.count == 0
    with Copies() as copies:
        play(current.clone())
    assert copies.count == len(current.keys(True, True))


def load(env: PackingEnv, turn: int) -> TensorDictBase:
    """Load the state of another environment, its seed too.

    The other one is left alone.
    """
    other = env.like(env.num_envs, seed=77 + turn)
    current, state = other.reset(), other.state_dict()
    kept = {name: value.clone() for name, value in state.items()}
    env.load_state_dict(state)
    assert all(torch.equal(state[name], kept[name]) for name in kept)
    return current


def step(env: PackingEnv, turn: int) -> TensorDictBase:
    current, policy = env.reset(), DeepestBottomLeft(env)
    for _ in range(turn):
        _, current = env.step_and_maybe_reset(policy(current))
    return current


def reset(env: PackingEnv, turn: int) -> TensorDictBase:
    if turn == 2:
        env.set_seed(5)
    return env.reset()


@by_graphs
@pytest.mark.parametrize("change", [load, step, reset])
def test_a_changed_environment_counts(change: Any, env_of: Callable[..., PackingEnv], capture: Any) -> None:
    env, twin = env_of(), env_of()
    play, policy = graphed(env, DeepestBottomLeft(env), capture), DeepestBottomLeft(twin)
    ours, theirs = env.reset(), twin.reset()
    for turn in range(3):
        for _ in range(2):
            before = ours.clone()
            shown = before.clone()
            (played, ours), (wanted, theirs) = play(before), plain(twin, policy, theirs)
            assert_same(played, wanted)
            assert (before == shown).all()
        assert_same_env(env, twin)
        ours, theirs = change(env, turn), change(twin, turn)


def explore(agent: Any, turn: int) -> None:
    agent.exploration.epsilon.fill_(0.25 * turn)


def weigh(agent: Any, turn: int) -> None:
    with torch.no_grad():
        for weight in agent.policy.parameters():
            weight.mul_(-1.5)


@pytest.mark.parametrize(("change", "capture"), [(explore, None), (explore, capture_on_cpu), (weigh, capture_on_cpu)])
def test_a_changed_policy_counts(change: Any, capture: Any) -> None:
    env, twin = tiny_env(), tiny_env()
    agents = explorer(env), explorer(twin)
    play, policy = graphed(env, PolicyWrapper(agents[0]), capture), PolicyWrapper(agents[1])
    ours, theirs = env.reset(), twin.reset()
    for turn, kind in enumerate(["RANDOM", "DETERMINISTIC", "RANDOM"]):
        with set_exploration_type(ExplorationType[kind]):
            torch.manual_seed(turn)
            played, ours = play(ours)
            torch.manual_seed(turn)
            wanted, theirs = plain(twin, policy, theirs)
        assert_same(played, wanted)
        for agent in agents:
            change(agent, turn)
    assert_same_env(env, twin)


@pytest.mark.gpu
def test_epsilon_counts_on_cuda() -> None:
    env = cuda_env()
    agent = explorer(env, 0.0)
    play = graphed(env, PolicyWrapper(agent))
    start, state = env.reset(), env.state_dict()
    starts = [start.clone() for _ in range(4)]
    actions = []
    with set_exploration_type(ExplorationType.RANDOM):
        for first, epsilon in zip(starts, [0.0, 1.0, 0.0, 1.0], strict=True):
            agent.exploration.epsilon.fill_(epsilon)
            env.load_state_dict(state)
            actions.append(play(first)[0]["action"])
    # Both of these are greedy.
    assert torch.equal(actions[0], actions[2])
    assert (actions[0] != actions[1]).any()
    # Random numbers are new in every replay.
    assert (actions[1] != actions[3]).any()


SCORED = ("action", "chosen_action_value")


def test_autocast_and_weights_under_it_count() -> None:
    # Autocast keeps weights that it has cast: a graph that read those would not see later ones.
    env, twin = tiny_env(), tiny_env()
    agent, other = explorer(env), explorer(twin)
    play = GraphedRollout(env, agent.policy, STEPS, env.stored_keys, SCORED, capture=capture_on_cpu)
    ours, theirs = env.reset(), twin.reset()
    for enabled in (True, True, False, True):
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=enabled), torch.no_grad():
            agent.policy(ours.clone())
            played, ours = play(ours)
            wanted, theirs = play_steps(twin, other.policy, theirs, STEPS, twin.stored_keys, SCORED)
            assert_same(played, wanted)
            for each in (agent, other):
                weigh(each, 0)
            torch.clear_autocast_cache()


def test_a_graph_is_made_again_only_where_what_is_fixed_changed() -> None:
    env, made = tiny_env(), []

    def counting(body: Callable[[], TensorDictBase], device: torch.device) -> Graph:
        made.append(env.seed)
        return capture_on_cpu(body, device)

    play = graphed(env, PolicyWrapper(explorer(env)), counting)
    _, current = play(env.reset())
    for _ in range(3):
        _, current = play(current)
    assert len(made) == 1
    play.policy.eval()
    _, current = play(current)
    assert len(made) == 2
    env.set_seed(9)
    play(env.reset())
    assert made == [3, 3, 9]


def test_steps_outlive_the_next_replay() -> None:
    env = tiny_env()
    play = graphed(env, DeepestBottomLeft(env), capture_on_cpu)
    played, current = play(env.reset())
    kept = played.clone()
    play(current)
    assert_same(played, kept)


def test_keys_that_others_set_stay_out() -> None:
    env = tiny_env()
    play = graphed(env, DeepestBottomLeft(env), capture_on_cpu)
    _, current = play(env.reset())
    names = set(current.keys(True, True))
    current.set("action", torch.zeros(4, dtype=torch.int64))
    current.set("next", TensorDict({"x": torch.zeros(4)}, [4]))
    _, current = play(current)
    assert set(current.keys(True, True)) == names


def test_an_environment_that_reads_the_host_is_refused() -> None:
    env = tiny_env()
    env.reads_host = "it asks a camera"
    with pytest.raises(ValueError, match=r"reads the device back: .*camera"):
        graphed(env, DeepestBottomLeft(env))


@pytest.mark.parametrize("capture", [None, capture_on_cpu], ids=["step by step", "recorded"])
def test_a_rollout_plays_through_it(capture: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rollout, "GraphedRollout", partial(GraphedRollout, capture=capture))
    envs = tiny_env(), tiny_env()
    first, second = envs
    ours = Rollout(first, first.stored_keys, 3, 0.9, cuda_graphs=True)
    theirs = Rollout(second, second.stored_keys, 3, 0.9, cuda_graphs=False)
    policies = [DeepestBottomLeft(env) for env in envs]
    for _ in range(3):
        for mine, wanted in zip(ours.collect(policies[0], STEPS), theirs.collect(policies[1], STEPS), strict=True):
            assert_same(mine, wanted)


def test_an_error_names_the_operator() -> None:
    with pytest.raises(RuntimeError) as raised, NoHostReads(), operator_named(WHAT):
        torch.zeros(3).sum().item()
    assert str(raised.value).startswith("GraphedRollout: the rollout cannot be captured")
    assert "aten._local_scalar_dense.default fails: " in str(raised.value)
    assert isinstance(raised.value.__cause__, HostRead)


def test_an_error_after_an_operator_that_went_well_says_which() -> None:
    def lose_the_stream(x: Tensor) -> None:
        raise ValueError("the stream is lost\nand more")

    with pytest.raises(RuntimeError, match=r"aten\.add\.Tensor .*stream is lost"), operator_named(WHAT):
        lose_the_stream(torch.zeros(3) + 1)


def fails(body: Callable[[], TensorDictBase], device: torch.device) -> Graph:
    with generators_kept(device), NoHostReads(), operator_named(WHAT):
        body()["action"].sum().item()
    raise AssertionError


def fails_at_launch(body: Callable[[], TensorDictBase], device: torch.device) -> Graph:
    def replay() -> None:
        raise RuntimeError("CUDA error: out of memory\nCUDA kernel errors might be reported elsewhere")

    with generators_kept(device):
        return Graph(replay, body())


def stands_still(body: Callable[[], TensorDictBase], device: torch.device) -> Graph:
    """A graph whose replays do nothing: it gives what was played when it was made."""
    with generators_kept(device):
        return Graph(lambda: None, body())


BROKEN = {
    fails: "GraphedRollout: the rollout cannot be captured in a CUDA graph: aten._local_scalar_dense.default fails: ",
    fails_at_launch: "GraphedRollout: CUDA error: out of memory CUDA kernel errors might be reported elsewhere;",
    stands_still: "GraphedRollout: the graph plays otherwise than the steps one by one in 4 of 4 environments;"
    " operators are launched one by one instead",
}


@pytest.mark.parametrize("how", BROKEN)
def test_without_a_graph_steps_run_one_by_one_and_a_line_says_why(how: Any, caplog: pytest.LogCaptureFixture) -> None:
    env, twin = tiny_env(), tiny_env()
    policies = [PolicyWrapper(explorer(each)) for each in (env, twin)]
    play = graphed(env, policies[0], how)
    ours, theirs = env.reset(), twin.reset()
    with set_exploration_type(ExplorationType.RANDOM):
        for turn in range(3):
            torch.manual_seed(turn)
            wanted, theirs = plain(twin, policies[1], theirs)
            torch.manual_seed(turn)
            played, ours = play(ours)
            assert_same(played, wanted)
            assert_same_env(env, twin)
    (record,) = caplog.records
    assert record.levelname == "WARNING"
    assert record.getMessage().startswith(BROKEN[how])
    assert "\n" not in record.getMessage()


def test_a_few_environments_may_go_another_way(caplog: pytest.LogCaptureFixture) -> None:
    for rows, line in ((1, 0), (2, 1)):

        def slips(body: Callable[[], TensorDictBase], device: torch.device, rows: int = rows) -> Graph:
            graph = capture_on_cpu(body, device)

            def replay() -> None:
                graph.replay()
                graph.result["action"][:rows] += 1

            return Graph(replay, graph.result)

        env = packing_env(10, backend="eager")
        caplog.clear()
        graphed(env, DeepestBottomLeft(env), slips)(env.reset())
        assert len(caplog.records) == line


@pytest.mark.gpu
def test_a_call_is_one_graph_launch() -> None:
    env = cuda_env()
    play, current = graphed(env, DeepestBottomLeft(env)), env.reset()
    for _ in range(2):
        played, current = play(current)
    torch.cuda.synchronize()
    activities = [torch.profiler.ProfilerActivity.CPU, torch.profiler.ProfilerActivity.CUDA]
    with torch.profiler.profile(activities=activities) as profile:
        play(current)
        torch.cuda.synchronize()
    # These are the calls cudaX and cuX of the host.
    calls = [event.name for event in profile.events() if event.name.startswith("cu")]
    assert calls.count("cudaGraphLaunch") == 1
    others = [name for name in calls if "LaunchKernel" in name or "Memcpy" in name or "Memset" in name]
    # What remains are copies of the steps.
    assert len(others) <= len(list(played.keys(True, True)))


@pytest.mark.gpu
def test_a_step_that_reads_back_is_named(caplog: pytest.LogCaptureFixture) -> None:
    env = cuda_env()
    greedy = DeepestBottomLeft(env)

    def reading(shown: TensorDictBase) -> TensorDictBase:
        assert shown["action_mask"].sum().item() >= 0
        return greedy(shown)

    play, current = graphed(env, reading), env.reset()
    # A slow self-test may have been logged.
    caplog.clear()
    for _ in range(2):
        _, current = play(current)
    (record,) = caplog.records
    assert "; got aten._local_scalar_dense" in record.getMessage()
    # A broken capture spoils neither random numbers nor the next one.
    torch.rand(3, device="cuda")
    graphed(env, greedy)(current)
    assert len(caplog.records) == 1
