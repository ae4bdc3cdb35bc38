"""`PackingPolicy`: packing by the value of the bin afterwards.

Trained policies come with the package, in the folder `weights`.
"""

from __future__ import annotations

import json
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path

import torch
from tensordict import TensorDictBase
from tensordict.nn import TensorDictModuleBase, TensorDictSequential
from torch import Tensor

from torchrl_gpu.device import get_device
from torchrl_gpu.envs import BatchedEnv, PackingEnv
from torchrl_gpu.envs.packing.protocols import packs_orders, protocol_of
from torchrl_gpu.policies.packing.ntuple.packed_tables import images_of, spread
from torchrl_gpu.policies.packing.ntuple.refined import MOST_WIDTH, RefinedTables
from torchrl_gpu.policies.packing.ntuple.tables import PatchTables
from torchrl_gpu.policies.packing.ntuple.values import MOST_LEVELS
from torchrl_gpu.policies.packing.placement_values import NAMES, LinearPlacementValues
from torchrl_gpu.policies.policy import Entry
from torchrl_gpu.policies.spaces import AgentSpace, greedy_module
from torchrl_gpu.policies.weights import read_json, read_tensors
from torchrl_gpu.system.arguments import shown, tensor, whole

FORMAT = "torchrl_gpu packing tables, 1"
FORMAT_OF_REFINED = "torchrl_gpu refined tables, 1"
FORMAT_OF_WEIGHTS = "torchrl_gpu placement values, 1"
FOLDER = Path(__file__).parent / "weights"
# Largest file.
_MOST_BYTES = 2**26
_FIELDS = ("format", "levels", "patches", "space", "about", "pool")
_FIELDS_OF_REFINED = (*_FIELDS, "sides", "candidates", "width")
# Size of the errors of entries from a file: they are saved again, and move as freely as fresh ones.
_LEARNED = 1e-6
_TABLES = ("entry", "value", "other")
_MOST_CANDIDATES = 2**16
_FIELDS_OF_WEIGHTS = ("format", "names", "candidates", "space", "about")


class PackingPolicy(TensorDictModuleBase):
    """Greedy packing policy: the largest gain plus value of the bin afterwards.

    Args:
        space: Space of the environment, or of another one with the same kind of items: the tables fit bins of any size.
        tables: Values of bins, by tables, or of placements, by weights.
        about: Origin, as plain data.

    Attributes:
        graph_rows: Rows of a batch that an exported graph works on at once, which take some 60 MiB.
    """

    graph_rows = 16

    def __init__(
        self, space: AgentSpace, tables: PatchTables | LinearPlacementValues, about: Mapping[str, object] | None = None
    ) -> None:
        super().__init__()
        self.space = space
        self.tables = tables
        self.about = dict(about or {})
        # The same modules as a DQN's: values first, and then the legal action of the largest.
        self.policy = TensorDictSequential(Entry("action_value", tables), greedy_module(space))
        self.in_keys = list(self.policy.in_keys)
        self.out_keys = list(self.policy.out_keys)

    @property
    def why_no_graph(self) -> str | None:
        """Reason why it cannot be exported, or None."""
        if not isinstance(self.tables, RefinedTables):
            return None
        return "refined tables, whose places are counted by the packing kernels: `torchrl-gpu serve-policy` serves them"

    def forward(self, tensordict: TensorDictBase) -> TensorDictBase:
        """Write `action_value` (…, K·O·Gx·Gy), the greedy `action` (…) and its value."""
        written: TensorDictBase = self.policy(tensordict)
        return written

    @classmethod
    def names(cls) -> list[str]:
        """Trained policies that come with the package, by protocol or setting."""
        return sorted(path.stem for path in FOLDER.glob("*.safetensors"))

    @classmethod
    def from_pretrained(
        cls, name: str | Path, device: str | torch.device = "auto", *, space: AgentSpace | None = None
    ) -> PackingPolicy:
        """Load a trained policy.

        Args:
            name: One of `names()`, or the path of a file that `save` wrote, or of a checkpoint of a run that learned
                such values (`AfterstateLearning`, `PlacementEvolution`).
            device: As in `get_device`.
            space: Space of the environment that it will pack in; None for the one that it was trained in.

        Raises:
            FileNotFoundError: There is no such policy.
            ValueError: The file is something else, is cut off, or does not hold such tables.
        """
        path = Path(name)
        # A name of the package goes before a file of that name.
        if str(name) in cls.names():
            path = FOLDER / f"{name}.safetensors"
        if not path.is_file():
            raise FileNotFoundError(
                f"PackingPolicy: no file {str(name)!r}: give a path, or one of {', '.join(cls.names())}"
            )
        # Whatever torch's default device is.
        with torch.device("cpu"):
            policy = _of_checkpoint(path, space) if zipfile.is_zipfile(path) else _read(path, space)
        return policy.to(get_device(device)).eval()

    def save(self, path: str | Path) -> None:
        """Write the tables as a safetensors file of a few megabytes.

        It holds half precision, and only weights that have learned: the values of bins change by less than 1e-4 of a
        bin's volume. Weights of placements stay as they are.
        """
        from safetensors.torch import save_file

        space = json.dumps(self.space.to_dict())
        origin = {"space": space, "about": json.dumps(self.about)}
        if isinstance(self.tables, LinearPlacementValues):
            plain = {"format": FORMAT_OF_WEIGHTS, "names": json.dumps(NAMES)}
            plain["candidates"] = str(self.tables.candidates)
            weight = {"weight": self.tables.weight.cpu()}
            save_file(weight, str(path), plain | origin)
            return
        tables = self.tables.cpu()
        held = _learned_entries(tables)
        plain = {
            "format": FORMAT,
            "patches": json.dumps(tables.plan.shapes),
            "levels": str(tables.plan.levels),
            "pool": str(tables.pool),
        }
        if isinstance(tables, RefinedTables):
            for name in ("sides", "candidates", "width"):
                plain[name] = json.dumps(getattr(tables, name))
            plain["format"] = FORMAT_OF_REFINED
            for name, value in tables.state_dict().items():
                if name.startswith("network."):
                    held[name] = value.half()
        save_file(held, str(path), plain | origin)


