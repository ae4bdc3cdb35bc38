from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from tensordict import TensorDict
from torch import Tensor

from tests.policies import checkpoints
from tests.policies.packing.packer_scenes import solids_env, trained
from torchrl_gpu.policies import AgentSpace, InferencePolicy, export_policy, load_policy
from torchrl_gpu.policies.actors import CategoricalActor
from torchrl_gpu.policies.export import exporter as export
from torchrl_gpu.policies.packing import HierarchicalPacker

onnx = pytest.importorskip("onnx")


def check_same(policy: InferencePolicy, seen: dict[str, Tensor], got: Tensor) -> None:
    """Check that actions are the policy's.

    Discrete ones may be others that are worth as much, as ties may fall otherwise.
    """
    wanted = policy.policy(TensorDict({name: seen[name] for name in policy.in_keys}, [len(got)]))
    assert got.shape == wanted["action"].shape
    if policy.space.num_actions is None:
        torch.testing.assert_close(got, wanted["action"], atol=1e-5, rtol=1e-5)
    else:
        actor: Any = policy.policy.policy
        known = actor.log_probs(wanted) if isinstance(actor, CategoricalActor) else wanted["action_value"]
        values = known.gather(1, torch.stack([got, wanted["action"]], 1))
        torch.testing.assert_close(values[:, 0], values[:, 1], atol=1e-4, rtol=1e-4)


# Besides programs of torch, which take less time, each kind of head and each of network once.
ONNX = ("PPO packs", "SAC watches", "washes")
PROGRAMS = ("alone", "Rainbow navigates", "IQN navigates")
CASES = [(kind, "onnx", kind in ONNX) for kind in (*checkpoints.EVERY, "washes")]
CASES += [*((kind, "pt2", True) for kind in PROGRAMS), ("choice", "pt2", False)]


@pytest.mark.parametrize(
    ("kind", "format"),
    [pytest.param(kind, form, marks=[] if here else pytest.mark.soak) for kind, form, here in CASES],
)
def test_exported_file_decides_as_the_policy(tmp_path: Path, kind: str, format: Any) -> None:
    if kind in checkpoints.CLONES:
        torch.save(checkpoints.cloned(kind)[0], tmp_path / "last.ckpt")
    else:
        checkpoints.saved(tmp_path, kind)
    policy = load_policy(tmp_path / "last.ckpt", "cpu")
    written = export_policy(tmp_path / "last.ckpt", tmp_path / f"policy.{format}", format)
    seen = checkpoints.observations(policy, 5, seed=8)
    if format == "pt2":
        got = torch.export.load(str(written)).module()(*(seen[name] for name in policy.in_keys))
    else:
        import onnxruntime

        session = onnxruntime.InferenceSession(str(written), providers=["CPUExecutionProvider"])
        assert [each.name for each in session.get_inputs()] == policy.in_keys
        (array,) = session.run(None, {name: seen[name].numpy() for name in policy.in_keys})
        got = torch.from_numpy(array)
    check_same(policy, seen, got)
    told = json.loads((tmp_path / "policy.json").read_text())
    assert [each["name"] for each in told["inputs"]] == policy.in_keys
    assert told["parity"]["largest_difference"] <= 1e-4
    ends = (format, "json", "leapp.yaml")
    assert {each.name for each in tmp_path.iterdir()} == {"last.ckpt", *(f"policy.{end}" for end in ends)}


@pytest.mark.parametrize("kind", ["DQN navigates", "DDPG navigates"])
@pytest.mark.parametrize(
    "spoil",
    [lambda action: action + 0.01 if action.is_floating_point() else 24 - action, lambda action: action[:, None]],
)
def test_a_file_that_decides_otherwise_is_not_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, spoil: Any
) -> None:
    path, _ = checkpoints.saved(tmp_path, kind)

    def spoiled(graph: Any, example: list[Tensor], out: Path, names: list[str], chunk: int | None) -> Any:
        out.write_bytes(b"a file")
        return lambda observations: spoil(graph(*observations))

    monkeypatch.setitem(export.WRITERS, "pt2", spoiled)
    with pytest.raises(ValueError, match=r"decides otherwise .*nothing is written"):
        export_policy(path, tmp_path / "policy.pt2", "pt2")
    assert [each.name for each in tmp_path.iterdir()] == ["last.ckpt"]


