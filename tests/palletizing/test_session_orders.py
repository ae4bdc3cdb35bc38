"""Packing sessions that are given their whole order."""

from __future__ import annotations

import itertools
import json
import math
import random
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from tests.palletizing.clients import SMALL, Cell, Plain, same
from torchrl_gpu.palletizing import pack
from torchrl_gpu.palletizing import session as session_module
from torchrl_gpu.palletizing.planned_places import LyingBox
from torchrl_gpu.palletizing.session import PackingSession
from torchrl_gpu.palletizing.sessions import PackingSessions

# Sixty of these fill the small pallet.
BRICK = {"sides": [200, 100, 100], "weight": 2}
A: Plain = {"id": "A", "sides": [231, 187, 120], "weight": 6, "quantity": 9}
B: Plain = {"id": "B", "sides": [190, 133, 96], "weight": 3, "quantity": 14}
C: Plain = {"id": "C", "sides": [310, 205, 150], "weight": 9, "quantity": 4}
D: Plain = {"id": "D", "sides": [151, 118, 77], "weight": 1, "quantity": 11}
MIXED = [A, B, C, D]


def opened(folder: Path, **settings: object) -> Cell:
    cell = Cell(folder)
    cell.ask("open", **(SMALL | settings))
    return cell


def fetch_all(cell: Cell) -> list[Plain]:
    """Place the whole order as the plan asks for it."""
    found = []
    while True:
        place = cell.ask("offer")
        if place["box"] is None:
            if not place["left"]:
                return found
            cell.ask("next")
            continue
        found.append(place)
        cell.ask("confirm")


def shuffled(order: list[Plain], seed: int) -> list[Plain]:
    """Lines of one box each, in a random order."""
    boxes = []
    for line in order:
        box = {name: value for name, value in line.items() if name != "quantity"}
        boxes += [box] * line["quantity"]
    random.Random(seed).shuffle(boxes)
    return boxes


def apart_along(axis: int, one: tuple[float, ...], other: tuple[float, ...]) -> float:
    """How far two boxes, corner and sides, are apart, negative for an overlap."""
    return max(one[axis] - other[axis] - other[axis + 3], other[axis] - one[axis] - one[axis + 3])


def check_load(
    placed: list[Plain],
    pallet: tuple[float, float, float],
    *,
    over: float = 0.0,
    gap: float = 0.0,
    least_held: float = 0.69,
) -> None:
    """Check by lengths that boxes of one pallet are inside, apart, and held."""
    boxes = [(*each["corner"], *each["sides"]) for each in placed]
    for x, y, z, length, width, height in boxes:
        assert min(x, y) >= -over - 0.01
        assert x + length <= pallet[0] + over + 0.01
        assert y + width <= pallet[1] + over + 0.01
        assert z + height <= pallet[2] + 0.01
        if z == 0:
            continue
        held = 0.0
        for a, b, c, across, along, up in boxes:
            shared_x = min(x + length, a + across) - max(x, a)
            shared_y = min(y + width, b + along) - max(y, b)
            if min(shared_x, shared_y) > 0 and abs(c + up - z) < 1.5:
                held += shared_x * shared_y
        assert held >= least_held * length * width
    for one, other in itertools.combinations(boxes, 2):
        aside = max(apart_along(0, one, other), apart_along(1, one, other))
        assert aside >= gap - 0.01 or apart_along(2, one, other) >= -0.01


# -- plans that are followed -----------------------------------------------------------------------------------------


def test_order_of_one_article_of_which_64_fit_places_64(tmp_path: Path) -> None:
    carton = {"sides": [400, 300, 185], "weight": 8}
    order = [carton | {"quantity": 64}]
    fetched = opened(tmp_path / "fetched", pallet="eur", grid=10, order=order)
    status = fetched.ask("status")
    arriving = opened(tmp_path / "arriving", pallet="eur", grid=10, order=order)
    assert status["pallets"] == 1
    placed = fetch_all(fetched)
    assert [each["planned"] for each in placed] == [True] * 64
    check_load(placed, (1200, 800, 1500))
    for _ in range(64):
        assert arriving.ask("offer", boxes=[carton])["planned"]
        arriving.ask("confirm")
    assert arriving.ask("status")["filled"] == fetched.ask("status")["filled"] == round(64 * 0.0222 / 1.44, 4)


