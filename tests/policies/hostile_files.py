"""Two hundred files that are no policy.

They are made from a seed, then loaded in another process.

`main` prints a line of JSON for each: how loading ended ("refused", "loaded", an exception, a signal), the message, and
the peak of memory. Code that runs when a file is unpickled or imported leaves a file `ran` in the folder.
"""

from __future__ import annotations

import io
import json
import os
import pickle
import random
import resource
import sys
import zipfile
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import torch

from tests import forks
from tests.policies import checkpoints
from torchrl_gpu.policies import load_policy
from torchrl_gpu.system.archives import ENTRY

# A module that leaves a trace when it is imported.
_STRANGER = "strange_module"

Content = dict[str, Any]
Maker = Callable[[random.Random, Path, "Sources"], None]


class Sources:
    def __init__(self, folder: Path) -> None:
        self.trace = folder / "ran"
        agent, init_args = checkpoints.navigator("DDPG")
        self.content = checkpoints.content_of(agent, init_args)
        net = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 2))
        self.plain = {"model_state_dict": net.state_dict(), "obs_dim": 4, "action_dim": 2}
        self.bytes = _saved(self.content)

    def fresh(self) -> Content:
        return torch.load(io.BytesIO(self.bytes), weights_only=True)


class Runs:
    """Unpickled without care, it leaves a trace."""

    def __init__(self, how: str, trace: Path) -> None:
        self._how, self._trace = how, str(trace)

    def __reduce__(self) -> Any:
        code = f"open({self._trace!r}, 'w').close()"
        calls: dict[str, Any] = {
            "exec": (exec, (code,)),
            "eval": (eval, (code,)),
            "system": (os.system, (f"touch {self._trace}",)),
            "open": (open, (self._trace, "w")),
            "path": (Path.touch, (Path(self._trace),)),
            "load": (torch.load, (self._trace,)),
            "jit": (torch.jit.load, (self._trace,)),
        }
        return calls[self._how]


def _saved(content: Any, **options: Any) -> bytes:
    out = io.BytesIO()
    torch.save(content, out, **options)
    return out.getvalue()


def _settings(content: Content) -> dict[str, Any]:
    return content[ENTRY]["config"]["model"]["init_args"]


def _a_weight(rng: random.Random, content: Content) -> str:
    return rng.choice([name for name, value in content["state_dict"].items() if value.ndim == 2])


def truncated(rng: random.Random, path: Path, sources: Sources) -> None:
    path.write_bytes(sources.bytes[: rng.randrange(1, len(sources.bytes))])


def flipped(rng: random.Random, path: Path, sources: Sources) -> None:
    """Flip a bit of an archive.

    It is one of an entry's content, of its name, or of the directory's ends.
    """
    changed = bytearray(sources.bytes)
    with zipfile.ZipFile(io.BytesIO(sources.bytes)) as archive:
        entry = rng.choice([each for each in archive.infolist() if each.file_size])
        data = archive.read(entry)
    start = sources.bytes.index(data, entry.header_offset + 30)
    at = rng.choice([start + rng.randrange(len(data)), entry.header_offset + 32, len(changed) - 20])
    changed[at] ^= 1 << rng.randrange(8)
    path.write_bytes(bytes(changed))


def spliced(rng: random.Random, path: Path, sources: Sources) -> None:
    start = rng.randrange(len(sources.bytes) - 4096)
    noise = rng.randbytes(rng.randrange(256, 2048))
    path.write_bytes(sources.bytes[:start] + noise + sources.bytes[start + len(noise) * rng.randrange(2) :])


def pickled(rng: random.Random, path: Path, sources: Sources) -> None:
    """Code where values or weights should be, in an archive or bare."""
    how = rng.choice(["exec", "eval", "system", "open", "path", "load", "jit"])
    bad, content = Runs(how, sources.trace), sources.fresh()
    place = rng.randrange(5)
    if place == 0:
        content["frames"] = bad
    elif place == 1:
        content["state_dict"][_a_weight(rng, content)] = bad
    elif place == 2:
        content[ENTRY]["config"] = bad
    whole: Any = bad
    if place < 3:
        whole = content
    elif place > 3:
        whole = sources.plain | {"model_state_dict": bad}
    if rng.random() < 0.3:
        path.write_bytes(pickle.dumps(whole))
    else:
        path.write_bytes(_saved(whole, _use_new_zipfile_serialization=rng.random() < 0.8))


