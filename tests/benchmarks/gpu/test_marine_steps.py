"""What a step of marine navigation launches is what the published table says."""

from __future__ import annotations

import json

from benchmarks.gpu import marine_steps


def test_the_published_table_is_that_of_this_code() -> None:
    published = json.loads(marine_steps.RESULT.read_text(encoding="utf-8"))["sections"]
    assert published == [marine_steps.section()]


def test_a_step_is_two_kernels_and_few_operators() -> None:
    for row in marine_steps.section()["rows"]:
        assert row["kernels"] == 2
        assert row["operators"] <= 5 < row["plain"]
