"""`torchrl-gpu record`: what it writes, read back.

An environment's observations and the actions in it.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from tensordict import TensorDictBase

from tests.demonstrations import drawn
from tests.demonstrations.mcap_files import read
from tests.test_end_to_end import small
from torchrl_gpu import cli
from torchrl_gpu.cli.loading import LoadedPolicy
from torchrl_gpu.cli.record import record
from torchrl_gpu.demonstrations import load_demonstrations, read_demonstrations
from torchrl_gpu.envs import PackingEnv
from torchrl_gpu.envs.dishes.env import DishwashingEnv
from torchrl_gpu.evaluation.random_actions import RandomActions
from torchrl_gpu.evaluation.results import evaluation
from torchrl_gpu.evaluation.suite import UNSEEN_SEED


def test_a_shift_that_is_recorded_is_the_shift_that_was_played(tmp_path: Path) -> None:
    env = DishwashingEnv(1, max_steps=6, device="cpu", seed=3)
    policy = RandomActions(env)
    assert record(env, policy, tmp_path / "shifts", 3, (64, 64), fps=5, task="wash") == 18
    store = load_demonstrations(tmp_path / "shifts", device="cpu")
    assert store.lengths == [6, 6, 6]
    assert store.tasks == {0: "wash"}
    drawn = []
    with evaluation(env, policy) as current:
        for i in range(18):
            shown = torch.as_tensor(env.pictures([0], 64, 64)[0]).permute(2, 0, 1)
            stepped = env.step(policy(current))
            row = store.rows[i]
            assert torch.equal(row["action"], stepped["action"][0])
            assert torch.equal(row["observation", "state"], stepped["observation"][0])
            assert torch.equal(row["next", "reward"], stepped["next", "reward"][0])
            assert torch.equal(row["next", "done"], stepped["next", "done"][0])
            drawn.append(shown)
            current = env.maybe_reset(env.step_mdp(stepped))
    # Distances of each frame from each drawing.
    off = (store.frames[:, None].float() - torch.stack(drawn)[None]).abs().mean((2, 3, 4))
    assert off.diagonal().max() < 8, "H.264 loses little"
    assert torch.equal(off.argmin(1), torch.arange(18)), "and each frame is nearest to its own picture"


def test_choices_and_several_agents(tmp_path: Path) -> None:
    env = PackingEnv(1, device="cpu", seed=0)
    record(env, RandomActions(env), tmp_path / "bins", 2, (48, 64))
    store = load_demonstrations(tmp_path / "bins", device="cpu")
    assert store.rows["action"].dtype == torch.int64
    assert store.rows["action"].shape == (len(store), 1)
    assert "observation" not in store.rows
    assert store.rows["next", "done"].flatten().nonzero().flatten().tolist() == list(np.cumsum(store.lengths) - 1)


def test_record_refuses_what_it_cannot_record(tmp_path: Path) -> None:
    env = DishwashingEnv(2, device="cpu", seed=0)
    with pytest.raises(ValueError, match=r"one environment .*not of 2"):
        record(env, RandomActions(env), tmp_path / "a", 1, (64, 64))


def test_a_policy_that_fails_leaves_nothing(tmp_path: Path) -> None:
    def fails(tensordict: TensorDictBase) -> TensorDictBase:
        raise KeyError

    env = DishwashingEnv(1, device="cpu", seed=0)
    with pytest.raises(KeyError):
        record(env, fails, tmp_path / "a", 1, (64, 64))  # type: ignore[arg-type]
    assert not list(tmp_path.iterdir())


def test_the_command_records_video(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    args = ["record", *small("packing_dqn.yaml"), "--episodes", "2", "--output", str(tmp_path / "bins")]
    args += ["--format", "lerobot", "--size", "48", "64"]
    assert cli.main(args, program="torchrl-gpu") is None
    assert f"Written: {tmp_path / 'bins'}, " in capsys.readouterr().out
    store = load_demonstrations(tmp_path / "bins", device="cpu")
    assert store.num_episodes == 2
    assert store.tasks == {0: "PackingEnv, random"}


def test_the_command_records_the_worst_episodes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = "--policy deepest-bottom-left --episodes 4 --format mcap --size 48 64"
    args = ["record", *small("packing_dqn.yaml"), *options.split(), "--output", str(tmp_path / "bins"), "--choose"]
    assert cli.main([*args, "worst", "--most", "1"], program="torchrl-gpu") is None
    out = f"{tmp_path / 'bins'}, 1 files of 4 episodes, PackingEnv, deepest bottom left"
    assert out in " ".join(capsys.readouterr().out.split())
    (path,) = (tmp_path / "bins").iterdir()
    found = read(path)
    about = found.metadata["episode"]
    assert (about["policy"], about["task"]) == ("deepest bottom left", "PackingEnv, deepest bottom left")
    assert int(about["seed"]) == UNSEEN_SEED, "the episodes of `lightning test`"
    assert len(found.messages["/camera"]) == int(about["length"]) + 1


def test_the_command_records_rows(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    args = ["record", *small("packing_dqn.yaml"), "--policy", "deepest-bottom-left", "--episodes", "5"]
    assert cli.main([*args, "--output", str(tmp_path / "bins")], program="torchrl-gpu") is None
    assert "rows of 5 episodes, PackingEnv, deepest bottom left" in capsys.readouterr().out
    shown = read_demonstrations(tmp_path / "bins")
    assert (shown.num_episodes, shown.about["seed"], shown.about["policy"]) == (5, 0, "deepest bottom left")
    assert shown.about["config"]["model"]["init_args"]["env"]["init_args"]["stability"] == "corners"
    assert {name: value.dtype for name, value in shown.rows.items()} == dict.fromkeys(
        ("box_heightmap", "item_id", "action"), torch.uint8
    )
    assert cli.main([*args, "--output", str(tmp_path / "more"), "--seed", "1"], program="torchrl-gpu") is None
    other = read_demonstrations(tmp_path / "more")
    assert not torch.equal(other.lengths, shown.lengths) or not torch.equal(other.rows["action"], shown.rows["action"])


@pytest.mark.parametrize(
    ("args", "who"),
    [([], (None, "random")), (["--ckpt_path", "last"], ("last", None)), (["--policy", "x"], (None, "x"))],
)
def test_a_checkpoint_plays_itself_and_without_one_chance_does(
    args: list[str], who: tuple[str | None, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []

    def load_policy(
        rest: list[str], ckpt_path: str | None, wanted: str | None, num_envs: int, stage: str
    ) -> LoadedPolicy:
        asked.append((ckpt_path, wanted, num_envs))
        env = DishwashingEnv(num_envs, max_steps=2, device="cpu", seed=0)
        return LoadedPolicy(env, RandomActions(env), "somebody")

    monkeypatch.setattr("torchrl_gpu.cli.loading.load_policy", load_policy)
    options = "record --config packing_dqn.yaml --episodes 1 --task wash --format lerobot --output"
    assert cli.main([*options.split(), str(tmp_path / "a"), *args], program="torchrl-gpu") is None
    assert asked == [(*who, 1)]
    assert load_demonstrations(tmp_path / "a", device="cpu").tasks == {0: "wash"}


def run(*args: object) -> int | str | None:
    return cli.main(["encode", *map(str, args)], program="torchrl-gpu")


def test_a_dataset_is_decoded_once_and_opens_the_same(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    root = drawn.write_dataset(tmp_path / "sink")
    assert run(root, "--size", 12, 16) is None
    out = capsys.readouterr().out
    assert "4 episodes, frames of 12×16" in out
    assert f"Written: {root}.clips, 22 frames of 4 episodes" in out
    opened = load_demonstrations(f"{root}.clips", device="cpu")
    direct = load_demonstrations(root, device="cpu", size=(12, 16))
    assert torch.equal(opened.frames, direct.frames)
    assert (opened.rows == direct.rows).all()


def test_bad_videos_stand_in_the_table_with_the_reason(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    paths = [drawn.write_plain(tmp_path, name, i, 5) for i, name in enumerate("abc")]
    drawn.write_video(paths[1], [drawn.picture(1, i) for i in range(5)], fps=30)
    paths[2].write_bytes(b"hello")
    assert run(*paths, "--output", tmp_path / "out") is None
    text = "".join(capsys.readouterr().out.split())
    assert "10framesasecond,not30" in text
    assert "itdoesnotbeginlikeanMP4file" in text
    store = load_demonstrations(tmp_path / "out", device="cpu")
    assert store.lengths == [5]
    assert list(store.skipped) == list(map(str, paths[1:]))
    assert run(*paths, "--output", tmp_path / "strict", "--on_bad", "raise") == 2
    assert capsys.readouterr().err.startswith(f"error: demonstrations: {paths[1]}: expected 10 frames a second, not 30")
    assert not (tmp_path / "strict").exists()


def test_record_does_not_encode_packets_again(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run(drawn.write_plain(tmp_path, "a", 0, 3), "--output", tmp_path / "out")
    assert run(tmp_path / "out") == 2
    assert "has been encoded already" in capsys.readouterr().err
