"""The peer's row."""

from __future__ import annotations

import pytest

from benchmarks.packing import jumanji_rows


def test_without_jumanji_there_is_no_row(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jumanji_rows, "find_spec", lambda name: None)
    assert jumanji_rows.jumanji_rows([1, 64]) == []


def test_rows_name_their_batch_and_count_its_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jumanji_rows, "find_spec", lambda name: object())
    monkeypatch.setattr(jumanji_rows, "_runner", lambda batch, steps: lambda calls: None)
    rows = jumanji_rows.jumanji_rows([1, 64, 4096])
    assert [row.name for row in rows] == [f"Jumanji BinPack-v2, {n}" for n in (1, 64, 4096)]
    assert [row.per_call for row in rows] == [1024, 1024, 4 * 4096]
