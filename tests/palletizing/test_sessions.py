"""Packing sessions: calls, restarts, undone steps, and messages that are refused."""

from __future__ import annotations

import json
import math
import random
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from tests.palletizing.clients import SMALL, Cell, Plain, same
from torchrl_gpu.palletizing import closed as closed_module
from torchrl_gpu.palletizing import session as session_module
from torchrl_gpu.palletizing import sessions as sessions_module
from torchrl_gpu.palletizing.session import PackingSession, Progress
from torchrl_gpu.palletizing.sessions import PackingSessions
from torchrl_gpu.system import locks

BOX = {"sides": [200, 100, 100], "weight": 2}


def opened(folder: Path, **settings: object) -> Cell:
    cell = Cell(folder)
    cell.ask("open", **(SMALL | settings))
    return cell


def test_a_pallet_from_open_to_close(tmp_path: Path) -> None:
    cell = Cell(tmp_path)
    about = {"cells": [30, 20], "grid": 20.0, "waits": None, "plan": []}
    none = {"packed": 0, "weight": 0.0, "filled": 0.0, "session": "a"}
    assert cell.ask("open", **SMALL, policy="first-fit") == none | about
    place = {"corner": [0.0, 0.0, 0.0], "center": [100.0, 50.0, 0.0], "sides": [200.0, 100.0, 100.0], "turn": 0}
    jam = place | {"id": "jam"}
    assert cell.ask("offer", boxes=[BOX | {"id": "jam"}], request=7) == none | jam | {"box": 0, "request": 7}
    one = {"packed": 1, "weight": 2.0, "filled": round(0.2 * 0.1 * 0.1 / 0.12, 4), "session": "a"}
    assert cell.ask("confirm") == one
    place = cell.ask("offer", boxes=[BOX])
    assert cell.ask("status")["waits"]["center"] == place["center"]
    assert cell.ask("undo") == one
    two = cell.ask("report", center=[300, 200, 0], turn=90, sure=True) if cell.ask("offer", boxes=[BOX]) else {}
    assert (two["packed"], two["weight"]) == (2, 4.0)
    closed = cell.ask("close")
    assert closed["plan"] == [jam, {"center": [300.0, 200.0, 0.0], "turn": 90.0, "sides": [200.0, 100.0, 100.0]}]
    assert (list(tmp_path.iterdir()), cell.sessions.names) == ([], [])


OFFER = ("offer", {"boxes": [BOX]})
FLAT = [[0] * 20] * 30


@pytest.mark.parametrize(
    ("calls", "message"),
    [
        ([("open", SMALL)], "a is open already"),
        ([("confirm", {})], "confirm needs"),
        ([("report", {"center": [1, 1, 1], "turn": 0})], "report needs"),
        ([("undo", {})], "there is nothing to undo"),
        ([OFFER, OFFER], ".*pending box"),
        ([OFFER, ("confirm", {}), ("confirm", {})], "confirm needs"),
        ([("offer", {"boxes": []})], "boxes .*64.* not 0$"),
        ([("offer", {"boxes": [BOX] * 65})], "boxes .*64.* not 65$"),
        ([("offer", {"boxes": BOX})], r"boxes .*64.*'sides'"),
        (
            [("offer", {"boxes": [BOX, 3]})],
            r"boxes\[1\] .*id, sides, weight, fragile, max_load, top_only, bottom_only.* 3$",
        ),
        (
            [("offer", {"boxes": [{"sides": [700, 100, 100]}]})],
            ".*700 × 100 × 100 mm .*longer",
        ),
        (
            [("offer", {"boxes": [{"sides": [100, 100, 501]}]})],
            ".*100 × 100 × 501 mm .*higher",
        ),
        ([("offer", {"boxes": [{"sides": [10, 10]}]})], r"boxes\[0\]: sides .*three.*\[10, 10\]"),
        ([("offer", {"boxes": [{"sides": [10, 10, True]}]})], r"boxes\[0\]: sides .*True$"),
        ([("offer", {"boxes": [{"sides": [10, 10, 0]}]})], r"boxes\[0\]: sides .* 1.* 0$"),
        ([("offer", {"boxes": [{"sides": [10, 10, 10**400]}]})], r"boxes\[0\]: sides .*number.* (10{20,}|an? int)"),
        ([("offer", {"boxes": [BOX | {"weight": -1}]})], r"boxes\[0\]: weight .* 0.* -1$"),
        ([("offer", {"boxes": [BOX | {"fragile": 1}]})], r"boxes\[0\]: fragile .*true or false.* 1$"),
        ([("offer", {"boxes": [BOX | {"top_only": 1}]})], r"boxes\[0\]: top_only .*true or false.* 1$"),
        ([("offer", {"boxes": [BOX | {"bottom_only": "no"}]})], r"boxes\[0\]: bottom_only .*true or false.* 'no'$"),
        ([("offer", {"boxes": [BOX | {"id": [1]}]})], r"boxes\[0\]: id .*\[1\]$"),
        ([("offer", {"boxes": [BOX | {"id": "x" * 101}]})], r"boxes\[0\]: id .* 100 .*xxx"),
        ([("offer", {"boxes": [BOX | {"colour": 1}]})], r"boxes\[0\] .*'colour'"),
        ([OFFER, ("report", {"center": [1, 1], "turn": 0})], r"center .*three.*\[1, 1\]$"),
        ([OFFER, ("report", {"center": [1, 401, 0], "turn": 0})], "center y .*400.* 401$"),
        ([OFFER, ("report", {"center": [1, 1, -11], "turn": 0})], "center z .*-10.* -11$"),
        ([OFFER, ("report", {"center": [1, 1, 0], "turn": "x"})], "turn .*number.*'x'$"),
        (
            [OFFER, ("confirm", {}), OFFER, ("report", {"center": [100, 50, 85], "turn": 3})],
            "center .* 85 mm.* 100$",
        ),
        ([("measure", {"heights": FLAT[1:]})], "heights .*30 .*20 .*29 .*580"),
        (
            [("measure", {"heights": [*FLAT[1:], [0] * 19]})],
            "heights .*30 .*20 .*30 .*599",
        ),
        (
            [("measure", {"heights": [*FLAT[1:], ["0"] * 20]})],
            "heights .*30 .*20 .*other values",
        ),
        ([("measure", {"heights": [*FLAT[1:], [True] * 20]})], "heights .*30 .*20 .*other values"),
        ([("measure", {"heights": [*FLAT[1:], [1001] * 20]})], "heights .*-50.*1000.* 1001$"),
        ([("measure", {"heights": [*FLAT[1:], [10**400] * 20]})], "heights .*-50.*1000 mm.* 10000"),
        ([("measure", {"heights": 3})], "heights .*30 .*20 .* 3$"),
    ],
)
def test_call_that_is_refused_changes_nothing(calls: list[tuple[str, Plain]], message: str, tmp_path: Path) -> None:
    cell = opened(tmp_path, policy="first-fit")
    for do, given in calls[:-1]:
        cell.ask(do, **given)
    before, kept = cell.progress, (tmp_path / "a.json").read_bytes()
    done, answer = cell.tell(calls[-1][0], **calls[-1][1])
    assert not done
    assert re.match(f"session: {message}", answer["message"]), answer
    assert cell.progress is before
    assert (tmp_path / "a.json").read_bytes() == kept


