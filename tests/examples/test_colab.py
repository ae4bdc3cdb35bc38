"""The notebook runs from top to bottom, with small sizes in its own settings."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import ROOT
from tests.test_end_to_end import EPISODES, SMALL

nbformat = pytest.importorskip("nbformat", reason="the extra dev brings it")
nbclient = pytest.importorskip("nbclient", reason="the extra dev brings it")

NOTEBOOK = ROOT / "examples" / "colab.ipynb"


def small(notebook: Any) -> Any:
    """The same with other values in the cell of settings."""
    (settings,) = [cell for cell in notebook.cells if cell.source.startswith("# Settings")]
    options = [*SMALL["packing.yaml"], *(each for each in EPISODES if "num_episodes" not in each)]
    options += ["--data.num_val_episodes=2", "--trainer.accelerator=cpu"]
    settings.source = f"REPOSITORY = ''\nUPDATES = 20\nEPISODES = 2\nOPTIONS = {options!r}\n"
    # The report of the doctor takes longer than all the rest, and has tests of its own.
    settings.source += "from torchrl_gpu.cli import doctor\ndoctor.examine = lambda **options: []"
    return notebook


def test_it_runs_from_top_to_bottom(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path / "ipython"))
    monkeypatch.setenv("JUPYTER_PLATFORM_DIRS", "1")
    notebook = small(nbformat.read(NOTEBOOK, as_version=4))
    client = nbclient.NotebookClient(
        notebook, timeout=200, kernel_name="python3", resources={"metadata": {"path": str(tmp_path)}}
    )
    asyncio.run(client.async_execute())
    said = "".join(
        output.get("text", "") for cell in notebook.cells for output in cell.get("outputs", ()) if "text" in output
    )
    assert "afterstate values" in said
    assert "rate: the median of" in said
    pictures = [
        output for cell in notebook.cells for output in cell.get("outputs", ()) if "image/gif" in output.get("data", {})
    ]
    assert len(pictures) == 1
    assert (tmp_path / "runs" / "packing" / "checkpoints" / "last.ckpt").is_file()


def test_it_is_committed_without_outputs_and_machine_names() -> None:
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    nbformat.validate(notebook)
    for cell in notebook.cells:
        assert not cell.get("outputs")
        assert cell.get("execution_count") is None
