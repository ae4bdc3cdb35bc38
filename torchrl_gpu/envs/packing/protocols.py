"""Named environment settings.

Reference settings, the published protocols in a bin of 10×10×10 cells, and the pallets of RoboBPP.
"""

from __future__ import annotations

from typing import Any

from torchrl_gpu.envs.packing.env import PackingEnv
from torchrl_gpu.envs.packing.items import (
    BoardCases,
    CutBoxes,
    FactoryBoxes,
    OrderBoxes,
    ProceduralSolids,
    RandomBoxes,
)
from torchrl_gpu.system import arguments

# Decides the sequences of every protocol's suite.
SUITE_SEED = 2_000_003
SUITE_EPISODES = 2000
PALLET_EPISODES = 30
# Its sequences are cases of the paper's board, not drawn.
BOARD = "repetitive-board"

Settings = dict[str, Any]

PROTOCOLS: dict[str, Settings] = {}
PROTOCOLS["rs"] = {"items": RandomBoxes(2, 5), "orientations": "fixed", "stability": "corners"}
_LAYERS = CutBoxes(2, 5, order="layers", pool=None)
PROTOCOLS["cut1"] = {"items": _LAYERS, "orientations": "fixed", "stability": "corners"}
_STACK = CutBoxes(2, 5, order="stack", pool=None)
PROTOCOLS["cut2"] = {"items": _STACK, "orientations": "fixed", "stability": "corners"}
PROTOCOLS["discrete125"] = {"items": RandomBoxes(1, 5), "orientations": "yaw", "stability": "support"}
PROTOCOLS["free125"] = {"items": RandomBoxes(1, 5), "orientations": "axis", "stability": "none"}

# Containers and rules of RoboBPP (arXiv 2512.04415, Math Pack); boxes are those of `FactoryBoxes`.
_PALLET = {"num_items": 80, "orientations": "yaw", "stability": "none", "walls": False}
PALLETS: dict[str, Settings] = {}
PALLETS["repetitive"] = {"bin_size": (1.34, 1.25, 1.0), "resolution": (134, 125), **_PALLET}
PALLETS["diverse"] = {"bin_size": (1.2, 1.0, 1.7), "resolution": (120, 100), **_PALLET}
PALLETS[BOARD] = PALLETS["repetitive"]
PALLETS["boards"] = {"bin_size": (2.5, 1.2, 1.0), "resolution": (250, 120), **_PALLET}

_IRREGULAR: Settings = {
    "bin_size": (0.4, 0.4, 0.3),
    "resolution": 200,
    "grid_step": 4,
    "items": ProceduralSolids(60),
    "num_items": 50,
    "visible_items": 20,
    "orientations": "cube",
    "order": "volume",
    "include": ("z_map",),
}
_ORDERS: Settings = {
    "bin_size": (1.2, 0.8, 1.5),
    "resolution": (120, 80),
    "grid_step": 5,
    "items": OrderBoxes(),
    "num_items": 150,
    "orientations": "yaw",
    "stability": "support",
    "walls": False,
    "include": ("z_map",),
}
REFERENCE_SETTINGS: dict[str, Settings] = {"bpp10": {}, "irregular": _IRREGULAR, "orders": _ORDERS}

# Attributes of a source of boxes that a protocol fixes.
_OF_BOXES = ("min_side", "max_side", "step", "order")


def protocol_of(env: PackingEnv) -> str | None:
    """Return the name of the published protocol that an environment is of, or None.

    It has the protocol's bin, boxes and rules, in any sequences. Of a pallet with a factory's boxes any rule of
    stability will do: the protocol has none.
    """
    drawn = env.items.drawn_as
    if isinstance(drawn, FactoryBoxes):
        pallet = PALLETS[drawn.data]
        wanted = pallet["bin_size"], pallet["resolution"], pallet["orientations"]
        return drawn.data if (env.bin_size, env.bin.cells, env.orientations) == wanted else None
    is_cube = (env.bin_size, env.bin.cells, env.grid_step) == ((10.0, 10.0, 10.0), (10, 10), 1)
    if not is_cube or env.order != "sequence" or env.fallback is not None:
        return None
    for name, settings in PROTOCOLS.items():
        rules = settings["orientations"], settings["stability"]
        if _are_alike(drawn, settings["items"]) and (env.orientations, env.stability) == rules:
            return name
    return None


def _are_alike(drawn: object, items: object) -> bool:
    """Return whether two sources give the same boxes, in whatever sequences."""
    if type(drawn) is not type(items):
        return False
    return all(getattr(drawn, name, None) == getattr(items, name, None) for name in _OF_BOXES)


def packs_orders(env: PackingEnv) -> bool:
    """Return whether an environment has bin and rules of the setting "orders".

    With any boxes, one of them visible.
    """
    names = ("bin_size", "resolution", "grid_step", "orientations", "stability")
    rules = (env.bin_size, env.bin.cells, env.grid_step, env.orientations, env.stability)
    is_same = rules == tuple(_ORDERS[name] for name in names)
    is_alone = env.visible_items == 1 and env.order == "sequence"
    return is_same and is_alone and env.catalogue.flat and "z_map" in env.include


def make_protocol(name: str, num_envs: int = 64, **changes: object) -> PackingEnv:
    """Return an environment of a protocol or a reference setting.

    Args:
        name: "rs", "cut1", "cut2" (Zhao et al., AAAI 2021; cut anew for every episode), "discrete125" (GOPT, RA-L
            2024), "free125" (PCT, ICLR 2022, setting 2); "repetitive", "diverse" or "boards" (RoboBPP, the test split
            of `FactoryBoxes`), or "repetitive-board" (`BoardCases`); or a reference setting, "bpp10", "irregular"
            (Huang et al., RA-L 2023: 20 of 50 objects visible, the largest first, 24 orientations; with our own solids)
            or "orders" (that of `packing_orders.yaml`: a pallet of 1200×800 mm, 1.5 m high, boxes as they come).
        num_envs: N.
        changes: Other constructor arguments of `PackingEnv`.

    Raises:
        ModuleNotFoundError: The protocol's boxes want the extra `robobpp`.
        ValueError: There is no such protocol.
    """
    known = PROTOCOLS | PALLETS | REFERENCE_SETTINGS
    arguments.choice("make_protocol", "name", name, known)
    settings = dict(known[name])
    if name in PALLETS and "items" not in changes:
        settings["items"] = BoardCases() if name == BOARD else FactoryBoxes(name, "test")
    return PackingEnv(num_envs, **settings | changes)
