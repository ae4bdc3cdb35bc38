"""Policy export to files that run without this package: ONNX, or a program of torch.export."""

from __future__ import annotations

import copy
import hashlib
import json
import logging
import time
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from tensordict import TensorDict
from torch import Tensor, nn

from torchrl_gpu.policies.actors import CategoricalActor
from torchrl_gpu.policies.export.manifest import elements_of, manifest_of
from torchrl_gpu.policies.inference import InferencePolicy
from torchrl_gpu.policies.loading import load_policy
from torchrl_gpu.policies.policy import Entry
from torchrl_gpu.policies.wrapper import PolicyWrapper
from torchrl_gpu.streaming.codecs.extras import load
from torchrl_gpu.system.arguments import choice, refuse
from torchrl_gpu.system.machine import version

SUFFIXES = {"onnx": ".onnx", "pt2": ".pt2"}
_BATCHES = (1, 3, 64)  # that are compared
_TOLERANCE = 1e-4  # of actions, and of the values of actions, over their size
_LEAPP_CONFIG = "1.3"
_LARGE_TABLE = 1 << 16  # entries, from which on it is worth a look whether most of them are the same

Run = Callable[[list[Tensor]], Tensor]
"""Gives actions of observations, in the order of a policy's `in_keys`."""


def export_policy(
    policy: InferencePolicy | str | Path,
    out: str | Path,
    format: Literal["onnx", "pt2"] = "onnx",
    *,
    classes: Sequence[type] = (),
) -> Path:
    """Exports a policy as one graph, masks and normalisation inside, for batches of any size; the path of the file.

    The graph takes the observations that `policy.in_keys` names and gives `action`. An ONNX graph of tables, which
    needs some MiB for a row, goes through a batch 16 rows at a time, so that its memory does not grow. The file is
    opened again, by ONNX Runtime or by torch, and must decide as the policy does on batches of several sizes. Beside it
    come `NAME.json`, see `manifest_of`, and `NAME.leapp.yaml`, the same for NVIDIA's LEAPP runtimes, for a batch of
    one. The hierarchical packer and refined tables are no graphs: their decisions need the packing kernels.

    Args:
        policy: What `load_policy` gave, or the file that it takes.
        out: The file; its suffix is the format's.
        format: "onnx", which needs the extra `export`, or "pt2", a program that `torch.export.load` reads.
        classes: As in `load_policy`, where a file is given.

    Raises:
        ValueError: The policy cannot be exported, or the exported one decides otherwise.
        ModuleNotFoundError: The extra `export` is not installed.
    """
    choice("export_policy", "format", format, SUFFIXES)
    out = Path(out)
    if out.suffix != SUFFIXES[format]:
        refuse("export_policy", "out", f"the name of a {SUFFIXES[format]} file", str(out))
    if not out.parent.is_dir():
        raise FileNotFoundError(f"export_policy: want a folder to write into; got none at {out.parent}")
    if format == "onnx":
        for module in ("onnx", "onnxscript", "onnxruntime"):
            load(module, "export", "export_policy")
    given = policy if isinstance(policy, InferencePolicy) else load_policy(policy, "cpu", classes=classes)
    why_no_graph = getattr(given.policy, "why_no_graph", None)
    if why_no_graph is not None:
        raise ValueError(f"export_policy: want a policy that is one graph; got {why_no_graph}")
    rows_at_once: int | None = getattr(given.policy, "graph_rows", None)
    if rows_at_once is None and not isinstance(given.policy, PolicyWrapper | Entry):
        raise ValueError(f"export_policy: want a policy that load_policy gave; got {given.name}")
    ours = copy.deepcopy(given).cpu()
    fresh = out.with_name(f".{out.name}.new")
    try:
        run = _WRITERS[format](_Graph(ours), made_up(ours, 2), fresh, ours.in_keys, rows_at_once)
        worst = max(_difference(ours, run, made_up(ours, rows)) for rows in _BATCHES)
        if not worst <= _TOLERANCE:
            raise ValueError(
                f"export_policy: want a file that decides as the policy does, within {_TOLERANCE:g}; got one that is"
                f" {worst:.3g} away, and nothing is written"
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
        rows = TensorDict(dict(zip(self._names, observations, strict=True)), observations[0].shape[:1])
        return self.policy(rows).get("action")


def _program(graph: nn.Module, example: list[Tensor]) -> torch.export.ExportedProgram:
    batch = torch.export.Dim("batch", min=1, max=2**20)
    shapes = {"observations": tuple({0: batch} for _ in example)}
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")  # exporters call older names of torch
        return torch.export.export(graph, tuple(example), dynamic_shapes=shapes, strict=False)


def _write_pt2(graph: nn.Module, example: list[Tensor], path: Path, names: list[str], chunk: int | None) -> Run:
    with path.open("wb") as file, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of weights that lie in one storage, on another device than the CPU
        torch.export.save(_program(graph, example), file)
    return _opened_pt2(path, names)


def _write_onnx(graph: nn.Module, example: list[Tensor], path: Path, names: list[str], chunk: int | None) -> Run:
    logging.getLogger("onnxscript").setLevel(logging.ERROR)  # what it could not fold is no news
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        program = torch.onnx.export(
            _program(graph, example), dynamo=True, input_names=names, output_names=["action"], verbose=False
        )
        assert program is not None
        model = program.model_proto
    if chunk is not None:
        _go_by_chunks(model, chunk)
    _pack_tables(model.graph)
    path.write_bytes(model.SerializeToString())
    return _opened_onnx(path, names)


def _opened_onnx(path: Path, names: list[str]) -> Run:
    import onnxruntime

    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])

    def run(observations: list[Tensor]) -> Tensor:
        given = {name: value.numpy() for name, value in zip(names, observations, strict=True)}
        return torch.from_numpy(session.run(["action"], given)[0])

    return run


