"""`num_envs: auto` on the pretended device.

There are more environments than on a CPU. A resumed run keeps their number anywhere.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.pretend.small import command_line
from torchrl_gpu import cli
from torchrl_gpu.checkpoints.record import saved_option
from torchrl_gpu.checkpoints.resume import open_checkpoint
from torchrl_gpu.training import AfterstateLearning

# The second stands for 1,024, which are as many operators, but take longer.
NUMBERS = {"cpu": 64, "gpu": 80}
CHECKPOINT = "runs/packing/checkpoints/last.ckpt"


@pytest.mark.filterwarnings("ignore:GPU available but not used")
@pytest.mark.parametrize("begun", ["gpu", "cpu"])
def test_num_envs_auto_goes_on_elsewhere_with_the_number_of_the_run(
    begun: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    assert AfterstateLearning.num_envs_on_cuda == 1024
    monkeypatch.setattr(AfterstateLearning, "num_envs_on_cuda", NUMBERS["gpu"])
    monkeypatch.chdir(tmp_path)
    options: dict[str, Any] = {"data__num_episodes": 1, "data__num_val_episodes": 1, "model__env__num_envs": "auto"}
    options |= {"model__cuda_graphs": "false", "model__graph_updates": "false"}
    (other,) = {"cpu", "gpu"} - {begun}
    for accelerator, updates in ((begun, 2), (other, 3), (begun, 4)):
        options["trainer__max_steps"] = updates
        args = command_line("packing.yaml", trainer__accelerator=accelerator, **options)
        resumed = [f"--ckpt_path={CHECKPOINT}"] if updates > 2 else []
        assert cli.main(["fit", *args, *resumed]) is None
        content = open_checkpoint(CHECKPOINT)
        assert content["global_step"] == updates
        assert saved_option(content, "model.env.num_envs") == NUMBERS[begun]
    told = [each for each in caplog.messages if each.startswith("num_envs")]
    first = "the usual number, on cpu"
    if begun == "gpu":
        first = "that of AfterstateLearning on cuda, where a CPU has 64: as many updates play 1.25 times the steps"
    assert told == [f"num_envs {NUMBERS[begun]}: {why}" for why in (first, *[f"that of {CHECKPOINT}"] * 2)]
