"""`PackingPolicy`: packing by the value of the bin afterwards, with the trained policies that come with the package."""

from __future__ import annotations

import json
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from tensordict import TensorDictBase
from tensordict.nn import TensorDictModuleBase, TensorDictSequential

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
_FOLDER = Path(__file__).parent / "weights"
_MOST_BYTES = 2**26  # of a file
_FIELDS = ("format", "levels", "patches", "space", "about", "pool")
_FIELDS_OF_REFINED = (*_FIELDS, "sides", "candidates", "width")
_LEARNED = 1e-6  # size of the errors of entries out of a file: they are saved again, and move as freely as fresh ones
_TABLES = ("entry", "value", "other")
_MOST_CANDIDATES = 2**16
_FIELDS_OF_WEIGHTS = ("format", "names", "candidates", "space", "about")


class PackingPolicy(TensorDictModuleBase):
    """Greedy packing policy: places every item where gain plus value of the bin afterwards is largest.

    Args:
        space: Of the environment, or of another one with the same kind of items: the tables fit bins of any size.
        tables: Values of bins, by tables, or of placements, by weights.
        about: Origin, as plain data.
    """

    graph_rows = 16
    """Rows of a batch that an exported graph works on at once, which take some 60 MiB."""

    def __init__(
        self, space: AgentSpace, tables: PatchTables | LinearPlacementValues, about: Mapping[str, Any] | None = None
    ) -> None:
        super().__init__()
        self.space = space
        self.tables = tables
        self.about = dict(about or {})
        self.policy = TensorDictSequential(Entry("action_value", tables), greedy_module(space))
        self.in_keys = list(self.policy.in_keys)
        self.out_keys = list(self.policy.out_keys)

    @property
    def why_no_graph(self) -> str | None:
        """Why it cannot be exported; None where it can."""
        if not isinstance(self.tables, RefinedTables):
            return None
        return "refined tables, whose places are counted by the packing kernels: `torchrl-gpu serve-policy` serves them"

    def forward(self, tensordict: TensorDictBase) -> TensorDictBase:
        """Writes `action_value` (…, K·O·Gx·Gy), the `action` (…) of the largest and its value."""
        written: TensorDictBase = self.policy(tensordict)
        return written

    @classmethod
    def names(cls) -> list[str]:
        """The trained policies that come with the package, by the protocol or setting that each was trained on."""
        return sorted(path.stem for path in _FOLDER.glob("*.safetensors"))

    @classmethod
    def from_pretrained(
        cls, name: str | Path, device: str | torch.device = "auto", *, space: AgentSpace | None = None
    ) -> PackingPolicy:
        """A trained policy.

        Args:
            name: One of `names()`, or the path of a file that `save` wrote, or of a checkpoint of a run that learned
                such values (`AfterstateLearning`, `PlacementEvolution`).
            device: As in `get_device`.
            space: Of the environment that it will pack in; None stands for the one that it was trained in.

        Raises:
            FileNotFoundError: There is no such policy.
            ValueError: The file is something else, is cut off, or holds what cannot be such tables.
        """
        path = Path(name)
        if str(name) in cls.names():
            path = _FOLDER / f"{name}.safetensors"
        if not path.is_file():
            raise FileNotFoundError(
                f"PackingPolicy: want one of {', '.join(cls.names())} or the path of a file; got {str(name)!r}"
            )
        with torch.device("cpu"):  # whatever torch's default is
            policy = _of_checkpoint(path, space) if zipfile.is_zipfile(path) else _read(path, space)
        return policy.to(get_device(device)).eval()

    def save(self, path: str | Path) -> None:
        """Writes the tables as a safetensors file, in a few megabytes: half precision, and only weights that learned.

        The values of bins change by less than 1e-4 of a bin's volume by that. Weights of placements stay as they are.
        """
        from safetensors.torch import save_file

        whole = {"space": json.dumps(self.space.to_dict()), "about": json.dumps(self.about)}
        if isinstance(self.tables, LinearPlacementValues):
            of_weights = {"format": FORMAT_OF_WEIGHTS, "names": json.dumps(NAMES)}
            of_weights |= {"candidates": str(self.tables.candidates)}
            save_file({"weight": self.tables.weight.cpu()}, str(path), of_weights | whole)
            return
        tables = self.tables.cpu()
        moved = (tables.path > 0).nonzero()[:, 0]
        untouched = torch.ones_like(tables.path, dtype=torch.bool)
        images = images_of(tables.plan, moved)
        for each in images:
            untouched[each] = False
        learned = moved[torch.cat([each.amin(0) for each in images]) == moved]  # one of those that are the same
        others = tables.weight[untouched.nonzero()[:1, 0]]
        held = {
            "entry": learned.int(),
            "value": tables.weight[learned].half(),
            "other": others if len(others) else torch.zeros(1, dtype=torch.float32, device="cpu"),
        }
        plain = {
            "format": FORMAT,
            "patches": json.dumps(tables.plan.shapes),
            "levels": str(tables.plan.levels),
            "pool": str(tables.pool),
        }
        if isinstance(tables, RefinedTables):
            plain |= {name: json.dumps(getattr(tables, name)) for name in ("sides", "candidates", "width")}
            plain["format"] = FORMAT_OF_REFINED
            held |= {name: value.half() for name, value in tables.state_dict().items() if name.startswith("network.")}
        save_file(held, str(path), plain | whole)


