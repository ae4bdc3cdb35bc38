"""Agreement of the rules `corners` and `support` with their released code.

The released rules are written here anew, from what they do: Zhao et al., AAAI 2021 (`Space.check_box`), and GOPT, RA-L
2024 (`Container.is_stable`). `docs/environments/packing-reference.md` says what the tests find.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import numpy as np
import pytest
import torch

from tests.envs.packing.hulls import centre_in_hull, convex_hull
from tests.envs.packing.scenes import judge
from torchrl_gpu.envs.packing.protocols import make_protocol


def ours(window: np.ndarray, rule: str) -> bool:
    """Our verdict on a box over a window of the heightmap (P, Q), integers."""
    contact = window == window.max()
    return judge(contact, rule, on_floor=bool(window.max() == 0))


def window_of(contact: str) -> np.ndarray:
    """Return heights of rows drawn with # for the highest cells."""
    rows = np.array([list(row) for row in contact.split()])
    return 1 + (rows == "#")


def released_corners(window: np.ndarray) -> bool:
    """Return the verdict of the released `corners`.

    At least three of the four corner cells must be as high as the highest of these four, whatever lies between them.
    Then enough cells, for the number of corners, must be as high as the highest cell of all.
    """
    corners = window[[0, 0, -1, -1], [0, -1, 0, -1]]
    level = int((corners == corners.max()).sum())
    if level < 3:
        return False
    share = (window == window.max()).mean()
    carried = corners.max() == window.max()
    return bool(share > 0.95 or (carried and share > (0.85 if level == 3 else 0.50)))


def released_support(window: np.ndarray) -> bool:
    """Return the verdict of the released `support`.

    It accepts the floor, more than half of the cells, or the centre in the hull of at least two of the highest cells.

    Of cells that are not in one line, one must be before the centre along y: their hull is asked by matplotlib's
    `Path.contains_point`, which takes every edge for inside but the one that has all of the hull behind it.
    """
    highest = window == window.max()
    if window.max() == 0 or highest.mean() > 0.5:
        return True
    if highest.sum() < 2 or not centre_in_hull(highest):
        return False
    points = [(2 * int(i), 2 * int(j)) for i, j in np.argwhere(highest)]
    return len(convex_hull(points)) == 2 or min(y for _, y in points) < window.shape[1] - 1


# -- corners -----------------------------------------------------------------------------------------------------------


def windows_of(p: int, q: int, rng: np.random.Generator) -> Iterator[np.ndarray]:
    """Yield windows with all kinds of corners, and some lower cells between.

    A corner is as high as the rest, one lower or two lower.
    """
    for corners in itertools.product((3, 2, 1), repeat=4):
        for lower in (0, 1, int(rng.integers(0, p * q))):
            window = np.full((p, q), 3)
            window.flat[rng.choice(p * q, lower, replace=False)] = 2
            window[[0, 0, -1, -1], [0, -1, 0, -1]] = corners
            yield window
    yield from rng.integers(1, 4, (20, p, q))


def differing(p: int, q: int) -> list[np.ndarray]:
    """List windows of a footprint on which the two rules disagree.

    Ours accepts each of these.
    """
    found = []
    for window in windows_of(p, q, np.random.default_rng(100 * p + q)):
        mine, theirs = ours(window, "corners"), released_corners(window)
        assert mine or not theirs
        if mine is not theirs:
            found.append(window)
    return found


