"""Both stages under Lightning's Trainer.

Returns, losses and targets, what learns when, and that a run resumes exactly.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch.plugins import MixedPrecision
from tensordict import TensorDict, TensorDictBase
from torch import Tensor
from torchrl.envs.utils import ExplorationType, set_exploration_type

from tests.no_host_reads import NoHostReads
from tests.policies.packing.packer_scenes import boxes_env, random_states, solids_env
from tests.tolerances import assert_near
from tests.training.resuming import check_checkpoint, differences, everything, last
from tests.training.tiny import fit
from tests.training.tiny_navigation import hierarchical as module
from tests.training.tiny_navigation import short_env, tiny_networks
from torchrl_gpu.callbacks import EpisodeCheckpoint
from torchrl_gpu.envs import PackingEnv
from torchrl_gpu.policies.packing import HierarchicalPacker
from torchrl_gpu.training import HierarchicalPacking
from torchrl_gpu.training.collect.rollout import Rollout
from torchrl_gpu.training.packing.heightmap_codec import HeightmapCodec


def objective_of(heightmap: Tensor, utilization: Tensor, env: PackingEnv) -> Tensor:
    """J = 0.75 C + 0.25 P + 0.25 S of bins (…, X, Y) and (…,).

    0 for an empty bin, and whatever was placed stays.
    """
    volume, area = utilization * env.bin.volume, env.bin_size[0] * env.bin_size[1]
    compact = volume / (heightmap.amax((-1, -2)) * area)
    pyramid = volume / (heightmap.mean((-1, -2)) * area)
    return torch.where(utilization > 0, 0.75 * compact + 0.25 * pyramid + 0.25, 0.0)


def test_the_return_of_a_whole_episode_is_what_j_still_gains() -> None:
    env, twin = short_env(), short_env()
    first = HierarchicalPacker(env, tiny_networks(), "box", "growth")
    second = HierarchicalPacker(twin, tiny_networks(), "box", "growth")
    rollout = Rollout(env, [], env.num_items, 1.0, decisions=["box_heightmap", "utilization", "action"])
    transitions, _ = rollout.collect(first, 20)
    # Three steps are pending.
    transitions = transitions.unflatten(0, (3, 17))
    played = twin.rollout(20, second, break_when_any_done=False)
    worth = objective_of(played["box_heightmap"], played["utilization"][..., 0], twin)  # (3, 20)
    end = objective_of(played["next", "box_heightmap"], played["next", "utilization"][..., 0], twin)
    done, checked = played["next", "done"][..., 0], 0
    for n in range(3):
        for t in range(17):
            over = t + int(done[n, t:].int().argmax())
            assert transitions["next", "reward"][n, t].item() == pytest.approx(
                float(end[n, over] - worth[n, t]), abs=1e-5
            )
            assert transitions["steps_to_next_obs"][n, t].item() == over - t + 1
            checked += over > t
    assert checked > 15


def test_packer_learns_from_what_was_played(tmp_path: Path) -> None:
    made = fit(module(), tmp_path, 6)
    kept = made.replay.storage[:]
    heights, used = made.codec.unpacked(kept.clone())["box_heightmap"], kept["utilization"][:, 0]
    assert kept["box_heightmap"].dtype == torch.uint8
    assert used.count_nonzero() > 10
    # J of the state and the return give J of the full bin, which lies between 0.25 and 1.25.
    total = objective_of(heights, used, made.env) + kept["next", "reward"][:, 0]
    assert ((total > 0.25) & (total < 1.25)).all()
    o, (gx, gy) = made.env.num_orientations, made.env.grid
    item, orientation = kept["variant"] // o, kept["variant"] % o
    assert torch.equal(item, kept["item_id"].gather(1, kept["slot"][:, None])[:, 0])
    assert torch.equal(((kept["slot"] * o + orientation) * gx * gy) + kept["place"], kept["action"])
    assert kept["item_mask"].gather(1, kept["slot"][:, None]).all()


def huber(value: Tensor, target: Tensor) -> Tensor:
    error = (value - target).abs()
    return torch.where(error < 1, error**2 / 2, error - 0.5).mean()


def batch_of(made: HierarchicalPacking, number: int = 5) -> tuple[TensorDictBase, Tensor]:
    batch = made.codec.unpacked(made.replay.storage[len(made.replay) - number :].clone())
    target = made.reward_scale * batch["next", "reward"][:, 0]
    return batch, target + torch.linspace(-2, 2, number)


def state_values(made: HierarchicalPacking, state: TensorDictBase) -> Tensor:
    figures = made.both.state_features(
        *(state[key] for key in ("box_heightmap", "item_id", "utilization", "num_packed"))
    )
    return made.networks.value(figures)


def least_growth(made: HierarchicalPacking, heightmap: Tensor, item: Tensor) -> Tensor:
    """By how much the best placement of an item raises one pile."""
    planes, orientations = made.worker.planes, made.env.num_orientations
    variant = (item * orientations + torch.arange(orientations))[None]
    z_map, legal = planes.kernels.drop_map(heightmap[None], variant, planes.catalogue, planes.bin)
    z_map = z_map[:, :, 0]
    legal = legal[:, :, 0]
    return planes.growth(heightmap[None], variant, z_map)[legal].min()


def test_the_workers_loss_one_placement_at_a_time(tmp_path: Path) -> None:
    made = fit(module(reward_scale=10.0), tmp_path, 6)
    batch, target = batch_of(made)
    values, planes = [], made.worker.planes
    for row, base in zip(batch, state_values(made, batch), strict=True):
        heightmap, variant = row["box_heightmap"][None], row["variant"][None, None]
        z_map, legal = planes.kernels.drop_map(heightmap, variant, planes.catalogue, planes.bin)
        z_map = z_map[:, :, 0]
        legal = legal[:, :, 0]
        growth = planes.growth(heightmap, variant, z_map)
        seen = planes(heightmap, variant, z_map, legal, growth)[0]
        score = (made.networks.worker(seen) + made.networks.linear(seen)[:, 0]).flatten()[row["place"]] / 100
        assert legal.flatten()[row["place"]]
        beyond = growth.flatten()[row["place"]] - least_growth(made, row["box_heightmap"], row["item_id"][row["slot"]])
        assert -1e-6 < beyond <= made.margin + 1e-6
        values.append(base + score - made.networks.slope * beyond)
    assert_near(made.worker_loss(batch, target), huber(10 * torch.stack(values), target))


def test_the_managers_loss_one_item_at_a_time(tmp_path: Path) -> None:
    made = fit(module(reward_scale=10.0, item_shortlist=2), tmp_path, 20)
    batch, target = batch_of(made)
    catalogue, bin_volume = made.env.catalogue, made.env.bin.volume
    box, volume = catalogue.box_volume(made.env.bin) / bin_volume, catalogue.volume / bin_volume
    losses, others = [], 0
    for row, base, wanted in zip(batch, state_values(made, batch), target, strict=True):
        if row["waste"].isinf().any():
            # The choice is the rule's own, or that of stage one.
            continue
        scores = {}
        for slot in row["candidates"].tolist():
            if row["item_mask"][slot]:
                item, pile = row["item_id"][slot], row["box_heightmap"]
                views = made.both.views(pile[None], item[None, None])
                waste = least_growth(made, pile, item) - volume[item]
                scores[slot] = made.networks.score_items(views, box[item][None, None], waste[None, None])[0, 0]
        others += len(scores) > 1
        advantage = scores[int(row["slot"])] - torch.stack([*scores.values()]).mean()
        losses.append(huber(10 * (base + advantage)[None], wanted[None]))
    assert others > 2
    assert_near(made.manager_loss(batch, target), torch.stack(losses).mean())


MANAGERS = {"manager", "box_slope", "waste_slope"}


def test_each_loss_teaches_its_own_weights(tmp_path: Path) -> None:
    made = fit(module(margin=0.1, epsilon=1.0), tmp_path, 20)
    for loss, wanted in (("worker_loss", {"worker", "linear", "slope", "value"}), ("manager_loss", MANAGERS)):
        made.networks.zero_grad()
        getattr(made, loss)(*batch_of(made)).backward()
        slopes = {name: weight.grad for name, weight in made.networks.named_parameters() if weight.grad is not None}
        assert {name.split(".")[0] for name in slopes} == wanted
        assert {name for name, weight in made.networks.named_parameters() if name.split(".")[0] in wanted} == set(
            slopes
        )
        assert all(slope.any() for slope in slopes.values())


class Watched:
    """Number, learning rate and changed weights of each update of a run."""

    def __init__(self, made: HierarchicalPacking) -> None:
        self.made, self.update = made, made.update_once
        self.rates: list[float] = []
        self.changed: list[set[str]] = []
        self.players: list[tuple[str, str]] = []
        play = made.extend_replay
        made.update_once = self.watch  # type: ignore[method-assign]
        made.extend_replay = lambda packer: (self.players.append((packer.items, packer.places)), play(packer))[1]  # type: ignore[method-assign, assignment]

    def watch(self) -> Tensor:
        assert self.made.trainer.global_step == len(self.rates)
        before = {name: weight.clone() for name, weight in self.made.networks.state_dict().items()}
        loss = self.update()
        after = self.made.networks.state_dict()
        self.changed.append({name.split(".")[0] for name in after if not torch.equal(before[name], after[name])})
        self.rates.append(self.made.optimizers().param_groups[0]["lr"])  # type: ignore[union-attr]
        return loss


def test_stages_decide_what_learns(tmp_path: Path) -> None:
    made = module(worker_updates=5, manager_period=3, joint_rate=0.25)
    seen = Watched(made)
    fit(made, tmp_path, 20)
    assert seen.rates == [1e-3] * 5 + [0.25e-3] * 15
    alone = {"worker", "linear", "slope", "value"}
    both = alone | MANAGERS
    managed = [step for step, changed in enumerate(seen.changed) if changed == both]
    # These updates have a batch with a choice of the manager.
    assert set(managed) <= {6, 9, 12, 15, 18}
    assert managed[-2:] == [15, 18]
    assert all(changed == alone for step, changed in enumerate(seen.changed) if step not in managed)
    # 2 updates a training step: before the updates 0, 2 and 4 the worker plays, from then on both; before that the
    # rules fill the replay, 6 frames at a time.
    learned = seen.players[-10:]
    assert learned == [("box", "learned")] * 3 + [("learned", "learned")] * 7
    assert set(seen.players[:-10]) == {("box", "growth")}


def test_hierarchical_packing_counts_frames_as_by_hand(tmp_path: Path) -> None:
    # 3 environments and 2 steps at a time are 6 frames; 18 of warm-up take 3 times. A return has 4 rewards, so that the
    # first 3 steps of each environment are pending: 9 fewer transitions than frames. One more time before 2 updates.
    made = fit(module(), tmp_path, 6)
    assert made.frames == 18 + 3 * 6
    assert len(made.replay) == made.frames - 9


def test_the_training_step_reads_nothing_back(tmp_path: Path) -> None:
    made = module(n_steps=2, env={"backend": "eager"}, worker_updates=0, manager_period=1)
    fit(made, tmp_path, 2)
    batch = made.codec.unpacked(made.replay.storage[:6].clone())
    target = torch.zeros(6)
    with NoHostReads():
        made.later_returns(batch)
        (made.worker_loss(batch, target) + made.manager_loss(batch, target)).backward()
        made.follow()


def test_every_figure_is_logged(tmp_path: Path) -> None:
    metrics = fit(module(), tmp_path, 6).trainer.callback_metrics
    wanted = {
        f"train/{name}" for name in ("loss", "stage", "utilization", "frames", "slope", "box_slope", "waste_slope")
    }
    wanted |= {f"val/{name}" for name in ("utilization", "num_packed", "compactness", "pyramidality")}
    assert wanted <= set(metrics)
    assert all(value.isfinite() for value in metrics.values())
    assert metrics["train/stage"] == 2
    assert 0 < metrics["val/utilization"] <= 1


class NaiveTargets:
    """Checks the target of every update of a run, one transition at a time."""

    def __init__(self, made: HierarchicalPacking) -> None:
        self.made, self.loss = made, made.worker_loss
        self.ended, self.going_on = 0, 0
        made.worker_loss = self.checked  # type: ignore[method-assign]

    def checked(self, batch: TensorDictBase, target: Tensor) -> Tensor:
        with torch.no_grad():
            wanted = torch.stack([self.target(row) for row in batch])
        assert_near(target, wanted)
        return self.loss(batch, target)

    def target(self, row: TensorDictBase) -> Tensor:
        """Return the reward, and the discounted value of the next choice.

        The targets value the choice of the online weights, unless the episode is over.
        """
        made = self.made
        after = row["next"]
        reward = row["next", "reward"][0]
        if after["terminated"].item():
            self.ended += 1
            return made.reward_scale * reward
        self.going_on += 1
        assert made.targets is not None
        shown = made.env.restore(after.select("box_heightmap", "item_id").unsqueeze(0))
        items = "learned" if made.trainer.global_step >= made.worker_updates else "box"
        online = HierarchicalPacker(made.env, made.networks, items, margin=made.margin)
        late = HierarchicalPacker(made.env, made.targets, margin=made.margin)
        chosen = online(shown)
        advantage = late.scores_of(shown["box_heightmap"], chosen["variant"][:, None]).flatten()[chosen["place"]]
        figures = online.state_features(
            *(after[None][key] for key in ("box_heightmap", "item_id", "utilization", "num_packed"))
        )
        item = after["item_id"][chosen["slot"][0]]
        centred = advantage + made.targets.slope * least_growth(made, after["box_heightmap"], item)
        value = (centred + made.targets.value(figures))[0]
        return made.reward_scale * (reward + made.gamma ** int(row["steps_to_next_obs"]) * value)


def test_bootstrapped_targets_agree_with_the_naive_twin(tmp_path: Path) -> None:
    made = module(n_steps=2, gamma=0.9, tau=0.3, reward_scale=10.0)
    twin = NaiveTargets(made)
    fit(made, tmp_path, 6)
    assert twin.ended + twin.going_on == 6 * 6
    assert min(twin.ended, twin.going_on) > 2


def test_targets_follow_by_tau(tmp_path: Path) -> None:
    made = module(n_steps=2, tau=0.25)
    expected, update = {name: weight.clone() for name, weight in made.networks.state_dict().items()}, made.update_once

    def followed() -> Tensor:
        loss = update()
        for name, weight in made.networks.state_dict().items():
            expected[name] += 0.25 * (weight - expected[name])
        return loss

    made.update_once = followed  # type: ignore[method-assign]
    fit(made, tmp_path, 6)
    assert made.targets is not None
    for name, weight in made.targets.state_dict().items():
        assert_near(weight, expected[name])
    assert differences(made.targets.state_dict(), made.networks.state_dict()) != []


def test_whole_episodes_need_no_targets(tmp_path: Path) -> None:
    whole, cut = module(n_steps=4), module(n_steps=3)
    assert whole.targets is None
    assert cut.targets is not None
    assert "box_heightmap" not in fit(whole, tmp_path, 1).replay.storage[:]["next"].keys()  # noqa: SIM118
    assert "box_heightmap" in fit(cut, tmp_path, 1).replay.storage[:]["next"].keys()  # noqa: SIM118


# Of whole episodes in stage one; bootstrapped in stage two, in the middle of an epoch and of a period.
@pytest.mark.parametrize(("n_steps", "stop"), [pytest.param(4, 2, marks=pytest.mark.soak), (2, 7)])
def test_a_run_that_is_stopped_and_resumed(tmp_path: Path, n_steps: int, stop: int) -> None:
    changes: Any = {"n_steps": n_steps, "updates_per_step": 1}
    fit(module(**changes), tmp_path / "whole", 10, EpisodeCheckpoint())
    whole = everything(last(tmp_path / "whole"))
    fit(module(**changes), tmp_path / "half", stop, EpisodeCheckpoint())
    # A new process, too, has another generator and another first episode.
    other = module(**changes, env={"seed": 11})
    fit(other, tmp_path / "rest", 10, EpisodeCheckpoint(), ckpt_path=last(tmp_path / "half"), seed=5)
    rest = everything(last(tmp_path / "rest"))
    assert {"state_dict", "optimizer_states", "rollout", "meter", "random", "replay", "frames"} <= set(whole)
    assert differences(whole, rest) == []
    assert differences(whole, everything(last(tmp_path / "half"))) != []


@pytest.mark.parametrize("n_steps", [4, 2])
def test_a_checkpoint_holds_each_weight_once(tmp_path: Path, n_steps: int) -> None:
    made = fit(module(n_steps=n_steps), tmp_path, 2, EpisodeCheckpoint())
    content = torch.load(last(tmp_path), weights_only=True)
    networks = ["networks", "targets"] if n_steps == 2 else ["networks"]
    names = []
    for prefix in networks:
        names += [f"{prefix}.{name}" for name in made.networks.state_dict()]
    assert sorted(content["state_dict"]) == sorted(names)
    check_checkpoint(last(tmp_path), module(n_steps=n_steps))


def test_acting_explores_and_evaluation_does_not(tmp_path: Path) -> None:
    made = fit(module(epsilon=0.7, item_epsilon=0.4), tmp_path, 2)
    for packer in (made.rule, made.worker, made.both):
        assert packer.epsilon == pytest.approx(0.7)
        assert packer.item_epsilon == pytest.approx(0.4)
    greedy = made.policy_for(made.env)
    assert (greedy.items, greedy.places, greedy.margin) == ("learned", "learned", made.margin)
    state = made.env.reset()
    with set_exploration_type(ExplorationType.RANDOM):
        drawn = [greedy(state.clone())["action"] for _ in range(5)]
    assert all(torch.equal(action, drawn[0]) for action in drawn)


def test_the_deep_networks_learn_at_their_own_rate(tmp_path: Path) -> None:
    made = fit(module(deep_rate=0.25, joint_rate=0.5), tmp_path, 6)
    few, deep = made.optimizers().param_groups  # type: ignore[union-attr]
    assert (few["lr"], deep["lr"]) == (0.5e-3, 0.125e-3)
    names = {id(weight): name.split(".")[0] for name, weight in made.networks.named_parameters()}
    assert {names[id(weight)] for weight in deep["params"]} == {"worker", "manager"}
    assert len(few["params"]) + len(deep["params"]) == len(names)


@pytest.mark.parametrize("scale", [None, 512.0])
def test_gradients_are_clipped(tmp_path: Path, scale: float | None) -> None:
    # More would overflow in float16.
    made = module(reward_scale=10.0, max_grad_norm=1e-3, deep_rate=1.0)
    made.make_optimizer = lambda weights: torch.optim.SGD(weights, lr=1.0)  # type: ignore[assignment]
    before = [weight.detach().clone() for weight in made.networks.parameters()]
    scaler = None if scale is None else torch.amp.GradScaler("cpu", init_scale=scale)
    plugins = [] if scaler is None else [MixedPrecision("16-mixed", "cpu", scaler)]
    fit(made, tmp_path, 1, plugins=plugins)
    moved = [(a - b).flatten() for a, b in zip(made.networks.parameters(), before, strict=True)]
    assert torch.cat(moved).norm().item() == pytest.approx(1e-3, rel=0.01)


def test_hierarchical_packing_learns_in_mixed_precision(tmp_path: Path) -> None:
    exact = fit(module(n_steps=2), tmp_path, 8, precision="32-true")
    mixed = fit(module(n_steps=2), tmp_path, 8, precision="bf16-mixed")
    assert all(weight.dtype == torch.float32 and weight.isfinite().all() for weight in mixed.parameters())
    assert differences(exact.networks.state_dict(), mixed.networks.state_dict()) != []
    assert mixed.replay.storage[:]["next", "reward"].dtype == torch.float32


def test_a_replay_that_is_too_small() -> None:
    with pytest.raises(ValueError, match=r"HierarchicalPacking: replay .*12 transitions; got 11"):
        module(capacity=11)


# Cells of a centimetre: 16 and 253 counts in a byte, 300 and 30 000 in 16 bits, 40 000 in none.
DTYPES = {0.16: torch.uint8, 2.53: torch.uint8, 2.54: torch.int16, 3.0: torch.int16, 300.0: torch.int16}


def env_of(height: float) -> PackingEnv:
    return solids_env(1, bin_size=(0.2, 0.2, height))


def transitions(heightmap: torch.Tensor, following: torch.Tensor | None = None) -> TensorDict:
    """Return some transitions.

    Without `following` the state after them is not kept.
    """
    after = {"reward": torch.zeros(len(heightmap), 1)} | ({} if following is None else {"box_heightmap": following})
    return TensorDict({"box_heightmap": heightmap, "next": after}, batch_size=[len(heightmap)])


@pytest.mark.parametrize(("height", "dtype"), DTYPES.items())
def test_every_count_up_to_the_bins_height_comes_back(height: float, dtype: torch.dtype) -> None:
    store = HeightmapCodec(env_of(height))
    counts = torch.arange(round(height / 0.01) + 1)
    heightmap = counts.float() * 0.01
    packed = store.packed(transitions(heightmap[:, None, None], heightmap.flip(0)[:, None, None]))
    assert packed["box_heightmap"].dtype == packed["next", "box_heightmap"].dtype == dtype
    assert torch.equal(packed["box_heightmap"].long().flatten(), counts)
    back = store.unpacked(packed)
    assert back["box_heightmap"].dtype == torch.float32
    assert torch.equal(back["box_heightmap"].flatten(), heightmap)
    assert torch.equal(back["next", "box_heightmap"].flatten(), heightmap.flip(0))


@pytest.mark.parametrize(
    "env", [env_of(400.0), boxes_env(1), solids_env(1, orientations=45.0)], ids=["high", "boxes", "45°"]
)
def test_other_heights_are_left_as_they_are(env: PackingEnv) -> None:
    store, heightmap = HeightmapCodec(env), torch.rand(3, 4, 4)
    packed = store.packed(transitions(heightmap.clone()))
    assert packed["box_heightmap"].dtype == torch.float32
    assert torch.equal(store.unpacked(packed)["box_heightmap"], heightmap)


def test_piles_of_the_environment_come_back_to_the_rounding_of_their_sums() -> None:
    env = solids_env()
    store = HeightmapCodec(env)
    for steps in (1, 4, 7):
        heightmap = random_states(env, steps)["box_heightmap"]
        back = store.unpacked(store.packed(transitions(heightmap)))
        assert (back["box_heightmap"] - heightmap).abs().max() < 1e-6
        # Packing a second time loses nothing.
        again = store.unpacked(store.packed(back.clone()))
        assert torch.equal(again["box_heightmap"], back["box_heightmap"])


def test_the_state_after_may_be_left_out_and_all_else_is_untouched() -> None:
    store, heightmap = HeightmapCodec(env_of(0.16)), torch.zeros(2, 3, 3)
    given = transitions(heightmap)
    kept = given["box_heightmap"]
    packed = store.packed(given)
    assert set(packed["next"].keys()) == {"reward"}
    assert packed["next", "reward"].dtype == torch.float32
    # Others that hold the heightmap keep its dtype.
    assert kept.dtype == torch.float32