def _opened_pt2(path: Path, names: list[str]) -> Run:
    with path.open("rb") as file:
        loaded = torch.export.load(file).module()
    return lambda observations: loaded(*observations)


def milliseconds_a_row(policy: InferencePolicy, path: Path, rows: int = 64) -> tuple[float, float]:
    """Time of one row in a batch of `rows` on this CPU: of the exported file, and of the policy itself."""
    observations = made_up(policy, rows)
    run = {".onnx": _opened_onnx, ".pt2": _opened_pt2}[path.suffix](path, policy.in_keys)
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


def _go_by_chunks(model: Any, rows: int) -> None:
    """Puts the nodes of a graph into a loop over so many rows of the batch at a time; initializers stay outside.

    A loop's plain outputs must have one shape in all turns, and the last chunk may be shorter. So actions are gathered
    in a sequence.
    """
    from onnx import helper, numpy_helper

    graph = model.graph
    (result,) = graph.output
    body = _chunk_body(graph, result)
    numbers = {"chunk_zero": 0, "chunk_one": 1, "chunk_rows": rows, "chunk_rest": rows - 1}
    for name, number in numbers.items():
        graph.initializer.append(numpy_helper.from_array(np.array(number, np.int64), name))
    graph.initializer.append(numpy_helper.from_array(np.array([0], np.int64), "chunk_axis"))
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


def _chunk_body(graph: Any, result: Any) -> Any:
    """The turn of a loop: the nodes of a graph on a part of the batch, and `result` added to the sequence."""
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
    of_one = helper.make_tensor_type_proto(result.type.tensor_type.elem_type, None)
    sequence = helper.make_sequence_type_proto(of_one)
    given = [
        helper.make_tensor_value_info("chunk_turn", TensorProto.INT64, []),
        helper.make_tensor_value_info("chunk_goes_on", TensorProto.BOOL, []),
        helper.make_value_info("chunk_before", sequence),
    ]
    made = [
        helper.make_tensor_value_info("chunk_goes_on_again", TensorProto.BOOL, []),
        helper.make_value_info("chunk_after", sequence),
    ]
    return helper.make_graph(inside, "chunk", given, made)


def _pack_tables(graph: Any) -> None:
    """Stores the graph's tables sparsely, as the most frequent value and all others; bit-identical when expanded.

    ONNX Runtime expands them once, when it opens the file.
    """
    from onnx import TensorProto, helper, numpy_helper

    made = []
    for table in [each for each in graph.initializer if each.data_type == TensorProto.FLOAT and len(each.dims) == 1]:
        name = table.name
        values = numpy_helper.to_array(table)
        if len(values) < _LARGE_TABLE:
            continue
        middle = len(values) // 2
        most = np.partition(values, middle)[middle]  # what more than half of them are
        others = np.flatnonzero(values.view(np.int32) != most.view(np.int32))
        if 4 * len(others) > len(values):
            continue
        held: dict[str, np.ndarray] = {
            "size": np.array(values.shape, np.int64),
            "entry": others.astype(np.int32),
            "value": values[others],
        }
        graph.initializer.remove(table)
        graph.initializer.extend(numpy_helper.from_array(each, f"{name}_{key}") for key, each in held.items())
        filling = helper.make_tensor("value", TensorProto.FLOAT, [1], [float(most)])
        made.append(helper.make_node("ConstantOfShape", [f"{name}_size"], [f"{name}_most"], value=filling))
        made.append(helper.make_node("ScatterElements", [f"{name}_most", f"{name}_entry", f"{name}_value"], [name]))
    for node in reversed(made):
        graph.node.insert(0, node)


