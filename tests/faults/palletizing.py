"""Faults in lists of boxes and in packing sessions."""

from __future__ import annotations

from faults.mutant import Mutant, mutant

_LISTS, _SESSIONS = "envs/packing/items/test_lists.py", "palletizing/test_sessions.py"
PALLETIZING: list[Mutant] = [
    mutant("no_fact_about_an_order_is_its_name", 'if name != "order" or not _NO_ORDER.search(text)', "if True", _LISTS),
    mutant("most_load_in_its_own_unit", '"max_load": math.inf}', '"max_load": 0.0}', _LISTS),
    mutant("upright_boxes_are_not_tipped", "stands |= lies & up[:, height]", "stands |= lies", _LISTS),
    mutant("sides_in_the_unit_of_the_file", "LENGTHS[found.unit] / LENGTHS[found.own_unit]", "1.0", _LISTS),
    mutant(
        "undo_goes_on_from_the_beginning", "events = progress.events[:-1]", "events = progress.events[1:]", _SESSIONS
    ),
    mutant(
        "measured_heights_but_for_noise",
        "(seen - expected).abs() <= self.noise + 1e-6",
        "(seen - expected).abs() <= 2 * self.noise",
        _SESSIONS,
    ),
    mutant("loads_go_down_to_the_floor", "(bearers | own)[:, None]", "own[:, None]", "palletizing/test_packer.py"),
    mutant("loads_of_many_boxes_add", "self.left - weight[:, None]", "self.left", "palletizing/test_packer.py"),
    mutant(
        "nothing_goes_above_what_is_fragile",
        "torch.where(room <= 0, self.bin.size[2], heightmap[:, None])",
        "heightmap[:, None]",
        "palletizing/test_packing.py",
    ),
    mutant(
        "turned_boxes_take_the_cells_below_them",
        "own & (dx.abs() < along_x) & (dy.abs() < along_y)",
        "(dx.abs() < along_x) & (dy.abs() < along_y)",
        _SESSIONS,
    ),
    mutant(
        "boxes_bear_load_where_they_were_reported",
        "return self.packer.lay(pallets, prepared, reported.rest())",
        "return self.packer.place(pallets, prepared, placed.offered.choice(self.packer.device))",
        _SESSIONS,
    ),
    mutant("a_place_is_free", "if highest > base + SLACK_MM", "if highest > math.inf", _SESSIONS),
    mutant(
        "nothing_is_done_twice",
        "if known is not None and known.last is not None and known.last.request == request:",
        "if known is not None and known.last is not None and request is None:",
        _SESSIONS,
    ),
    mutant("heightmaps_in_files_are_bounded", "if len(maps) < _MOST_MAPS:", "if len(maps) < 9999:", _SESSIONS),
    mutant(
        "what_is_answered_is_kept",
        "        self._write(name, known)\n        self._open[name] = known\n",
        "        self._open[name] = known\n        self._write(name, known)\n",
        _SESSIONS,
    ),
    mutant("brackets_are_counted", "number = text.count(sign)", "number = 0", _SESSIONS),
    mutant("others_have_their_turn", "if self._waiting >= _MOST_WAITING:", "if False:", "serving/test_pallets.py"),
    mutant(
        "requests_are_not_answered_without_end",
        "queue.Queue(_MOST_WAITING)",
        "queue.Queue()",
        "streaming/ros2/test_bridge.py",
        k="requests",
    ),
]
