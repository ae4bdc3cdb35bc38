"""The device that is not there behaves as one that is."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

from tests.pretend_cuda import waits


@pytest.fixture
def numbers() -> torch.Tensor:
    return torch.arange(6.0, device="cuda").view(2, 3)


WAITS = {}
WAITS["_local_scalar_dense"] = lambda x: bool(x[0, 0] > 0)
WAITS["nonzero"] = lambda x: x.nonzero()
WAITS["index by a mask"] = lambda x: x[x > 1]
WAITS["index_put_ by a mask"] = lambda x: x.__setitem__(x > 1, torch.zeros(4, device="cuda"))
WAITS["masked_select"] = lambda x: x.masked_select(x > 1)
WAITS["_unique2"] = lambda x: x.unique()
WAITS["tolist"] = lambda x: x.tolist()
WAITS["equal"] = lambda x: torch.equal(x, x)
WAITS["repr"] = lambda x: repr(x)
WAITS["copy from device to host"] = lambda x: x.cpu()
WAITS["copy from device to host, pageable"] = lambda x: torch.empty(2, 3).copy_(x)
WAITS["copy from device to host, pageable, non_blocking"] = lambda x: torch.empty(2, 3).copy_(x, non_blocking=True)
WAITS["copy from host to device, pageable"] = lambda x: torch.tensor(3.0, device="cuda")
WAITS["copy from host to device, pageable, non_blocking"] = lambda x: torch.ones(2).to("cuda", non_blocking=True)
WAITS["copy from host to device, pinned"] = lambda x: torch.ones(2).pin_memory().to("cuda")
WAITS["index by host tensors"] = lambda x: x[[0, 1]]
WAITS["synchronize"] = lambda x: torch.cuda.synchronize()
WAITS["Stream.synchronize"] = lambda x: torch.cuda.Stream().synchronize()
WAITS["Event.synchronize"] = lambda x: torch.cuda.Event().synchronize()


@pytest.mark.parametrize("kind", WAITS)
def test_what_waits_is_counted_with_the_line_that_asked(kind: str, numbers: torch.Tensor) -> None:
    with waits() as counted:
        WAITS[kind](numbers)
    assert counted.by_kind() == {kind: 1}
    (place,) = counted.by_place()
    assert place.startswith("tests/pretend/test_harness.py:")


QUIET = {}
QUIET["arithmetic with numbers"] = lambda x: x * 2 + 1.0
QUIET["a number of the host as a tensor"] = lambda x: x + torch.tensor(2.0)
QUIET["factories"] = lambda x: [
    torch.zeros(3, device="cuda"),
    torch.rand(2, device="cuda"),
    torch.arange(3, device="cuda"),
]
QUIET["copies on the device"] = lambda x: x.clone().to("cuda", torch.float64)
QUIET["a mask with a number"] = lambda x: x.__setitem__(x > 1, 0.0)
QUIET["indices on the device"] = lambda x: x[torch.tensor([1], device="cpu").pin_memory().to("cuda", non_blocking=True)]
QUIET["pinned copies"] = lambda x: torch.empty(2, 3, pin_memory=True).copy_(x, non_blocking=True)
QUIET["fill"] = lambda x: x.fill_(3.0)
QUIET["streams"] = lambda x: torch.cuda.Stream().wait_stream(torch.cuda.current_stream())


@pytest.mark.parametrize("what", QUIET)
def test_what_does_not_wait_is_not_counted(what: str, numbers: torch.Tensor) -> None:
    with waits() as counted:
        QUIET[what](numbers)
    assert counted.total == 0, counted.report()


MIXED = {}
MIXED["add"] = lambda x: x + torch.ones(2, 3)
MIXED["matmul"] = lambda x: x @ torch.ones(3, 1)
MIXED["cat"] = lambda x: torch.cat([x, torch.ones(2, 3)])
MIXED["indices on the device of a host tensor"] = lambda x: torch.ones(6)[x.long()]
MIXED["generator"] = lambda x: x.uniform_(generator=torch.Generator())
MIXED["numpy"] = lambda x: x.numpy()
MIXED["another device"] = lambda x: x.to("cuda:1")


@pytest.mark.parametrize("what", MIXED)
def test_mixed_devices_raise(what: str, numbers: torch.Tensor) -> None:
    with pytest.raises((RuntimeError, TypeError)):
        MIXED[what](numbers)


def test_values_are_those_of_the_cpu_and_views_share_memory(numbers: torch.Tensor) -> None:
    numbers[0].mul_(10)
    numbers.view(-1)[4:] = 7
    assert numbers.tolist() == [[0, 10, 20], [3, 7, 7]]
    assert numbers.t().contiguous().tolist() == [[0, 3], [10, 7], [20, 7]]
    assert str(numbers.device) == "cuda:0"


def trained(device: str) -> nn.Module:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(3, 4), nn.Dropout(0.0), nn.Tanh(), nn.Linear(4, 1)).to(device)
    optimizer = torch.optim.Adam(net.parameters(), lr=0.1, capturable=device == "cuda")
    x = torch.arange(6.0, device=device).view(2, 3)
    with waits() as counted:
        for _ in range(5):
            optimizer.zero_grad()
            net(x).square().mean().backward()
            optimizer.step()
    assert counted.total == 0, counted.report()
    return net


def test_training_gives_the_weights_of_the_cpu() -> None:
    for cuda, cpu in zip(trained("cuda").parameters(), trained("cpu").parameters(), strict=True):
        torch.testing.assert_close(cuda.cpu(), cpu)
        assert isinstance(cuda, nn.Parameter)


def test_files_remember_the_device(tmp_path: Path, numbers: torch.Tensor) -> None:
    torch.save({"numbers": numbers, "row": numbers[1]}, tmp_path / "file")
    found = torch.load(tmp_path / "file", weights_only=True)
    assert {str(each.device) for each in found.values()} == {"cuda:0"}
    found["numbers"][1, 0] = -1.0
    assert found["row"].tolist() == [-1, 4, 5]
    there = torch.load(tmp_path / "file", weights_only=True, map_location="cpu")
    assert {str(each.device) for each in there.values()} == {"cpu"}
    torch.save(there, tmp_path / "host")
    back = torch.load(tmp_path / "host", weights_only=True, map_location={"cpu": "cuda:0"})
    assert {str(each.device) for each in back.values()} == {"cuda:0"}


def test_the_device_has_a_generator_of_its_own() -> None:
    torch.manual_seed(3)
    before, state = torch.get_rng_state(), torch.cuda.get_rng_state()
    first = [torch.rand(3, device="cuda").tolist(), torch.randperm(5, device="cuda").tolist()]
    assert torch.equal(torch.get_rng_state(), before)
    torch.cuda.set_rng_state(state)
    assert [torch.rand(3, device="cuda").tolist(), torch.randperm(5, device="cuda").tolist()] == first


class Counter:
    """Adds to a total on the device."""

    def __init__(self) -> None:
        self.total, self.calls = torch.zeros((), device="cuda"), 0

    def in_place(self) -> None:
        self.total += 1

    def replaced(self) -> None:
        self.total = self.total + 1

    def numbered(self) -> None:
        self.calls += 1
        self.total += self.calls


def captured(body: object) -> torch.cuda.CUDAGraph:
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        body()
    return graph


def test_a_replay_does_the_same_to_the_same_memory() -> None:
    counter = Counter()
    graph = captured(counter.in_place)
    for _ in range(3):
        graph.replay()
    assert counter.total.item() == 3


def test_a_capture_does_nothing(numbers: torch.Tensor) -> None:
    state, made = torch.cuda.get_rng_state(), []
    graph = captured(lambda: made.append(numbers.mul_(2) + torch.rand(3, device="cuda")))
    assert numbers.tolist() == [[0, 1, 2], [3, 4, 5]]
    assert torch.equal(torch.cuda.get_rng_state(), state)
    assert made[0].isnan().all()
    graph.replay()
    assert (made[0] >= numbers).all()


def test_a_graph_keeps_numbers_of_the_host() -> None:
    counter = Counter()
    graph = captured(counter.numbered)
    graph.replay()
    assert counter.total.item() == 1


def test_a_graph_that_reads_what_was_replaced_raises() -> None:
    counter = Counter()
    graph = captured(counter.replaced)
    with pytest.raises(RuntimeError, match=r"freed .*capture"):
        graph.replay()


def test_a_graph_draws_anew() -> None:
    drawn = torch.zeros(3, device="cuda")
    graph = captured(lambda: drawn.copy_(torch.rand(3, device="cuda")))
    values = set()
    for _ in range(3):
        graph.replay()
        values.add(tuple(drawn.tolist()))
    assert len(values) == 3


def test_a_capture_that_waits_raises(numbers: torch.Tensor) -> None:
    with pytest.raises(RuntimeError, match=r"stream .*capturing.*test_harness"):
        captured(lambda: numbers.sum().item())
    with pytest.raises(RuntimeError, match=r"stream .*capturing"):
        captured(lambda: torch.tensor(1.0, device="cuda"))
