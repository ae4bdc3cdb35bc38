"""Q-learning under Lightning's Trainer.

How long it runs, that it repeats itself, and that it resumes exactly.
"""

from __future__ import annotations

from functools import partial
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch.callbacks import EarlyStopping, ModelCheckpoint
from lightning.pytorch.plugins import MixedPrecision
from tensordict import TensorDictBase
from torch import Tensor, nn
from torch.optim.lr_scheduler import LinearLR, ReduceLROnPlateau
from torchrl.envs import SerialEnv
from torchrl.envs.utils import ExplorationType, set_exploration_type

from tests.training import tiny
from tests.training.resuming import as_if_saved_on_cuda, check_checkpoint, differences, everything, last
from tests.training.tiny import data, dqn, fit, module, packing_env, trainer
from torchrl_gpu.callbacks import EpisodeCheckpoint
from torchrl_gpu.checkpoints.files import parts_of
from torchrl_gpu.cli.errors import is_for_user, one_line
from torchrl_gpu.envs import DishwashingEnv
from torchrl_gpu.envs.dishes.economics import slice_reward
from torchrl_gpu.policies import (
    IQN,
    SAC,
    AgentSpace,
    BCPolicy,
    ClonedChoice,
    EpsilonGreedy,
    PlacementQuantiles,
    PlacementScores,
    SoftTargets,
    VectorCritic,
    VectorGaussian,
)
from torchrl_gpu.training import DeviceReplay, Episodes, OffPolicy, memory_advice
from torchrl_gpu.training.memory_advice import Memory, OutOfMemoryAdvice, advice, advised
from torchrl_gpu.training.warm_start import take_network


@pytest.mark.parametrize("max_steps", [1, 5, 6])
def test_max_steps_counts_updates_and_is_met_exactly(tmp_path: Path, max_steps: int) -> None:
    made = fit(module(), tmp_path, max_steps)
    (state, *_) = made.optimizers().optimizer.state.values()  # type: ignore[union-attr]
    assert made.trainer.global_step == max_steps
    assert state["step"] == max_steps


def test_off_policy_counts_frames_as_by_hand(tmp_path: Path) -> None:
    # 8 environments and 2 steps at a time are 16 frames. 40 frames of warm-up take 3 times, then comes one before every
    # 2 updates: 3 times for 6 updates. The first chunk gives no 3-step return yet, every later one gives 16.
    made = fit(module(warmup_frames=40), tmp_path, 6)
    assert made.frames == (3 + 3) * 16
    assert len(made.replay) == (3 + 3 - 1) * 16


def test_training_where_nothing_is_legal_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="OffPolicy: skip_unplaceable=True"):
        fit(module(env={"skip_unplaceable": True}), tmp_path, 1)


def test_updates_wait_for_a_batch(tmp_path: Path) -> None:
    made = fit(module(warmup_frames=0, batch_size=40, agent={"n_steps": 4}, rollout_steps=1), tmp_path, 2)
    # chunks of 8 transitions, none before 4 steps: 5 chunks make a batch, and another comes before the updates
    assert made.frames == (3 + 5 + 1) * 8


def test_rewards_are_scaled_in_the_loss_and_nowhere_else(tmp_path: Path) -> None:
    made, seen = module(reward_scale=1000.0), []
    losses = made.agent.losses

    def spied(batch: TensorDictBase) -> dict[str, Tensor]:
        seen.append((batch["next", "reward"].clone(), batch["index"]))
        return losses(batch)

    made.agent.losses = spied  # type: ignore[method-assign]
    fit(made, tmp_path, 6)
    assert len(seen) == 6
    stored = made.replay.storage[:]["next", "reward"]
    assert 0 < stored.max() <= 1
    for reward, index in seen:
        # The ring has not come around yet.
        assert torch.equal(reward, 1000 * stored[index])