def test_mixed_order_that_is_fetched_needs_the_pallets_of_pack(tmp_path: Path) -> None:
    text = "length_mm,width_mm,height_mm,qty,weight kg\n"
    for line in MIXED:
        text += ",".join(str(each) for each in [*line["sides"], line["quantity"], line["weight"]]) + "\n"
    (tmp_path / "order.csv").write_text(text, encoding="utf-8")
    wanted = len(pack(tmp_path / "order.csv", "600x400x500mm", device="cpu").pallets())
    assert wanted > 1
    cell = opened(tmp_path / "cell", order=MIXED)
    status = cell.ask("status")
    assert status["pallets"] == wanted
    placed = fetch_all(cell)
    assert len(placed) == sum(line["quantity"] for line in MIXED)
    closed = cell.ask("close")
    assert (closed["pallet"], closed["left"], closed["rest"]) == (wanted, 0, [])
    assert [row["id"] for row in closed["plan"]] == [place["id"] for place in placed]
    for number in range(wanted):
        check_load([row for row in closed["plan"] if row["pallet"] == number + 1], (600, 400, 500))


@pytest.mark.parametrize("settings", [{"gap": 12}, {"overhang": 20}, {"weight": 60}, {"rule": "support"}])
def test_settings_of_the_pallet_hold_for_planned_places(settings: Plain, tmp_path: Path) -> None:
    cell = opened(tmp_path, order=MIXED, **settings)
    fetch_all(cell)
    closed = cell.ask("close")
    weights = {line["id"]: line["weight"] for line in MIXED}
    for number in range(closed["pallet"]):
        load = [row for row in closed["plan"] if row["pallet"] == number + 1]
        assert "-0.0" not in json.dumps(load)
        if settings.get("rule") != "support":
            check_load(load, (600, 400, 500), over=settings.get("overhang", 0), gap=settings.get("gap", 0))
        assert sum(weights[row["id"]] for row in load) <= settings.get("weight", math.inf)


def test_open_says_what_comes_next_and_what_fits_no_pallet(tmp_path: Path) -> None:
    order = [BRICK | {"quantity": 2, "id": "brick"}, {"sides": [900, 100, 100]}]
    cell = opened(tmp_path, order=order)
    status = cell.ask("status")
    assert status["left_out"] == [{"line": 1, "reason": "longer than the pallet"}]
    assert (status["left"], status["pallets"], status["note"]) == (2, 1, "")
    to_come = status["to_come"]
    assert [(row["line"], row["id"], row["pallet"]) for row in to_come] == [(0, "brick", 1)] * 2
    for row in to_come:
        place = cell.ask("offer")
        assert {name: place[name] for name in ("center", "sides", "turn")} == {
            name: row[name] for name in ("center", "sides", "turn")
        }
        cell.ask("confirm")
    assert cell.ask("offer")["reasons"] == ["the order is done"]
    assert cell.ask("status")["to_come"] == []


def test_planned_places_heed_what_may_lie_on_boxes(tmp_path: Path) -> None:
    glass = {"id": "glass", "sides": [300, 200, 100], "weight": 3, "top_only": True, "quantity": 4}
    safe = {"id": "safe", "sides": [300, 200, 150], "weight": 30, "bottom_only": True, "quantity": 4}
    cell = opened(tmp_path, order=[glass, safe])
    bases = {}
    for place in fetch_all(cell):
        bases.setdefault(place["id"], set()).add(place["center"][2])
    assert bases == {"safe": {0.0}, "glass": {150.0}}