def pretrained_for(env: BatchedEnv) -> dict[str, PackingPolicy]:
    """The trained policy that comes with the package for the rules of an environment, as "pretrained"; or none."""
    if not isinstance(env, PackingEnv):
        return {}
    name = protocol_of(env) if "z_map" in env.include else None
    if name is None and packs_orders(env):
        name = "orders"
    if name is None or name not in PackingPolicy.names():
        return {}
    return {"pretrained": PackingPolicy.from_pretrained(name, env.device, space=AgentSpace.of(env))}


CheckpointReader = Callable[[Path, AgentSpace | None], PackingPolicy]
"""Makes the policy of a run's checkpoint, in a space, or in the one that it was trained in."""

_READERS: list[CheckpointReader] = []


def register_reader(reader: CheckpointReader) -> None:
    """Let `from_pretrained` read checkpoints of runs; their reader makes such policies, so that it imports this one."""
    _READERS.append(reader)


def _of_checkpoint(path: Path, space: AgentSpace | None) -> PackingPolicy:
    return _READERS[-1](path, space)


def _read(path: Path, space: AgentSpace | None) -> PackingPolicy:
    where = f"policy {path}"
    plain, held = read_tensors(path, where, _MOST_BYTES)
    if plain.get("format") == FORMAT_OF_WEIGHTS:
        return _weighted(where, plain, held, space)
    fields = {FORMAT: _FIELDS, FORMAT_OF_REFINED: _FIELDS_OF_REFINED}.get(plain.get("format", ""), ())
    weights = {name: held.pop(name) for name in list(held) if name.startswith("network.")}
    if set(plain) != {*fields} or set(held) != set(_TABLES) or bool(weights) != (fields == _FIELDS_OF_REFINED):
        raise ValueError(f"{where}: want a file that PackingPolicy.save wrote; got one with {sorted(held | weights)}")
    levels, patches, trained_in, about, pool, *refined = read_json(where, plain, *fields[1:])
    if not isinstance(patches, list) or not isinstance(about, dict):
        raise ValueError(f"{where}: want a list of patches and a dict about them; got {shown((patches, about))}")
    levels = whole(where, "levels", levels, 1, MOST_LEVELS)
    space = AgentSpace.from_dict(trained_in) if space is None else space
    if refined:
        tables: PatchTables = _refined(where, space, patches, levels, refined, weights)
    else:
        tables = PatchTables(space, patches, levels, initial=0.0, pool=whole(where, "pool", pool, 1))
    rows = held["entry"].shape[:1]
    entry = tensor(where, "entry", held["entry"], torch.int32, tuple(rows)).long()
    value = tensor(where, "value", held["value"], torch.float16, tuple(rows)).float()
    other = tensor(where, "other", held["other"], torch.float32, (1,))
    inside = bool(((entry >= 0) & (entry < tables.plan.entries)).all())
    if not inside or not bool(value.isfinite().all() and other.isfinite().all()):
        raise ValueError(f"{where}: want finite values of entries that the tables have; got others")
    entry, order = entry.sort()
    tables.weight.copy_(spread(tables.plan, images_of(tables.plan, entry), value[order], other))
    tables.drift[entry] = tables.path[entry] = _LEARNED
    return PackingPolicy(space, tables, about)


def _refined(
    where: str,
    space: AgentSpace,
    patches: list[str],
    levels: int,
    settings: list[Any],
    weights: dict[str, torch.Tensor],
) -> RefinedTables:
    sides, candidates, width = settings
    if not isinstance(sides, list) or len(sides) != 2:
        raise ValueError(f"{where}: want the shortest and the longest side; got {shown(sides)}")
    width = whole(where, "width", width, 1, MOST_WIDTH)
    candidates = whole(where, "candidates", candidates, 1)
    tables = RefinedTables(space, patches, levels, 0.0, sides=(sides[0], sides[1]), candidates=candidates, width=width)
    wanted = dict(tables.network.named_parameters(prefix="network"))
    if set(weights) != set(wanted):
        raise ValueError(f"{where}: want weights {', '.join(wanted)}; got {', '.join(sorted(weights))}")
    for name, weight in wanted.items():
        held = tensor(where, name, weights[name], torch.float16, tuple(weight.shape)).float()
        if not bool(held.isfinite().all()):
            raise ValueError(f"{where}: want a finite {name}; got others")
        weight.data.copy_(held)
    return tables


def _weighted(
    where: str, plain: Mapping[str, str], held: Mapping[str, torch.Tensor], space: AgentSpace | None
) -> PackingPolicy:
    if set(plain) != {*_FIELDS_OF_WEIGHTS} or set(held) != {"weight"}:
        raise ValueError(f"{where}: want a file that PackingPolicy.save wrote; got one with {sorted(held)}")
    names, candidates, trained_in, about = read_json(where, plain, *_FIELDS_OF_WEIGHTS[1:])
    if names != list(NAMES) or not isinstance(about, dict):
        raise ValueError(f"{where}: want weights of {', '.join(NAMES)}; got those of {shown(names)}")
    weight = tensor(where, "weight", held["weight"], torch.float32, (len(NAMES),))
    space = AgentSpace.from_dict(trained_in) if space is None else space
    values = LinearPlacementValues(space, weight.tolist(), whole(where, "candidates", candidates, 1, _MOST_CANDIDATES))
    return PackingPolicy(space, values, about)