def test_off_policy_logs_nothing_that_nobody_sees(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    logged: list[int] = []
    made, log = module(), OffPolicy.log

    def noted(self: OffPolicy, name: str, value: Tensor, **options: Any) -> None:
        if name == "train/frames":
            logged.append(self.trainer.global_step // 2)
        # A number would be copied to the device, and the host would wait for it.
        assert isinstance(value, Tensor)
        log(self, name, value, **options)

    monkeypatch.setattr(OffPolicy, "log", noted)
    fit(made, tmp_path, 20, data_module=data(steps_per_epoch=7), log_every_n_steps=3)
    # every third training step of ten, the first and the last, and the end of the epoch
    assert [step for step in logged if step] == [1, 3, 6, 7, 9, 10]


@pytest.mark.filterwarnings("ignore:You defined a `validation_step` but have no `val_dataloader`")
def test_without_a_data_module_it_trains_and_validates_nothing(tmp_path: Path) -> None:
    made, runner = module(), trainer(tmp_path, 6, enable_checkpointing=False)
    runner.fit(made)
    assert runner.global_step == 6
    assert made.frames == 48 + 3 * 16
    assert "val/utilization" not in runner.callback_metrics


def test_frequency_of_validations_changes_no_weights(tmp_path: Path) -> None:
    often = fit(module(), tmp_path, 8, data_module=data(steps_per_epoch=1)).state_dict()
    seldom = fit(module(), tmp_path, 8, data_module=data(steps_per_epoch=3)).state_dict()
    assert differences(often, seldom) == []


def test_an_environment_of_another_kind_is_refused_in_one_line() -> None:
    with pytest.raises(ValueError, match=r"^OffPolicy: env .*BatchedEnv .*; got torchrl\..*SerialEnv$"):
        OffPolicy(SerialEnv(2, packing_env), dqn)


def test_same_seed_same_run(tmp_path: Path) -> None:
    for name, seed in (("a", 1), ("b", 1), ("c", 2)):
        fit(module(prioritized=True), tmp_path / name, 6, EpisodeCheckpoint(), seed=seed)
    first = everything(last(tmp_path / "a"))
    second = everything(last(tmp_path / "b"))
    other = everything(last(tmp_path / "c"))
    assert differences(first, second) == []
    assert differences(first["state_dict"], other["state_dict"]) != []


def test_without_its_replay_a_resumed_run_fills_it_again(tmp_path: Path) -> None:
    fit(module(), tmp_path / "half", 6, EpisodeCheckpoint(save_replay=False))
    assert parts_of(last(tmp_path / "half")) == []
    made = module()
    frames: list[int] = []
    made.on_train_batch_start = lambda *args: frames.append(made.frames)  # type: ignore[method-assign]
    fit(made, tmp_path / "rest", 8, EpisodeCheckpoint(), ckpt_path=last(tmp_path / "half"))
    # the first half made 48 + 3 · 16 = 96 frames; another 48 of warm-up come before the next update
    assert frames == [96 + 48]
    assert made.trainer.global_step == 8
    # The unfinished returns were saved, so none is lost.
    assert len(made.replay) == 48 + 16


def test_other_numbers_of_environments_cannot_go_on(tmp_path: Path) -> None:
    fit(module(), tmp_path / "half", 2, EpisodeCheckpoint())
    made = module(env={"num_envs": 4})
    with pytest.raises(ValueError, match=r"checkpoint .*Rollout\.load_state_dict: .*\(4.*\); got \(8"):
        fit(made, tmp_path / "rest", 4, EpisodeCheckpoint(), ckpt_path=last(tmp_path / "half"))


def scores(channels: int) -> dict[str, Any]:
    return {"network": partial(PlacementScores, channels=channels, blocks=1)}


def test_a_checkpoint_holds_tensors_and_plain_values_only(tmp_path: Path) -> None:
    made = fit(module(agent=scores(4), prioritized=True), tmp_path, 2, EpisodeCheckpoint())
    torch.load(last(tmp_path), weights_only=True)
    check_checkpoint(last(tmp_path), made)
    with pytest.raises(ValueError, match=r"agent\..* torch\.float32 \(5"):
        check_checkpoint(last(tmp_path), module(agent=scores(5)))


def test_the_schedule_reaches_its_end(tmp_path: Path) -> None:
    scheduler = partial(LinearLR, start_factor=1.0, end_factor=0.25, total_iters=6)
    for steps, share in [(3, 1 - 0.75 / 2), (6, 0.25)]:
        made = fit(module(lr_scheduler=scheduler), tmp_path, steps)
        assert made.optimizers().param_groups[0]["lr"] == pytest.approx(1e-2 * share)  # type: ignore[union-attr]


def test_gradients_are_clipped(tmp_path: Path) -> None:
    def change(**changes: Any) -> float:
        made = module(reward_scale=1000.0, agent={"targets": SoftTargets(0.0001)}, **changes)
        made.make_optimizer = partial(torch.optim.SGD, lr=1.0)
        before = [weight.detach().clone() for weight in made.agent.parameters_to_train]
        fit(made, tmp_path, 1)
        after = made.agent.parameters_to_train
        return torch.cat([(a - b).flatten() for a, b in zip(after, before, strict=True)]).norm().item()

    assert change(max_grad_norm=1e-3) == pytest.approx(1e-3, rel=0.01)
    assert change(max_grad_norm=None) > 1e-2


def test_policy_name_says_untrained_until_it_is_trained(tmp_path: Path) -> None:
    made = module()
    made.trainer = trainer(tmp_path)
    assert made.policy_name == "DQN (untrained)"
    assert fit(made, tmp_path, 2).policy_name == "DQN"


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"capacity": 15, "batch_size": 16}, "must hold a batch and a rollout, 16 transitions; got 15"),
        ({"capacity": 30, "rollout_steps": 4}, "must hold a batch and a rollout, 32 transitions; got 30"),
    ],
)
def test_off_policy_refuses_numbers_that_cannot_work(wrong: dict[str, int], message: str) -> None:
    with pytest.raises(ValueError, match=f"(OffPolicy|DeviceReplay): .*{message}"):
        module(**wrong)


