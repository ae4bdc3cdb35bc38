"""A watched run has the same results, and costs what it says."""

from __future__ import annotations

import csv
import io
import math
import re
import socket
import threading
import urllib.error
import urllib.request
from collections.abc import Callable
from functools import partial
from itertools import pairwise, product
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from lightning.pytorch import Callback, LightningModule
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.loggers import CSVLogger, TensorBoardLogger
from PIL import Image

from tests.callbacks.fake_server import FakeServer
from tests.standins import EnvModule
from tests.training.resuming import differences
from tests.training.tiny import fit, module, packing_env
from torchrl_gpu.callbacks import FrameStream, frame_stream
from torchrl_gpu.callbacks.frame_stream import HookTimer, TimeBudget
from torchrl_gpu.policies import IQN, Rainbow
from torchrl_gpu.policies.generators import random_state
from torchrl_gpu.policies.packing.scores import PlacementAtoms, PlacementQuantiles
from torchrl_gpu.streaming.web.settings import ServerSettings
from torchrl_gpu.training import OffPolicy

pytest.importorskip("cv2")
WATCHED = ("env0", "worst", "best", "grid")
Watching = Callable[..., None]


@pytest.fixture
def watched_by(monkeypatch: pytest.MonkeyPatch) -> Watching:
    """Give every server these viewers.

    The callback itself is real.
    """

    def choose(*streams: str) -> None:
        monkeypatch.setattr(frame_stream, "make_server", lambda settings: FakeServer(streams, settings))

    return choose


def small(**changes: Any) -> FrameStream:
    return FrameStream(**{"width": 48, "height": 36, "most_share": 1.0, **changes})


def server() -> FakeServer:
    assert FakeServer.last is not None
    return FakeServer.last


def test_every_picture_says_what_it_shows(tmp_path: Path, watched_by: Watching) -> None:
    watched_by(*WATCHED)
    made = fit(module(), tmp_path, 12, small(), enable_checkpointing=False)
    served = server()
    assert list(served.declared)[:4] == list(WATCHED)
    overlays = [":".join(pair) for pair in product(("env0", "worst", "best"), ("mask", "action", "q"))]
    assert list(served.declared)[4:] == overlays
    assert {name: count for name, (count, _) in served.families.items()} == dict.fromkeys(
        ("env", "env:mask", "env:action", "env:q"), 8
    )
    for name in ("env0", "worst", "best"):
        first, *metas = served.metas(name)
        # It was drawn before the address was printed.
        assert first["episode_step"] == 0
        # 12 updates, 2 in a training step.
        assert len(metas) == 6
        assert [meta["step"] for meta in metas] == [2, 4, 6, 8, 10, 12]
        assert all(meta["policy_version"] == meta["step"] for meta in metas)
        for meta in metas:
            assert {"env", "episode", "episode_step", "return", "utilization"} <= meta.keys()
            # The reward of this run is the utilization.
            assert meta["return"] == pytest.approx(meta["utilization"], abs=1e-6)
    last = served.metas("env0")[-1]
    assert last["episode_step"] == int(made.env.state.step_count[0])
    assert last["episode"] == int(made.env.state.episode[0])
    assert len({picture.tobytes() for name, picture, _ in served.published if name == "env0"}) > 1
    grids = [picture for name, picture, _ in served.published if name == "grid"]
    assert len(grids) == 7
    assert grids[0].shape == (8, 12, 16, 3)


def test_arguments_reach_the_server(tmp_path: Path, watched_by: Watching) -> None:
    watched_by()
    tls = ("cert.pem", "key.pem")
    token, view_token = "a" * 16, "b" * 16
    stream = small(port=7, host="0.0.0.0", token=token, view_token=view_token, fps=5.0, tls=tls)
    fit(module(), tmp_path, 2, stream, enable_checkpointing=False)
    assert server().settings == ServerSettings(
        "0.0.0.0", 7, token, view_token, fps=5.0, tls=tls, port_tries=frame_stream.PORT_TRIES
    )
    # It stops with the run.
    assert not server().running
    assert stream.url is None