def module(rng: random.Random, path: Path, sources: Sources) -> None:
    """A module itself, as many save them."""
    net: Any = rng.choice([torch.nn.Linear(4, 2), torch.nn.Sequential(torch.nn.Linear(4, 2)), torch.optim.SGD])
    whole = rng.choice([net, {"model": net}, {"model_state_dict": net, "obs_dim": 4, "action_dim": 2}])
    path.write_bytes(_saved(whole) if rng.random() < 0.7 else pickle.dumps(whole))


def scripted(rng: random.Random, path: Path, sources: Sources) -> None:
    class Net(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x + 1

    exported = torch.export.export(Net(), (torch.zeros(2),))
    torch.export.save(exported, str(path.with_suffix(".pt2")))
    path.with_suffix(".pt2").rename(path)


def bomb(rng: random.Random, path: Path, sources: Sources) -> None:
    """An archive that holds more than its bytes: packed, or the same bytes many times."""
    packed = rng.random() < 0.5
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED if packed else zipfile.ZIP_STORED) as archive:
        with archive.open("archive/data.pkl", "w", force_zip64=True) as out:
            for _ in range(256 if packed else 65):
                out.write(bytes(2**20))
        archive.writestr("archive/version", "3")


def copied(rng: random.Random, path: Path, sources: Sources) -> None:
    with zipfile.ZipFile(io.BytesIO(sources.bytes)) as old, zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as new:
        for name in old.namelist():
            new.writestr(name, old.read(name))


def huge_settings(rng: random.Random, path: Path, sources: Sources) -> None:
    """Settings of networks that fit into no memory."""
    content = sources.fresh()
    agent = _settings(content)["agent"]
    size = 10 ** rng.randrange(7, 17)
    changes: list[tuple[str, dict[str, Any]]] = [
        ("DQN", {"network": checkpoints.class_path("PlacementScores", channels=size)}),
        ("DQN", {"network": checkpoints.class_path("PlacementScores", blocks=size)}),
        ("IQN", {"network": checkpoints.class_path("PlacementQuantiles"), "acting_taus": 1000 * size}),
        ("Rainbow", {"network": checkpoints.class_path("PlacementAtoms", num_atoms=1000 * size)}),
        ("DDPG", {"actor": checkpoints.class_path("VectorActor", hidden=[size, size])}),
        ("DDPG", {"actor": checkpoints.class_path("VectorActor", hidden=[8] * 20_000)}),
    ]
    name, arguments = rng.choice(changes)
    if name == "DDPG":
        agent["init_args"]["actor"] = arguments["actor"]
    else:
        other, init_args = checkpoints.packer(name)
        content = checkpoints.content_of(other, init_args)
        _settings(content)["agent"]["init_args"] |= arguments
    path.write_bytes(_saved(content))


def huge_spaces(rng: random.Random, path: Path, sources: Sources) -> None:
    content, size = sources.fresh(), 10 ** rng.randrange(9, 30)
    space = content["agent_space"]
    if rng.random() < 0.5:
        space["observations"]["observation"] = [[size], "float32"]
    else:
        space["low"], space["high"] = [0.0] * 9_000, [1.0] * 9_000
    path.write_bytes(_saved(content))


def huge_tensors(rng: random.Random, path: Path, sources: Sources) -> None:
    """Weights that say that they are larger than their bytes, or are not there."""
    content, number = sources.fresh(), rng.randrange(6)
    name, one = _a_weight(rng, content), torch.ones(1)
    weights: list[Callable[[], Any]] = [
        lambda: one.expand(2**40),
        lambda: torch.sparse_coo_tensor(torch.zeros(1, 1, dtype=torch.long), one, (2**50,)),
        lambda: torch.empty(2**40, device="meta"),
        lambda: torch.nn.Parameter(torch.ones(4, 4)),
        lambda: bytearray(2**20),
        lambda: one.expand(content["state_dict"][name].shape),
    ]
    content["state_dict"][name] = weights[number]()
    saved = _saved(content)
    # The shape has no numbers behind it.
    if number == 3:
        saved = saved.replace(b"K\x04K\x04\x86", b"K\xffK\xff\x86")
    path.write_bytes(saved)


def huge_plain(rng: random.Random, path: Path, sources: Sources) -> None:
    content: Content = dict(sources.plain)
    number = rng.randrange(3)
    if number == 0:
        content["obs_dim"] = rng.choice([2**62, 2**31, 10**30, -1, 0, float("inf"), float("nan"), "4", None, [4], True])
    elif number == 1:
        one, wide = torch.ones(1), 2**20
        content["model_state_dict"] = {"0": one.expand(wide, 4), "1": one.expand(wide), "2": one.expand(2, wide)}
        content["model_state_dict"]["3"] = torch.ones(2)
    else:
        content["model_state_dict"] = {str(i): torch.ones(4, 4) if i % 2 == 0 else torch.ones(4) for i in range(400)}
    path.write_bytes(_saved(content))


