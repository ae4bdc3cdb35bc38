"""Masked epsilon-greedy: its schedule and its distribution.

It draws on the device.
"""

from __future__ import annotations

import pytest
import torch
from tensordict import TensorDict
from torchrl.envs.utils import ExplorationType, set_exploration_type

from tests.native.compilers import need_compiler, threads
from tests.no_host_reads import NoHostReads
from torchrl_gpu import native
from torchrl_gpu.policies import AgentSpace
from torchrl_gpu.policies import exploration as exploration_module
from torchrl_gpu.policies.exploration import EpsilonGreedy, EpsilonGreedyModule, keyed_draws, random_legal
from torchrl_gpu.policies.exploration import uniform as uniform_draws

MASK = torch.tensor([True, False, True, True, False, True, False])
LEGAL = MASK.nonzero().squeeze(1).tolist()


DISCRETE = AgentSpace("Some", (), {"action_mask": ((7,), "bool")}, num_actions=7)


def masked(*settings: float, **named: float) -> EpsilonGreedyModule:
    return EpsilonGreedyModule(EpsilonGreedy(*settings, **named), DISCRETE)  # type: ignore[arg-type]


def chi_square(counts: torch.Tensor) -> float:
    expected = counts.sum() / len(counts)
    return ((counts - expected) ** 2 / expected).sum().item()


def rows(number: int, action: int = 2, batch: tuple[int, ...] | None = None) -> TensorDict:
    """States that share one mask and one greedy action."""
    batch = (number,) if batch is None else batch
    return TensorDict(
        {"action": torch.full(batch, action), "action_mask": MASK.expand(*batch, len(MASK)).clone()}, batch_size=batch
    )


def test_the_schedule_is_linear_and_then_flat() -> None:
    exploration = masked(start=0.9, end=0.1, frames=200)
    # 0.9 + (0.1 − 0.9) · frame / 200: a quarter of the way down at frame 50, flat from 200 on
    for frame, epsilon in [(0, 0.9), (50, 0.7), (100, 0.5), (200, 0.1), (10_000, 0.1)]:
        exploration.anneal(frame)
        assert exploration.epsilon.item() == pytest.approx(epsilon)


def test_random_actions_are_uniform_over_the_legal_ones() -> None:
    torch.manual_seed(0)
    drawn = random_legal(MASK.expand(40_000, -1))
    counts = torch.bincount(drawn, minlength=len(MASK)).double()
    assert counts[~MASK].sum() == 0
    # 3 degrees of freedom, p = 0.001.
    assert chi_square(counts[MASK]) < 16.27


def test_a_single_legal_action_is_always_drawn_and_0_without_one() -> None:
    mask = torch.eye(6, dtype=torch.bool)
    assert all(torch.equal(random_legal(mask), torch.arange(6)) for _ in range(20))
    assert random_legal(torch.zeros(3, 5, dtype=torch.bool)).tolist() == [0, 0, 0]


@pytest.mark.parametrize("width", [1, 2, 5, 8, 9, 16, 31, 64])
@pytest.mark.parametrize("share", [0.0, 0.05, 0.5, 1.0])
def test_actions_counted_in_blocks_are_drawn_alike(width: int, share: float, monkeypatch: pytest.MonkeyPatch) -> None:
    mask = torch.rand(3, 40, width, generator=torch.Generator().manual_seed(width)) < share
    monkeypatch.setattr(native, "runs_on", lambda tensor: False)
    drawn = []
    for block in (64, 8, 3):
        monkeypatch.setattr(exploration_module, "_BLOCK", block)
        torch.manual_seed(7)
        with NoHostReads():
            drawn.append(random_legal(mask))
    assert torch.equal(drawn[1], drawn[0])
    assert torch.equal(drawn[2], drawn[0])


def test_no_running_count_is_longer_than_a_block(monkeypatch: pytest.MonkeyPatch) -> None:
    lengths, cumsum = [], torch.Tensor.cumsum

    def counted(self: torch.Tensor, *args: object, **named: object) -> torch.Tensor:
        lengths.append(self.shape[-1])
        return cumsum(self, *args, **named)

    monkeypatch.setattr(native, "runs_on", lambda tensor: False)
    monkeypatch.setattr(torch.Tensor, "cumsum", counted)
    random_legal(torch.ones(2, 200_000, dtype=torch.bool))
    assert len(lengths) == 2
    assert max(lengths) <= 1024


