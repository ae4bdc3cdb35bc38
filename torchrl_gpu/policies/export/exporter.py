"""Policy export to files that run without this package."""

from __future__ import annotations

import copy
import hashlib
import json
import logging
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import torch
from tensordict import TensorDict
from torch import Tensor, nn

from torchrl_gpu.policies.actors import CategoricalActor
from torchrl_gpu.policies.export.manifest import EntryRecord, elements_of, manifest_of
from torchrl_gpu.policies.inference import InferencePolicy
from torchrl_gpu.policies.loading import load_policy
from torchrl_gpu.policies.policy import Entry
from torchrl_gpu.policies.wrapper import PolicyWrapper
from torchrl_gpu.streaming.codecs.extras import load
from torchrl_gpu.system.arguments import choice, refuse
from torchrl_gpu.system.machine import version

if TYPE_CHECKING:
    from onnx import GraphProto, ModelProto, ValueInfoProto

SUFFIXES = {"onnx": ".onnx", "pt2": ".pt2"}
# Sizes of the batches that are compared.
_BATCHES = (1, 3, 64)
# Largest difference of actions, and of the values of actions, over their size.
_TOLERANCE = 1e-4
_LEAPP_CONFIG = "1.3"
_BACKENDS = {"onnx": "onnx-dynamo", "pt2": "pt2"}
# Entries of a table from which it is worth a look whether most of them are the same.
_LARGE_TABLE = 1 << 16

# Give actions for observations, in the order of a policy's `in_keys`.
Run = Callable[[list[Tensor]], Tensor]


def export_policy(
    policy: InferencePolicy | str | Path,
    out: str | Path,
    format: Literal["onnx", "pt2"] = "onnx",
    *,
    classes: Sequence[type] = (),
) -> Path:
    """Export a policy as one graph, and return the path of the file.

    Masks and normalisation are inside; batches may have any size. The graph takes the observations that
    `policy.in_keys` names and gives `action`. An ONNX graph of tables, which needs some MiB for a row, goes through a
    batch 16 rows at a time, so that its memory does not grow. The file is opened again, by ONNX Runtime or by torch,
    and must decide as the policy does on batches of several sizes. With it come `NAME.json`, see `manifest_of`, and
    `NAME.leapp.yaml`, the same for NVIDIA's LEAPP runtimes, for a batch of one. The hierarchical packer and refined
    tables are no graphs: their decisions need the packing kernels.

    Args:
        policy: What `load_policy` gave, or the file that it takes.
        out: The file; its suffix is the format's.
        format: "onnx", which needs the extra `export`, or "pt2", a program that `torch.export.load` reads.
        classes: As in `load_policy`, for a file.

    Raises:
        ValueError: The policy cannot be exported, or the exported one decides otherwise.
        ModuleNotFoundError: The extra `export` is not installed.
    """
    choice("export_policy", "format", format, SUFFIXES)
    out = Path(out)
    if out.suffix != SUFFIXES[format]:
        refuse("export_policy", "out", f"the name of a {SUFFIXES[format]} file", str(out))
    if not out.parent.is_dir():
        raise FileNotFoundError(f"export_policy: {out.parent} is no folder: make it before writing {out.name} there")
    if format == "onnx":
        for module in ("onnx", "onnxscript", "onnxruntime"):
            load(module, "export", "export_policy")
    if not isinstance(policy, InferencePolicy):
        policy = load_policy(policy, "cpu", classes=classes)
    why_no_graph = getattr(policy.policy, "why_no_graph", None)
    if why_no_graph is not None:
        raise ValueError(f"export_policy: no graph can hold {why_no_graph}")
    # A policy says by itself how many rows its graph takes at once; others take all.
    rows_at_once: int | None = getattr(policy.policy, "graph_rows", None)
    if rows_at_once is None and not isinstance(policy.policy, PolicyWrapper | Entry):
        raise ValueError(f"export_policy: policy must be one that load_policy gave, not {policy.name}")
    ours = copy.deepcopy(policy).cpu()
    # Written next to the file and renamed only when it has been checked: a failed export leaves nothing.
    fresh = out.with_name(f".{out.name}.new")
    try:
        # The file is read back by the runtime that will use it.
        run = WRITERS[format](_Graph(ours), made_up(ours, 2), fresh, ours.in_keys, rows_at_once)
        worst = max(difference(ours, run, made_up(ours, rows)) for rows in _BATCHES)
        if not worst <= _TOLERANCE:
            raise ValueError(
                f"export_policy: the file decides otherwise than the policy, by {worst:.3g} where {_TOLERANCE:g} is"
                " allowed: nothing is written"
            )
        fresh.replace(out)
    finally:
        fresh.unlink(missing_ok=True)
    _describe(ours, out, format, worst)
    return out