def _learned_entries(tables: PatchTables) -> dict[str, Tensor]:
    """Entries that have learned, their weights, and the weight of all others."""
    moved = (tables.path > 0).nonzero()[:, 0]
    # All entries that have not learned have one value, of which one is kept.
    untouched = torch.ones_like(tables.path, dtype=torch.bool)
    images = images_of(tables.plan, moved)
    for each in images:
        untouched[each] = False
    # Of entries that are the same when turned or mirrored, the first one is enough.
    first = torch.cat([each.amin(0) for each in images])
    learned = moved[first == moved]
    others = tables.weight[untouched.nonzero()[:1, 0]]
    if not len(others):
        others = torch.zeros(1, dtype=torch.float32, device="cpu")
    return {"entry": learned.int(), "value": tables.weight[learned].half(), "other": others}


def pretrained_for(env: BatchedEnv) -> dict[str, PackingPolicy]:
    """The package's trained policy for an environment, as "pretrained", if any."""
    if not isinstance(env, PackingEnv):
        return {}
    name = protocol_of(env) if "z_map" in env.include else None
    if name is None and packs_orders(env):
        name = "orders"
    if name is None or name not in PackingPolicy.names():
        return {}
    return {"pretrained": PackingPolicy.from_pretrained(name, env.device, space=AgentSpace.of(env))}


# Make the policy of a run's checkpoint, in a space, or in the one that it was trained in.
CheckpointReader = Callable[[Path, AgentSpace | None], PackingPolicy]

_READERS: list[CheckpointReader] = []


def register_reader(reader: CheckpointReader) -> None:
    """Let `from_pretrained` read checkpoints of runs.

    Their reader makes policies of this module, and so cannot be imported here.
    """
    _READERS.append(reader)


def _of_checkpoint(path: Path, space: AgentSpace | None) -> PackingPolicy:
    return _READERS[-1](path, space)