def test_an_action_that_is_not_legal_is_another(tmp_path: Path) -> None:
    path, _ = checkpoints.saved(tmp_path, "DQN navigates")
    policy = load_policy(path, "cpu")

    def illegal(observations: list[Tensor]) -> Tensor:
        return observations[policy.in_keys.index("action_mask")].int().argmin(1)

    assert export.difference(policy, illegal, export.made_up(policy, 16)) == float("inf")


@pytest.mark.parametrize(
    ("out", "format", "said"),
    [("policy.pt", "onnx", "out must be the name of a .onnx file"), ("policy.onnx", "tflite", "format must be one of")],
)
def test_export_refuses_wrong_names_and_formats(tmp_path: Path, out: str, format: Any, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        export_policy(tmp_path / "nothing.ckpt", tmp_path / out, format)


def test_leapp_finds_what_it_asks_for(tmp_path: Path) -> None:
    path, _ = checkpoints.saved(tmp_path, "SAC washes")
    written = export_policy(path, tmp_path / "packing.pt2", "pt2")
    # `--config packing.yaml` would otherwise mean this file.
    assert not (tmp_path / "packing.yaml").exists()
    told = yaml.safe_load((tmp_path / "packing.leapp.yaml").read_text())
    node = told["models"]["policy"]
    for port in (*node["inputs"], *node["outputs"]):
        assert {"name", "dtype", "shape", "type"} <= set(port)
        assert len(port["element_names"][-1]) == port["shape"][-1]
    assert node["parameters"]["model_path"] == written.name
    assert told["pipeline"]["inputs"] == {"policy": ["observation"]}
    assert set(told["pipeline"]) >= {"data_flow", "feedback_flow", "inputs", "outputs"}


def graph_of(values: np.ndarray) -> Any:
    """Looks entries up in a table, as a model in memory."""
    table = onnx.numpy_helper.from_array(values, "table")
    at = onnx.helper.make_tensor_value_info("at", 7, ["n"])
    out = onnx.helper.make_tensor_value_info("out", 1, ["n"])
    gather = onnx.helper.make_node("Gather", ["table", "at"], ["out"])
    graph = onnx.helper.make_graph([gather], "lookup", [at], [out], [table])
    return onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 18)], ir_version=9)


def test_tables_of_which_little_has_learned_are_small_and_the_same_to_the_bit() -> None:
    """Tables of mostly one number are packed.

    A policy of 2.3 MB, most of whose 8.7 million entries are one number, was 35.6 MB of ONNX.
    """
    random = np.random.default_rng(0)
    values = np.full(200_000, 0.1, np.float32)
    learned = random.permutation(200_000)[:10_000]
    values[learned] = random.normal(size=10_000)
    values[learned[:2]] = 0.0, -0.0
    model = graph_of(values)
    before = model.ByteSize()
    export.pack_tables(model.graph)
    assert model.ByteSize() < before / 9
    import onnxruntime

    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    (got,) = session.run(None, {"at": np.arange(200_000)})
    assert (got.view(np.int32) == values.view(np.int32)).all()


@pytest.mark.parametrize("values", [np.linspace(0, 1, 200_000), np.repeat([0.5, 0.25], 100_000), np.zeros(100)])
def test_other_tables_stay_as_they_are(values: np.ndarray) -> None:
    model = graph_of(values.astype(np.float32))
    before = model.SerializeToString()
    export.pack_tables(model.graph)
    assert model.SerializeToString() == before


def test_the_hierarchical_packer_is_refused(tmp_path: Path) -> None:
    env = solids_env(1)
    policy = InferencePolicy(HierarchicalPacker(env, trained()), AgentSpace.of(env), "HierarchicalPacker")
    with pytest.raises(ValueError, match=r"hierarchical packer, .*: `torchrl-gpu serve-policy` serves it"):
        export_policy(policy, tmp_path / "packer.pt2", "pt2")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("rows", [0, 1, 3, 4, 5, 13])
def test_graph_that_goes_by_chunks_gives_what_it_gave_at_once(rows: int) -> None:
    values = np.random.default_rng(0).normal(size=300).astype(np.float32)
    model = graph_of(values)
    # The element of the table is of a batch of rows here.
    export.split_into_chunks(model, 4)
    onnx = pytest.importorskip("onnx")
    onnx.checker.check_model(model)
    import onnxruntime

    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    at = np.arange(rows) * 7 % 300
    (got,) = session.run(None, {"at": at})
    assert (got == values[at]).all()
    assert [node.op_type for node in model.graph.node].count("Loop") == 1