class _Graph(nn.Module):
    """A policy as a function of tensors."""

    def __init__(self, policy: InferencePolicy) -> None:
        super().__init__()
        self.policy = policy.policy
        self._names = policy.in_keys

    def forward(self, *observations: Tensor) -> Tensor:
        entries = dict(zip(self._names, observations, strict=True))
        rows = TensorDict(entries, observations[0].shape[:1])
        return self.policy(rows).get("action")


def _program(graph: nn.Module, example: list[Tensor]) -> torch.export.ExportedProgram:
    """Program of a graph, for batches of any size."""
    batch = torch.export.Dim("batch", min=1, max=2**20)
    shapes = {"observations": tuple({0: batch} for _ in example)}
    with warnings.catch_warnings(), torch.no_grad():
        # Exporters call older names of torch.
        warnings.simplefilter("ignore")
        return torch.export.export(graph, tuple(example), dynamic_shapes=shapes, strict=False)


def _write_pt2(graph: nn.Module, example: list[Tensor], path: Path, names: list[str], chunk: int | None) -> Run:
    with path.open("wb") as file, warnings.catch_warnings():
        # Of weights in one storage, on another device than the CPU.
        warnings.simplefilter("ignore")
        program = _program(graph, example)
        torch.export.save(program, file)
    return _open_pt2(path, names)


def _write_onnx(graph: nn.Module, example: list[Tensor], path: Path, names: list[str], chunk: int | None) -> Run:
    # What it could not fold is no news.
    logging.getLogger("onnxscript").setLevel(logging.ERROR)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        program = torch.onnx.export(
            _program(graph, example), dynamo=True, input_names=names, output_names=["action"], verbose=False
        )
        # Only without `dynamo` there is none.
        assert program is not None
        model = program.model_proto
    if chunk is not None:
        split_into_chunks(model, chunk)
    pack_tables(model.graph)
    path.write_bytes(model.SerializeToString())
    return _open_onnx(path, names)


def _open_onnx(path: Path, names: list[str]) -> Run:
    import onnxruntime

    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])

    def run(observations: list[Tensor]) -> Tensor:
        given = {}
        for name, value in zip(names, observations, strict=True):
            given[name] = value.numpy()
        return torch.from_numpy(session.run(["action"], given)[0])

    return run


def _open_pt2(path: Path, names: list[str]) -> Run:
    with path.open("rb") as file:
        program = torch.export.load(file)
        loaded = program.module()
    return lambda observations: loaded(*observations)


def milliseconds_a_row(policy: InferencePolicy, path: Path, rows: int = 64) -> tuple[float, float]:
    """Times of one row in a batch of `rows` on this CPU.

    Of the exported file, and of the policy itself.
    """
    observations = made_up(policy, rows)
    run = {".onnx": _open_onnx, ".pt2": _open_pt2}[path.suffix](path, policy.in_keys)
    entries = TensorDict(dict(zip(policy.in_keys, observations, strict=True)), [rows])
    with torch.no_grad():
        of_file = _milliseconds(lambda: run(observations))
        of_policy = _milliseconds(lambda: policy.policy(entries.clone()))
    return of_file / rows, of_policy / rows


def _milliseconds(job: Callable[[], object]) -> float:
    """Time of the second of two calls."""
    job()
    begun = time.perf_counter()
    job()
    return 1e3 * (time.perf_counter() - begun)


def split_into_chunks(model: ModelProto, rows: int) -> None:
    """Put the nodes of a graph into a loop over `rows` rows of the batch at a time.

    Initializers stay outside. A loop's plain outputs must have one shape in all turns, and the last chunk may be
    shorter, so actions are gathered in a sequence.
    """
    from onnx import helper, numpy_helper

    graph = model.graph
    (result,) = graph.output
    body = _chunk_body(graph, result)
    numbers = {"chunk_zero": 0, "chunk_one": 1, "chunk_rows": rows, "chunk_rest": rows - 1}
    for name, number in numbers.items():
        tensor = np.array(number, np.int64)
        graph.initializer.append(numpy_helper.from_array(tensor, name))
    axis = np.array([0], np.int64)
    graph.initializer.append(numpy_helper.from_array(axis, "chunk_axis"))
    node = helper.make_node
    del graph.node[:]
    # A batch without a row is one chunk without a row.
    graph.node.append(node("Shape", [graph.input[0].name], ["chunk_shape"]))
    graph.node.append(node("Gather", ["chunk_shape", "chunk_zero"], ["chunk_batch"]))
    graph.node.append(node("Add", ["chunk_batch", "chunk_rest"], ["chunk_up"]))
    graph.node.append(node("Div", ["chunk_up", "chunk_rows"], ["chunk_full"]))
    graph.node.append(node("Max", ["chunk_full", "chunk_one"], ["chunk_count"]))
    graph.node.append(node("SequenceEmpty", [], ["chunk_none"], dtype=result.type.tensor_type.elem_type))
    graph.node.append(node("Loop", ["chunk_count", "", "chunk_none"], ["chunk_found"], body=body))
    graph.node.append(node("ConcatFromSequence", ["chunk_found"], [result.name], axis=0))
    # The shapes of inner values now lie inside the loop, of chunks.
    del graph.value_info[:]