def test_neighbour_in_a_shared_cell_bears_nothing_of_a_planned_box(tmp_path: Path) -> None:
    """Columns of 169 mm on cells of 20 mm, each box of which bears just the two above."""
    crate = {"sides": [169, 310, 100], "weight": 10, "max_load": 20, "quantity": 9}
    cell = opened(tmp_path, order=[crate])
    assert [place["planned"] for place in fetch_all(cell)] == [True] * 9
    assert cell.ask("close")["pallet"] == 1


# -- boxes that come as a conveyor brings them -----------------------------------------------------------------------


def test_arriving_box_takes_the_next_place_of_its_kind_that_is_held(tmp_path: Path) -> None:
    slab = {"id": "slab", "sides": [600, 400, 100], "quantity": 1, "weight": 9}
    lid = {"id": "lid", "sides": [600, 400, 50], "quantity": 2, "weight": 1, "top_only": True}
    plain = {"id": "plain", "sides": [600, 400, 60], "quantity": 2, "weight": 5}
    cell = opened(tmp_path, order=[slab, lid, plain])
    status = cell.ask("status")
    assert status["to_come"][0]["id"] == "slab"
    # A place above others waits for them.
    first = cell.ask(
        "offer", boxes=[{"id": "plain", "sides": [600, 400, 60]}, {"id": "slab", "sides": [600, 400, 100]}]
    )
    assert (first["id"], first["planned"], first["center"][2]) == ("slab", True, 0.0)
    cell.ask("confirm")
    second = cell.ask("offer", boxes=[{"id": "plain", "sides": [600, 400, 60]}])
    assert (second["planned"], second["center"][2]) == (True, 100.0)


@pytest.mark.parametrize("seed", [0, 1])
def test_boxes_in_any_order_are_all_placed(seed: int, tmp_path: Path) -> None:
    cell = opened(tmp_path, order=MIXED)
    for box in shuffled(MIXED, seed):
        place = cell.ask("offer", boxes=[box])
        if place["box"] is None:
            cell.ask("next")
            place = cell.ask("offer", boxes=[box])
        assert place["planned"] or place["note"].endswith("it is placed as it comes")
        cell.ask("confirm")
    closed = cell.ask("close")
    assert closed["left"] == 0
    for number in range(closed["pallet"]):
        # Boxes that come may stand on less than planned ones, around their middle.
        load = [row for row in closed["plan"] if row["pallet"] == number + 1]
        check_load(load, (600, 400, 500), least_held=0.2)


def test_article_follows_its_plan_in_any_sequence(tmp_path: Path) -> None:
    cell = opened(tmp_path, order=[BRICK | {"quantity": 60}], in_order=True)
    assert cell.ask("status")["note"] == "all 60 boxes follow the plan in this order"


SLAB: Plain = {"id": "slab", "sides": [600, 400, 100], "weight": 9}
LID: Plain = {"id": "lid", "sides": [600, 400, 50], "weight": 1, "top_only": True}


FOLLOWS = "FOLLOWED of BOXES boxes follow the plan in this order, on PALLETS; the others are placed as they come"
GIVEN_UP = r"only \d+ of BOXES boxes .*, on \d+ pallets: it is given up, and each box is placed as it comes, on PALLETS"


@pytest.mark.parametrize(
    ("order", "note"),
    [
        (MIXED, FOLLOWS),
        (shuffled(MIXED, 1), FOLLOWS),
        (shuffled(MIXED, 6), GIVEN_UP),
        # The plan puts the lid on top, and it comes first.
        ([LID, SLAB | {"quantity": 4}], GIVEN_UP),
        ([SLAB | {"quantity": 4}, LID], "all BOXES boxes follow the plan in this order"),
    ],
)
def test_note_says_what_comes_of_a_given_sequence(order: list[Plain], note: str, tmp_path: Path) -> None:
    cell = opened(tmp_path, order=order, in_order=True)
    said = cell.ask("status")["note"]
    followed = 0
    for line in order:
        box = {name: value for name, value in line.items() if name != "quantity"}
        for _ in range(line.get("quantity", 1)):
            place = cell.ask("offer", boxes=[box])
            if place["box"] is None:
                cell.ask("next")
                cell.restart()
                place = cell.ask("offer", boxes=[box])
            followed += place["planned"]
            cell.ask("confirm")
    status = cell.ask("status")
    pallets = "1 pallet" if status["pallet"] == 1 else f"{status['pallet']} pallets"
    boxes = sum(line.get("quantity", 1) for line in order)
    words = {"FOLLOWED": str(followed), "BOXES": str(boxes), "PALLETS": pallets}
    for word, meant in words.items():
        note = note.replace(word, meant)
    assert re.fullmatch(note, said)
    assert status["note"] == said
    assert (followed == 0) == said.startswith("only")