WRONG_SETTINGS: dict[str, list[object]] = {
    "pallet": ["aur", [1, 2], [1, 1, 1], {"length": 1}, [1e9, 1e9, 1e9]],
    "policy": ["/etc/passwd", "random"],
    "grid": [0, 1],
}
WRONG_SETTINGS |= {"rule": ["none of them"], "height": [-1], "noise": [-1]}
WRONG_SETTINGS |= {"weight": [0], "gap": ["wide"], "overhang": [1001], "colour": [3]}


def wrong_openings() -> Iterator[str]:
    for name, values in WRONG_SETTINGS.items():
        for value in values:
            yield json.dumps({"do": "open", "session": "b", name: value})


@pytest.mark.parametrize(
    "message",
    [
        *(b"", b"\xff\xfe", "[]", "3", "[" * 100_000, '{"do": "open"}', '{"do": "open", "session": 3}', "null"),
        *('{"do": ["open"], "session": "a"}', '{"do": "_write", "session": "a"}', '{"session": "a"}'),
        *(json.dumps({"do": "open", "session": name}) for name in ("", "../a", "a/b", "A", "x" * 65, "a.json", ".")),
        '{"do": "undo", "session": "a", "boxes": []}',
        '{"do": "offer", "session": "a"}',
        '{"do": "status", "session": "a", "request": [1]}',
        '{"do": "status", "session": "a", "request": "' + "x" * 101 + '"}',
        '{"do": "open", "session": "b", "weight": NaN}',
        '{"do": "open", "session": "b", "weight": 1e999}',
        '{"do": "open", "session": "b", "weight": ' + "9" * 5000 + "}",
        *wrong_openings(),
        " " * (2**22 + 1),
    ],
)
def test_message_without_its_form_is_refused_in_a_line(message: str | bytes, tmp_path: Path) -> None:
    cell = opened(tmp_path)
    done, answer = cell.sessions.answer(message)
    assert not done
    assert answer["message"].startswith(("session: ", "Pallet: ", "Bin: "))
    assert "\n" not in answer["message"]
    assert len(answer["message"]) < 400
    assert json.loads(json.dumps(answer, allow_nan=False)) == answer
    assert [path.name for path in tmp_path.iterdir()] == ["a.json"]