@pytest.mark.parametrize("callback", [EarlyStopping, ModelCheckpoint, EpisodeCheckpoint])
def test_a_monitor_that_validation_never_logs_is_refused_before_anything_runs(tmp_path: Path, callback: Any) -> None:
    for monitor in ("val/nothing", "val/utilisation"):
        with pytest.raises(ValueError, match=rf"^{callback.__name__}: monitor .*val/.*; got {monitor}$"):
            fit(module(warmup_frames=10**9), tmp_path, 2, callback(monitor=monitor))


@pytest.mark.parametrize(
    ("schedule", "message"),
    [
        (partial(LinearLR, last_epoch=0), "last_epoch .* -1"),
        (partial(LinearLR, total_iters=-5), "got -5"),
        (ReduceLROnPlateau, "lr_scheduler .* not ReduceLROn"),
    ],
)
def test_a_schedule_that_makes_no_sense(tmp_path: Path, schedule: Any, message: str) -> None:
    with pytest.raises(ValueError, match=f"^OffPolicy: .*{message}"):
        fit(module(lr_scheduler=schedule), tmp_path, 2)


def test_nothing_of_the_environment_is_a_weight() -> None:
    assert all(name.startswith("agent.") for name in module().state_dict())


@pytest.mark.gpu
def test_on_a_gpu_and_then_on_the_cpu(tmp_path: Path) -> None:
    made: OffPolicy = fit(module(), tmp_path / "gpu", 6, EpisodeCheckpoint(), accelerator="gpu", devices=1)
    assert made.env.device.type == made.replay.storage.device.type == "cuda"
    rest = fit(module(), tmp_path / "cpu", 8, EpisodeCheckpoint(), ckpt_path=last(tmp_path / "gpu"), data_module=data())
    assert rest.trainer.global_step == 8


