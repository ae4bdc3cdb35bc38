"""Policies of runs that learn by what they pack, from their checkpoints: tables, placement values, the packer."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

from torchrl_gpu.envs import BatchedEnv, PackingEnv
from torchrl_gpu.policies.inference import InferencePolicy
from torchrl_gpu.policies.packing.hierarchical.packer import HierarchicalPacker, PackerNetworks
from torchrl_gpu.policies.packing.ntuple.tables import PatchTables
from torchrl_gpu.policies.packing.placement_values import NAMES, LinearPlacementValues
from torchrl_gpu.policies.packing.pretrained import PackingPolicy, register_reader
from torchrl_gpu.policies.registry import REGISTRY
from torchrl_gpu.policies.saved import NO_ENV, SavedPolicy, describe_error, most_bytes_for
from torchrl_gpu.policies.spaces import AgentSpace
from torchrl_gpu.system import arguments
from torchrl_gpu.system.archives import read_archive

_CANDIDATES = 40
_MOST_CANDIDATES = 2**16


def read_policy(saved: SavedPolicy, env: BatchedEnv | None) -> InferencePolicy | None:
    """The policy of a run that learns by what it packs; None of another run.

    Raises:
        ValueError: The hierarchical packer wants the environment whose items it knows, and no other policy takes one.
    """
    if "networks" in saved.settings:
        return _packer(saved, env)
    if not _packs_by_values(saved.settings):
        return None
    if env is not None:
        raise ValueError(NO_ENV)
    space = saved.space()
    values = _packing_values(saved, space)
    name = "afterstate values" if "tables" in saved.settings else "placement values"
    return InferencePolicy(PackingPolicy(space, values), space, name, saved.about)


def packing_policy(path: str | Path, space: AgentSpace | None = None) -> PackingPolicy:
    """The policy of a checkpoint whose run learned values of bins or of placements, on the CPU.

    Args:
        path: The file.
        space: Of the environment that it will pack in; None stands for the one that it was trained in.

    Raises:
        ValueError: It is something else, is cut off, or its values do not fit that environment.
    """
    content = read_archive(Path(path), "policy", every_byte=True)
    # Constructors raise what they like on the settings of a stranger, as in `load_policy`.
    try:
        saved = SavedPolicy.of(content, most_bytes_for(Path(path)), REGISTRY)
        if saved is None or not _packs_by_values(saved.settings):
            raise ValueError(
                "want a checkpoint of a run that learns values of bins or of placements (AfterstateLearning,"
                " PlacementEvolution), which pack in other environments than their own, too; got another one"
            )
        space = saved.space() if space is None else space
        return PackingPolicy(space, _packing_values(saved, space), saved.about)
    except Exception as error:
        raise ValueError(f"policy {path}: {describe_error(error)}") from error


register_reader(packing_policy)


def _packs_by_values(settings: Mapping[str, Any]) -> bool:
    return "tables" in settings or "members" in settings


def _packing_values(saved: SavedPolicy, space: AgentSpace) -> PatchTables | LinearPlacementValues:
    """The values of bins or of placements that a run has learned, in an environment's space."""
    if "tables" in saved.settings:
        make_tables = saved.registry.build("tables", saved.settings["tables"], PatchTables)
        tables: PatchTables = saved.build(lambda: make_tables(space), "tables.")
        return tables
    asked = saved.settings.get("candidates", _CANDIDATES)
    candidates = arguments.whole("config", "candidates", asked, 1, _MOST_CANDIDATES)
    make_values = partial(LinearPlacementValues, space, [0.0] * len(NAMES), candidates)
    values: LinearPlacementValues = saved.build(make_values, "values.")
    return values


def _packer(saved: SavedPolicy, env: BatchedEnv | None) -> InferencePolicy:
    if env is None:
        raise ValueError(
            "want the environment of the hierarchical packer, whose item maps no checkpoint holds: env=PackingEnv(…)"
            " with the arguments of its run, or the --config of `torchrl-gpu serve-policy`, which serves it where"
            " `export` cannot; got none"
        )
    if not isinstance(env, PackingEnv):
        raise ValueError(f"want a PackingEnv for the hierarchical packer; got a {type(env).__name__}")
    make = REGISTRY.build("networks", saved.settings["networks"], PackerNetworks)
    networks: PackerNetworks = saved.build(make, "networks.")
    names = ("margin", "shortlist", "item_shortlist")
    given = {name: saved.settings[name] for name in names if name in saved.settings}
    packer = HierarchicalPacker(env, networks, **given)
    return InferencePolicy(packer, AgentSpace.of(env), "HierarchicalPacker", saved.about)
