"""The notebook runs from top to bottom, with small sizes in its own settings."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import Any

import pytest

from tests import forks
from tests.conftest import ROOT
from tests.test_end_to_end import EPISODES, SMALL

nbformat = pytest.importorskip("nbformat", reason="the extra dev brings it")
pytest.importorskip("IPython", reason="the extra dev brings it")

NOTEBOOK = ROOT / "examples" / "colab.ipynb"


def small(notebook: Any) -> list[str]:
    """Its cells of code, with other values in that of settings."""
    options = [*SMALL["packing.yaml"], *(each for each in EPISODES if "num_episodes" not in each)]
    options += ["--data.num_val_episodes=2", "--trainer.accelerator=cpu"]
    settings = f"REPOSITORY = ''\nUPDATES = 20\nEPISODES = 2\nOPTIONS = {options!r}\n"
    # The report of the doctor takes longer than all the rest, and has tests of its own.
    settings += "from torchrl_gpu.cli import doctor\ndoctor.examine = lambda **options: []"
    cells = [cell.source for cell in notebook.cells if cell.cell_type == "code"]
    first, *others = cells
    assert first.startswith("# Settings")
    return [settings, *others]


def run_cells(ipython: Path) -> None:
    """Run cells as a kernel does, in a loop of asyncio.

    Returns the pictures that they end with.
    """
    os.environ["IPYTHONDIR"] = str(ipython)
    from IPython.core.interactiveshell import InteractiveShell

    shell = InteractiveShell.instance()

    async def run() -> None:
        for source in small(nbformat.read(NOTEBOOK, as_version=4)):
            result = await shell.run_cell_async(source, transformed_cell=shell.transform_cell(source))
            result.raise_error()
            picture = getattr(result.result, "format", None)
            if picture is not None:
                print(f"{picture} of {len(result.result.data)} bytes", flush=True)

    asyncio.run(run())


def test_it_runs_from_top_to_bottom(tmp_path: Path) -> None:
    log = tmp_path / "log"
    assert not forks.run(run_cells, tmp_path / "ipython", log=log, folder=tmp_path), log.read_text()[-3000:]
    said = log.read_text()
    assert "afterstate values" in said
    assert "rate: the median of" in said
    assert said.count("gif of ") == 1
    assert (tmp_path / "runs" / "packing" / "checkpoints" / "last.ckpt").is_file()


def test_it_is_committed_without_outputs_and_machine_names() -> None:
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    nbformat.validate(notebook)
    for cell in notebook.cells:
        assert not cell.get("outputs")
        assert cell.get("execution_count") is None