def test_what_was_saved_on_cuda_resumes_on_a_cpu(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    fit(module(), tmp_path / "half", 4, EpisodeCheckpoint())
    saved = as_if_saved_on_cuda(last(tmp_path / "half"))
    with caplog.at_level("INFO", "lightning.pytorch"):
        made = fit(module(), tmp_path / "rest", 8, EpisodeCheckpoint(), ckpt_path=saved)
    assert made.trainer.global_step == 8
    matching = [record.message for record in caplog.records if "saved on" in record.message]
    (told,) = matching
    assert told.endswith(
        "was saved on cuda and goes on on cpu: what is drawn at random there begins anew, all else goes on"
    )


@pytest.mark.parametrize("precision", ["bf16-true", "16-true", "64-true"])
def test_weights_of_another_type_are_refused(tmp_path: Path, precision: str) -> None:
    wanted = rf"^OffPolicy: trainer.precision must be one of 32-true, bf16-mixed, .*, not {precision}"
    with pytest.raises(ValueError, match=wanted):
        fit(module(), tmp_path, 2, precision=precision)


def test_environments_of_other_processes_follow_those_of_the_first() -> None:
    made = module(env={"first_env": 64})
    numbers = []
    # A rank that is asked for again has the same seed.
    for rank in (0, 1, 2, 2):
        made.make_env(torch.device("cpu"), rank)
        numbers.append(made.env.first_env)
    assert numbers == [64, 72, 80, 80]


# Environments, updates, updates and steps at a time, rows of an update, frames of warm-up and of exploration, rate.
SHORT, LONG = (64, 120, 8, 128, 4000, 10_000, 1e-2), (128, 640, 16, 256, 20_000, 50_000, 3e-3)


@pytest.mark.parametrize(("sizes", "share"), [(SHORT, 0.85), pytest.param(LONG, 0.96, marks=pytest.mark.soak)])
def test_sac_comes_to_the_best_policy(tmp_path: Path, sizes: Any, share: float) -> None:
    num_envs, updates, steps, rows, warmup, frames, rate = sizes
    torch.manual_seed(0)
    env = DishwashingEnv(num_envs, stationary=True, device="cpu", seed=0)
    sac = partial(SAC, actor=VectorGaussian, critic=VectorCritic, alpha=0.05, target_entropy=-3.0, gamma=0.5)
    made = OffPolicy(
        env,
        partial(sac, exploration=EpsilonGreedy(start=1.0, end=0.2, frames=frames)),
        partial(torch.optim.Adam, lr=rate),
        replay=partial(DeviceReplay, capacity=100_000),
        batch_size=rows,
        rollout_steps=steps,
        updates_per_step=steps,
        warmup_frames=warmup,
    )
    seen = env.reset().select("observation")

    def earned() -> float:
        with torch.no_grad(), set_exploration_type(ExplorationType.DETERMINISTIC):
            action = made.policy_for(env).eval()(seen.clone())["action"].double().numpy()
        return float(slice_reward(env.economics, *action.T).mean())

    # The policy is far off: nearly as fast, and as careless, as can be.
    with torch.no_grad():
        made.agent.policy.network.net[-1].bias[:2] = torch.tensor([1.5, -1.5])
    assert earned() < 0.7 * env.optimum.reward
    trainer(tmp_path, updates).fit(made, Episodes(steps_per_epoch=30, num_val_episodes=2, pictures=False))
    assert earned() > share * env.optimum.reward


PRECISIONS = ("32-true", "bf16-mixed", "16-mixed")


def trained(folder: Path, precision: str, steps: int, ckpt_path: Path | None = None) -> dict[str, Any]:
    """Return all that a run of some updates consists of.

    float16 has its scaler, which Lightning has on GPUs alone.
    """
    changes: dict[str, Any] = {"precision": precision}
    if precision == "16-mixed":
        changes = {"plugins": [MixedPrecision("16-mixed", "cpu", torch.amp.GradScaler("cpu", init_scale=2.0**9))]}
    fit(module(), folder, steps, EpisodeCheckpoint(), ckpt_path=ckpt_path, **changes)
    return everything(last(folder))


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    return {precision: trained(tmp_path_factory.mktemp("whole"), precision, 8) for precision in PRECISIONS}


@pytest.mark.parametrize("precision", PRECISIONS)
def test_a_resumed_run_has_the_same_bits(tmp_path: Path, precision: str, whole: dict[str, dict[str, Any]]) -> None:
    trained(tmp_path, precision, 4)
    assert differences(whole[precision], trained(tmp_path, precision, 8, last(tmp_path))) == []


def test_each_precision_computes_otherwise(whole: dict[str, dict[str, Any]]) -> None:
    for one, other in combinations(PRECISIONS, 2):
        assert differences(whole[one]["state_dict"], whole[other]["state_dict"]) != []


def test_weights_and_heights_are_in_float32(whole: dict[str, dict[str, Any]]) -> None:
    for run in whole.values():
        assert all(value.dtype == torch.float32 for value in run["state_dict"].values() if value.is_floating_point())
        # The environment is stepped under autocast, too.
        heights = run["replay"]["transitions"]["box_heightmap"]
        assert heights.dtype == torch.float32
        assert torch.equal(heights, heights.round())


CPU, GPU = torch.device("cpu"), torch.device("cuda", 0)
GIB = 2**30
SAID = "CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 10.00 GiB"


def test_advice_after_out_of_memory_would_have_fitted() -> None:
    # 4 GiB stay, 3 of them replay; the update had made 5 and wanted 2 more. There are 9 of 10 to be used.
    text = advised("OffPolicy", GPU, Memory(10 * GIB, 4 * GIB), 5 * GIB, SAID, 700, (3000, 3 * GIB))
    assert text == (
        "OffPolicy: an update of 700 transitions takes 7.0 GiB or more of the 10.0 GiB of cuda:0"
        ", beside 4.0 GiB that stay, of which replay has 3.0; at most this can fit: --model.batch_size 500 or"
        " --model.replay.init_args.capacity 1000"
    )


@pytest.mark.parametrize(
    ("taken", "replay_gib", "expected"),
    [
        (9.5, 0.1, "fewer environments, smaller frames or a smaller network"),
        # It would not fit without any replay either.
        (8.0, 0.5, "--model.batch_size 50"),
    ],
)
def test_advice_after_out_of_memory_names_only_what_helps(taken: float, replay_gib: float, expected: str) -> None:
    memory = Memory(10 * GIB, int(taken * GIB))
    text = advised("X", GPU, memory, 5 * GIB, "out of memory", 250, (1000, int(replay_gib * GIB)))
    assert text.endswith(f"at most this can fit: {expected}")


def test_a_run_that_does_not_fit_says_what_would(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    memories = iter([Memory(10 * GIB, 9 * GIB), Memory(10 * GIB, 4 * GIB)])
    monkeypatch.setattr(memory_advice, "device_memory", lambda device: next(memories))
    made: Any = module()

    def full(*given: Any) -> None:
        raise torch.OutOfMemoryError(SAID)

    monkeypatch.setattr(made, "update_once", full)
    with pytest.raises(OutOfMemoryAdvice, match=r"\b16 transitions .*7\.0 GiB") as caught:
        trainer(tmp_path).fit(made, data())
    assert is_for_user(caught.value)
    # The replay is too small for less of it to help.
    assert one_line(caught.value).endswith("--model.batch_size 11")


def test_elsewhere_torch_says_it_itself() -> None:
    with pytest.raises(torch.OutOfMemoryError, match="Tried"), advice("X", CPU, 4, DeviceReplay(1, CPU)):
        raise torch.OutOfMemoryError(SAID)


# Number of tensors of a network with one block.
LAYERS = 14


def cloned(path: Path, **changes: Any) -> nn.Module:
    torch.manual_seed(11)
    space = AgentSpace.of(tiny.packing_env())
    network = PlacementScores(space, **{"channels": 4, "blocks": 1, **changes})
    nn.init.normal_(network.advantage.weight)
    learner = nn.ModuleDict({"learner": ClonedChoice(space, network)})
    torch.save({"state_dict": learner.state_dict(), "global_step": 5}, path)
    return network


def test_a_q_learner_begins_with_all_of_it(tmp_path: Path) -> None:
    network, agent = cloned(tmp_path / "bc.ckpt"), tiny.dqn(tiny.packing_env())
    assert len(take_network(agent.policy, str(tmp_path / "bc.ckpt"))) == LAYERS
    ours = {name.rpartition("module.0.module.")[2]: value for name, value in agent.policy.named_parameters()}
    assert all(torch.equal(ours[name], value) for name, value in network.named_parameters())
    agent.reset_targets()
    assert all(torch.equal(online, target) for online, target in agent._target_pairs())


def test_a_learner_with_one_more_layer_begins_with_the_others(tmp_path: Path) -> None:
    network = cloned(tmp_path / "bc.ckpt")
    make = partial(PlacementQuantiles, channels=4, blocks=1)
    agent = IQN(AgentSpace.of(tiny.packing_env()), network=make)
    taken = take_network(agent.policy, str(tmp_path / "bc.ckpt"))
    assert len(taken) == LAYERS
    # Cloning knows nothing of the spread of returns.
    assert not [name for name in taken if "taus" in name]
    stem = next(value for name, value in agent.policy.named_parameters() if name.endswith("stem.weight"))
    assert torch.equal(stem, network.stem.weight)  # type: ignore[arg-type]


def test_a_run_of_a_q_learner_gives_its_online_network(tmp_path: Path) -> None:
    agent = tiny.dqn(tiny.packing_env())
    with torch.no_grad():
        for online, target in agent._target_pairs():
            online.add_(1)
            target.zero_()
    torch.save({"state_dict": nn.ModuleDict({"agent": agent}).state_dict()}, tmp_path / "dqn.ckpt")
    other = tiny.dqn(tiny.packing_env())
    take_network(other.policy, str(tmp_path / "dqn.ckpt"))
    pairs = zip(agent.policy.parameters(), other.policy.parameters(), strict=True)
    assert all(torch.equal(a, b) for a, b in pairs)


def test_vectors_bring_their_statistics(tmp_path: Path) -> None:
    policy, other = BCPolicy(3, 2), BCPolicy(3, 2)
    policy.set_statistics(torch.randn(9, 3), torch.randn(9, 2))
    torch.save({"model_state_dict": policy.state_dict(), "obs_dim": 3}, tmp_path / "bc.pt")
    take_network(other, str(tmp_path / "bc.pt"))
    assert torch.equal(other(torch.ones(1, 3)), policy(torch.ones(1, 3)))


def test_another_shape_is_refused_and_nothing_is_taken(tmp_path: Path) -> None:
    cloned(tmp_path / "wide.ckpt", channels=6)
    agent = tiny.dqn(tiny.packing_env())
    before = [value.clone() for value in agent.policy.parameters()]
    wanted = r"wide.ckpt: .*stem.weight .*\(4, 15, 3, 3\).*\(6, 15, 3, 3\)"
    with pytest.raises(ValueError, match=wanted):
        take_network(agent.policy, str(tmp_path / "wide.ckpt"))
    assert all(torch.equal(a, b) for a, b in zip(before, agent.policy.parameters(), strict=True))


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ({"state_dict": {"other.mu": torch.zeros(1)}}, "no layer such as .* only other.mu"),
        ({"weights": {}}, "no state_dict in it"),
        ({"state_dict": {"learner.network.stem.bias": torch.full((4,), torch.nan)}}, "stem.bias is not finite"),
        ({"state_dict": {"learner.network.stem.bias": torch.zeros(4, device="meta")}}, "no layer such as"),
        ({"state_dict": {f"{i}.a": torch.zeros(0) for i in range(10_001)}}, "10,001 tensors, more than 10,000"),
        (nn.Linear(1, 1), "not tensors and plain values alone: a pickle"),
    ],
)
def test_warm_start_refuses_files_without_a_network(content: object, says: str, tmp_path: Path) -> None:
    torch.save(content, tmp_path / "a.ckpt")
    with pytest.raises(ValueError, match=says):
        take_network(tiny.dqn(tiny.packing_env()).policy, str(tmp_path / "a.ckpt"))