def _read(path: Path, space: AgentSpace | None) -> PackingPolicy:
    """Read a policy from a file that `save` wrote."""
    where = f"policy {path}"
    plain, held = read_tensors(path, where, _MOST_BYTES)
    # The format says which fields and tensors must be there, and nothing else may be.
    if plain.get("format") == FORMAT_OF_WEIGHTS:
        return _weighted(where, plain, held, space)
    fields = {FORMAT: _FIELDS, FORMAT_OF_REFINED: _FIELDS_OF_REFINED}.get(plain.get("format", ""), ())
    names_of_network = [name for name in held if name.startswith("network.")]
    network = {name: held.pop(name) for name in names_of_network}
    needs_network = fields == _FIELDS_OF_REFINED
    has_entries = set(plain) == {*fields} and set(held) == set(_TABLES)
    if not has_entries or bool(network) != needs_network:
        raise ValueError(f"{where}: {sorted(held | network)} is not what PackingPolicy.save writes")
    levels, patches, trained_in, about, pool, *refined = read_json(where, plain, *fields[1:])
    if not isinstance(patches, list) or not isinstance(about, dict):
        raise ValueError(f"{where}: patches must be a list and about a dict, not {shown((patches, about))}")
    levels = whole(where, "levels", levels, 1, MOST_LEVELS)
    space = AgentSpace.from_dict(trained_in) if space is None else space
    if refined:
        tables: PatchTables = _refined(where, space, patches, levels, refined, network)
    else:
        tables = PatchTables(space, patches, levels, initial=0.0, pool=whole(where, "pool", pool, 1))
    _fill(where, tables, held)
    return PackingPolicy(space, tables, about)


def _fill(where: str, tables: PatchTables, held: Mapping[str, Tensor]) -> None:
    """Fill tables with the entries of a file."""
    rows = tuple(held["entry"].shape[:1])
    entry = tensor(where, "entry", held["entry"], torch.int32, rows).long()
    value = tensor(where, "value", held["value"], torch.float16, rows).float()
    other = tensor(where, "other", held["other"], torch.float32, (1,))
    is_inside = (entry >= 0) & (entry < tables.plan.entries)
    if not bool(is_inside.all()):
        raise ValueError(f"{where}: entry must be from 0 to {tables.plan.entries - 1:,}, the entries of the tables")
    if not bool(value.isfinite().all() and other.isfinite().all()):
        raise ValueError(f"{where}: value and other must be finite")
    # `images_of` takes rising entries, and a file may have them in any order.
    entry, order = entry.sort()
    images = images_of(tables.plan, entry)
    weight = spread(tables.plan, images, value[order], other)
    tables.weight.copy_(weight)
    tables.drift[entry] = _LEARNED
    tables.path[entry] = _LEARNED


def _refined(
    where: str,
    space: AgentSpace,
    patches: list[str],
    levels: int,
    settings: list[object],
    weights: dict[str, Tensor],
) -> RefinedTables:
    """Tables with their network, from the settings and weights of a file."""
    sides, candidates, width = settings
    if not isinstance(sides, list) or len(sides) != 2:
        raise ValueError(f"{where}: sides must be the shortest and the longest side, not {shown(sides)}")
    width = whole(where, "width", width, 1, MOST_WIDTH)
    candidates = whole(where, "candidates", candidates, 1)
    low, high = sides
    tables = RefinedTables(space, patches, levels, 0.0, sides=(low, high), candidates=candidates, width=width)
    network = dict(tables.network.named_parameters(prefix="network"))
    if set(weights) != set(network):
        raise ValueError(f"{where}: weights must be {', '.join(network)}, not {', '.join(sorted(weights))}")
    for name, weight in network.items():
        shape = tuple(weight.shape)
        held = tensor(where, name, weights[name], torch.float16, shape)
        held = held.float()
        if not bool(held.isfinite().all()):
            raise ValueError(f"{where}: {name} must be finite")
        weight.data.copy_(held)
    return tables


def _weighted(
    where: str, plain: Mapping[str, str], held: Mapping[str, Tensor], space: AgentSpace | None
) -> PackingPolicy:
    """Policy by weights of placements, from the text and tensors of a file."""
    if set(plain) != {*_FIELDS_OF_WEIGHTS} or set(held) != {"weight"}:
        raise ValueError(f"{where}: {sorted(held)} with {sorted(plain)} is not what PackingPolicy.save writes")
    names, candidates, trained_in, about = read_json(where, plain, *_FIELDS_OF_WEIGHTS[1:])
    if names != list(NAMES):
        raise ValueError(f"{where}: names must be {', '.join(NAMES)}, not {shown(names)}")
    if not isinstance(about, dict):
        raise ValueError(f"{where}: about must be a dict, not {shown(about)}")
    one_each = (len(NAMES),)
    weight = tensor(where, "weight", held["weight"], torch.float32, one_each)
    space = AgentSpace.from_dict(trained_in) if space is None else space
    values = LinearPlacementValues(space, weight.tolist(), whole(where, "candidates", candidates, 1, _MOST_CANDIDATES))
    return PackingPolicy(space, values, about)