# -- boxes that are not as planned -----------------------------------------------------------------------------------


def test_box_that_does_not_come_leaves_the_last_place_of_its_kind(tmp_path: Path) -> None:
    cell = opened(tmp_path, order=[BRICK | {"quantity": 60}])
    status = cell.ask("status")
    whole = status["to_come"]
    first = cell.ask("offer")
    assert cell.ask("skip") | {"session": "a"} == {
        "packed": 0,
        "weight": 0,
        "filled": 0,
        "pallet": 1,
        "left": 59,
        "session": "a",
    }
    again = cell.ask("offer")
    assert {name: first[name] for name in ("center", "turn")} == {name: again[name] for name in ("center", "turn")}
    cell.ask("confirm")
    placed = fetch_all(cell)
    assert len(placed) == 58
    assert placed[-1]["center"] == whole[-2]["center"]
    assert cell.ask("close")["rest"] == []


def test_box_of_other_measures_is_placed_as_it_comes(tmp_path: Path) -> None:
    order = [BRICK | {"quantity": 30, "id": "brick"}]
    cell = opened(tmp_path, order=order)
    smaller = cell.ask("offer", boxes=[{"id": "brick", "sides": [197, 98, 100]}])
    assert (smaller["planned"], smaller["sides"], smaller["left"]) == (True, [197, 98, 100], 30)
    cell.ask("confirm")
    larger = cell.ask("offer", boxes=[{"id": "brick", "sides": [220, 100, 100]}])
    assert larger["planned"] is False
    assert (
        larger["note"]
        == "the box has 220 × 100 × 100 mm, and 200 × 100 × 100 mm in the order: it is placed as it comes"
    )
    assert cell.ask("confirm")["left"] == 28


def test_box_that_is_not_in_the_order_takes_no_planned_room_while_there_is_other(tmp_path: Path) -> None:
    # The plan is one column of slabs that leaves a third of the pallet.
    cell = opened(tmp_path, order=[{"sides": [400, 400, 100], "quantity": 4}], policy="first-fit")
    stranger = cell.ask("offer", boxes=[{"sides": [100, 100, 100], "id": "stranger"}])
    assert stranger["note"] == "no box of 100 × 100 × 100 mm is left of the order: it is placed as it comes"
    cell.ask("confirm")
    assert all(place["planned"] for place in fetch_all(cell))
    check_load(cell.ask("close")["plan"], (600, 400, 500))


def test_place_that_another_box_blocks_is_left(tmp_path: Path) -> None:
    cell = opened(tmp_path, order=[{"sides": [300, 200, 100], "quantity": 4}])
    cell.ask("offer", boxes=[{"sides": [100, 100, 100]}])
    # It reaches 4 mm into the second of two places side by side, and fills the first one.
    cell.ask("report", center=[254, 100, 0], turn=0, sure=True)
    placed = fetch_all(cell)
    assert [place["planned"] for place in placed] == [True, True, False, False]
    assert {place["center"][1] for place in placed[:2]} == {300.0}
    assert placed[2]["note"].startswith("its planned place is not free or does not hold it")


def test_reported_box_is_in_the_way_by_its_outline() -> None:
    """A square of side 100 that is turned by 45 degrees reaches 70.7 from its middle."""
    turned = LyingBox((0.0, 0.0), (100.0, 100.0), 45.0, top=100.0)

    def meets(x: float, y: float, base: float = 0.0) -> bool:
        return turned.is_in_the_way(LyingBox((x, y), (100.0, 100.0), 0.0, top=math.inf), base)

    assert meets(119, 0)
    assert not meets(121, 0)
    # Corner by corner their bounds overlap, and they do not.
    assert meets(84, 84)
    assert not meets(86, 86)
    assert not meets(0, 0, base=99.0)
    assert meets(0, 0, base=98.0)