def test_warm_start_refuses_a_missing_file() -> None:
    with pytest.raises(FileNotFoundError, match=r"warm_start nobody\.ckpt: .*no such file"):
        take_network(nn.Linear(1, 1), "nobody.ckpt")


def test_a_run_begins_with_it_and_a_resumed_one_does_not(tmp_path: Path) -> None:
    network = cloned(tmp_path / "bc.ckpt")
    module = tiny.module(agent=scores(4), warm_start=str(tmp_path / "bc.ckpt"), updates_per_step=1)
    seen: dict[str, torch.Tensor] = {}
    played = module.extend_replay

    def watched() -> None:
        seen.setdefault("stem", module.agent.policy.module[0].module.stem.weight.detach().clone())
        targets = dict(module.agent.objective.target_value_network_params.flatten_keys().items())
        seen.setdefault("target", next(v.clone() for k, v in targets.items() if k.endswith("stem.weight")))
        played()

    module.extend_replay = watched  # type: ignore[method-assign]
    trainer = tiny.trainer(tmp_path / "run", max_steps=2)
    trainer.fit(module, tiny.data())
    assert torch.equal(seen["stem"], network.stem.weight)  # type: ignore[arg-type]
    assert torch.equal(seen["target"], network.stem.weight)  # type: ignore[arg-type]
    trainer.save_checkpoint(tmp_path / "run.ckpt")
    # A resumed run does without the file.
    (tmp_path / "bc.ckpt").unlink()
    again = tiny.module(agent=scores(4), warm_start=str(tmp_path / "bc.ckpt"), updates_per_step=1)
    tiny.trainer(tmp_path / "again", max_steps=3).fit(again, tiny.data(), ckpt_path=str(tmp_path / "run.ckpt"))
