"""New tensors name their dtype and device.

So torch's defaults decide nothing.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch
from tensordict import TensorDictBase

from torchrl_gpu.envs import PackingEnv
from torchrl_gpu.envs.packing.items import CutBoxes, ProceduralSolids
from torchrl_gpu.envs.packing.kernels import available_backends
from torchrl_gpu.envs.packing.protocols import REFERENCE_SETTINGS
from torchrl_gpu.policies import PackingPolicy

PACKAGE = Path(__file__).parent.parent / "torchrl_gpu"
FACTORIES = {"empty", "zeros", "ones", "full", "arange", "range", "linspace", "logspace", "eye", "tensor"}
FACTORIES |= {"rand", "randn", "randint", "randperm", "normal", "scalar_tensor", "asarray", "empty_strided"}
# These have a dtype already.
FROM_DATA = {"as_tensor"}
# Modules that call C++, and what makes tensors of any form beside `native.output`.
CALLERS = ("native/operators.py", "envs/packing/kernels/compiled.py", "policies/packing/ntuple/values.py")
UNFILLED = {"empty", "empty_like", "new_empty", "empty_strided", "new_empty_strided"}


def calls(source: str) -> Iterator[ast.Call]:
    """Calls of methods, and of functions of modules."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            yield node


def unnamed(source: str) -> list[str]:
    """Factories of torch that leave dtype or device to its defaults."""
    found = []
    for call in calls(source):
        assert isinstance(call.func, ast.Attribute)
        name = call.func.attr
        module = call.func.value
        given = {each.arg for each in call.keywords}
        wanted = set()
        if name in FACTORIES:
            wanted = {"dtype", "device"}
        elif name in FROM_DATA:
            wanted = {"device"}
        if isinstance(module, ast.Name) and module.id == "torch" and None not in given and not wanted <= given:
            found.append(f"line {call.lineno}: torch.{name} without {' and '.join(sorted(wanted - given))}")
    return found


def test_factories_name_dtype_and_device() -> None:
    found = {str(path.relative_to(PACKAGE)): unnamed(path.read_text("utf-8")) for path in PACKAGE.rglob("*.py")}
    assert {path: lines for path, lines in found.items() if lines} == {}


def test_what_is_left_to_the_defaults_is_found() -> None:
    source = (
        "import torch\ntorch.empty(3)\ntorch.zeros(3, dtype=d)\ntorch.as_tensor(x)\ntorch.ones(2, dtype=d, device=e)"
    )
    assert unnamed(source) == [
        "line 2: torch.empty without device and dtype",
        "line 3: torch.zeros without device",
        "line 4: torch.as_tensor without device",
    ]


@pytest.mark.parametrize("name", CALLERS)
def test_what_cpp_writes_into_is_made_in_one_place(name: str) -> None:
    made = [call.func.attr for call in calls((PACKAGE / name).read_text(encoding="utf-8"))]  # type: ignore[attr-defined]
    assert len([each for each in made if each in UNFILLED]) == (name == "native/operators.py")


@contextmanager
def other_dtype(dtype: torch.dtype) -> Iterator[None]:
    """Another default dtype."""
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(torch.float32)


DEFAULTS = {
    "float64": lambda: other_dtype(torch.float64),
    "bfloat16": lambda: other_dtype(torch.bfloat16),
    "meta": lambda: torch.device("meta"),
}
SOLIDS: dict[str, Any] = {"bin_size": (0.4, 0.4, 0.3), "grid_step": 2, "visible_items": 2, "stability": "com"}
SOLIDS |= {"reward": "objective", "stability_judge": "com", "order": "volume", "num_items": 4}


def packed(backend: str, items: Any, policy: str | None, **settings: Any) -> list[TensorDictBase]:
    """Return observations of an environment in a few steps.

    By a shipped policy or by the first legal placement.
    """
    env = PackingEnv(2, items=items, backend=backend, device="cpu", seed=5, **settings)
    chooser = None if policy is None else PackingPolicy.from_pretrained(policy, "cpu")
    shown = env.reset()
    found = [shown.clone()]
    for _ in range(3):
        chosen = shown.set("action", shown["action_mask"].int().argmax(1)) if chooser is None else chooser(shown)
        stepped = env.step(chosen)
        found.append(stepped.clone())
        shown = env.step_mdp(stepped)
    return found


CASES: dict[str, tuple[Any, ...]] = {
    f"{backend}, {rule}": (backend, "random", None, {"stability": rule, "orientations": "yaw"})
    for backend, rule in product(("compiled", "eager", "reference"), ("corners", "support"))
}
CASES |= {f"{backend}, solids": (backend, "solids", None, SOLIDS) for backend in ("compiled", "eager", "reference")}
CASES |= {
    "cut2": ("auto", CutBoxes(order="stack", pool=None), "cut2", {"orientations": "fixed", "stability": "corners"}),
    "orders": ("auto", "orders", "orders", REFERENCE_SETTINGS["orders"]),
}


@pytest.mark.parametrize("case", CASES)
def test_packing_is_the_same_under_other_defaults_of_torch(case: str) -> None:
    backend, items, policy, settings = CASES[case]
    problem = "" if backend == "auto" else available_backends()[backend]
    if problem:
        pytest.skip(problem)
    items = ProceduralSolids(3, seed=0) if items == "solids" else items
    settings = {name: value for name, value in settings.items() if name != "items"}
    expected = packed(backend, items, policy, **settings)
    for name, changed in DEFAULTS.items():
        with changed():
            came = packed(backend, items, policy, **settings)
        for ours, theirs in zip(came, expected, strict=True):
            for key, value in theirs.items(include_nested=True, leaves_only=True):
                assert (ours[key].dtype, ours[key].device) == (value.dtype, value.device), (name, key)
                assert torch.equal(ours[key], value), (name, key)