def both_draws(mask: torch.Tensor, monkeypatch: pytest.MonkeyPatch) -> tuple[torch.Tensor, torch.Tensor]:
    """Draws of the compiled operator and of torch from the same random numbers."""
    drawn = []
    for compiled in (True, False):
        with monkeypatch.context() as patch:
            patch.setattr(native, "runs_on", lambda tensor, compiled=compiled: compiled)
            torch.manual_seed(7)
            drawn.append(random_legal(mask))
    return drawn[0], drawn[1]


@pytest.mark.parametrize("shape", [(1,), (15,), (16,), (17,), (5, 1), (400, 33), (64, 1000), (2, 3, 100), (0, 4)])
def test_compiled_draws_are_those_of_torch(shape: tuple[int, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    need_compiler()
    for share in (0.0, 0.01, 0.5, 0.99, 1.0):
        mask = torch.rand(shape, generator=torch.Generator().manual_seed(1)) < share
        for view in (mask, mask.mT.contiguous().mT if mask.ndim > 1 else mask.expand(3, -1)):
            came, expected = both_draws(view, monkeypatch)
            assert came.dtype == expected.dtype
            assert torch.equal(came, expected)


@pytest.mark.parametrize("cores", [1, 2, 3])
def test_compiled_draws_do_not_depend_on_threads(cores: int, monkeypatch: pytest.MonkeyPatch) -> None:
    need_compiler()
    mask = torch.rand(301, 700, generator=torch.Generator().manual_seed(2)) < torch.linspace(0, 0.1, 301)[:, None]
    with threads(cores):
        assert torch.equal(*both_draws(mask, monkeypatch))


@pytest.mark.parametrize("draw", [0.0, 0.25 - 1e-16, 0.25, 0.5, 0.75, 1 - 2**-53])
def test_every_share_of_the_draw_falls_to_one_entry(draw: float) -> None:
    # Four entries are true: the draw's quarter decides.
    need_compiler()
    expected = LEGAL[int(draw * 4)]
    assert native.pick_true(MASK, torch.tensor(draw, dtype=torch.float64)).item() == expected


@pytest.mark.parametrize("epsilon", [0.0, 0.3, 1.0])
def test_epsilon_is_the_share_of_explored_actions(epsilon: float) -> None:
    torch.manual_seed(1)
    exploration = masked(start=epsilon, end=0.0)
    with set_exploration_type(ExplorationType.RANDOM):
        action = exploration(rows(20_000, action=2))["action"]
    changed = (action != 2).double().mean().item()
    # explored actions are greedy by chance once in four
    assert changed == pytest.approx(epsilon * 3 / 4, abs=0.015)
    assert set(action.tolist()) <= set(LEGAL)


@pytest.mark.parametrize("kind", [ExplorationType.DETERMINISTIC, ExplorationType.MODE, ExplorationType.MEAN])
def test_epsilon_greedy_is_greedy_unless_it_explores(kind: ExplorationType) -> None:
    with set_exploration_type(kind):
        action = masked(start=1.0)(rows(1000, action=4))["action"]
    # A greedy action that is not legal stays: that is the policy's business.
    assert (action == 4).all()


@pytest.mark.parametrize("compiled_operators", [False, True])
@pytest.mark.parametrize("batch", [(), (3,), (2, 3)])
def test_epsilon_greedy_reads_nothing_back_in_any_batch(batch: tuple[int, ...], compiled_operators: bool) -> None:
    continuous = TensorDict({"action": torch.full((*batch, 2), 9.0)}, batch)
    # Nothing is explored here.
    assert (uniform()(continuous)["action"] == 9).all()
    for exploration, state in ((masked(), rows(0, batch=batch)), (uniform(), continuous)):
        with set_exploration_type(ExplorationType.RANDOM), NoHostReads(compiled_operators):
            exploration.anneal(10)
            assert exploration(state).shape == batch


def test_a_schedule_that_rises_is_refused() -> None:
    with pytest.raises(ValueError, match=r"EpsilonGreedy: end .*0\.1; got 0\.2"):
        EpsilonGreedy(0.1, 0.2)


def test_without_a_mask_all_actions_are_drawn() -> None:
    exploration = EpsilonGreedyModule(EpsilonGreedy(), AgentSpace("Some", (), {}, num_actions=5))
    assert exploration.in_keys == ["action"]
    torch.manual_seed(0)
    with set_exploration_type(ExplorationType.RANDOM):
        action = exploration(TensorDict({"action": torch.full((20_000,), 2)}, [20_000]))["action"]
    # 4 degrees of freedom, p = 0.001.
    assert chi_square(torch.bincount(action, minlength=5).double()) < 18.47


# -- continuous actions --

LOW, HIGH = torch.tensor([-1.0, 2.0]), torch.tensor([1.0, 6.0])


def uniform(epsilon: float = 1.0, low: tuple[float, float] = (-1.0, 2.0)) -> EpsilonGreedyModule:
    return EpsilonGreedyModule(EpsilonGreedy(epsilon, 0.0), AgentSpace("Some", (), {}, low=low, high=(1.0, 6.0)))


def test_random_actions_are_uniform_within_their_bounds() -> None:
    torch.manual_seed(0)
    with set_exploration_type(ExplorationType.RANDOM):
        action = uniform()(TensorDict({"action": torch.zeros(40_000, 2)}, [40_000]))["action"]
    share = (action - LOW) / (HIGH - LOW)
    for axis in (0, 1):
        counts = torch.histc(share[:, axis], bins=10, min=0.0, max=1.0)
        assert counts.sum() == 40_000
        # 9 degrees of freedom, p = 0.001.
        assert chi_square(counts) < 27.88


def test_an_action_is_random_in_all_its_numbers_or_in_none() -> None:
    torch.manual_seed(0)
    with set_exploration_type(ExplorationType.RANDOM):
        action = uniform(0.3)(TensorDict({"action": torch.full((5_000, 4, 2), 9.0)}, [5_000, 4]))["action"]
    explored = action != 9.0
    assert torch.equal(explored[..., 0], explored[..., 1])
    assert explored.float().mean().item() == pytest.approx(0.3, abs=0.02)


def test_bounds_are_set_and_not_loaded() -> None:
    fresh = uniform(low=(0.0, 0.0))
    fresh.load_state_dict(uniform().state_dict())
    assert torch.equal(fresh.low, torch.zeros(2))
    assert torch.equal(fresh.high, HIGH)


# -- draws, also by rows --

CPU = torch.device("cpu")
KEYS = torch.arange(100, 108)


def keyed(keys: torch.Tensor, shapes: tuple[tuple[int, ...], ...] = ((3,), (), (2, 2))) -> list[torch.Tensor]:
    with keyed_draws(keys):
        return [uniform_draws((len(keys), *shape), CPU) for shape in shapes]


def test_a_row_draws_the_same_whatever_rows_are_beside_it() -> None:
    whole = keyed(KEYS)
    for rows in (slice(0, 2), slice(2, 5), slice(7, 8)):
        assert all(torch.equal(a[rows], b) for a, b in zip(whole, keyed(KEYS[rows]), strict=True))
    first, second = keyed(KEYS, ((3,), (3,)))
    # Later draws differ.
    assert torch.cat([first, second]).unique().numel() == 48


def test_other_rows_than_the_keyed_ones_draw_from_torch() -> None:
    torch.manual_seed(0)
    expected = torch.rand(3, dtype=torch.float64)
    torch.manual_seed(0)
    # torch's generator stays as it was.
    keyed(KEYS)
    with keyed_draws(KEYS):
        assert torch.equal(uniform_draws((3,), CPU), expected)
    torch.manual_seed(0)
    assert torch.equal(uniform_draws((3,), CPU), expected)


def test_keyed_draws_are_uniform() -> None:
    (values,) = keyed(torch.arange(2000), ((50,),))
    assert 0 <= values.min() < 1e-3
    assert 0.999 < values.max() < 1
    counts = torch.histc(values, 20, 0, 1)
    # χ² of 19 degrees of freedom, which is above 43.8 in one case of 1000.
    assert ((counts - 5000) ** 2 / 5000).sum() < 50
    # 1/√12 = 0.289, over the streams at any place.
    assert values.std(0).min() > 0.27
    assert torch.corrcoef(values[:, :2].T)[0, 1].abs() < 0.1