def foreign(rng: random.Random, path: Path, sources: Sources) -> None:
    """Good archives of something else."""
    state = {"layer.weight": torch.ones(2, 2)}
    others: list[Any] = [
        state,
        {"state_dict": state, "epoch": 3, "pytorch-lightning_version": "2.6"},
        {"actor_state_dict": state, "iter": 7},
        {"policy": state, "value": state},
        [state],
        torch.ones(3),
        {},
        {1: 2, "\n\x1b[31m": 3},
        sources.fresh() | {ENTRY: None},
        sources.fresh() | {ENTRY: {"config": None}},
        sources.fresh() | {"agent_space": None},
    ]
    path.write_bytes(_saved(rng.choice(others)))


def no_archive(rng: random.Random, path: Path, sources: Sources) -> None:
    contents = [b"", b"\0" * 4096, b"PK\x03\x04", b"PK\x05\x06" + bytes(18), b"{}", b"<!doctype html>", b"\x89PNG\r\n"]
    links = [path.name, "nowhere", "/dev/zero"]
    makers: list[Callable[[], Any]] = [
        *(partial(path.write_bytes, content) for content in (*contents, b"hello\n")),
        *(partial(path.symlink_to, link) for link in links),
        path.mkdir,
        partial(os.mkfifo, path),
    ]
    rng.choice(makers)()


def strange_classes(rng: random.Random, path: Path, sources: Sources) -> None:
    content = sources.fresh()
    named = rng.choice(
        [
            *(f"{_STRANGER}.Agent", "os.system", "builtins.eval", "subprocess.Popen", "torch.load", "DDPG", ""),
            *("torchrl_gpu.cli.program.main", "torchrl_gpu.policies.Agent", "torchrl_gpu.policies.agents.sac.DDPG"),
            *("torchrl_gpu.policies.ddpg.DDPG.__init__", "torchrl_gpu.policies..DDPG", "torchrl_gpu.DDPG", "..DDPG"),
            *("torch.nn.Linear", "a\nb.DDPG", "torchrl_gpu.policies.PolicyWrapper", 7, None),
        ]
    )
    arguments = _settings(content)["agent"]
    if rng.random() < 0.5:
        arguments["class_path"] = named
    else:
        arguments["init_args"][rng.choice(["actor", "critic"])]["class_path"] = named
    path.write_bytes(_saved(content))


def strange_settings(rng: random.Random, path: Path, sources: Sources) -> None:
    content = sources.fresh()
    agent = _settings(content)["agent"]["init_args"]
    value = rng.choice(["x", None, -1, float("nan"), [[]], {"class_path": "os.system"}, 10**40, {"tau": "y"}])
    name = rng.choice(
        ["targets", "actor", "critic", "squash", "n_steps", "exploration", "space", "no_such", "__class__"]
    )
    agent[name] = value if name != "exploration" or value is not None else 3
    path.write_bytes(_saved(content))


def entangled(rng: random.Random, path: Path, sources: Sources) -> None:
    """Values that hold themselves, or grow without end as they are followed."""
    content = sources.fresh()
    knot: list[Any] = []
    if rng.random() < 0.5:
        knot.append(knot)
    else:
        for _ in range(60):
            knot = [knot] * 10
    place = rng.randrange(3)
    if place == 0:
        content["agent_space"]["extras"] = {"bin": knot}
    elif place == 1:
        _settings(content)["env"] = knot
    else:
        content[ENTRY]["versions"] = knot
    path.write_bytes(_saved(content))


