"""`torchrl-gpu evaluate bpp10` as it is typed, in small."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from tests.policies import checkpoints
from torchrl_gpu import cli
from torchrl_gpu.envs.packing.protocols import SUITE_SEED, make_protocol
from torchrl_gpu.evaluation.packing.protocols import sequence_sizes
from torchrl_gpu.policies.packing import BASELINES

QUICK = ["evaluate", "bpp10", "--device=cpu", "--cases=3", "--timed=1"]


@pytest.fixture
def checkpoint(tmp_path: Path) -> str:
    agent, settings = checkpoints.packer("DQN", make_protocol("cut2", 1, device="cpu", include=["z_map"]))
    torch.save(checkpoints.content_of(agent, settings), tmp_path / "some.ckpt")
    return str(tmp_path / "some.ckpt")


def test_evaluate_protocol_writes_every_baseline(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "table.json"
    assert cli.main([*QUICK, "--protocol", "rs", f"--output={path}"], "torchrl-gpu") is None
    result, shown = json.loads(path.read_text()), capsys.readouterr().out
    rows = {row["policy"]: row for row in result["policies"]}
    assert list(rows) == [name for name, _ in BASELINES.values()]
    assert {row["knows"] for row in rows.values()} == {"nothing"}
    assert all(row["num_episodes"] == len(row["utilizations"]) == 3 for row in rows.values())
    assert all(
        word in shown for word in [*rows, "AAAI 2021, policy", result["sequences"]["sha256"][:16], "ms for one bin"]
    )
    assert (result["evaluation"], result["sequences"]["protocol"]) == ("bpp10", "rs")
    assert result["arguments"]["cases"] == 3


def test_a_user_s_file_and_named_policies(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    torch.save([[[5, 5, 5]] * 8 + [[10, 10, 10]], [[2, 2, 2]] * 3], tmp_path / "mine.pt")
    words = ["--policy", "dbl", "hm", "--sequences", str(tmp_path / "mine.pt"), "--visible=2"]
    assert cli.main(["evaluate", "bpp10", "--device=cpu", "--protocol=cut2", *words], "torchrl-gpu") is None
    shown = capsys.readouterr().out
    assert "cut2: 2 sequences from 0 of mine.pt" in shown
    # Both rules and the published policy.
    assert shown.count("2 visible") == 3
    assert "random legal" not in shown


def test_visible_boxes_are_searched_beside_the_policy(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--policy", "rs", "--visible=3", "--beam=4", "--cases=4", "--timed=1"]
    assert cli.main(["evaluate", "bpp10", "--device=cpu", "--protocol=rs", *words], "torchrl-gpu") is None
    shown = capsys.readouterr().out
    assert "pretrained rs, searching (3, 4)" in shown
    # The policy, the search, and the published one.
    assert shown.count("3 visible") == 3


def utilizations_of(rows: list[dict[str, object]]) -> dict[object, object]:
    """Return the utilizations of each policy."""
    return {row["policy"]: row["utilizations"] for row in rows}


@pytest.mark.parametrize("protocol", ["cut2", "rs"])
def test_a_file_of_the_protocol_s_boxes_is_played_one_item_ahead_as_the_suite_is(tmp_path: Path, protocol: str) -> None:
    suite = make_protocol(protocol, 1, device="cpu", seed=SUITE_SEED)
    torch.save([[*each.tolist(), [10, 10, 10]] for each in sequence_sizes(suite, 2)], tmp_path / "same.pt")
    words = ["evaluate", "bpp10", "--device=cpu", f"--protocol={protocol}", "--policy", protocol, "--timed=0"]
    words += ["--candidates=2", "--knows", "distribution", "boxes"]
    played = []
    for number, which in enumerate((["--cases=2"], ["--sequences", str(tmp_path / "same.pt")])):
        path = tmp_path / f"{number}.json"
        assert cli.main([*words, *which, f"--output={path}"], "torchrl-gpu") is None
        played.append(json.loads(path.read_text()))
    by_suite = utilizations_of(played[0]["policies"])
    by_file = utilizations_of(played[1]["policies"])
    assert by_file == by_suite
    assert len(by_file) == 3
    assert played[0]["sequences"]["sha256"] == played[1]["sequences"]["sha256"]


def test_other_boxes_are_not_played_by_what_comes_next(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    torch.save([[[2, 2, 2], [6, 2, 2]]], tmp_path / "mine.pt")
    words = ["evaluate", "bpp10", "--device=cpu", "--protocol=cut2", "--policy", "cut2", "--candidates=2"]
    assert cli.main([*words, "--sequences", str(tmp_path / "mine.pt")], "torchrl-gpu") == 2
    assert "know the boxes of cut2, and the file has 6 × 2 × 2 cells" in capfd.readouterr().err


def test_evaluate_protocol_takes_a_checkpoint(checkpoint: str, capfd: pytest.CaptureFixture[str]) -> None:
    assert cli.main([*QUICK, "--protocol=cut2", "--policy", "random", checkpoint], "torchrl-gpu") is None
    assert f"some ({checkpoint})" in capfd.readouterr().out
    assert cli.main([*QUICK, "--protocol=discrete125", "--policy", checkpoint], "torchrl-gpu") == 2
    # It has one orientation, where two are asked for.
    assert "error: " in capfd.readouterr().err


def test_evaluate_protocol_says_what_planners_know(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "table.json"
    words = ["--policy", "cut2", "--knows", "boxes", "stream", "--depth=2", "--beam=3", "--candidates=2"]
    assert cli.main([*QUICK, "--protocol=cut2", *words, f"--output={path}"], "torchrl-gpu") is None
    rows = {row["policy"]: row["knows"] for row in json.loads(path.read_text())["policies"]}
    assert rows == {
        "pretrained cut2": "nothing",
        "pretrained cut2, expecting what is left (2)": "the boxes but not their order",
        "pretrained cut2, searching (2, 3)": "the true stream",
    }
    assert "the true stream" in capsys.readouterr().out


def test_candidates_alone_know_the_distribution(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main([*QUICK, "--protocol=rs", "--policy", "rs-refined", "--candidates=2"], "torchrl-gpu") is None
    shown = capsys.readouterr().out
    assert "pretrained rs-refined, expecting (2)" in shown
    assert "the distribution" in shown


def test_futures_know_the_distribution(capsys: pytest.CaptureFixture[str]) -> None:
    words = [*QUICK, "--protocol=cut2", "--policy", "cut2", "--futures=3", "--depth=2"]
    assert cli.main(words, "torchrl-gpu") is None
    shown = capsys.readouterr().out
    assert "pretrained cut2, expecting (6, 3 futures of 2)" in shown
    assert "the distribution" in shown


def test_a_user_s_boxes_are_known_as_well(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    torch.save([[[5, 5, 5]] * 8, [[2, 2, 2]] * 3], tmp_path / "mine.pt")
    words = ["--policy", "cut2", "--sequences", str(tmp_path / "mine.pt"), "--knows", "boxes", "stream", "--beam=2"]
    assert cli.main(["evaluate", "bpp10", "--device=cpu", "--protocol=cut2", *words], "torchrl-gpu") is None
    assert "searching (10, 2)" in capsys.readouterr().out