OVERLAYS = ("env0:q", "env3:q", "env5:action", "worst:mask", "best:action")


def states_of(folder: Path, *callbacks: Callback) -> tuple[dict[str, Any], ...]:
    made = fit(module(), folder, 12, *callbacks, enable_checkpointing=False)
    return made.state_dict(), made.env.state_dict(), random_state(made.env.device)


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, Any], ...]:
    return states_of(tmp_path_factory.mktemp("alone"))


@pytest.mark.parametrize("streams", [(), WATCHED, OVERLAYS], ids=["unwatched", "watched", "overlays"])
def test_the_same_run_with_and_without(
    tmp_path: Path, watched_by: Watching, alone: tuple[dict[str, Any], ...], streams: tuple[str, ...]
) -> None:
    watched_by(*streams)
    tells = streams == WATCHED
    film = {"record": str(tmp_path / "films"), "record_every_n_episodes": 3}
    states = states_of(tmp_path, small(**film, show_policy=tells))
    for without, watched in zip(alone, states, strict=True):
        assert without.keys() == watched.keys()
        assert all(torch.equal(without[key], watched[key]) for key in without)
    assert len(server().published) == len(WATCHED) + len(streams) * 6
    assert list((tmp_path / "films").glob("*.mp4"))
    told = [
        {"policy", "inference_ms", "action/0"} <= meta.keys() for name, _, meta in server().published if name != "grid"
    ]
    assert set(told) == {tells}


