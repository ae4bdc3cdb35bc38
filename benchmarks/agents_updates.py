"""Whole updates of agents, eager, compiled and graphed, against TorchRL's losses; rows of `agents.py`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

import torch
from tensordict import TensorDict, TensorDictBase
from tensordict.nn import TensorDictModule
from torch import Tensor, nn
from torchrl.modules import QValueActor
from torchrl.objectives import DDPGLoss, DQNLoss, LossModule, SoftUpdate

from tests.policies.agents.test_torchrl import distributional_loss, soft_loss
from tests.policies.navigation_spaces import make, transitions
from tests.tolerances import TOLERANCE
from torchrl_gpu.bench.timing import TimedRow
from torchrl_gpu.policies import DDPG, DQN, SAC, Agent, Rainbow
from torchrl_gpu.policies.spaces import in_keys
from torchrl_gpu.training.updates.graphed import GraphedUpdate

LEARNING_RATE, MAX_NORM, TAU = 1e-4, 0.5, 0.005
LOSSES = ("loss", "loss_actor", "loss_value", "loss_qvalue")  # as TorchRL calls them
Loss = Callable[[TensorDictBase], Tensor]
Told = Callable[[str, str], None]


class Update:
    """Losses, backward pass, clipping, Adam's step, targets: the same around ours and around TorchRL's losses."""

    def __init__(
        self,
        loss: Loss,
        weights: list[Tensor],
        update_targets: Callable[[int], Any],
        batch: TensorDict,
        number: int = 0,
    ) -> None:
        self.loss, self.weights, self.update_targets = loss, weights, update_targets
        self.batch, self.number = batch, number
        self.optimizer = torch.optim.Adam(weights, lr=LEARNING_RATE, fused=True)

    def once(self) -> None:
        """One update."""
        self.number += 1
        self.optimizer.zero_grad()
        self.loss(self.batch).backward()
        nn.utils.clip_grad_norm_(self.weights, MAX_NORM)
        self.optimizer.step()
        self.update_targets(self.number)

    def play(self, calls: int) -> None:
        """Updates."""
        for _ in range(calls):
            self.once()

    def measures(self) -> list[float]:
        """The loss and the norm of its gradient, from a fixed seed; nothing is trained."""
        torch.manual_seed(0)
        loss = self.loss(self.batch)
        slopes = torch.autograd.grad(loss, self.weights)
        return [loss.item(), nn.utils.get_total_norm(slopes).item()]


def batch_for(name: str, size: int, device: torch.device) -> TensorDict:
    """Made-up transitions, all actions legal: TorchRL's distributional loss knows no masks."""
    batch = transitions(name, size)
    for part in (batch, batch["next"]):
        if "action_mask" in part:
            part["action_mask"] = torch.ones_like(part["action_mask"])
    return batch.to(device)


def ours(name: str, batch: TensorDict, compiled: bool = False) -> Update:
    """Our update of an agent."""
    agent = make(name).to(batch.device)

    def loss(rows: TensorDictBase) -> Tensor:
        return torch.stack(list(agent.losses(rows).values())).sum()

    call = torch.compile(loss, fullgraph=True, dynamic=False) if compiled else loss
    return Update(call, agent.parameters_to_train, agent.update_targets, batch)


def theirs(name: str, batch: TensorDict, compiled: bool = False) -> Update | None:
    """TorchRL's loss over the same networks; None where it has none."""
    agent = make(name).to(batch.device)
    module = torchrl_loss(agent)
    if module is None:
        return None
    module = module.to(batch.device)

    def loss(rows: TensorDictBase) -> Tensor:
        out = module(rows)  # it tells a loss of the price of entropy, too, where that is not learnt
        return torch.stack([out[key] for key in LOSSES if key in out]).sum()

    call = torch.compile(loss, dynamic=False) if compiled else loss
    weights = [weight for weight in module.parameters() if weight.requires_grad]
    return Update(call, weights, _TargetUpdater(module, agent), batch)


class _TargetUpdater:
    """Moves the targets of a loss of TorchRL and draws the noise of its online network anew."""

    def __init__(self, module: LossModule, agent: Agent) -> None:
        self.module, self.agent = module, agent
        self.targets: SoftUpdate | None = None

    def __call__(self, update: int) -> None:
        if self.targets is None:  # not before the check: it makes targets equal to what they follow
            self.targets = SoftUpdate(self.module, tau=TAU)
        self.targets.step()
        if isinstance(self.agent, Rainbow):
            self.agent.online.network.value.apply(_draw_noise)
            self.agent.online.network.advantage.apply(_draw_noise)


def _draw_noise(layer: nn.Module) -> None:
    if hasattr(layer, "reset_noise"):
        layer.reset_noise()


def torchrl_loss(agent: Agent) -> LossModule | None:
    """TorchRL's own loss with an agent's networks and targets; None where it has none."""
    if isinstance(agent, Rainbow):
        return distributional_loss(agent)
    if isinstance(agent, SAC):
        return soft_loss(agent)
    if isinstance(agent, DQN):
        return _q_loss(agent)
    return _gradient_loss(agent) if isinstance(agent, DDPG) else None