def _chunk_body(graph: GraphProto, result: ValueInfoProto) -> GraphProto:
    """Return the turn of a loop: a graph's nodes on a part of the batch.

    `result` is added to the sequence.
    """
    from onnx import TensorProto, helper

    node = helper.make_node
    inside = [
        node("Identity", ["chunk_goes_on"], ["chunk_goes_on_again"]),
        node("Mul", ["chunk_turn", "chunk_rows"], ["chunk_first"]),
        node("Add", ["chunk_first", "chunk_rows"], ["chunk_end"]),
        node("Unsqueeze", ["chunk_first", "chunk_axis"], ["chunk_begins"]),
        node("Unsqueeze", ["chunk_end", "chunk_axis"], ["chunk_ends"]),
    ]
    # Names inside a loop must not be those outside.
    renamed = {each.name: f"chunk_of_{each.name}" for each in graph.input}
    for whole, part in renamed.items():
        inside.append(node("Slice", [whole, "chunk_begins", "chunk_ends", "chunk_axis"], [part]))
    renamed[result.name] = "chunk_result"
    for each in graph.node:
        inside.append(each)
        for names in (each.input, each.output):
            for position, name in enumerate(names):
                names[position] = renamed.get(name, name)
    inside.append(node("SequenceInsert", ["chunk_before", "chunk_result"], ["chunk_after"]))
    element = helper.make_tensor_type_proto(result.type.tensor_type.elem_type, None)
    sequence = helper.make_sequence_type_proto(element)
    inputs = [
        helper.make_tensor_value_info("chunk_turn", TensorProto.INT64, []),
        helper.make_tensor_value_info("chunk_goes_on", TensorProto.BOOL, []),
        helper.make_value_info("chunk_before", sequence),
    ]
    outputs = [
        helper.make_tensor_value_info("chunk_goes_on_again", TensorProto.BOOL, []),
        helper.make_value_info("chunk_after", sequence),
    ]
    return helper.make_graph(inside, "chunk", inputs, outputs)


def pack_tables(graph: GraphProto) -> None:
    """Store the graph's tables as the most frequent value and all others.

    They are bit-identical when expanded, which ONNX Runtime does once, when it opens the file.
    """
    from onnx import TensorProto, helper, numpy_helper

    nodes = []
    for table in list(graph.initializer):
        if table.data_type != TensorProto.FLOAT or len(table.dims) != 1:
            continue
        name = table.name
        values = numpy_helper.to_array(table)
        if len(values) < _LARGE_TABLE:
            continue
        # If more than half of the entries are the same, the middle one in order is.
        middle = len(values) // 2
        most = np.partition(values, middle)[middle]
        # By bits, since NaN is not equal to itself.
        is_other = values.view(np.int32) != most.view(np.int32)
        others = np.flatnonzero(is_other)
        if 4 * len(others) > len(values):
            continue
        held: dict[str, np.ndarray] = {
            "size": np.array(values.shape, np.int64),
            "entry": others.astype(np.int32),
            "value": values[others],
        }
        graph.initializer.remove(table)
        for key, each in held.items():
            graph.initializer.append(numpy_helper.from_array(each, f"{name}_{key}"))
        filling = helper.make_tensor("value", TensorProto.FLOAT, [1], [float(most)])
        most_name = f"{name}_most"
        nodes.append(helper.make_node("ConstantOfShape", [f"{name}_size"], [most_name], value=filling))
        inputs = [f"{name}_most", f"{name}_entry", f"{name}_value"]
        nodes.append(helper.make_node("ScatterElements", inputs, [name]))
    for node in reversed(nodes):
        graph.node.insert(0, node)


WRITERS = {"onnx": _write_onnx, "pt2": _write_pt2}


