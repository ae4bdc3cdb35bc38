"""Episodes of validations, kept as MCAP while a run goes on."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from tests.demonstrations.mcap_files import read
from tests.training.tiny import data, fit, module
from torchrl_gpu.callbacks import EpisodeMcap
from torchrl_gpu.evaluation.suite import Suite


class Scores(EpisodeMcap):
    def on_validation_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, *args: Any) -> None:
        assert isinstance(batch, Suite)
        assert batch.last is not None
        self.utilization = batch.last.utilization.tolist()
        super().on_validation_batch_end(trainer, pl_module, outputs, batch, *args)


def test_the_worst_of_every_validation(tmp_path: Path) -> None:
    made, callback = module(), Scores(str(tmp_path / "kept"), most=2, size=(48, 64))
    # 4 updates, 2 a training step, 1 training step an epoch: validations after updates 2 and 4
    fit(made, tmp_path, 4, callback, data_module=data(steps_per_epoch=1), enable_checkpointing=False)
    assert sorted(each.name for each in (tmp_path / "kept").iterdir()) == ["step-000000002", "step-000000004"]
    paths = sorted((tmp_path / "kept" / "step-000000004").iterdir())
    worst = sorted(range(4), key=lambda i: callback.utilization[i])[:2]
    assert [path.name for path in paths] == [f"episode-{i:06d}.mcap" for i in sorted(worst)]
    about = read(paths[0]).metadata["episode"]
    assert (about["step"], about["policy"]) == ("4", made.policy_name)
    assert float(about["utilization"]) == pytest.approx(callback.utilization[min(worst)])


def test_it_changes_nothing_of_what_is_learned(tmp_path: Path) -> None:
    runs = []
    for name, callbacks in (("with", [EpisodeMcap(most=1, size=(32, 32))]), ("without", [])):
        made = module()
        options = {"data_module": data(steps_per_epoch=1), "enable_checkpointing": False}
        fit(made, tmp_path / name, 6, *callbacks, **options)
        runs.append(made.agent.state_dict())
    assert all(torch.equal(value, runs[1][key]) for key, value in runs[0].items())
    assert len(list((tmp_path / "with").rglob("*.mcap"))) == 3
    assert not list((tmp_path / "without").rglob("*.mcap"))


@pytest.mark.parametrize("size", [(480,), (8, 640), 480, "big", (480, 640.5)])
def test_sizes_that_are_none(size: Any) -> None:
    with pytest.raises(ValueError, match="EpisodeMcap: size must be "):
        EpisodeMcap(size=size)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"by": "speed"}, "by must be one of utilization, return; got 'speed'"),
        ({"choose": "failures"}, "want below to say which utilization is a failure, since it is no flag; got None"),
        ({"choose": "failures", "by": "return"}, "want below to say which return is a failure"),
    ],
)
def test_what_would_fail_later_is_told_before_training(tmp_path: Path, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        fit(module(warmup_frames=10**9), tmp_path, 2, EpisodeMcap(**options))