@pytest.mark.parametrize("boxes", [[{}] * 1200, [[]] * 9000, [""] * 17_000, [1] * 300_000])
def test_message_of_too_many_signs_is_not_parsed(
    boxes: list[object], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cell = opened(tmp_path)
    message = json.dumps({"do": "offer", "session": "a", "boxes": boxes})
    monkeypatch.setattr(json, "loads", None)
    done, answer = cell.sessions.answer(message)
    assert not done
    assert "no message needs more than" in answer["message"]


def play(cell: Cell, seed: int, steps: int) -> Iterator[Plain | tuple[bool, Plain]]:
    """Make random calls, as a client would, and give each answer."""
    rng = random.Random(seed)
    for number in range(steps):
        sides = [rng.randrange(60, 300), rng.randrange(60, 200), rng.randrange(50, 200)]
        box = {"id": number, "sides": sides, "weight": rng.random(), "fragile": rng.random() < 0.1}
        place = cell.ask("offer", boxes=[box, BOX][: rng.randrange(1, 3)])
        yield place
        if place["box"] is None:
            yield cell.tell("undo")
            continue
        way = rng.choice(["confirm", "report", "measure", "undo"])
        center = [each + rng.uniform(-8, 8) for each in place["center"][:2]] + [place["center"][2] + rng.uniform(0, 2)]
        center = [min(max(each, 0), most) for each, most in zip(center, (600, 400, 500), strict=True)]
        seen = (
            cell.heights.clamp_max(999) + torch.rand(30, 20, generator=torch.Generator().manual_seed(number))
        ).tolist()
        given = {"report": {"center": center, "turn": place["turn"] + rng.uniform(-5, 5)}}
        # The client must be sure: the pending box is not on the map.
        given["measure"] = {"heights": seen, "sure": True}
        yield cell.tell(way, **given.get(way, {}))


@pytest.mark.parametrize("rule", ["load_bearing", "support"])
def test_a_restart_goes_on_to_the_same_places(rule: str, tmp_path: Path) -> None:
    through = opened(tmp_path / "one", rule=rule)
    broken = opened(tmp_path / "two", rule=rule)
    for step, (wanted, found) in enumerate(zip(play(through, 3, 13), play(broken, 3, 13), strict=True)):
        assert found == wanted
        broken.sessions = PackingSessions(tmp_path / "two", device="cpu")
        assert same(broken.progress, through.progress), step
    assert through.ask("close") == broken.ask("close")


def test_undo_gives_the_state_before_to_the_bit(tmp_path: Path) -> None:
    cell = opened(tmp_path)
    # Progress after each event that is not undone.
    before: list[Progress] = []
    for _ in play(cell, 5, 12):
        now = cell.progress
        before = [each for each in before if now.events[: len(each.events)] == each.events]
        if now.pending is None and (not before or len(before[-1].events) < len(now.events)):
            before.append(now)
    assert len(before) > 4
    if cell.progress.pending is not None:
        cell.ask("undo")
    for wanted in reversed(before[:-1]):
        while len(cell.progress.events) > len(wanted.events):
            cell.ask("undo")
        assert same(cell.progress, wanted)


def test_a_request_that_is_sent_again_does_nothing_twice(tmp_path: Path) -> None:
    cell = opened(tmp_path)
    first = cell.ask("offer", boxes=[BOX], request="x")
    assert cell.ask("offer", boxes=[BOX], request="x") == first
    assert cell.ask("confirm", request="y")["packed"] == 1
    # Killed before its answer arrived.
    cell.sessions = PackingSessions(tmp_path, device="cpu")
    assert cell.ask("confirm", request="y")["packed"] == 1
    assert cell.tell("confirm", request="z")[1]["request"] == "z"
    assert cell.ask("status")["packed"] == 1


def test_of_several_boxes_one_is_chosen_and_the_others_have_their_reasons(tmp_path: Path) -> None:
    cell = opened(tmp_path, weight=5)
    large = {"sides": [900, 100, 100]}
    assert cell.ask("offer", boxes=[large, BOX | {"id": "it"}])["id"] == "it"
    cell.ask("confirm")
    cell.ask("measure", heights=[[490] * 20] * 30, sure=True)
    found = cell.ask("offer", boxes=[BOX, large])
    assert found["box"] is None
    assert [reason[:10] for reason in found["reasons"]] == ["no room fo", "longer tha"]
    assert cell.ask("status")["waits"] is None


UNFIT: list[Plain] = [{"sides": [900, 100, 100]}, {"sides": [100, 100, 501]}, {"sides": [100, 100, 100], "weight": 51}]


def test_boxes_that_fit_no_empty_pallet_change_no_offer(tmp_path: Path) -> None:
    """Offers are prepared without a test on an empty pallet."""
    plain, mixed = opened(tmp_path / "one", weight=50), opened(tmp_path / "two", weight=50)
    rng = random.Random(4)
    for _ in range(25):
        box = {"sides": [rng.randrange(100, 400), rng.randrange(100, 300), rng.randrange(80, 300)], "weight": 1}
        place, among = plain.ask("offer", boxes=[box]), mixed.ask("offer", boxes=[*UNFIT, box])
        if place["box"] is None:
            assert among["reasons"][3:] == place["reasons"]
            assert [reason[:6] for reason in among["reasons"][:3]] == ["longer", "higher", "heavie"]
            continue
        assert among | {"box": 0} == place
        plain.ask("confirm")
        mixed.ask("confirm")
    assert plain.ask("offer", boxes=[{"sides": [600, 400, 400]}])["box"] is None


@pytest.mark.parametrize("settings", [{}, {"gap": 15}, {"overhang": 30}, {"grid": 7, "gap": 3}])
def test_report_of_the_offered_place_is_a_confirmation(settings: Plain, tmp_path: Path) -> None:
    told, reported = opened(tmp_path / "one", **settings), opened(tmp_path / "two", **settings)
    rng = random.Random(1)
    for _ in range(12):
        box = {"sides": [rng.randrange(60, 300), rng.randrange(60, 200), rng.randrange(50, 150)]}
        place = told.ask("offer", boxes=[box])
        assert reported.ask("offer", boxes=[box]) == place
        if place["box"] is None:
            continue
        told.ask("confirm")
        reported.ask("report", center=place["center"], turn=place["turn"])
        assert torch.allclose(told.heights, reported.heights, atol=1e-3)
        assert torch.equal(told.progress.loaded.bears, reported.progress.loaded.bears)


def test_reported_box_bears_load_where_it_lies(tmp_path: Path) -> None:
    cell = opened(tmp_path)
    for sides, turn, center in (([200, 100, 100], 90, [300, 200, 0]), ([240, 300, 50], 0, [302, 199, 101])):
        cell.ask("offer", boxes=[{"sides": sides}])
        cell.ask("report", center=center, turn=turn, sure=True)
    bears = torch.ones(30, 20, dtype=torch.bool)
    # Of the upper box those cells alone bear load that are above the cells that the lower one fills.
    bears[9:22, 2:18] = False
    bears[13:17, 5:15] = True
    found = cell.progress.loaded.bears[0, 0]
    assert (found >= bears).all()
    assert not found[9:12, 3:17].any()
    assert not found[18:21, 3:17].any()


def test_cells_that_a_turned_box_reaches_into(tmp_path: Path) -> None:
    cell = opened(tmp_path, grid=10)
    for turn in (0, 30, 45, 90, -200):
        cell.ask("offer", boxes=[{"sides": [240, 120, 100]}])
        cell.ask("report", center=[303, 207, 0], turn=turn, sure=True)
        x, y = torch.meshgrid(torch.arange(60) * 10.0 + 5 - 303, torch.arange(40) * 10.0 + 5 - 207, indexing="ij")
        cos, sin = math.cos(math.radians(turn)), math.sin(math.radians(turn))
        out_u, out_v = (x * cos + y * sin).abs() - 120, (y * cos - x * sin).abs() - 60
        inside, near = (out_u < 0) & (out_v < 0), out_u.clamp_min(0).hypot(out_v.clamp_min(0)) < math.hypot(5, 5)
        taken = cell.heights > 99
        assert (taken >= inside).all()
        assert (taken <= near).all()
        cell.ask("undo")
        assert not cell.heights.any()


def test_measured_heights_replace_the_heightmap_but_for_noise(tmp_path: Path) -> None:
    cell = opened(tmp_path, policy="first-fit")
    cell.ask("offer", boxes=[BOX])
    expected = torch.zeros(30, 20)
    expected[:10, :5] = 100
    noise = 9.8 * torch.rand(30, 20, generator=torch.Generator().manual_seed(0)) - 4.9
    assert cell.ask("measure", heights=(expected + noise).tolist())["packed"] == 1
    assert torch.allclose(cell.heights, expected, atol=1e-3)
    seen = expected + noise
    seen[20:, 10:] = 250.04
    seen[20:, :10] = 8
    assert cell.ask("measure", heights=seen.tolist(), sure=True)["packed"] == 1
    expected[20:, 10:] = 250
    expected[20:, :10] = 8
    assert torch.allclose(cell.heights, expected, atol=1e-3)
    exact = opened(tmp_path / "exact", noise=0)
    exact.ask("measure", heights=seen.tolist(), sure=True)
    assert torch.allclose(exact.heights, (10 * seen).round().clamp_min(0) / 10, atol=1e-3)


def test_fragile_boxes_stay_fragile_next_to_others(tmp_path: Path) -> None:
    cell = opened(tmp_path, policy="first-fit")
    for fragile in (True, False):
        cell.ask("offer", boxes=[{"sides": [600, 200, 50], "fragile": fragile}])
        cell.ask("confirm")
    cell.ask("measure", heights=[[50] * 20] * 30)
    for _ in range(6):
        assert cell.ask("offer", boxes=[BOX])["corner"][1] >= 200
        cell.ask("confirm")


@pytest.mark.parametrize("way", ["confirm", "report", "measure"])
def test_nothing_goes_on_what_is_fragile(way: str, tmp_path: Path) -> None:
    cell = opened(tmp_path, policy="first-fit")
    place = cell.ask("offer", boxes=[{"sides": [600, 400, 50], "fragile": True}])
    given = {"report": {"center": place["center"], "turn": 0}, "measure": {"heights": [[50] * 20] * 30}}
    cell.ask(way, **given.get(way, {}))
    assert cell.ask("offer", boxes=[BOX])["box"] is None
    cell.ask("measure", heights=[[50] * 20] * 30)
    assert cell.ask("offer", boxes=[BOX])["box"] is None
    cell.ask("undo")
    cell.ask("undo")
    assert cell.ask("offer", boxes=[BOX])["center"][2] == 0


def test_nothing_goes_on_a_box_that_is_top_only(tmp_path: Path) -> None:
    cell = opened(tmp_path, policy="first-fit")
    cell.ask("offer", boxes=[{"sides": [600, 400, 50], "top_only": True}])
    cell.restart()
    cell.ask("confirm")
    assert cell.ask("offer", boxes=[BOX])["box"] is None
    cell.restart()
    assert cell.ask("offer", boxes=[BOX])["box"] is None


@pytest.mark.parametrize("overhang", [0, 20])
def test_box_that_is_bottom_only_stands_on_the_pallet_itself(overhang: int, tmp_path: Path) -> None:
    cell = opened(tmp_path, policy="first-fit", overhang=overhang)
    cell.ask("offer", boxes=[{"sides": [400, 400, 50]}])
    cell.ask("confirm")
    heavy = {"sides": [200, 400, 100], "bottom_only": True, "id": "safe"}
    # The upper layer has room for it as well, and `first-fit` prefers that.
    place = cell.ask("offer", boxes=[heavy])
    assert place["center"][0] >= 480
    assert place["center"][2] == 0
    cell.restart()
    cell.ask("confirm")
    assert cell.ask("offer", boxes=[heavy])["box"] is None
    assert cell.ask("offer", boxes=[heavy | {"bottom_only": False}])["box"] == 0


def test_boxes_bear_their_most_load(tmp_path: Path) -> None:
    cell = opened(tmp_path, policy="first-fit")
    for weight in (9, 4, 3):
        cell.ask("offer", boxes=[{"sides": [600, 400, 50], "weight": weight, "max_load": 7}])
        cell.ask("confirm")
    assert cell.ask("offer", boxes=[{"sides": [600, 400, 50], "weight": 1}])["box"] is None
    cell.ask("undo")
    assert cell.ask("offer", boxes=[{"sides": [600, 400, 50], "weight": 5}])["box"] is None
    assert cell.ask("offer", boxes=[BOX | {"weight": 0}])["box"] is None
    cell.sessions = PackingSessions(tmp_path, device="cpu")
    assert cell.ask("offer", boxes=[{"sides": [600, 400, 50], "weight": 3}])["box"] == 0


def test_limits_of_sessions_events_and_undone_heightmaps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session_module, "MOST_EVENTS", 12)
    cell = Cell(tmp_path, most=1)
    cell.ask("open", **SMALL, noise=0)
    assert "1 sessions are open" in cell.sessions.answer('{"do": "open", "session": "b"}')[1]["message"]
    for number in range(12):
        cell.ask("measure", heights=[[number] * 20] * 30)
    assert "has 12 boxes and heightmaps" in cell.tell("measure", heights=FLAT)[1]["message"]
    assert "has 12 boxes and heightmaps" in cell.tell("offer", boxes=[BOX])[1]["message"]
    assert (tmp_path / "a.json").read_text().count('"heights": null') == 4
    cell.sessions = PackingSessions(tmp_path, device="cpu")
    for number in range(10, 2, -1):
        cell.ask("undo")
        cell.restart()
        assert (cell.heights - number).abs().max() < 1e-3
    assert "undo reaches back over 8 measured heightmaps" in cell.tell("undo")[1]["message"]


