"""Wrong options of every subcommand are one line, with status 2: where, what is wanted, what came."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.test_evaluate import QUICK, SMALL
from tests.test_end_to_end import small
from torchrl_gpu import cli
from torchrl_gpu.cli import play

WRONG: dict[str, list[tuple[str, str]]] = {  # what all of them begin with; what follows, and a part of the line
    "bench": [
        ("packing --num_envs 0", "--num_envs must be at least 1; got 0"),
        ("packing --seconds nan", "--seconds must be a finite number above 0; got nan"),
        ("packing --device abacus", "get_device"),
        ("packing --settings bpp9", "bpp9"),
        ("unpacking", "environment must be one of packing; got 'unpacking'"),
        ("", "want environment; got none"),
    ],
    "cost --config packing.yaml": [
        ("--price -1", "--price must be a finite number above 0; got -1"),
        ("--throughput nan", "--throughput must be a finite number above 0; got nan"),
        ("--throughput 1 --run .", "want --throughput or --run; got both"),
        ("--run nowhere", "--run must be the folder of a run; got nowhere"),
        ("--run .", "--run must be a folder with TensorBoard logs"),
        ("--pric 1", "want a known option, such as price"),
        ("--throughput 1 --trainer.max_steps -1", "want a config with trainer.max_steps, or --updates; got -1"),
    ],
    "encode": [
        ("nobody.mp4", "torchrl-gpu encode: nobody.mp4: want a video or a folder; there is none"),
        ("", "torchrl-gpu encode: want VIDEO; got none"),
        ("{tmp} --output {tmp}", "torchrl-gpu encode: --output must be a folder that is not there yet"),
        ("{tmp}", "want a folder with meta/info.json, or with MP4 files; got neither"),
        ("{tmp} --size 0 4", "demonstrations: size must be"),
    ],
    "evaluate": [
        ("boats", "--config: want a file, or a shipped config ("),
        (
            "--config packing_dqn.yaml --model.env.items.pool=16 --model.agent.network.channels=4 --visible 2",
            "evaluate: --visible is for irregular packing; got it for a PackingSuite",
        ),
    ],
    " ".join(["evaluate packing_irregular", *QUICK, *SMALL]): [
        ("--methods foo", "--methods must be one of random, dbl, "),
        ("--sets hardest", "--sets must be one of easy, hard; got 'hardest'"),
        ("--case=3", "want a known option, such as cases; got 'case'"),
        ("--cases=0", "--cases must be at least 1; got 0"),
        ("--visible 5 -1", "--visible must be at least 0; got -1"),
        ("--meshes nowhere", "--meshes must be a folder of mesh files; got nowhere"),
        ("--ckpt_path no.ckpt", "checkpoint no.ckpt: want an existing file; got none there"),
        ("--config no.yaml", "no.yaml"),
        ("--model.env.visible=3", "Option 'visible' is not accepted"),
    ],
    "evaluate bpp10 --device=cpu": [
        ("--protocol=cut3", "discrete125, free125; got 'cut3'"),
        ("", "want --protocol; got none"),
        ("--protocol=rs --policy nobody", "--policy must be baselines, random, first-fit, bph"),
        ("--protocol=rs --policy orders", "rs or the path of a checkpoint; got 'orders'"),
        ("--protocol=rs --cases=0", "--cases must be at least 1; got 0"),
        ("--protocol=rs --policy rs --depth=5", "--depth wants --knows stream; got none"),
        ("--protocol=rs --policy rs --knows boxes --beam=5", "--beam wants --knows stream; got boxes"),
        (
            "--protocol=rs --policy rs --knows stream --candidates=5",
            "--candidates wants --knows distribution or boxes; got stream",
        ),
        ("--protocol=rs --policy rs --knows stream --visible=2", "--knows want --visible=1; got 2"),
        ("--protocol=rs --policy dbl --knows stream", "--knows want a policy of afterstate values; got none"),
        ("--protocol=rs --policy rs --knows stream --beam=0", "--beam must be at least 1; got 0"),
        ("--protocol=rs --policy rs --knows all", "boxes, stream; got 'all'"),
        ("--protocol=rs --first=-1", "--first must be at least 0; got -1"),
        ("--protocol=rs --sequences none.pt", "none.pt: want a file of box sequences; there is none"),
    ],
    " ".join(["play", *small("packing_dqn.yaml")]): [
        ("--host 0.0.0.0", "want a token to listen beyond this machine; got none for host '0.0.0.0'"),
        ("--host 0.0.0.0 --token 1234", "want token of at least 16 characters to listen beyond"),
        ("--speed 0", "torchrl-gpu play: --speed must be a finite number above 0; got 0"),
        ("--num_envs 0", "torchrl-gpu play: --num_envs must be at least 1; got 0"),
        ("--streams env3", "streams: want environments below 1; got 'env3'"),
        ("--ckpt_path no.ckpt", "checkpoint no.ckpt: want an existing file; got none there"),
        ("--portt 3", "want a known option, such as port; got 'portt'"),
        ("--config no.yaml", "--config: want a file, or a shipped config"),
    ],
    "record": [
        ("--config packing_dqn.yaml", "want --output; got none"),
        ("--config packing_dqn.yaml --output {tmp}", "--output must be a folder that is not there yet"),
        ("--config packing_dqn.yaml --output x --episodes 0", "--episodes must be at least 1; got 0"),
        ("--config nobody.yaml --output x", "--config: want a file"),
        ("--config packing_dqn.yaml --output x --ckpt_path nobody.ckpt", "want an existing file; got none"),
    ],
    "record --config packing_dqn.yaml --output x": [  # options without an effect
        ("--choose worst", "want --choose with --format mcap; got --format memmap"),
        ("--most 3", "want --most with --format mcap; got --format memmap"),
        ("--most 10 --format lerobot", "want --most with --format mcap; got --format lerobot"),
        ("--by return", "want --by with --format mcap; got --format memmap"),
        ("--below 0.5 --format lerobot", "want --below with --format mcap; got --format lerobot"),
        ("--size 240 320", "want --size with --format lerobot or mcap; got --format memmap"),
        ("--fps 10", "want --fps with --format lerobot or mcap; got --format memmap"),
        ("--most 3 --format mcap", "want --most with --choose worst or best or failures; got --choose all"),
        (
            "--by return --format mcap --choose all",
            "want --by with --choose worst or best or failures; got --choose all",
        ),
        ("--below 1 --format mcap --choose worst", "want --below with --choose failures; got --choose worst"),
    ],
}
CASES = [(f"{begin} {more}", message) for begin, rows in WRONG.items() for more, message in rows]


@pytest.mark.parametrize(("line", "message"), CASES, ids=[f"{line[:20]} … {line[-40:]}" for line, _ in CASES])
def test_wrong_options_are_one_line(
    line: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("TORCHRL_GPU_TOKEN", raising=False)
    monkeypatch.setattr(play, "_load", pytest.fail)  # all that `play` refuses is found before
    assert cli.main(line.format(tmp=tmp_path).split(), "torchrl-gpu") == 2
    (said,) = [each for each in capfd.readouterr().err.splitlines() if each.startswith("error: ")]
    assert message in said
