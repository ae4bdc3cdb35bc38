"""What is printed where a terminal has few characters, or where there is none."""

from __future__ import annotations

import io
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from torchrl_gpu import cli
from torchrl_gpu.callbacks import progress
from torchrl_gpu.cli.output import prepare_output
from torchrl_gpu.cli.program import OWN_SUBCOMMANDS
from torchrl_gpu.palletizing.plan import PalletPlans

LIST = "order,article,length_mm,width_mm,height_mm,qty\nä,×–³,400,300,200,3\n"
ENCODINGS = ["ascii", "shift_jis", "iso8859-1", "cp1252", "big5"]


def terminal(monkeypatch: pytest.MonkeyPatch, encoding: str) -> io.BytesIO:
    """Standard outputs of an encoding, and what arrives there."""
    arrives = io.BytesIO()
    for name in ("stdout", "stderr"):
        monkeypatch.setattr(sys, name, io.TextIOWrapper(arrives, encoding=encoding, write_through=True))
    return arrives


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_packing_ends_well_on_every_terminal(encoding: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "list.csv").write_text(LIST, encoding="utf-8")
    arrives = terminal(monkeypatch, encoding)
    words = ["pack", str(tmp_path / "list.csv"), "--device", "cpu", "--out", str(tmp_path / "out")]
    assert cli.main(words) is None
    assert b"Written: " in arrives.getvalue()
    assert "×–³" in (tmp_path / "out" / "plan.csv").read_text(encoding="utf-8-sig")


@pytest.mark.parametrize("subcommand", [*OWN_SUBCOMMANDS, "--help", "no such command ³–×"])
def test_no_character_ends_a_subcommand(subcommand: str, monkeypatch: pytest.MonkeyPatch) -> None:
    arrives = terminal(monkeypatch, "ascii")
    assert cli.main([subcommand, "--help"]) in (None, 0, 2)
    assert arrives.getvalue()


@pytest.mark.parametrize("subcommand", [*OWN_SUBCOMMANDS, "--help", "no such command"])
def test_no_output_at_all_ends_no_subcommand(subcommand: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("stdout", "stderr"):
        monkeypatch.setattr(sys, name, None)
    assert cli.main([subcommand, "--help"]) in (None, 0, 2)
    for stream in (sys.stdout, sys.stderr):
        stream.close()


def test_plans_are_written_before_they_are_printed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "list.csv").write_text(LIST, encoding="utf-8")

    def gone(self: PalletPlans) -> None:
        raise BrokenPipeError("the terminal is gone")

    monkeypatch.setattr(PalletPlans, "table", gone)
    with pytest.raises(BrokenPipeError):
        cli.main(["pack", str(tmp_path / "list.csv"), "--device", "cpu", "--out", str(tmp_path / "out")])
    assert (tmp_path / "out" / "index.html").is_file()


@pytest.mark.skipif(shutil.which("sh") is None, reason="needs a POSIX shell")
def test_closed_descriptors_are_not_those_of_later_files(tmp_path: Path) -> None:
    path = tmp_path / "file"
    code = "from torchrl_gpu.cli.output import prepare_output; import os, sys; prepare_output();"
    code += "file = open(sys.argv[1], 'w'); print('lost'); os.write(1, b'lost'); file.write(str(file.fileno() > 2))"
    command = ["sh", "-c", 'exec "$0" -c "$1" "$2" <&- >&- 2>&-', sys.executable, code, str(path)]
    assert (
        subprocess.run(command, check=False, env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}).returncode == 0
    )
    assert path.read_text(encoding="utf-8") == "True"


def test_an_output_that_is_there_stays(capsys: pytest.CaptureFixture[str]) -> None:
    prepare_output()
    print("m³")
    assert capsys.readouterr().out == "m³\n"


def test_progress_without_an_output_draws_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdout", None)
    assert not progress.draws_bars()