@pytest.mark.parametrize("maps", [8, 9])
def test_undo_reaches_the_empty_pallet_over_nine_heightmaps(maps: int, tmp_path: Path) -> None:
    """Before the first of nine heightmaps, which was removed, are boxes alone."""
    cell = opened(tmp_path, noise=0)
    states = [cell.progress]
    cell.ask("offer", boxes=[BOX])
    cell.ask("confirm")
    states.append(cell.progress)
    for number in range(maps):
        cell.ask("measure", heights=[[number] * 20] * 30, sure=True)
        states.append(cell.progress)
    for wanted in reversed(states[:-1]):
        cell.ask("undo")
        cell.restart()
        assert len(cell.progress.events) == len(wanted.events)
        for one, other in zip(cell.progress.loaded, wanted.loaded, strict=True):
            assert torch.equal(one, other)
    assert "there is nothing to undo" in cell.tell("undo")[1]["message"]
    # What was removed is needed no more.
    assert cell.progress.cut is None


def test_session_is_unchanged_where_its_file_cannot_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cell = opened(tmp_path)

    def full(*_: object) -> None:
        raise OSError("no space left")

    monkeypatch.setattr(sessions_module, "publish", full)
    with pytest.raises(OSError, match="no space left"):
        cell.ask("offer", boxes=[BOX])
    monkeypatch.undo()
    assert cell.ask("status")["waits"] is None
    assert cell.ask("offer", boxes=[BOX])["box"] == 0