def _q_loss(agent: DQN) -> DQNLoss:
    network: Any = agent.policy[0].module
    actor = QValueActor(network, in_keys=in_keys(network), action_space="categorical", action_mask_key="action_mask")
    loss = DQNLoss(actor, loss_function="smooth_l1", double_dqn=True, delay_value=True, action_space="categorical")
    loss.make_value_estimator(gamma=agent.gamma)
    SoftUpdate(loss, tau=TAU)  # it warns where there is none
    _take(loss.target_value_network_params, agent.objective.target_value_network_params)
    return loss


def _gradient_loss(agent: DDPG) -> DDPGLoss:
    act, value = agent.policy.module, agent.objective.value_network.module
    actor = TensorDictModule(act, in_keys=act.in_keys, out_keys=["action"])
    critic = TensorDictModule(value, in_keys=[*in_keys(value), "action"], out_keys=["state_action_value"])
    loss = DDPGLoss(actor, critic, loss_function="smooth_l1", delay_actor=True, delay_value=True)
    loss.make_value_estimator(gamma=agent.gamma)
    SoftUpdate(loss, tau=TAU)
    for which in ("actor", "value"):
        name = f"target_{which}_network_params"
        _take(getattr(loss, name), getattr(agent.objective, name))
    return loss


def _take(targets: Any, values: Any) -> None:
    """Values by their order: modules around the networks may be nested otherwise."""
    pairs = zip(targets.data.values(True, True), values.data.values(True, True), strict=True)
    for target, value in pairs:
        target.copy_(value)


def difference(mine: list[float], other: list[float]) -> str:
    """What tells two losses and norms of gradients apart, in words; "" where nothing does."""
    for what, one, two in zip(("loss", "norm of the gradient"), mine, other, strict=True):
        if not abs(one - two) <= TOLERANCE[torch.float32] * max(1.0, abs(one)):
            return f"{what}: {one:.7g} and {two:.7g}"
    return ""


def check(name: str, batch: TensorDict, tell: Told) -> None:
    """Tells how ours and TorchRL's differ on the same weights and random numbers."""
    with _same_noise():
        mine, opponent = ours(name, batch.clone()), theirs(name, batch.clone())
        if opponent is not None:
            tell(f"{name}, update, against TorchRL's", difference(mine.measures(), opponent.measures()))


@contextmanager
def _same_noise() -> Iterator[None]:
    """Normal variables are all the same: TorchRL's SAC draws for the target first, ours for the actor."""
    with (
        mock.patch.object(torch, "randn_like", lambda like: torch.full_like(like, 0.7)),
        mock.patch(
            "torch.distributions.normal._standard_normal",
            lambda shape, dtype, device: torch.full(shape, 0.7, dtype=dtype, device=device),
        ),
    ):
        yield


def timed_rows(
    name: str, sizes: list[int], device: torch.device, compiled: bool, tell: Told, missing: list[str]
) -> Iterator[TimedRow]:
    """Rows of one agent by batch size; `tell` is told what loses otherwise, `missing` gets rows that cannot be."""
    threads = str(torch.get_num_threads()) if device.type == "cpu" else str(device)
    for size in sizes:
        batch = batch_for(name, size, device)
        check(name, batch, tell)
        for how, run in _ways(name, batch, compiled, tell, missing):
            extra: dict[str, object] = {"agent": name, "batch": size, "how": how}
            yield TimedRow(f"{name}, {size}, {how}", run, 1, threads, name, extra=extra)


def _ways(
    name: str, batch: TensorDict, compiled: bool, tell: Told, missing: list[str]
) -> Iterator[tuple[str, Callable[[int], None]]]:
    yield "eager", ours(name, batch.clone()).play
    if batch.device.type == "cuda":
        yield "CUDA graph", graphed(name, batch.clone())
    opponent = theirs(name, batch.clone())
    if opponent is not None:
        yield "TorchRL", opponent.play
    for how, make_update in (("compiled", ours), ("TorchRL compiled", theirs)) if compiled else ():
        if opponent is None and make_update is theirs:
            continue
        eager, update = (make_update(name, batch.clone(), compiled=fast) for fast in (False, True))
        try:
            tell(f"{name}, update, {len(batch)} rows, {how}", difference(eager.measures(), update.measures()))
        except Exception as error:  # whatever the compiler raises
            missing.append(f"{name}, {len(batch)}, {how}: {type(error).__name__}: {str(error).splitlines()[0]}")
            continue
        yield how, update.play


def graphed(name: str, batch: TensorDict) -> Callable[[int], None]:
    """Plays whole updates as replays of a CUDA graph."""
    agent = make(name).to(batch.device)
    optimizer = torch.optim.Adam(agent.parameters_to_train, lr=LEARNING_RATE, fused=True, capturable=True)
    update = GraphedUpdate(agent, optimizer, MAX_NORM)

    def play(calls: int) -> None:
        for _ in range(calls):
            update(batch, 1)

    return play
