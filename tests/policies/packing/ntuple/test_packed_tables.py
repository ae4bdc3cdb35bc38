"""Tables in the form of a checkpoint.

A few megabytes, the same bits, and nothing from outside is trusted.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from torchrl_gpu.envs.packing.protocols import make_protocol
from torchrl_gpu.policies import PatchTables
from torchrl_gpu.policies.packing.ntuple import packed_tables
from torchrl_gpu.policies.packing.ntuple.packed_tables import pack_tables
from torchrl_gpu.policies.spaces import AgentSpace
from torchrl_gpu.policies.weights import unpacked_state

SHAPES = ["2x2", "1x4", "3x3:1"]
NAMES = ("tables.weight", "tables.drift", "tables.path")


def learned(steps: int = 3, bins: int = 16) -> nn.Module:
    tables = PatchTables(AgentSpace.of(make_protocol("rs", 1, device="cpu", seed=0, include=("z_map",))), SHAPES)
    g = torch.Generator().manual_seed(2)
    for _ in range(steps):
        levels = torch.randint(0, 4, (bins, 10, 10), generator=g).to(torch.uint8)
        counts = torch.ones(bins, dtype=torch.bool)
        tables.learn(levels, torch.randn(bins, generator=g) / 10, counts, 0.5)
    return nn.ModuleDict({"tables": tables, "other": nn.Linear(2, 2)})


def bits(value: Tensor) -> Tensor:
    return value.view(torch.int32)


def test_the_same_bits_come_back() -> None:
    module = learned()
    state = module.state_dict()
    packed = pack_tables(module, state)
    whole = unpacked_state("file", module, packed)
    assert set(whole) == set(state)
    assert all(torch.equal(bits(whole[name]), bits(state[name])) for name in state)
    moved = int((state["tables.path"] > 0).sum())
    assert 0 < moved < 60_000
    assert [packed[name].shape for name in (*NAMES, "tables.learned")] == [(moved,)] * 4
    # A view would be saved with its whole storage.
    assert packed["tables.other"].untyped_storage().nbytes() == 4
    assert packed["other.weight"] is state["other.weight"]
    # The given tables do not change.
    assert len(state["tables.weight"]) == ENTRIES


def test_tables_that_have_not_learned_and_others_that_were_not_packed() -> None:
    fresh = learned(steps=0)
    module = learned()
    plain = nn.Linear(2, 2)
    packed = pack_tables(fresh, fresh.state_dict())
    assert len(packed["tables.learned"]) == 0
    whole = unpacked_state("file", fresh, packed)
    assert all(torch.equal(bits(whole[name]), bits(value)) for name, value in fresh.state_dict().items())
    state = module.state_dict()
    assert all(unpacked_state("file", module, state)[name] is value for name, value in state.items())
    assert pack_tables(plain, plain.state_dict()).keys() == plain.state_dict().keys()


def untold(state: dict[str, Tensor]) -> None:
    # The entry claims that it has not learned.
    state["tables.weight"][7] += 1e-3


def one_sided(state: dict[str, Tensor]) -> None:
    """An entry that differs from its own mirror image."""
    at = int((state["tables.path"] > 0).nonzero()[-1])
    state["tables.weight"][at] += 1e-3


def everywhere(state: dict[str, Tensor]) -> None:
    state["tables.path"].fill_(1.0)


def negative_zero(state: dict[str, Tensor]) -> None:
    state["tables.weight"].zero_()
    state["tables.weight"][9] = -0.0


@pytest.mark.parametrize("change", [untold, one_sided, everywhere, negative_zero])
def test_tables_that_would_not_come_back_are_not_packed(change: Any) -> None:
    module = learned()
    state = module.state_dict()
    change(state)
    packed = pack_tables(module, state)
    assert "tables.learned" not in packed
    assert all(packed[name] is state[name] for name in NAMES)


def test_weights_that_are_no_numbers_come_back() -> None:
    """A run that goes back to them must see that it diverged."""
    module = learned()
    state = module.state_dict()
    at = int((state["tables.path"] > 0).nonzero()[0])
    table = module["tables"].plan
    state["tables.weight"][table.images(0, torch.tensor([at]))] = torch.nan
    packed = pack_tables(module, state)
    assert "tables.learned" in packed
    assert torch.equal(bits(unpacked_state("file", module, packed)["tables.weight"]), bits(state["tables.weight"]))


def test_larger_tables_are_not_packed(monkeypatch: pytest.MonkeyPatch) -> None:
    module = learned()
    monkeypatch.setattr(packed_tables, "MOST_ENTRIES", module["tables"].plan.entries - 1)
    assert "tables.learned" not in pack_tables(module, module.state_dict())


def changed(name: str, value: Any) -> dict[str, Any]:
    module = learned()
    packed = pack_tables(module, module.state_dict())
    return packed | {f"tables.{name}": value(packed[f"tables.{name}"]) if callable(value) else value}


ENTRIES = learned(0)["tables"].plan.entries


@pytest.mark.parametrize(
    ("name", "value", "wanted"),
    [
        ("learned", lambda at: at.flip(0), f"learned must rise.*{ENTRIES:,}"),
        ("learned", lambda at: at.clone().index_fill_(0, torch.tensor([1]), int(at[0])), "learned must rise"),
        ("learned", lambda at: torch.cat([torch.tensor([-1], dtype=torch.int32), at[1:]]), "learned must rise"),
        ("learned", lambda at: torch.cat([at[:-1], torch.tensor([ENTRIES], dtype=torch.int32)]), "learned must rise"),
        ("learned", lambda at: at[:1].expand(2**40), f"learned .*quarter of {ENTRIES:,}"),
        ("learned", lambda at: at.long(), "learned must be of dtype int32; got int64"),
        ("learned", lambda at: at[:-1], r"weight must have shape \(\d+,\)"),
        ("learned", lambda at: at[None], r"learned must have shape \(any,\)"),
        ("weight", lambda held: held.double(), "weight must be of dtype float32"),
        ("weight", lambda held: held.to_sparse(), "weight must be a dense tensor"),
        ("drift", lambda held: held[1:], "drift must have shape"),
        ("path", lambda held: held.to("meta"), "path must be a dense tensor with data"),
        ("path", "text", "path must be a tensor; got 'text'"),
        ("other", lambda held: held.expand(2), r"other must have shape \(1,\)"),
        ("other", None, "other must be a tensor; got none"),
    ],
)
def test_packed_tables_that_cannot_be_are_refused(name: str, value: Any, wanted: str) -> None:
    with pytest.raises(ValueError, match=f"^file: tables: .*{wanted}"):
        unpacked_state("file", learned(), changed(name, value))