def kept(**changes: object) -> Plain:
    """Content of the file of a session."""
    return {"format": sessions_module.FORMAT, "opened": {}, "events": [], "waits": None, "last": None} | changes


EVENT = {"box": BOX, "told": {}, "z": 0.0, "turn": 0, "x": 0, "y": 0}


@pytest.mark.parametrize(
    "content",
    [
        *({}, [], kept(format="another"), kept(opened=3), kept(opened={"policy": "../x"})),
        *(kept(events=events) for events in (3, [3], [EVENT] * 1025)),
        *(kept(events=[EVENT | {"x": 500}]), kept(events=[EVENT | {"turn": 2}]), kept(events=[EVENT | {"z": "0"}])),
        *(kept(events=[EVENT | {"told": 3}]), kept(events=[EVENT | {"box": {}}]), kept(events=[EVENT | {"a": 1}])),
        *(kept(events=[{"box": None, "heights": text}]) for text in ("????", "eJwDAAAAAAE=", 3)),
        kept(waits={"box": None, "heights": None}),
    ],
)
def test_error_names_file_that_is_no_session(content: object, tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text(json.dumps(content))
    with pytest.raises(ValueError, match=r"^PackingSessions: .*a.json is not a packing session: ") as caught:
        PackingSessions(tmp_path, device="cpu")
    assert "\n" not in str(caught.value)


def test_file_of_a_session_is_read(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text(json.dumps(kept(events=[EVENT], waits=EVENT)))
    cell = Cell(tmp_path)
    assert cell.ask("confirm")["packed"] == 2


def test_a_session_is_a_value(tmp_path: Path) -> None:
    """Calls do not change the progress that they are given."""
    session = PackingSession(SMALL, "cpu")
    begin = session.begin()
    offered, _ = session.offer(begin, [BOX])
    placed, _ = session.confirm(offered)
    assert same(begin, session.begin())
    assert same(session.restore([event.to_json() for event in placed.events], None), placed)


# -- answers that are lost, restarts, and what was cut ---------------------------------------------------------------


def messages(cell: Cell, seed: int, steps: int) -> Iterator[tuple[str, Plain]]:
    """Random messages of every kind, as the state of a cell allows.

    Many of them are heightmaps. The last one closes the session.
    """
    rng = random.Random(seed)
    for number in range(steps):
        pending = cell.progress.pending
        if pending is None:
            do = rng.choice(["offer", "offer", "offer", "measure", "measure", "undo", "status"])
        else:
            do = rng.choice(["confirm", "report", "measure", "measure", "undo", "status"])
        given: Plain = {}
        if do == "offer":
            sides = [rng.randrange(60, 300), rng.randrange(60, 200), rng.randrange(10, 60)]
            limit = {"max_load": 10} if rng.random() < 0.2 else {}
            given = {"boxes": [{"id": number, "sides": sides, "weight": rng.random()} | limit]}
        elif do == "report":
            x, y, z = pending.answer["center"]
            given = {"center": [x + rng.uniform(-9, 9), y + rng.uniform(-9, 9), z + rng.uniform(0, 3)], "sure": True}
            given["center"] = [max(0, min(each, most)) for each, most in zip(given["center"], SIDES, strict=True)]
            given["turn"] = pending.answer["turn"] + rng.uniform(-4, 4)
        elif do == "measure":
            noise = torch.rand(cell.heights.shape, generator=torch.Generator().manual_seed(number))
            given = {"heights": (cell.heights + 14 * noise - 4).clamp(-50, 900).tolist(), "sure": True}
        yield do, given
    yield "close", {}


SIDES = (600, 400, 500)


@pytest.mark.parametrize(("seed", "settings"), [(1, {}), (2, {"rule": "support", "overhang": 30}), (4, {"gap": 10})])
def test_lost_answers_and_restarts_change_nothing(seed: int, settings: Plain, tmp_path: Path) -> None:
    """After each message the server is killed, and the client sends it again.

    All is as if neither had happened.
    """
    through = opened(tmp_path / "one", **settings)
    broken = opened(tmp_path / "two", **settings)
    rng, measured = random.Random(seed), 0
    for number, (do, given) in enumerate(messages(through, seed, 70)):
        wanted = through.tell(do, **given, request=number)
        # Killed before the message arrives.
        if rng.random() < 0.3:
            broken.restart()
        assert broken.tell(do, **given, request=number) == wanted
        # The answer is lost, some times over.
        for _ in range(rng.randrange(3)):
            if rng.random() < 0.5:
                broken.restart()
            if wanted[0]:
                assert broken.tell(do, **given, request=number) == wanted
        measured += do == "measure" and wanted[0]
        if do != "close":
            assert same(broken.progress, through.progress), number
    assert measured > 9
    assert wanted[0]
    assert broken.sessions.names == []


def test_what_is_below_a_removed_heightmap_stays(tmp_path: Path) -> None:
    """A height within the noise of an older map, which the file has no more."""
    cell = opened(tmp_path)
    cell.ask("measure", heights=[[10] * 20] * 30)
    # 10 is expected, and 4 more is noise.
    for _ in range(9):
        cell.ask("measure", heights=[[14] * 20] * 30)
    cell.restart()
    assert cell.ask("offer", boxes=[BOX])["center"][2] == 10
    cell.ask("undo")
    cell.ask("undo")
    assert cell.ask("offer", boxes=[BOX])["center"][2] == 10


def test_a_file_of_the_first_format_is_read_unless_its_state_is_lost(tmp_path: Path) -> None:
    first = "torchrl_gpu packing session, 1"
    (tmp_path / "a.json").write_text(json.dumps(kept(format=first, events=[EVENT])))
    cell = Cell(tmp_path)
    assert cell.ask("close", request=1)["packed"] == 1
    assert cell.ask("close", request=1)["packed"] == 1
    (tmp_path / "b.json").write_text(json.dumps(kept(format=first, events=[{"box": None, "heights": None}])))
    with pytest.raises(ValueError, match=r"b.json.*removed by an earlier version"):
        cell.restart()


@pytest.mark.parametrize(
    "change",
    [
        {"heightmap": ""},
        {"heightmap": "eJwDAAAAAAE="},
        {"bears": 3},
        {"boxes": 10**6},
        {"weight": -1},
        {"volume": "much"},
        {"left": "eJwDAAAAAAE="},
        {"colour": 1},
    ],
)
def test_snapshot_that_no_pallet_has_is_refused(change: Plain, tmp_path: Path) -> None:
    cell = opened(tmp_path)
    for _ in range(9):
        cell.ask("measure", heights=[[10] * 20] * 30)
    path = tmp_path / "a.json"
    content = json.loads(path.read_text(encoding="utf-8"))
    content["state"] |= change
    path.write_text(json.dumps(content), encoding="utf-8")
    with pytest.raises(ValueError, match=r"a.json is not a packing session: session: state") as caught:
        cell.restart()
    assert "\n" not in str(caught.value)


# -- sessions that are closed ----------------------------------------------------------------------------------------


def packed_and_closed(folder: Path, **options: object) -> tuple[Cell, Plain]:
    cell = Cell(folder, **options)
    cell.ask("open", **SMALL)
    cell.ask("offer", boxes=[BOX])
    cell.ask("confirm")
    return cell, cell.ask("close", request="last")


def test_the_answer_of_a_close_is_kept_for_a_day(tmp_path: Path) -> None:
    time_s = [1e9]
    cell, closed = packed_and_closed(tmp_path, now=lambda: time_s[0])
    assert len(closed["plan"]) == 1
    for hours in (0, 10, 23.9):
        time_s[0] = 1e9 + 3600 * hours
        assert cell.ask("close", request="last") == closed
        cell.sessions = PackingSessions(tmp_path, device="cpu", now=lambda: time_s[0])
        assert cell.ask("close", request="last") == closed
    time_s[0] = 1e9 + 24 * 3600
    assert cell.tell("close", request="last")[1]["message"].startswith("session: a is not open. ")
    assert list((tmp_path / "closed").iterdir()) == []
    cell.sessions = PackingSessions(tmp_path, device="cpu", now=lambda: time_s[0])
    assert not cell.tell("close", request="last")[0]


def test_a_session_of_the_same_name_is_another_one(tmp_path: Path) -> None:
    cell, closed = packed_and_closed(tmp_path)
    cell.ask("open", **SMALL)
    cell.ask("offer", boxes=[BOX | {"id": "second"}])
    cell.ask("confirm")
    # The first answer was lost.
    assert cell.ask("close", request="last") == closed
    cell.restart()
    assert cell.ask("close", request="last") == closed
    assert cell.sessions.names == ["a"]
    assert cell.ask("close", request="new")["plan"][0]["id"] == "second"
    cell.restart()
    assert cell.ask("close", request="last") == closed


def test_a_close_that_is_cut_short_is_finished(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    unlink = Path.unlink

    def killed(path: Path, missing_ok: bool = False) -> None:
        raise OSError("killed")

    monkeypatch.setattr(Path, "unlink", killed)
    with pytest.raises(OSError, match="killed"):
        packed_and_closed(tmp_path)
    monkeypatch.setattr(Path, "unlink", unlink)
    assert (tmp_path / "a.json").is_file()
    cell = Cell(tmp_path)
    assert cell.sessions.names == []
    assert len(cell.ask("close", request="last")["plan"]) == 1
    assert not (tmp_path / "a.json").exists()


def test_closed_sessions_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(closed_module, "MOST_KEPT", 3)
    for number in range(5):
        cell = Cell(tmp_path, name=f"a{number}")
        cell.ask("open", **SMALL)
        cell.ask("close", request=number)
    answered = []
    for number in range(5):
        cell.name = f"a{number}"
        answered.append(cell.tell("close", request=number)[0])
    assert answered == [False, False, True, True, True]
    monkeypatch.setattr(closed_module, "MOST_KEPT_BYTES", 1)
    cell.restart()
    assert list((tmp_path / "closed").iterdir()) == []


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"format": "torchrl_gpu closed packing session, 1"}'])
def test_a_file_that_is_no_closed_session_is_named(content: str, tmp_path: Path) -> None:
    packed_and_closed(tmp_path)
    (path,) = (tmp_path / "closed").iterdir()
    path.write_text(content, encoding="utf-8")
    with pytest.raises(ValueError, match=path.name) as caught:
        PackingSessions(tmp_path, device="cpu")
    assert "\n" not in str(caught.value)


# -- one server for a folder -----------------------------------------------------------------------------------------

_HOLDS = """
import fcntl, os, sys
fcntl.flock(os.open(sys.argv[1], os.O_RDONLY), fcntl.LOCK_EX)
print("held", flush=True)
sys.stdin.read()
"""


def test_a_folder_has_one_server(tmp_path: Path) -> None:
    pytest.importorskip("fcntl")
    cell = opened(tmp_path)
    with pytest.raises(BlockingIOError):
        locks.lock(tmp_path)
    cell.sessions.close()
    assert "not served any more" in cell.tell("status")[1]["message"]
    pipe = subprocess.PIPE
    with subprocess.Popen([sys.executable, "-c", _HOLDS, str(tmp_path)], stdin=pipe, stdout=pipe, text=True) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        with pytest.raises(ValueError, match="is served by") as refused:
            PackingSessions(tmp_path, device="cpu")
        holder.kill()
    message = str(refused.value)
    assert message.startswith(f"PackingSessions: {tmp_path} is served by ")
    assert "\n" not in message
    if Path("/proc/self/fd").is_dir():
        assert f"process {holder.pid} (" in message
    # The system freed the lock.
    cell.restart()
    cell.ask("status")


def test_the_newest_sessions_of_a_process_take_a_folder_over(tmp_path: Path) -> None:
    cell = opened(tmp_path)
    newer = Cell(tmp_path)
    assert "taken over" in cell.tell("offer", boxes=[BOX])[1]["message"]
    newer.ask("offer", boxes=[BOX])


# -- what is measured ------------------------------------------------------------------------------------------------

LARGE = {"sides": [300, 200, 100], "id": "jam"}


@pytest.mark.parametrize(
    ("center", "turn", "words"),
    [
        # In metres.
        ([0.15, 0.1, 0], 0, ["offered at x 150, y 100 mm", "reported at x 0.15, y 0.1 mm", "180 mm away"]),
        # In centimetres.
        ([15, 10, 0], 0, ["offered at x 150, y 100 mm", "162 mm away"]),
        ([400, 300, 0], 0, ["320 mm away, more than 100 mm"]),
        ([90, 100, 0], 0, ["60 mm over the edge of the pallet along x"]),
        ([150, 40, 0], 0, ["60 mm over the edge of the pallet along y"]),
        ([150, 100, 40], 0, ["expected at 0 mm", "reported at 40 mm, 40 mm higher"]),
        ([150, 100, 0], 90, ["offered as 0 and reported as 90 degrees, 90 degrees away"]),
    ],
)
def test_a_doubtful_report_is_asked_back(center: list[float], turn: float, words: list[str], tmp_path: Path) -> None:
    cell = opened(tmp_path, policy="first-fit")
    cell.ask("offer", boxes=[LARGE])
    before = cell.progress
    done, answer = cell.tell("report", center=center, turn=turn)
    assert not done
    for each in [*words, "sure: true"]:
        assert each in answer["message"]
    assert cell.progress is before
    assert cell.ask("report", center=center, turn=turn, sure=True)["packed"] == 1


@pytest.mark.parametrize("sure", [False, True])
@pytest.mark.parametrize(
    ("center", "words"),
    [
        ([150, 100, 300], "center z must be at most"),
        ([150, 100, 900], "center z must be at most"),
        ([-150, 100, 0], "center x must be at least"),
        ([150, 100, -40], "center z must be at least"),
        ([None, 100, 0], "center x must be a finite number"),
    ],
)
def test_a_report_that_cannot_be_is_refused(center: list[float], words: str, sure: bool, tmp_path: Path) -> None:
    cell = opened(tmp_path, policy="first-fit")
    cell.ask("offer", boxes=[LARGE])
    before = cell.progress
    done, answer = cell.tell("report", center=center, turn=0, sure=sure)
    assert not done
    assert words in answer["message"]
    assert cell.progress is before


def test_a_turn_in_radians_is_asked_back(tmp_path: Path) -> None:
    cell = opened(tmp_path, pallet=[200, 400, 500], policy="first-fit")
    place = cell.ask("offer", boxes=[{"sides": [300, 100, 100]}])
    assert place["turn"] == 90
    assert "turn was offered as 90" in cell.tell("report", center=place["center"], turn=1.5708)[1]["message"]
    cell.ask("report", center=place["center"], turn=-90)


def heights_of(cell: Cell, way: str) -> list[list[float]]:
    """A map that a camera might give of a box in a corner, 300 × 200 × 100 mm."""
    seen = cell.heights.clone()
    if way == "covered":
        seen[:] = 0
    elif way == "half covered":
        seen[:8] = 0
    elif way == "metres":
        seen /= 1000
    elif way == "mirrored":
        seen = seen.flip(0)
    elif way == "another box":
        seen[20:26, 12:18] = 150
    elif way == "too high":
        seen += 120
    elif way == "shifted":
        seen = seen.roll((1, 1), (0, 1))
    elif way == "specks":
        seen[::14, ::10] = 300
    elif way == "tilted":
        seen += torch.linspace(-12, 12, 30)[:, None]
    heights: list[list[float]] = seen.tolist()
    return heights


@pytest.mark.parametrize("way", ["covered", "half covered", "metres", "mirrored", "another box", "too high"])
def test_a_doubtful_heightmap_is_asked_back(way: str, tmp_path: Path) -> None:
    cell = opened(tmp_path, policy="first-fit")
    cell.ask("offer", boxes=[LARGE])
    cell.ask("confirm")
    before, seen = cell.progress, heights_of(cell, way)
    done, answer = cell.tell("measure", heights=seen)
    assert not done
    assert re.search(
        r"at \[\d+\]\[\d+\] -?\d+ mm were expected and -?\d+ mm measured, \d+ mm (more|less)", answer["message"]
    )
    assert "sure: true" in answer["message"]
    assert cell.progress is before
    cell.ask("measure", heights=seen, sure=True)


@pytest.mark.parametrize("way", ["as it is", "shifted", "specks", "tilted"])
def test_a_heightmap_of_a_real_camera_is_taken(way: str, tmp_path: Path) -> None:
    cell = opened(tmp_path, policy="first-fit")
    cell.ask("offer", boxes=[LARGE])
    cell.ask("confirm")
    cell.ask("measure", heights=heights_of(cell, way))


@pytest.mark.parametrize(
    "where", [{"do": "report", "center": [1, 1, 0], "turn": 0}, {"do": "measure", "heights": FLAT}]
)
def test_sure_is_true_or_false(where: Plain, tmp_path: Path) -> None:
    cell = opened(tmp_path)
    cell.ask("offer", boxes=[BOX])
    done, answer = cell.sessions.answer(json.dumps(where | {"session": "a", "sure": "yes"}))
    assert not done
    assert "sure must be true or false" in answer["message"]


@pytest.mark.parametrize("grid", [10, 20])
@pytest.mark.parametrize("taller", [8, 30, 250])
@pytest.mark.parametrize("shift", [-9, 0, 9])
def test_a_box_lies_on_what_is_below_and_not_on_its_neighbour(
    shift: float, taller: float, grid: int, tmp_path: Path
) -> None:
    """A box is reported 9 mm into the taller of two piles side by side.

    Its load counts on the lower one, on which it lies.
    """
    cell = opened(tmp_path, pallet=[600, 400, 500], grid=grid, policy="first-fit")
    below = {"sides": [200, 400, 100], "weight": 1, "max_load": 10}
    beside = {"sides": [200, 400, 100 + taller], "weight": 1, "max_load": 10}
    for box, x in ((below, 100), (beside, 300)):
        cell.ask("offer", boxes=[box])
        cell.ask("report", center=[x, 200, 0], turn=0, sure=True)
    cell.ask("offer", boxes=[{"sides": [200, 400, 50], "weight": 8}])
    cell.ask("report", center=[100 + shift, 200, 100], turn=0, sure=True)
    loaded = cell.progress.loaded
    assert loaded.left[0, 0, :2].tolist() == [2.0, 10.0]
    assert loaded.below[0, 0, 2, :3].tolist() == [True, False, True]
    # The neighbour still bears 10 kg, and the lower pile what is left of its own.
    room = loaded.loads.room()[0]
    assert room[: 180 // grid].unique().tolist() == [2.0]
    assert room[220 // grid : 390 // grid].unique().tolist() == [10.0]
    assert loaded.bears[0, 0, 20 // grid : 180 // grid].all()
    assert cell.heights[220 // grid + 1, 5] == 100 + taller