def test_box_that_a_measured_map_does_not_hold_is_placed_elsewhere(tmp_path: Path) -> None:
    cell = opened(tmp_path, order=[{"sides": [300, 400, 100], "quantity": 4}], noise=0)
    status = cell.ask("status")
    heights = torch.zeros(30, 20)
    # A post under the middle of the first column tilts whatever stands there.
    x, y, _ = status["to_come"][0]["center"]
    heights[int(x // 20), int(y // 20)] = 60
    cell.ask("measure", heights=heights.tolist(), sure=True)
    assert cell.ask("offer")["center"] != status["to_come"][0]["center"]


# -- restarts and undone events --------------------------------------------------------------------------------------


def play(cell: Cell, seed: int, steps: int) -> Iterator[tuple[str, Plain]]:
    """Random messages of every kind, as the state of a cell allows."""
    rng = random.Random(seed)
    for number in range(steps):
        pending = cell.progress.pending
        given: Plain = {}
        if pending is None:
            do = rng.choice(["offer"] * 6 + ["next", "undo", "measure", "status"])
            if do == "offer" and rng.random() < 0.5:
                line = rng.choice(MIXED)
                sides = [each - rng.choice([0, 0, 3, 20]) for each in line["sides"]]
                given = {"boxes": [{"id": line["id"], "sides": sides, "weight": 1}]}
        else:
            do = rng.choice(["confirm"] * 5 + ["report", "undo", "skip", "measure"])
        if do == "report":
            x, y, z = pending.answer["center"]
            given = {"center": [x + rng.uniform(-4, 4), y + rng.uniform(-4, 4), z], "turn": pending.answer["turn"]}
            given["sure"] = True
        if do == "measure":
            noise = torch.rand(30, 20, generator=torch.Generator().manual_seed(number))
            heights = 1000 * cell.progress.loaded.heightmap[0, 0] + 8 * noise
            given = {"heights": heights.clamp(0, 900).tolist(), "sure": True}
        yield do, given


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_restart_of_a_session_with_an_order_changes_no_answer(
    seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Heightmaps are removed soon, so that much follows from a snapshot."""
    monkeypatch.setattr(session_module, "_MOST_MAPS", 2)
    through = opened(tmp_path / "one", order=MIXED)
    broken = opened(tmp_path / "two", order=MIXED)
    kinds = set()
    for number, (do, given) in enumerate(play(through, seed, 80)):
        wanted = through.tell(do, **given, request=number)
        broken.restart()
        assert broken.tell(do, **given, request=number) == wanted
        assert same(broken.progress, through.progress)
        if wanted[0]:
            kinds.add((do, wanted[1].get("planned")))
    assert {("offer", True), ("offer", False), ("confirm", None), ("report", None), ("undo", None)} <= kinds
    assert through.progress.cut is not None
    assert through.ask("close") == broken.ask("close")


def test_undo_goes_back_over_every_event_of_an_order(tmp_path: Path) -> None:
    cell = opened(tmp_path, order=MIXED)
    before = [cell.progress]
    for do, given in play(cell, 5, 60):
        if do in ("measure", "undo"):
            continue
        cell.tell(do, **given)
        now = cell.progress
        if now.pending is None and len(now.events) > len(before[-1].events):
            before.append(now)
    if cell.progress.pending is not None:
        cell.ask("undo")
    words = {type(event).__name__ for event in before[-1].events}
    assert words == {"Confirmed", "Reported", "Skipped", "NextPallet"}
    for wanted in reversed(before[:-1]):
        cell.ask("undo")
        assert same(cell.progress, wanted)


# -- what is refused -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"order": []}, "order must have 1 to 1,000 boxes, not 0"),
        ({"order": 3}, "order must be a list of lines"),
        ({"order": [BRICK | {"quantity": 1001}]}, r"order\[0\]: quantity must be at most 1,000; got 1001"),
        ({"order": [BRICK | {"quantity": 600}] * 2}, "order must have 1 to 1,000 boxes, not 1,200"),
        ({"order": [BRICK | {"colour": 1}]}, r"order\[0\] must be an object with some of id, .*quantity"),
        ({"order": [{"sides": [1, 2]}]}, r"order\[0\]: sides must be three lengths"),
        ({"in_order": True}, "in_order does nothing without an order"),
        ({"order": [BRICK], "in_order": 1}, "in_order must be true or false"),
    ],
)
def test_order_that_is_none_is_refused(settings: Plain, message: str, tmp_path: Path) -> None:
    sessions = PackingSessions(tmp_path, device="cpu")
    done, answer = sessions.answer(json.dumps({"do": "open", "session": "a", **SMALL, **settings}))
    assert not done
    assert re.match(f"session: {message}", answer["message"]), answer


def test_calls_of_orders_are_refused_out_of_turn(tmp_path: Path) -> None:
    cell = opened(tmp_path / "order", order=[BRICK | {"quantity": 2}])
    assert "skip needs a pending box" in cell.tell("skip")[1]["message"]
    assert "next needs boxes on this pallet" in cell.tell("next")[1]["message"]
    cell.ask("offer", boxes=[{"sides": [100, 100, 50]}])
    assert "this one is in none" in cell.tell("skip")[1]["message"]
    assert "before the next pallet" in cell.tell("next")[1]["message"]
    plain = opened(tmp_path / "plain")
    assert "boxes must be a list" in plain.tell("offer")[1]["message"]
    assert "next is for sessions with an order" in plain.tell("next")[1]["message"]
    plain.ask("offer", boxes=[BRICK])
    assert "skip is for boxes of an order" in plain.tell("skip")[1]["message"]


@pytest.mark.parametrize(
    "change",
    [
        {"plan": {"places": [[0, 0, 0, 0, 0]], "reasons": [""], "note": ""}},
        {"plan": {"places": [[1, 0, 0, 0, 0, 0]], "reasons": [""], "note": ""}},
        {"plan": {"places": [], "reasons": [], "note": ""}},
        {"plan": {"places": [], "reasons": [""], "note": 3}},
        {"plan": {"places": []}},
        {"events": [{"event": "skip", "line": 1}]},
        {"events": [{"event": "lose"}]},
        {"events": [{"box": BRICK, "told": {}, "z": 0.0, "turn": 0, "x": 0, "y": 0, "place": 2}]},
        {"events": [{"box": BRICK, "told": {}, "z": 0.0, "turn": 0, "x": 0, "y": 0, "line": 1}]},
        {"waits": {"event": "next"}},
    ],
)
def test_file_with_another_plan_or_event_is_refused(change: Plain, tmp_path: Path) -> None:
    opened(tmp_path, order=[BRICK | {"quantity": 2}])
    path = tmp_path / "a.json"
    content = json.loads(path.read_text(encoding="utf-8"))
    path.write_text(json.dumps(content | change), encoding="utf-8")
    with pytest.raises(ValueError, match=r"a.json is not a packing session: ") as caught:
        PackingSessions(tmp_path, device="cpu")
    assert "\n" not in str(caught.value)


def test_plan_is_kept_and_not_made_again() -> None:
    settings = SMALL | {"order": [BRICK | {"quantity": 3}]}
    session = PackingSession(settings, "cpu")
    kept = json.loads(json.dumps(session.plan_data))
    kept["places"].reverse()
    again = PackingSession(settings, "cpu", kept)
    assert again.plan_data == kept
    assert again.plan_data != session.plan_data


def test_opening_that_is_sent_again_is_not_planned_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cell = Cell(tmp_path)
    settings = SMALL | {"order": MIXED}
    first = cell.ask("open", request="x", **settings)
    monkeypatch.setattr(session_module, "make_plan", None)
    cell.restart()
    assert cell.ask("open", request="x", **settings) == first