def clones(rng: random.Random, path: Path, sources: Sources) -> None:
    """Hostile clones.

    Records, weights and statistics that are none, and code where they should be.
    """
    kind = rng.choice(["washes", "alone", "plain"])
    content, _, _ = checkpoints.cloned(kind)
    weights = "model_state_dict" if kind == "plain" else "state_dict"
    state, record = content[weights], content["bc_policy"]
    name = rng.choice([name for name in state if "mean" not in name])
    std = rng.choice([each for each in state if each.endswith("_std")])
    size = 10 ** rng.randrange(7, 30)
    any_record, any_value = rng.choice([*record, "device", "__class__"]), [{"a": 1}, -1, size, float("nan"), [[]], "x"]
    run = {"config": {"model": {"init_args": {"env": Runs("open", sources.trace)}}}}
    no_weights = [Runs("system", sources.trace), torch.ones(1).expand(2**40), state[name].double(), 1.0]
    changes: list[tuple[dict[str, Any], str, list[Any]]] = [
        (record, any_record, any_value),
        (record, "hidden", [[size, size], [8] * 9_990, [8] * 20_000, [0], [-8], ["8"], size]),
        (record, "obs_dim", [size]),
        (record, "observations", [[], "observation", ["a"] * 2, [1, 2], ["a", "b", "c"], [["a"]], None]),
        (content, "bc_policy", [None, [], "BCPolicy", {}, {"obs_dim": 6}, Runs("exec", sources.trace)]),
        (content, "agent_space", [{}, 7, "x", checkpoints.packer("DQN")[0].space.to_dict()]),
        (content, weights, [None, 3, [state], torch.nn.Linear(6, 2)]),
        (content, ENTRY, [run]),
        (state, std, [state[std] * factor for factor in (0.0, -1.0, float("nan"), float("inf"))]),
        (state, name, no_weights),
        (state, f"{name}.more", [torch.ones(3)]),
        (state, name, [None]),
    ]
    where, key, values = rng.choice(changes)
    where[key] = rng.choice(values)
    # Other entries depend on it.
    if key == "obs_dim":
        record["widths"] = [size - 2, 2] if kind != "washes" else [size]
    elif where[key] is None and where is state:
        del state[name]
    path.write_bytes(_saved(content))


def choices(rng: random.Random, path: Path, sources: Sources) -> None:
    """A cloned choice whose network is another than it says, or none of this package."""
    content, _, _ = checkpoints.cloned("choice")
    settings = _settings(content)
    others = ["VectorActor", "PlacementAtoms", "NavigationScores"]
    changes: list[tuple[dict[str, Any], str, list[Any]]] = [
        (settings["network"], "class_path", [f"{_STRANGER}.Agent", "os.system", "", 3, "PlacementScores"]),
        (settings["network"], "init_args", [{"channels": 10**12}, {"blocks": 10**9}, {"code": 1}, [], 7]),
        (settings, "temperature", [0, -1.0, float("nan"), "x", None]),
        (settings, "network", [checkpoints.class_path(name) for name in others]),
        (content["agent_space"], "num_actions", [49, 10**12, None]),
        (content["state_dict"], "learner.policy", [Runs(how, sources.trace) for how in ("exec", "eval", "load")]),
    ]
    where, name, values = rng.choice(changes)
    where[name] = rng.choice(values)
    path.write_bytes(_saved(content))


MAKERS: tuple[tuple[Maker, int], ...] = (
    *((truncated, 26), (flipped, 18), (spliced, 10), (pickled, 26), (module, 8), (scripted, 1), (bomb, 3), (copied, 1)),
    *((huge_settings, 14), (huge_spaces, 6), (huge_tensors, 12), (huge_plain, 9), (foreign, 10), (no_archive, 12)),
    *((strange_classes, 10), (strange_settings, 5), (entangled, 2), (clones, 20), (choices, 10)),
)


def made(folder: Path, seed: int = 0) -> Iterator[Path]:
    sources = Sources(folder)
    (folder / f"{_STRANGER}.py").write_text(f"open({str(sources.trace)!r}, 'w').close()\nclass Agent: pass\n")
    for maker, number in MAKERS:
        for i in range(number):
            path = folder / f"{maker.__name__}-{i}.ckpt"
            maker(random.Random(f"{seed} {maker.__name__} {i}"), path, sources)
            yield path


def ended(path: Path) -> dict[str, Any]:
    """Return the outcome of loading a file.

    Also its message, and the peak memory of the process, in MiB.
    """
    end, said = "loaded", ""
    try:
        load_policy(path, "cpu")
    except (ValueError, FileNotFoundError) as error:
        end, said = "refused", str(error)
    except BaseException as error:
        end, said = type(error).__name__, str(error)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return {"file": path.name, "end": end, "said": said[:60_000], "mib": peak}


def main(folder: Path) -> None:
    """Make the files and try them.

    The first line printed is of a good file.
    """
    # The stranger's module is there.
    sys.path.append(str(folder))
    good, packs = folder / "good.ckpt", folder / "packs.ckpt"
    good.write_bytes(Sources(folder).bytes)
    packs.write_bytes(_saved(checkpoints.content_of(*checkpoints.packer("DQN"))))
    # Load good files first, so that children need not import what torch imports at first use.
    for path in (good, packs):
        load_policy(path, "cpu")
    for each in (*forks.results(ended, [good]), *forks.results(ended, list(made(folder)))):
        print(json.dumps(each), flush=True)