def made_up(policy: InferencePolicy, rows: int) -> list[Tensor]:
    """Synthetic observations of a policy, (rows, …) each, drawn from a seed.

    Masks have a legal action in each row.
    """
    generator = torch.Generator().manual_seed(rows)
    found: dict[str, Tensor] = {}
    for name in policy.in_keys:
        shape, dtype = policy.space.observations[name]
        drawn = torch.rand((rows, *shape), generator=generator, dtype=torch.float32, device="cpu")
        kind = getattr(torch, dtype)
        if kind is torch.bool:
            found[name] = drawn < 0.5
        else:
            found[name] = (_scale_of(kind) * drawn).to(kind)
    if "action_mask" in found:
        # Of packing, one mask is a view of the other.
        if "legal_mask" in found:
            found["action_mask"] = found["legal_mask"].flatten(1)
        found["action_mask"][:, 0] = True
    return list(found.values())


def _scale_of(kind: torch.dtype) -> int:
    """Upper limit of the numbers drawn for a dtype."""
    if kind is torch.uint8:
        return 255
    return 3 if kind.is_floating_point else 2


def difference(policy: InferencePolicy, run: Run, observations: list[Tensor]) -> float:
    """Largest difference of a file's actions from the policy's.

    Of discrete actions, the largest loss of value.
    """
    given = dict(zip(policy.in_keys, observations, strict=True))
    copies = {name: value.clone() for name, value in given.items()}
    rows = len(observations[0])
    ours = policy.policy(TensorDict(dict(copies), [rows]))
    wanted = ours.get("action")
    action = run(observations)
    if action.shape != wanted.shape or action.dtype != wanted.dtype:
        return float("inf")
    if policy.space.num_actions is None:
        size = wanted.abs().clamp_min(1)
        return float(((action - wanted).abs() / size).max())
    decides = policy.policy.policy
    values = decides.log_probs(ours) if isinstance(decides, CategoricalActor) else ours.get("action_value")
    in_range = (action >= 0) & (action < policy.space.num_actions)
    index = torch.stack([wanted, torch.where(in_range, action, 0)], 1)
    legal = in_range
    if policy.space.masked:
        mask = given["action_mask"]
        legal = mask.gather(1, index[:, 1:])[:, 0]
    best, taken = values.gather(1, index).unbind(1)
    loss = (best - taken) / best.abs().clamp_min(1)
    return float(torch.where(in_range & legal, loss, torch.inf).max())


def _describe(policy: InferencePolicy, out: Path, format: str, worst: float) -> None:
    """Write the manifest of an exported file, and its LEAPP description."""
    import yaml

    content = out.read_bytes()
    sha256 = hashlib.sha256(content).hexdigest()
    checked = {"batches": list(_BATCHES), "largest_difference": worst, "tolerance": _TOLERANCE}
    manifest: dict[str, Any] = {"file": out.name, "file_format": format, "sha256": sha256, "parity": checked}
    manifest |= manifest_of(policy)
    text = json.dumps(manifest, indent=1, ensure_ascii=False)
    out.with_suffix(".json").write_text(text + "\n", encoding="utf-8")
    description = yaml.safe_dump(leapp(policy, manifest), sort_keys=False, width=120)
    out.with_suffix(".leapp.yaml").write_text(description, encoding="utf-8")


def leapp(policy: InferencePolicy, manifest: Mapping[str, Any]) -> dict[str, object]:
    """LEAPP 0.7 description of a graph of one node, for a batch of one.

    See github.com/nvidia-isaac/leapp. `kind`, which is free there, is left out: none of its own words fits these
    observations.
    """
    parameters = {
        "backend": _BACKENDS[manifest["file_format"]],
        "model_path": manifest["file"],
        "sha256sum": manifest["sha256"],
    }
    inputs = [_leapp_port(policy, entry) for entry in manifest["inputs"]]
    outputs = [_leapp_port(policy, entry) for entry in manifest["outputs"]]
    node = {"inputs": inputs, "outputs": outputs, "parameters": parameters}
    wiring = {"inputs": {"policy": list(policy.in_keys)}, "outputs": {"policy": ["action"]}}
    return {
        "models": {"policy": node},
        "pipeline": {"data_flow": {}, "feedback_flow": {}, **wiring},
        "system information": {"leapp config version": _LEAPP_CONFIG, "torch version": version("torch")},
    }


def _leapp_port(policy: InferencePolicy, entry: EntryRecord) -> dict[str, object]:
    """An input or output of the node."""
    shape = [1, *entry["shape"][1:]]
    port: dict[str, object] = {"name": entry["name"], "dtype": entry["dtype"], "shape": shape, "type": "tensor"}
    elements = elements_of(policy, entry["name"])
    if elements is not None:
        rest = [None] * (len(entry["shape"]) - 1)
        port["element_names"] = [*rest, elements]
    return port
