"""Names of what is made when somebody asks for it: read strictly, whatever they hold."""

from __future__ import annotations

import pytest

from torchrl_gpu.streaming.broadcast.stream_names import MAX_FAMILIES, MAX_MEMBERS, Families, split_name


@pytest.fixture
def families() -> Families:
    made = Families()
    made.declare("env", 1024, "Environment")
    made.declare("env:q", 8, "Environment: Q map")
    return made


@pytest.mark.parametrize(
    ("name", "family"),
    [("env0", "env"), ("env17", "env"), ("env1023", "env"), ("env0:q", "env:q"), ("env7:q", "env:q")],
)
def test_members(families: Families, name: str, family: str) -> None:
    found = families.find(name)
    assert found is not None
    assert found.name == family


@pytest.mark.parametrize(
    "name",
    [
        *("env", "env1024", "env-1", "env+1", "env01", "env1.0", "env1e2", "env1_0", "env 1", "env1 ", "env1\n"),
        *("env8:q", "env1:", "env1:mask", "env1:q:q", "env1:Q", "other1", "17", "env" + "9" * 60, "", None, 17),
        "env٣",  # a digit, but not one of ours
    ],
)
def test_what_is_no_member(families: Families, name: object) -> None:
    assert families.find(name) is None


def test_titles_and_labels(families: Families) -> None:
    env, q = families.by_name.values()
    assert (env.title_of("env17"), q.title_of("env3:q")) == ("Environment 17", "Environment 3: Q map")
    assert (env.label, q.label) == ("env*", "env*:q")
    assert families.declare("world", 3, None).title_of("world2") == "world 2"


def test_a_family_may_grow_and_shrink(families: Families) -> None:
    families.declare("env", 5, None)
    assert families.find("env4")
    assert not families.find("env5")


@pytest.mark.parametrize("name", ["", "env1", "env 1", "1", "env:", "env:q1", "env:Q", "a:b:c", "x" * 33, "ä", None, 3])
def test_names_that_none_can_have(families: Families, name: object) -> None:
    with pytest.raises(ValueError, match=r"^StreamServer.declare_family: want a name .*; got .+$"):
        families.declare(name, 3, None)


@pytest.mark.parametrize("count", [0, -1, True, 1.5, "3", None, MAX_MEMBERS + 1])
def test_counts_that_are_none(families: Families, count: object) -> None:
    with pytest.raises(ValueError, match=r"^StreamServer.declare_family: want a count of 1 to 1,000,000,000; got .+$"):
        families.declare("env", count, None)


def test_there_are_at_most_so_many() -> None:
    families = Families()
    for i in range(MAX_FAMILIES):
        families.declare(f"{chr(97 + i // 26)}{chr(97 + i % 26)}", 3, None)
    families.declare("aa", 4, None)
    with pytest.raises(ValueError, match=r"want at most 64 families; got 'zz' beside them$"):
        families.declare("zz", 3, None)


@pytest.mark.parametrize(
    ("name", "parts"),
    [
        ("env0", ("env0", None)),
        ("env0:q", ("env0", "q")),
        ("worst:mask", ("worst", "mask")),
        ("a:b:c", ("a:b", "c")),
        ("camera:Left", ("camera:Left", None)),
        (":q", (":q", None)),
    ],
)
def test_parts_of_a_name(name: str, parts: tuple[str, str | None]) -> None:
    assert split_name(name) == parts
