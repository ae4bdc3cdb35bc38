"""Named environment settings: reference ones, and the published protocols in a bin of 10×10×10 cells."""

from __future__ import annotations

from typing import Any

from torchrl_gpu.envs.packing.env import PackingEnv
from torchrl_gpu.envs.packing.items import CutBoxes, FactoryBoxes, OrderBoxes, ProceduralSolids, RandomBoxes

SUITE_SEED = 2_000_003  # decides the sequences of every protocol's suite
SUITE_EPISODES, PALLET_EPISODES = 2000, 30

PROTOCOLS: dict[str, dict[str, Any]] = {
    "rs": {"items": RandomBoxes(2, 5), "orientations": "fixed", "stability": "corners"},
    "cut1": {"items": CutBoxes(2, 5, order="layers", pool=None), "orientations": "fixed", "stability": "corners"},
    "cut2": {"items": CutBoxes(2, 5, order="stack", pool=None), "orientations": "fixed", "stability": "corners"},
    "discrete125": {"items": RandomBoxes(1, 5), "orientations": "yaw", "stability": "support"},
    "free125": {"items": RandomBoxes(1, 5), "orientations": "axis", "stability": "none"},
}

_PALLET = {"num_items": 80, "orientations": "yaw", "stability": "none", "walls": False}
PALLETS: dict[str, dict[str, Any]] = {
    "repetitive": {"bin_size": (1.34, 1.25, 1.0), "resolution": (134, 125), **_PALLET},
    "diverse": {"bin_size": (1.2, 1.0, 1.7), "resolution": (120, 100), **_PALLET},
    "boards": {"bin_size": (2.5, 1.2, 1.0), "resolution": (250, 120), **_PALLET},
}
"""Containers and rules of RoboBPP (arXiv 2512.04415, Math Pack); boxes are those of `FactoryBoxes`."""

REFERENCE_SETTINGS: dict[str, dict[str, Any]] = {
    "bpp10": {},
    "irregular": {
        "bin_size": (0.4, 0.4, 0.3),
        "resolution": 200,
        "grid_step": 4,
        "items": ProceduralSolids(60),
        "num_items": 50,
        "visible_items": 20,
        "orientations": "cube",
        "order": "volume",
        "include": ("z_map",),
    },
    "orders": {
        "bin_size": (1.2, 0.8, 1.5),
        "resolution": (120, 80),
        "grid_step": 5,
        "items": OrderBoxes(),
        "num_items": 150,
        "orientations": "yaw",
        "stability": "support",
        "walls": False,
        "include": ("z_map",),
    },
}


def protocol_of(env: PackingEnv) -> str | None:
    """Name of the published protocol whose bin, boxes and rules an environment has, in any sequences; or None.

    Of a pallet with a factory's boxes any rule of stability will do: the protocol has none.
    """
    if isinstance(env.items.drawn_as, FactoryBoxes):
        name = env.items.drawn_as.data
        wanted = tuple(PALLETS[name][each] for each in ("bin_size", "resolution", "orientations"))
        return name if (env.bin_size, env.bin.cells, env.orientations) == wanted else None
    cube = (env.bin_size, env.bin.cells, env.grid_step) == ((10.0,) * 3, (10, 10), 1)
    if not cube or env.order != "sequence" or env.fallback is not None:
        return None
    drawn = env.items.drawn_as
    for name, settings in PROTOCOLS.items():
        items: Any = settings["items"]
        same = type(drawn) is type(items) and all(
            getattr(drawn, side, None) == getattr(items, side, None)
            for side in ("min_side", "max_side", "step", "order")
        )
        rules = (env.orientations, env.stability) == (settings["orientations"], settings["stability"])
        if same and rules:
            return name
    return None


def packs_orders(env: PackingEnv) -> bool:
    """True where an environment has the bin and the rules of the setting "orders", with any boxes, one visible."""
    wanted = REFERENCE_SETTINGS["orders"]
    rules = (env.bin_size, env.bin.cells, env.grid_step, env.orientations, env.stability)
    same = rules == tuple(wanted[name] for name in ("bin_size", "resolution", "grid_step", "orientations", "stability"))
    alone = env.visible_items == 1 and env.order == "sequence"
    return same and alone and env.catalogue.flat and "z_map" in env.include


def make_protocol(name: str, num_envs: int = 64, **changes: Any) -> PackingEnv:
    """Environment of a protocol or a reference setting.

    Args:
        name: "rs", "cut1", "cut2" (Zhao et al., AAAI 2021; cut anew for every episode), "discrete125" (GOPT, RA-L
            2024), "free125" (PCT, ICLR 2022, setting 2); "repetitive", "diverse" or "boards" (RoboBPP, the test split
            of `FactoryBoxes`); or a reference setting, "bpp10", "irregular" (Huang et al., RA-L 2023: 20 of 50 objects
            visible, the largest first, 24 orientations; with our own solids) or "orders" (that of
            `packing_orders.yaml`: a pallet of 1200×800 mm, 1.5 m high, boxes as they come).
        num_envs: N.
        changes: Other constructor arguments of `PackingEnv`.

    Raises:
        ModuleNotFoundError: The protocol's boxes want the extra `robobpp`.
        ValueError: There is no such protocol.
    """
    known = PROTOCOLS | PALLETS | REFERENCE_SETTINGS
    if name not in known:
        raise ValueError(f"make_protocol: name must be one of {', '.join(known)}; got {name!r}")
    items = {"items": FactoryBoxes(name, "test")} if name in PALLETS and "items" not in changes else {}
    return PackingEnv(num_envs, **known[name] | items | changes)