def test_first_pictures_are_drawn_before_the_address_is_printed(
    tmp_path: Path, watched_by: Watching, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    spent: list[float] = []

    class Begins(Callback):
        def on_fit_start(self, trainer: Any, pl_module: Any) -> None:
            assert "watch at" in capsys.readouterr().out
            assert {name for name, _, _ in server().published} == set(WATCHED)
            assert spent == []

    watched_by()
    monkeypatch.setattr(
        "torchrl_gpu.callbacks.frame_stream.TimeBudget.spend", lambda self, seconds: spent.append(seconds)
    )
    fit(module(), tmp_path, 2, small(), Begins(), enable_checkpointing=False)


def test_while_nobody_watches_nothing_more_is_drawn_within_a_second(
    tmp_path: Path, watched_by: Watching, monkeypatch: pytest.MonkeyPatch
) -> None:
    watched_by()
    # This holds however slow the machine is.
    monkeypatch.setattr(frame_stream, "UNWATCHED_S", 1e6)
    fit(module(), tmp_path, 12, small(), enable_checkpointing=False)
    # Once for each hook.
    assert server().asked == 6
    assert len(server().published) == len(WATCHED)


@pytest.mark.parametrize(("allowed", "drawn"), [(True, 6), (False, 0)])
def test_while_nobody_watches_a_picture_is_kept_now_and_then(
    tmp_path: Path, watched_by: Watching, monkeypatch: pytest.MonkeyPatch, allowed: bool, drawn: int
) -> None:
    watched_by()
    monkeypatch.setattr(frame_stream, "UNWATCHED_S", 0.0)
    # A second has passed.
    monkeypatch.setattr(FakeServer, "wanted_streams", lambda self: list(self.declared))
    monkeypatch.setattr("torchrl_gpu.callbacks.frame_stream.TimeBudget.allows", lambda self, now: allowed)
    fit(module(), tmp_path, 12, small(streams=("env0",)), enable_checkpointing=False)
    assert len(server().published) == 1 + drawn


def test_drawing_keeps_to_its_share_but_for_what_somebody_chooses(
    tmp_path: Path, watched_by: Watching, monkeypatch: pytest.MonkeyPatch
) -> None:
    watched_by("env0")
    monkeypatch.setattr("torchrl_gpu.callbacks.frame_stream.TimeBudget.allows", lambda self, now: False)
    monkeypatch.setattr("torchrl_gpu.callbacks.env_streams.CHOSEN_SPACING", 0.0)
    fit(module(), tmp_path, 8, small(), enable_checkpointing=False)
    assert [meta.get("step") for meta in server().metas("env0")] == [None, 2]
    assert len(server().published) == len(WATCHED) + 1


def rows_with(logger: CSVLogger, name: str) -> list[dict[str, str]]:
    with (Path(logger.log_dir) / "metrics.csv").open(encoding="utf-8") as file:
        return [row for row in csv.DictReader(file) if row[name]]


def test_its_cost_is_logged_and_printed(
    tmp_path: Path, watched_by: Watching, capsys: pytest.CaptureFixture[str]
) -> None:
    watched_by("env0")
    logger = CSVLogger(tmp_path)
    stream = small(log_every_n_steps=2)
    fit(module(), tmp_path, 12, stream, enable_checkpointing=False, logger=logger)
    rows = rows_with(logger, "stream/hook_us")
    # Updates after the 3rd and the 5th of 6 training steps.
    assert [int(row["step"]) for row in rows] == [6, 10]
    assert all(float(row["stream/hook_us"]) > 0 and 0 < float(row["stream/share"]) < 1 for row in rows)
    assert stream.cost["hook_us"] > 0
    said = capsys.readouterr().out
    assert re.search(r"FrameStream: watch at http://127\.0\.0\.1:8080/\n", said)
    assert re.search(r"FrameStream: [\d.]+ µs a hook, [\d.]+% of the time\n", said)


def test_ends_of_episodes_are_marked_and_films_of_some_written(tmp_path: Path, watched_by: Watching) -> None:
    av = pytest.importorskip("av")
    watched_by("env0")
    folder = tmp_path / "films"
    stream = small(streams=("env0",), record=str(folder), record_every_n_episodes=5)
    made = fit(module(), tmp_path, 40, stream, enable_checkpointing=False)
    _, *metas = server().metas("env0")
    assert len(server().ended) == sum(a["episode"] != b["episode"] for a, b in pairwise(metas)) > 0
    begun = int(made.env.state.episode.sum())
    films = sorted(folder.iterdir())
    numbers = [int(re.fullmatch(r"episode-(\d{9})\.mp4", film.name)[1]) for film in films]  # type: ignore[index]
    assert numbers == sorted(set(numbers))
    assert begun // 5 >= len(films) >= 2
    assert numbers[-1] <= begun
    for film in films:
        with av.open(str(film)) as opened:
            shown = [frame.to_ndarray(format="rgb24") for frame in opened.decode(video=0)]
        assert shown[0].shape == (36, 48, 3)
        # The empty bin, at least one box, and 1.5 s of the end.
        assert len(shown) >= 2 + 6
        assert (shown[0] != shown[-1]).any()


class DrawnTaus(PlacementQuantiles):
    """Decides by τ that are drawn."""

    def forward(self, *inputs: torch.Tensor) -> torch.Tensor:
        *observations, taus = inputs
        return super().forward(*observations, torch.rand_like(taus))


def agents() -> dict[str, Any]:
    """Networks whose greedy answer could leave a trace.

    They have noise in layers, or draw shares at random.
    """
    rainbow = partial(Rainbow, network=partial(PlacementAtoms, num_atoms=5, channels=4, blocks=1))
    iqn = partial(IQN, network=partial(DrawnTaus, channels=4, blocks=1), num_taus=4)
    return {"rainbow": rainbow, "iqn": iqn}


@pytest.mark.parametrize("name", agents())
def test_asking_the_policy_leaves_no_trace(tmp_path: Path, watched_by: Watching, name: str) -> None:
    watched_by("env0:q", "env6:action")
    states = []
    for callbacks in ((), (small(),)):
        torch.manual_seed(7)
        optimizer = partial(torch.optim.Adam, lr=1e-2)
        made = OffPolicy(packing_env(), agents()[name], optimizer, batch_size=16, warmup_frames=48)
        fit(made, tmp_path, 8, *callbacks, enable_checkpointing=False)
        states.append((made.state_dict(), made.env.state_dict(), random_state(made.env.device)))
        assert all(each.training for each in made.agent.modules())
    for without, watched in zip(*states, strict=True):
        assert all(torch.equal(without[key], watched[key]) for key in without)
    assert {name for name, _, _ in server().published} == {"env0:q", "env6:action", *WATCHED}


def test_a_module_without_a_policy_shows_what_needs_none(tmp_path: Path, watched_by: Watching) -> None:
    watched_by("env0:mask")
    trainer = type("Trainer", (), {"is_global_zero": True, "global_step": 1, "loggers": []})()
    made = EnvModule(packing_env())
    stream = small(streams=("env0", "env0:mask"))
    stream.setup(trainer, made, "fit")
    stream.on_fit_start(trainer, made)
    assert list(server().declared) == ["env0", "env0:mask"]
    stream.teardown(trainer, made, "fit")
    with pytest.raises(ValueError, match=r"'env0:q' .*: mask$"):
        small(streams=("env0:q",)).setup(trainer, made, "fit")
    with pytest.raises(ValueError, match=r"viewable: .*`metrics` and `pictures`"):
        small().setup(trainer, LightningModule(), "fit")


def test_an_environment_that_is_not_there(tmp_path: Path, watched_by: Watching) -> None:
    watched_by()
    with pytest.raises(ValueError, match=r"'env8' .*below 8"):
        fit(module(), tmp_path, 2, small(streams=("env8",)), enable_checkpointing=False)


class Visitor(Callback):
    """Look at a stream that nobody named while the run goes on.

    The run ends when a picture has been seen.
    """

    def __init__(self, stream: FrameStream) -> None:
        self.stream, self.seen = stream, b""
        self.thread = threading.Thread(target=self.look, daemon=True)

    def look(self) -> None:
        # Requests wait, except the first: a process of its own has yet to hear of streams.
        for _ in range(2_000):
            try:
                with urllib.request.urlopen(f"{self.stream.url}snapshot.jpg?stream=env6:q", timeout=60) as answer:
                    self.seen = answer.read()
                return
            except urllib.error.HTTPError as error:
                # 503 means no frame within the server's own patience.
                if error.code not in (404, 503):
                    raise

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        self.thread.start()

    def on_train_batch_end(self, trainer: Any, *args: Any) -> None:
        trainer.should_stop = not self.thread.is_alive()


def test_a_visitor_sees_the_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("aiohttp")
    pytest.importorskip("av")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        stream = small(port=port)
        visitor = Visitor(stream)
        fit(module(), tmp_path, 1_000_000, stream, visitor, enable_checkpointing=False, min_epochs=0)
    with Image.open(io.BytesIO(visitor.seen)) as picture:
        assert picture.size == (48, 36)
    found = re.search(r"watch at http://127\.0\.0\.1:(\d+)/", capsys.readouterr().out)
    assert found
    # It is the next port that was free.
    assert port < int(found[1]) < port + 50


class BreaksTheServer(Callback):
    """Ends the server's thread with an error after the second update."""

    def __init__(self, stream: FrameStream) -> None:
        self.stream = stream

    def on_train_batch_end(self, trainer: Any, *args: Any) -> None:
        if trainer.global_step != 2:
            return
        assert self.stream.server is not None
        service = self.stream.server.service
        assert service is not None
        service.hub.tick = lambda: 1 / 0  # type: ignore[method-assign,assignment]
        service.thread.join(300)
        assert not service.thread.is_alive()


def test_a_server_that_dies_costs_one_warning(tmp_path: Path, recwarn: pytest.WarningsRecorder) -> None:
    pytest.importorskip("aiohttp")
    pytest.importorskip("av")
    alone, stream = module(), small(port=0)
    fit(alone, tmp_path / "alone", 8, enable_checkpointing=False)
    made = module()
    recwarn.clear()
    fit(made, tmp_path / "watched", 8, stream, BreaksTheServer(stream), enable_checkpointing=False)
    assert differences(made.state_dict(), alone.state_dict()) == []
    said = [str(each.message) for each in recwarn if "StreamServer" in str(each.message)]
    assert said == ["StreamServer: it failed while it ran: ZeroDivisionError: division by zero"]


@given(st.lists(st.tuples(st.floats(0.0, 5.0), st.floats(0.0, 1.0)), max_size=60), st.floats(0.01, 1.0))
def test_time_of_drawing_stays_within_its_share(steps: list[tuple[float, float]], share: float) -> None:
    budget = TimeBudget(share, burst_s=0.25, silence_s=math.inf)
    now = 100.0
    spent = 0.0
    largest = 0.0
    for pause, cost in steps:
        now += pause
        if budget.allows(now):
            budget.spend(cost)
            spent = spent + cost
            largest = max(largest, cost)
            now = now + cost
        # Never more than the burst, the share of the time, and the one that overdrew.
        assert spent <= 0.25 + share * (now - 100.0) + largest + 1e-6


@given(st.lists(st.floats(0.0, 50.0), min_size=1, max_size=20), st.floats(0.01, 1.0))
def test_however_much_is_spent_the_silence_behind_it_is_bounded(costs: list[float], share: float) -> None:
    budget, now = TimeBudget(share, silence_s=5.0), 100.0
    budget.allows(now)
    for cost in costs:
        budget.spend(cost)
        now += 5.001
        assert budget.allows(now)


def test_an_allowance_by_hand() -> None:
    budget = TimeBudget(0.125, burst_s=0.5, silence_s=math.inf)
    assert budget.allows(10.0)
    # This is 1 s more than there was: 8 s until it is back.
    budget.spend(1.5)
    assert not budget.allows(18.0)
    # There are 0.25 s.
    assert budget.allows(20.0)
    budget.spend(0.25)
    assert not budget.allows(20.0)
    assert budget.allows(1000.0)
    # This is all that can be saved up.
    budget.spend(0.5)
    assert not budget.allows(1000.0)


def test_costs_by_hand() -> None:
    timer = HookTimer(now=5.0)
    timer.add(0.001)
    timer.add(0.003)
    assert timer.cost(now=7.0) == pytest.approx({"hook_us": 2000.0, "share": 0.002})
    assert HookTimer(now=7.0).cost(now=8.0) == {"hook_us": 0.0, "share": 0.0}


@pytest.fixture
def unwatched(watched_by: Watching) -> None:
    watched_by()


def curves() -> dict[str, dict[int, float]]:
    found: dict[str, dict[int, float]] = {}
    for step, scalars in server().logged:
        for name, value in scalars.items():
            found.setdefault(name, {})[step] = value
    return found


@pytest.mark.usefixtures("unwatched")
def test_curves_are_what_the_loggers_of_the_run_get(tmp_path: Path) -> None:
    logger = CSVLogger(tmp_path)
    fit(module(), tmp_path, 12, FrameStream(), enable_checkpointing=False, logger=logger)
    found = curves()
    assert list(found["train/loss"]) == [2, 4, 6, 8, 10, 12], "by updates, of which a training step makes two"
    losses = [float(row["train/loss"]) for row in rows_with(logger, "train/loss")]
    assert list(found["train/loss"].values()) == pytest.approx(losses)
    assert "epoch" not in found


class Extra(Callback):
    def __init__(self, **scalars: float) -> None:
        self.scalars = scalars

    def on_train_batch_end(self, trainer: Any, pl_module: Any, *args: Any) -> None:
        pl_module.log_dict(self.scalars)


@pytest.mark.usefixtures("unwatched")
@pytest.mark.parametrize("logger", [False, True])
def test_scalars_are_read_as_often_as_without(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, logger: bool) -> None:
    from lightning.pytorch.trainer.connectors.logger_connector import logger_connector

    reads = []
    convert = logger_connector.convert_tensors_to_scalars
    monkeypatch.setattr(
        logger_connector, "convert_tensors_to_scalars", lambda metrics: reads.append(None) or convert(metrics)
    )
    counts = []
    for callbacks in ((), (FrameStream(),)):
        loggers: Any = CSVLogger(tmp_path) if logger else False
        fit(module(), tmp_path, 6, *callbacks, enable_checkpointing=False, logger=loggers, log_every_n_steps=2)
        counts.append(len(reads))
        reads.clear()
    assert counts[0] == counts[1]
    assert bool(counts[0]) == bool(curves()) == logger


@pytest.mark.usefixtures("unwatched")
def test_the_loggers_of_the_run_stay_what_they_were(tmp_path: Path) -> None:
    logger = TensorBoardLogger(tmp_path, name="board")
    seen: list[Any] = []

    class Look(Callback):
        def on_train_end(self, trainer: Any, pl_module: Any) -> None:
            seen.extend((trainer.logger, trainer.log_dir, len(trainer.loggers)))

        def teardown(self, trainer: Any, pl_module: Any, stage: str) -> None:
            self.left = list(trainer.loggers)

    look, checkpoint = Look(), ModelCheckpoint()
    fit(module(), tmp_path, 4, FrameStream(), look, checkpoint, logger=logger)
    assert seen == [logger, logger.log_dir, 2]
    assert look.left == [logger]
    assert Path(checkpoint.dirpath or "").parent == Path(logger.log_dir)


@pytest.mark.usefixtures("unwatched")
def test_after_an_error_the_server_has_stopped_and_loggers_are_what_they_were(tmp_path: Path) -> None:
    class Fail(Callback):
        def on_train_batch_end(self, trainer: Any, pl_module: Any, *args: Any) -> None:
            self.trainer = trainer
            raise ZeroDivisionError

    fail, logger = Fail(), CSVLogger(tmp_path)
    with pytest.raises(ZeroDivisionError):
        fit(module(), tmp_path, 4, FrameStream(), fail, enable_checkpointing=False, logger=logger)
    assert fail.trainer.loggers == [logger]
    # It had begun.
    assert server().declared
    assert not server().running


@pytest.mark.usefixtures("unwatched")
def test_long_names_are_cut_and_too_many_warned_of(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(frame_stream, "MOST_CURVES", 3)
    extra = Extra(**{"x" * 40 + "/" + "y" * 40: 1.0, "a": 1.0, "b": 2.0, "c": 3.0, "d": 4.0})
    with pytest.warns(UserWarning, match="FrameStream: the page shows 3 curves; '.*' is not among them") as warned:
        fit(module(), tmp_path, 4, extra, FrameStream(), enable_checkpointing=False, logger=CSVLogger(tmp_path))
    assert len([each for each in warned if "is not among them" in str(each.message)]) == 1
    assert len(curves()) == 3
    assert max(map(len, curves())) <= frame_stream.LONGEST_NAME


def test_scalars_of_every_kind_are_passed_on() -> None:
    trainer: Any = SimpleNamespace(loggers=[None], global_step=3)
    server = FakeServer((), {})
    logger = frame_stream.CurveLogger(trainer, server)
    scalars = {"true": True, "numpy": np.bool_(False), "half": np.float16(0.5), "whole": np.int64(2)}
    logger.log_metrics(scalars | {"tensor": torch.tensor(0.25), "text": "x", "two": np.zeros(2), "none": None})
    assert server.logged == [(3, {"true": 1, "numpy": 0, "half": 0.5, "whole": 2, "tensor": 0.25})]


@pytest.mark.usefixtures("watched_by")
def test_a_stream_that_is_used_again_films_the_run_that_it_watches(tmp_path: Path) -> None:
    pytest.importorskip("av")
    stream = small(streams=("env0",), record=str(tmp_path / "films"), record_every_n_episodes=5)
    for name, size in (("one", 5), ("two", 4)):
        run = module(env={"bin_size": (float(size),) * 3, "resolution": size})
        fit(run, tmp_path / name, 16, stream, enable_checkpointing=False)
    assert len(list((tmp_path / "films").iterdir())) >= 1