_WRITERS = {"onnx": _write_onnx, "pt2": _write_pt2}


def made_up(policy: InferencePolicy, rows: int) -> list[Tensor]:
    """Synthetic observations of a policy, (rows, …) each, drawn from a seed: masks have a legal action in each row."""
    generator = torch.Generator().manual_seed(rows)
    found: dict[str, Tensor] = {}
    for name in policy.in_keys:
        shape, dtype = policy.space.observations[name]
        drawn = torch.rand((rows, *shape), generator=generator, dtype=torch.float32, device="cpu")
        kind = getattr(torch, dtype)
        scale = 255 if kind is torch.uint8 else 2 if kind is torch.bool or not kind.is_floating_point else 3
        found[name] = (drawn < 0.5) if kind is torch.bool else (scale * drawn).to(kind)
    if "action_mask" in found:
        if "legal_mask" in found:  # of which the other is a view
            found["action_mask"] = found["legal_mask"].flatten(1)
        found["action_mask"][:, 0] = True
    return list(found.values())


def _difference(policy: InferencePolicy, run: Run, observations: list[Tensor]) -> float:
    """Largest difference of a file's actions from the policy's; of discrete ones, largest loss of value."""
    given = dict(zip(policy.in_keys, observations, strict=True))
    ours = policy.policy(TensorDict({name: value.clone() for name, value in given.items()}, [len(observations[0])]))
    wanted = ours.get("action")
    got = run(observations)
    if got.shape != wanted.shape or got.dtype != wanted.dtype:
        return float("inf")
    if policy.space.num_actions is None:
        return float(((got - wanted).abs() / wanted.abs().clamp_min(1)).max())
    decides = policy.policy.policy
    values = decides.log_probs(ours) if isinstance(decides, CategoricalActor) else ours.get("action_value")
    in_range = (got >= 0) & (got < policy.space.num_actions)
    index = torch.stack([wanted, torch.where(in_range, got, 0)], 1)
    legal = given["action_mask"].gather(1, index[:, 1:])[:, 0] if policy.space.masked else in_range
    best, taken = values.gather(1, index).unbind(1)
    behind = torch.where(in_range & legal, (best - taken) / best.abs().clamp_min(1), torch.inf)
    return float(behind.max())


def _describe(policy: InferencePolicy, out: Path, format: str, worst: float) -> None:
    sha256 = hashlib.sha256(out.read_bytes()).hexdigest()
    checked = {"batches": list(_BATCHES), "largest_difference": worst, "tolerance": _TOLERANCE}
    manifest = {"file": out.name, "file_format": format, "sha256": sha256, "parity": checked} | manifest_of(policy)
    out.with_suffix(".json").write_text(json.dumps(manifest, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    import yaml

    out.with_suffix(".leapp.yaml").write_text(
        yaml.safe_dump(leapp(policy, manifest), sort_keys=False, width=120), encoding="utf-8"
    )


def leapp(policy: InferencePolicy, manifest: dict[str, Any]) -> dict[str, Any]:
    """LEAPP 0.7 description of a graph of one node, for a batch of one (github.com/nvidia-isaac/leapp).

    `kind`, which is free there, is left out: none of its own words fits these observations.
    """

    def port(entry: dict[str, Any]) -> dict[str, Any]:
        elements = elements_of(policy, entry["name"])
        rest = [None] * (len(entry["shape"]) - 1)
        named = {} if elements is None else {"element_names": [*rest, elements]}
        shape = [1, *entry["shape"][1:]]
        return {"name": entry["name"], "dtype": entry["dtype"], "shape": shape, "type": "tensor"} | named

    backend = {"onnx": "onnx-dynamo", "pt2": "pt2"}[manifest["file_format"]]
    node = {
        "inputs": [port(entry) for entry in manifest["inputs"]],
        "outputs": [port(entry) for entry in manifest["outputs"]],
        "parameters": {"backend": backend, "model_path": manifest["file"], "sha256sum": manifest["sha256"]},
    }
    wiring = {"inputs": {"policy": list(policy.in_keys)}, "outputs": {"policy": ["action"]}}
    return {
        "models": {"policy": node},
        "pipeline": {"data_flow": {}, "feedback_flow": {}, **wiring},
        "system information": {"leapp config version": _LEAPP_CONFIG, "torch version": version("torch")},
    }
