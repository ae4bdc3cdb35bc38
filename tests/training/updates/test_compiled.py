"""Compiled losses are as the operators give them.

In whole runs and resumed ones, and what cannot compile runs plainly.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, cast

import pytest
import torch
from torch import Tensor, nn
from torch._subclasses import FakeTensorMode
from torch.nn.utils import parameters_to_vector
from torch.optim import Optimizer

from tests.native.compilers import need_torch_compile
from tests.no_host_reads import NoHostReads
from tests.training.resuming import differences, everything, last
from tests.training.tiny import fit, module
from tests.training.updates.test_graphed import agent_of, batches
from torchrl_gpu.callbacks import EpisodeCheckpoint
from torchrl_gpu.training.updates.compiled import CompiledLosses
from torchrl_gpu.training.updates.graphed import Losses
from torchrl_gpu.training.updates.optimizers import clip_gradients, keep_capturable, set_capturable

compiler = torch.compile
warned = "operators are launched one by one instead"


@pytest.fixture
def quickly(monkeypatch: pytest.MonkeyPatch) -> None:
    """torch.compile traces, and leaves out the compiler of C++."""

    def traced(function: Any, *, fullgraph: bool, dynamic: bool, options: dict[str, Any]) -> Any:
        assert options == {"fallback_random": True}
        return compiler(function, fullgraph=fullgraph, dynamic=dynamic, backend="aot_eager")

    monkeypatch.setattr(torch, "compile", traced)
    torch.compiler.reset()


def compiles_to(function: Callable[[list[Tensor]], list[Tensor]], monkeypatch: pytest.MonkeyPatch) -> None:
    """Let compiled functions give what `function` makes of the results.

    It is given losses, errors and gradients, in this order.
    """
    monkeypatch.setattr(torch, "compile", lambda module, **options: lambda *given: function(module(*given)))


def saver() -> EpisodeCheckpoint:
    return EpisodeCheckpoint(every_n_updates=2)


# One with the loss of actions and one with those of actor and critic; `test_contract` compiles every agent's.
@pytest.mark.usefixtures("quickly")
@pytest.mark.parametrize("mixed", [False, True])
@pytest.mark.parametrize(
    "name", ["IQN", *(pytest.param(name, marks=pytest.mark.soak) for name in ("Rainbow", "ACIQN"))]
)
def test_compiled_losses_give_and_draw_what_operators_do(
    name: str, mixed: bool, caplog: pytest.LogCaptureFixture
) -> None:
    agents = agent_of(name), agent_of(name)
    compiled = CompiledLosses(agents[0])
    ways: list[Losses] = [compiled, agents[1].losses]
    for batch in batches(name, 2):
        ends = []
        for agent, losses in zip(agents, ways, strict=True):
            torch.manual_seed(3)
            rows = batch.clone()
            with torch.autocast("cpu", torch.bfloat16, enabled=mixed):
                found = losses(rows)
            torch.stack(list(found.values())).sum().backward()
            weights = agent.parameters_to_train
            gradients = [cast("Tensor", weight.grad).clone() for weight in weights]
            ends.append([*found.values(), rows["td_error"], *gradients, torch.get_rng_state().float()])
            with torch.no_grad():
                for weight in weights:
                    # Weights change, as in an update.
                    weight.mul_(1.1)
        for ours, theirs in zip(*ends, strict=True):
            torch.testing.assert_close(ours, theirs, rtol=2e-2 if mixed else 1e-4, atol=1e-3 if mixed else 1e-6)
    assert compiled.proven
    assert warned not in caplog.text


@pytest.mark.soak
@pytest.mark.usefixtures("quickly")
def test_a_run_is_that_of_operators_and_resumes_to_the_last_bit(tmp_path: Path) -> None:
    plain = fit(module(), tmp_path / "plain", 8)
    whole = fit(module(torch_compile=True), tmp_path / "whole", 8, saver())
    assert_learned_alike(plain, whole)
    fit(module(torch_compile=True), tmp_path / "halves", 4, saver())
    halves = last(tmp_path / "halves")
    fit(module(torch_compile=True), tmp_path / "halves", 8, saver(), ckpt_path=halves, seed=9)
    assert differences(everything(last(tmp_path / "whole")), everything(halves)) == []


# This takes a minute.
@pytest.mark.soak
def test_the_compiler_of_this_machine_gives_the_same(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    need_torch_compile()
    torch.compiler.reset()
    plain = fit(module(torch_compile=False), tmp_path / str(False), 4)
    compiled = fit(module(torch_compile=True), tmp_path / str(True), 4)
    assert warned not in caplog.text
    assert_learned_alike(plain, compiled)


def assert_learned_alike(one: nn.Module, other: nn.Module) -> None:
    """Assert that weights moved alike.

    Adam makes much of gradients that are nearly zero, so weights are compared with the way that they went.
    """
    begin = parameters_to_vector(module().parameters())
    ends = [parameters_to_vector(each.parameters()) for each in (one, other)]
    assert (ends[0] - ends[1]).norm() < 0.02 * (ends[0] - begin).norm()


@pytest.fixture(scope="module")
def plainly(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return everything(last(run_of(tmp_path_factory.mktemp("plain"), torch_compile=False)))


def wrong_loss(found: list[Tensor]) -> list[Tensor]:
    return [found[0] * 1.5, *found[1:]]


def wrong_gradient(found: list[Tensor]) -> list[Tensor]:
    return [*found[:2], *(gradient * 0.5 for gradient in found[2:])]


def wrong_errors(found: list[Tensor]) -> list[Tensor]:
    return [found[0], found[1].roll(1, 0), *found[2:]]


def fails(found: list[Tensor]) -> list[Tensor]:
    raise RuntimeError("no\ncompiler")


@pytest.mark.parametrize(
    ("way", "said"),
    [
        (wrong_loss, "CompiledLosses: the compiled function differs from its operators one by one in value"),
        (wrong_gradient, "CompiledLosses: the compiled function differs from its operators one by one in the gradient"),
        (wrong_errors, "CompiledLosses: the compiled function differs from its operators one by one in td_error"),
        (fails, "CompiledLosses: no compiler"),
    ],
)
def test_compiled_losses_that_differ_or_fail_are_left_with_a_line(
    way: Any, said: str, plainly: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    compiles_to(way, monkeypatch)
    with caplog.at_level(logging.WARNING):
        other = everything(last(run_of(tmp_path, torch_compile=True)))
    # The checkpoint keeps that the run asked for torch.compile, which it tries again when it goes on.
    assert differences(plainly, other) == [".compiled"]
    assert [line for line in caplog.messages if warned in line] == [f"{said}; {warned}"]


def run_of(folder: Path, **changes: Any) -> Path:
    fit(module(**changes), folder, 4, saver())
    return folder


def test_compiled_losses_that_fail_later_run_plainly(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    name, calls = "DQN", []

    def tired(found: list[Tensor]) -> list[Tensor]:
        calls.append(found)
        return found if len(calls) < 3 else fails(found)

    compiles_to(tired, monkeypatch)
    agent = agent_of(name)
    compiled = CompiledLosses(agent)
    for batch in batches(name, 4):
        torch.testing.assert_close(compiled(batch.clone())["value"], agent.losses(batch)["value"])
    # The calls are the trial, one that works, and one that fails.
    assert len(calls) == 3
    assert caplog.text.count(warned) == 1
    # A faulty batch raises the same error as without compiling.
    with pytest.raises(AttributeError):
        compiled(batch.exclude("action"))


def test_the_trial_leaves_statistics_as_they_were(monkeypatch: pytest.MonkeyPatch) -> None:
    agent = agent_of("DQN")
    agent.register_buffer("seen", torch.zeros(()))

    def counted(found: list[Tensor]) -> list[Tensor]:
        agent.get_buffer("seen").add_(1)
        return found

    compiles_to(counted, monkeypatch)
    compiled = CompiledLosses(agent)
    compiled(batches("DQN", 1)[0])
    assert agent.get_buffer("seen") == 1


OPTIMIZERS = [torch.optim.Adam, torch.optim.RMSprop, partial(torch.optim.Adam, fused=True)]


def stepped(weight: nn.Parameter, make: type[Optimizer] = torch.optim.Adam) -> Optimizer:
    optimizer = make([weight])  # type: ignore[call-arg]
    weight.grad = torch.ones_like(weight)
    optimizer.step()
    return optimizer


def weight_on(device: str) -> nn.Parameter:
    return nn.Parameter(torch.zeros(2, device=device))


@pytest.mark.parametrize("make", OPTIMIZERS)
def test_optimizer_saved_on_cuda_resumes_on_a_cpu(make: type[Optimizer]) -> None:
    weight = weight_on("cpu")
    optimizer = stepped(weight, make)
    keep_capturable(optimizer)
    state = optimizer.state_dict()
    state["param_groups"][0]["capturable"] = True
    optimizer.load_state_dict(state)
    assert optimizer.param_groups[0]["capturable"] is False
    optimizer.step()
    assert optimizer.state[weight]["step"] == 2


@pytest.mark.parametrize("make", OPTIMIZERS)
def test_optimizer_saved_on_a_cpu_counts_on_cuda(make: type[Optimizer]) -> None:
    state = stepped(weight_on("cpu"), make).state_dict()
    with FakeTensorMode(allow_non_fake_inputs=True):
        weight = weight_on("cuda")
        optimizer = make([weight])  # type: ignore[call-arg]
        keep_capturable(optimizer)
        assert optimizer.param_groups[0]["capturable"] is True
        optimizer.load_state_dict(state)
        assert optimizer.param_groups[0]["capturable"] is True
        assert optimizer.state[weight]["step"].device.type == "cuda"


def test_an_optimizer_without_such_a_setting_is_left() -> None:
    optimizer = torch.optim.SGD([weight_on("cpu")])
    set_capturable(optimizer)
    assert "capturable" not in optimizer.param_groups[0]


def weights_with(*gradients: list[float]) -> list[Tensor]:
    weights: list[Tensor] = [nn.Parameter(torch.zeros(len(values))) for values in gradients]
    for weight, values in zip(weights, gradients, strict=True):
        weight.grad = torch.tensor(values)
    return weights


def gradients_of(weights: list[Tensor]) -> list[list[float]]:
    return [weight.grad.tolist() for weight in weights if weight.grad is not None]


def scaler_of(scale: float) -> torch.amp.GradScaler:
    scaler = torch.amp.GradScaler("cpu", init_scale=scale)
    # The first call makes the scaler's tensor.
    scaler.scale(torch.ones(()))
    return scaler


@pytest.mark.parametrize(("most", "scale", "left"), [(2.5, None, 0.5), (6.0, None, 1.0), (2.5, 64.0, 0.5)])
def test_clipping_of_gradients_by_hand(most: float, scale: float | None, left: float) -> None:
    large = scale or 1.0
    # Their norm is 5, once they are unscaled.
    weights = weights_with([3.0 * large, 0.0], [4.0 * large])
    # One weight has no gradient.
    weights.append(nn.Parameter(torch.zeros(2)))
    clip_gradients(weights, most, None if scale is None else scaler_of(scale))
    assert gradients_of(weights) == [[pytest.approx(3.0 * large * left), 0.0], [pytest.approx(4.0 * large * left)]]


def test_overflow_of_gradients_is_still_seen() -> None:
    weights = weights_with([float("inf"), 1.0])
    clip_gradients(weights, 2.5, scaler_of(64.0))
    assert not weights[0].grad.isfinite().all()  # type: ignore[union-attr]


@pytest.mark.parametrize("scaled", [False, True])
def test_compiled_losses_read_nothing_back(scaled: bool) -> None:
    weights, scaler = weights_with([3.0, 4.0]), scaler_of(64.0) if scaled else None
    with NoHostReads():
        clip_gradients(weights, 1.0, scaler)