def footprints(cells: int) -> Iterator[tuple[int, int]]:
    return ((p, cells // p) for p in range(1, cells + 1) if cells % p == 0)


@pytest.mark.parametrize("thin", [False, True], ids=["two cells wide and more", "one cell wide"])
def test_corners_is_the_released_rule_up_to_a_number_of_cells(thin: bool) -> None:
    # Ours accepts any corners where more than 95% of the cells carry. Two lower cells can leave two corners, and more
    # than 40 cells are needed, of which 42 are the first that can lie two wide. The end of a row is two corners: there
    # one lower cell of 21 is enough.
    def differ_at(number: int) -> bool:
        sides = [(p, q) for p, q in footprints(number) if (min(p, q) == 1) is thin]
        return any(differing(p, q) for p, q in sides)

    differ = [differ_at(number) for number in range(1, 49)]
    first = 1 + differ.index(True)
    assert first == (21 if thin else 42)
    # Every row from there on differs.
    assert not thin or all(differ[first - 1 :])


def test_the_level_of_the_corners_is_that_of_the_highest_corner() -> None:
    # All four lower than the rest, 38 of 42 cells: they are level with each other, and 90% is not enough either way.
    # 4 of 90 leave 95.6%, which the released rule accepts, too.
    for p, q, expected in ((6, 7, False), (9, 10, True)):
        window = np.full((p, q), 3)
        window[[0, 0, -1, -1], [0, -1, 0, -1]] = 2
        assert ours(window, "corners") is released_corners(window) is expected


# -- support -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("contact", ["..# .#. ..#", ".#. ..# .#.", "..# .## ...", ".## .#. .#.", ".## ... .#."])
def test_the_released_support_asks_for_a_contact_before_the_centre_along_y(contact: str) -> None:
    # The centre is on an edge or a corner of the hull, and nothing is before it; the mirror image has contacts there.
    window = window_of(contact)
    assert ours(window, "support")
    assert not released_support(window)
    assert ours(window[:, ::-1], "support")
    assert released_support(window[:, ::-1])
    assert on_an_edge(window == 2)


@pytest.mark.parametrize("contact", [".#. ... .#.", "... ### ...", "... .## ...", ".#. .#. .#."])
def test_in_one_line_a_segment_is_enough_for_both(contact: str) -> None:
    window = window_of(contact)
    assert ours(window, "support") is released_support(window) is True


def test_support_accepts_all_that_the_released_rule_does_and_more_only_on_an_edge() -> None:
    # Bins of the published protocol, packed at random: every placement that fits.
    env = make_protocol("discrete125", 8, device="cpu", seed=0)
    torch.manual_seed(0)
    seen = env.reset()
    placements = 0
    more = 0
    for _ in range(8):
        for window in windows_under(seen):
            mine, theirs = ours(window, "support"), released_support(window)
            placements += 1
            if mine is not theirs:
                assert mine
                assert on_an_edge(window == window.max())
                more += 1
        legal = seen["action_mask"].float()
        seen["action"] = torch.where(legal.any(1), torch.multinomial(legal + 1e-9, 1).squeeze(1), 0)
        _, seen = env.step_and_maybe_reset(seen)
    assert placements > 4_000
    assert 0.001 < more / placements < 0.02


def windows_under(seen) -> Iterator[np.ndarray]:  # type: ignore[no-untyped-def]
    """Yield the cells under every placement of the visible boxes.

    Placements stay within the bin of 10 cells.
    """
    heights = seen["box_heightmap"].round().long().numpy()
    sizes = seen["item_size"][:, 0, :, :3].round().long().numpy()  # (N, O, 3)
    for n, o in np.ndindex(sizes.shape[:2]):
        p, q, height = sizes[n, o]
        for x, y in np.ndindex(11 - p, 11 - q):
            window = heights[n, x : x + p, y : y + q]
            if p and window.max() + height <= 10:
                yield window


def on_an_edge(contact: np.ndarray) -> bool:
    """Return whether the centre is on an edge of the hull of the contacts.

    There must be at least three that are not in one line.
    """
    hull = convex_hull([(2 * int(i), 2 * int(j)) for i, j in np.argwhere(contact)])
    x, y = contact.shape[0] - 1, contact.shape[1] - 1
    sides = []
    for (first_x, first_y), (next_x, next_y) in itertools.pairwise([*hull, hull[0]]):
        along = (next_x - first_x) * (y - first_y)
        across = (next_y - first_y) * (x - first_x)
        sides.append(along - across)
    return len(hull) > 2 and min(sides) == 0
