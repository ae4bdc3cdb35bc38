"""Policies of runs that learn by what they pack, from their checkpoints."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path

from torchrl_gpu.envs import BatchedEnv, PackingEnv
from torchrl_gpu.policies.inference import InferencePolicy
from torchrl_gpu.policies.packing.hierarchical.packer import HierarchicalPacker, PackerNetworks
from torchrl_gpu.policies.packing.ntuple.tables import PatchTables
from torchrl_gpu.policies.packing.placement_values import NAMES, LinearPlacementValues
from torchrl_gpu.policies.packing.pretrained import PackingPolicy, register_reader
from torchrl_gpu.policies.registry import REGISTRY
from torchrl_gpu.policies.saved import NO_ENV, SavedPolicy, describe_error, given_arguments, most_bytes_for
from torchrl_gpu.policies.spaces import AgentSpace
from torchrl_gpu.system import arguments
from torchrl_gpu.system.archives import read_archive

# Candidates of a run whose settings do not say.
_CANDIDATES = 40
_MOST_CANDIDATES = 2**16


def read_policy(saved: SavedPolicy, env: BatchedEnv | None) -> InferencePolicy | None:
    """Read the policy of a run that learns by what it packs, or None.

    It is n-tuple tables, placement values, or the hierarchical packer.

    Raises:
        ValueError: The hierarchical packer needs the environment whose items it knows, and no other policy takes one.
    """
    if "networks" in saved.settings:
        return _packer(saved, env)
    # Other runs are for other tasks, or for the framework's own reader.
    if not _packs_by_values(saved.settings):
        return None
    if env is not None:
        raise ValueError(NO_ENV)
    space = saved.space()
    values = _packing_values(saved, space)
    name = "afterstate values" if "tables" in saved.settings else "placement values"
    return InferencePolicy(PackingPolicy(space, values), space, name, saved.about)


def packing_policy(path: str | Path, space: AgentSpace | None = None) -> PackingPolicy:
    """Read the policy of a run that learned values of bins or placements, on the CPU.

    Args:
        path: The checkpoint.
        space: Space of the environment that it will pack in; None for the one that it was trained in.

    Raises:
        ValueError: It is something else, is cut off, or its values do not fit that environment.
    """
    content = read_archive(Path(path), "policy", every_byte=True)
    # Constructors raise what they like on the settings of a stranger, as in `load_policy`.
    try:
        saved = SavedPolicy.of(content, most_bytes_for(Path(path)), REGISTRY)
        if saved is None or not _packs_by_values(saved.settings):
            raise ValueError(
                "no run that learns values of bins or of placements (AfterstateLearning, PlacementEvolution) wrote"
                " this checkpoint, and only these values pack in other environments than their own"
            )
        space = saved.space() if space is None else space
        return PackingPolicy(space, _packing_values(saved, space), saved.about)
    except Exception as error:
        raise ValueError(f"policy {path}: {describe_error(error)}") from error


register_reader(packing_policy)


def _packs_by_values(settings: Mapping[str, object]) -> bool:
    return "tables" in settings or "members" in settings


def _packing_values(saved: SavedPolicy, space: AgentSpace) -> PatchTables | LinearPlacementValues:
    """Values of bins or of placements that a run has learned, in a space."""
    if "tables" in saved.settings:
        make_tables = saved.registry.build("tables", saved.settings["tables"], PatchTables)
        tables: PatchTables = saved.build(lambda: make_tables(space), "tables.")
        return tables
    asked = saved.settings.get("candidates", _CANDIDATES)
    candidates = arguments.whole("config", "candidates", asked, 1, _MOST_CANDIDATES)
    # The weights are zeros until those of the file are loaded.
    make_values = partial(LinearPlacementValues, space, [0.0] * len(NAMES), candidates)
    values: LinearPlacementValues = saved.build(make_values, "values.")
    return values


def _packer(saved: SavedPolicy, env: BatchedEnv | None) -> InferencePolicy:
    if env is None:
        raise ValueError(
            "the hierarchical packer needs its environment, whose item maps no checkpoint holds: give"
            " env=PackingEnv(…) with the arguments of its run, or --config to `torchrl-gpu serve-policy`, which serves"
            " it although `export` cannot"
        )
    if not isinstance(env, PackingEnv):
        raise ValueError(f"env must be a PackingEnv for the hierarchical packer, not a {type(env).__name__}")
    make = REGISTRY.build("networks", saved.settings["networks"], PackerNetworks)
    networks: PackerNetworks = saved.build(make, "networks.")
    given = given_arguments(saved.settings, "margin", "shortlist", "item_shortlist")
    packer = HierarchicalPacker(env, networks, **given)
    return InferencePolicy(packer, AgentSpace.of(env), "HierarchicalPacker", saved.about)
