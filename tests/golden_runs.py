"""Runs with fixed seeds that must not change when code is only rearranged.

They record weights, curves and tables.

Every shipped config is trained for a few updates, validated, tested and asked for its plans through the command line,
on one thread of the CPU. Kept are SHA-256 of every tensor in the last checkpoint and its parts (without their names,
which may change), every logged value that no clock decides, and the tables. Bits differ between processors and between
versions of torch: record before a change and check after it, on the same machine.

python tests/golden_runs.py --record
python tests/golden_runs.py
"""

from __future__ import annotations

import argparse
import csv
import hashlib
import importlib
import io
import json
import multiprocessing
import os
import platform
import re
import subprocess
import sys
import tempfile
import time
import tomllib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import redirect_stdout
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

ROOT = Path(__file__).resolve().parent.parent
RECORDED = ROOT / "benchmarks" / "results" / "golden_runs.json"
PACKAGES = ("torch", "torchrl", "tensordict", "lightning", "numpy", "mujoco")
ALONE = {f"{name}_NUM_THREADS": "1" for name in ("OMP", "MKL", "OPENBLAS")}
ALONE |= {"CUDA_VISIBLE_DEVICES": "", "PYTHONPATH": str(ROOT), "TORCHRL_GPU_DEBUG": "1"}


# -- the runs ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Run:
    """One config, made small.

    Attributes:
        config: Name of a shipped config.
        options: What makes it small, by the option's name.
        updates: `trainer.max_steps`.
        stop: Updates after which `fit` ends once, to go on from its checkpoint; None for a run in one go.
        stages: Words of the command line that follow `fit`, each with the last checkpoint.
        evaluate: Arguments of `torchrl-gpu evaluate`, with the last checkpoint; empty for none.
    """

    config: str
    options: Options
    updates: int
    stop: int | None = None
    stages: tuple[str, ...] = ("validate", "test", "predict")
    evaluate: tuple[str, ...] = ()


Options = dict[str, Any]
# What is recorded of a run, of a checkpoint or of a machine: plain values by name.
Result = dict[str, Any]
QUIET: Options = {
    "trainer.accelerator": "cpu",
    "trainer.log_every_n_steps": 1,
    "trainer.enable_progress_bar": "false",
    "trainer.enable_model_summary": "false",
    "data.pictures": "false",
}
REPLAY: Options = {
    "model.batch_size": 8,
    # They are fewer than are played, so that the replay wraps around.
    "model.replay.capacity": 200,
    "model.warmup_frames": 48,
    "model.rollout_steps": 4,
    "model.updates_per_step": 2,
    "data.steps_per_epoch": 6,
}
EPISODES: Options = {"data.num_episodes": 3, "data.num_val_episodes": 2}
NARROW: Options = {
    "model.agent.network.channels": 8,
    "model.agent.network.blocks": 1,
    "model.agent.exploration.frames": 120,
}
BOXES = REPLAY | EPISODES | {"model.env.num_envs": 4, "model.env.items.pool": 16}
PACKING = BOXES | NARROW
ORDERS = REPLAY | EPISODES | NARROW
ORDERS |= {
    "model.env.num_envs": 2,
    "model.env.num_items": 6,
    # Cells of 40 mm.
    "model.env.resolution": "[30,20]",
    "model.env.items": "torchrl_gpu.envs.packing.items.RandomBoxes",
    "model.env.items.min_side": 2,
    "model.env.items.max_side": 8,
    "data.sequences": "orders.json",
}
PALLETS = EPISODES | {
    "model.env.num_envs": 8,
    "model.env.num_items": 6,
    "model.env.resolution": "[30,20]",
    "model.members": 4,
}
RAINBOW = {
    "model.agent": "torchrl_gpu.policies.Rainbow",
    "model.agent.network": "torchrl_gpu.policies.PlacementAtoms",
    **NARROW,
    "model.agent.network.num_atoms": 11,
    "model.agent.v_min": 0.0,
    "model.agent.v_max": 10.0,
    "model.agent.n_steps": 3,
    "model.agent.exploration.start": 0.5,
    "model.replay.prioritized": "true",
    "model.replay.beta_updates": 12,
}
SMALL_BINS = {
    "model.env.bin_size": "[0.24,0.24,0.24]",
    "model.env.resolution": 24,
    "model.env.grid_step": 3,
    "model.env.num_items": 6,
    "model.env.visible_items": 3,
    "model.env.items.num_objects": 12,
    "model.networks.channels": "[8,4]",
}
IRREGULAR = REPLAY | EPISODES | SMALL_BINS
IRREGULAR |= {
    "model.env.num_envs": 3,
    "model.worker_updates": 6,
    "model.manager_period": 2,
    "model.shortlist": 6,
    "model.item_shortlist": 2,
    # Whole episodes, as shipped.
    "model.n_steps": 6,
}
EVALUATE = ("--device=cpu", "--cases=2", "--batch=2", "--timed=0", *(f"--{k}={v}" for k, v in SMALL_BINS.items()))
MARINE = REPLAY | {
    "model.replay.capacity": 500,
    "model.env.num_envs": 4,
    "model.env.pool": 16,
    "model.env.max_steps": 20,
    "data.worlds_per_level": 1,
    "data.val_worlds_per_level": 1,
    "data.max_steps": 40,
}
# Both rows are trained on: the second one begins after the first updates.
UNICYCLES = MARINE | {"model.env.curriculum": "[[0,3,4,0,30.0],[100,5,6,2,35.0]]"}
CHOOSING = UNICYCLES | {"model.agent.exploration.frames": 200}
VESSELS = MARINE | {"model.env.curriculum": "[[0,2,0,0,30.0],[100,4,0,2,35.0]]"}
SHIFTS = REPLAY | EPISODES | {"model.env.num_envs": 4, "model.env.max_steps": 20, "model.agent.exploration.frames": 200}
VIDEO = SHIFTS | {"model.env.frame_size": "[16,16]", "model.encoder.num_features": 8, "model.batch_size": 16}
ROLLOUTS: Options = {"model.rollout_steps": 8, "model.epochs": 2, "model.minibatches": 2, "data.steps_per_epoch": 3}
PLACING: Options = {}
for _network in ("actor", "critic"):
    PLACING |= {f"model.agent.{_network}.channels": 8, f"model.agent.{_network}.blocks": 1}
# In the shipped bfloat16, a last bit may be rounded away.
IN_FLOAT32 = {"trainer.precision": "32-true"}

CLONING = EPISODES | {
    "model.env.items.pool": 16,
    "model.network.channels": 8,
    "model.network.blocks": 1,
    "model.batch_size": 8,
    "model.updates_per_step": 2,
    "model.lr_scheduler.total_steps": 24,
    "data.demonstrations": "demonstrations",
    "data.steps_per_epoch": 6,
}


def without_replay(options: Options) -> Options:
    """Return the options of a run that learns from rollouts alone."""
    return {name: value for name, value in options.items() if name not in REPLAY} | ROLLOUTS


TABLES: Options = EPISODES | {
    "model.env.num_envs": 8,
    "model.tables.patches": ["2x2", "2x3", "3x3:1"],
    "model.rollout_steps": 8,
    "data.steps_per_epoch": 6,
}

REFINED = TABLES | {"model.warm_start": "null", "model.batch_size": 16}

RUNS: dict[str, Run] = {}
RUNS["packing_tables"] = Run("packing.yaml", TABLES, 24)
RUNS["packing_tables_resumed"] = Run("packing.yaml", TABLES, 24, stop=14, stages=())
RUNS["packing_refined"] = Run("packing_refined.yaml", REFINED, 24)
RUNS["packing"] = Run("packing_dqn.yaml", PACKING, 24)
RUNS["packing_rainbow"] = Run("packing_dqn.yaml", BOXES | RAINBOW, 24)
RUNS["packing_rainbow_resumed"] = Run("packing_dqn.yaml", BOXES | RAINBOW, 24, stop=12, stages=())
RUNS["packing_orders"] = Run("packing_orders.yaml", ORDERS, 24)
RUNS["packing_pallets"] = Run("packing_pallets.yaml", PALLETS, 4)
RUNS["packing_irregular"] = Run("packing_irregular.yaml", IRREGULAR, 14, evaluate=("packing_irregular", *EVALUATE))
BOOTSTRAPPED = IRREGULAR | {"model.n_steps": 2}
RUNS["packing_irregular_bootstrapped"] = Run("packing_irregular.yaml", BOOTSTRAPPED, 10, stop=6, stages=())
RUNS["navigation_dqn"] = Run("navigation_dqn.yaml", CHOOSING, 24)
RUNS["navigation_rainbow"] = Run("navigation_rainbow.yaml", CHOOSING, 24)
RUNS["navigation_iqn"] = Run("navigation_iqn.yaml", CHOOSING | IN_FLOAT32, 24)
RUNS["navigation_iqn_resumed"] = Run("navigation_iqn.yaml", CHOOSING | IN_FLOAT32, 24, stop=12, stages=())
RUNS["navigation_ddpg"] = Run("navigation_ddpg.yaml", VESSELS, 24)
RUNS["navigation_sac"] = Run("navigation_sac.yaml", VESSELS, 24)
RUNS["navigation_ac_iqn"] = Run("navigation_ac_iqn.yaml", VESSELS | IN_FLOAT32, 24)
RUNS["ppo_packing"] = Run("ppo_packing.yaml", without_replay(BOXES) | PLACING, 24)
RUNS["ppo_marine"] = Run("ppo_marine.yaml", without_replay(VESSELS), 24)
RUNS["ppo_marine_resumed"] = Run("ppo_marine.yaml", without_replay(VESSELS), 24, stop=12, stages=())
RUNS["bc"] = Run("bc.yaml", CLONING, 24)
RUNS["bc_resumed"] = Run("bc.yaml", CLONING, 24, stop=14, stages=())
RUNS["packing_bc_to_rl"] = Run("packing_bc_to_rl.yaml", PACKING | {"model.warm_start": "bc.ckpt"}, 24, stages=())
RUNS["dishwashing_feasible"] = Run("dishwashing_feasible.yaml", SHIFTS, 24)
RUNS["dishwashing_video"] = Run("dishwashing_video.yaml", VIDEO, 24)
RUNS["dishwashing_video_resumed"] = Run("dishwashing_video.yaml", VIDEO, 24, stop=12, stages=())
SAME_END = {
    "packing_rainbow_resumed": "packing_rainbow",
    "bc_resumed": "bc",
    "navigation_iqn_resumed": "navigation_iqn",
    "ppo_marine_resumed": "ppo_marine",
    "dishwashing_video_resumed": "dishwashing_video",
}


def play(name: str) -> Result:
    """Everything that a run comes to, made in the current folder, which is empty."""
    from tests.test_end_to_end import write_orders

    run = RUNS[name]
    write_orders(Path("orders.json"))
    if "bc" in run.config:
        _write_demonstrations()
    found: Result = {}
    checkpoint: list[str] = []
    for updates in [run.updates] if run.stop is None else [run.stop, run.updates]:
        folder = Path(f"fit-{updates}")
        _command("fit", _options(run, folder, updates) + checkpoint)
        found[folder.name] = contents(_last_checkpoint(folder)) | written(folder)
        checkpoint = ["--ckpt_path", str(_last_checkpoint(folder))]
    for stage in run.stages:
        _command(stage, _options(run, Path(stage), run.updates) + checkpoint)
        found[stage] = written(Path(stage))
    if run.evaluate:
        _command("evaluate", [*run.evaluate, "--output=table.json", *checkpoint])
        found["evaluate"] = without_clocks(json.loads(Path("table.json").read_text(encoding="utf-8")))
    return found


def _options(run: Run, folder: Path, updates: int) -> list[str]:
    logger = {"trainer.logger": "lightning.pytorch.loggers.CSVLogger", "trainer.logger.save_dir": folder}
    given = QUIET | dict(run.options) | logger
    given |= {"trainer.default_root_dir": folder, "trainer.max_steps": updates}
    return ["--config", run.config, *(f"--{name}={value}" for name, value in given.items())]


def _command(word: str, args: list[str]) -> None:
    """Call of the installed script's function, as this checkout names it."""
    scripts = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["scripts"]
    module, _, function = scripts["torchrl-gpu"].partition(":")
    sys.argv = ["torchrl-gpu", word, *args]
    status = getattr(importlib.import_module(module), function)([word, *args])
    if status:
        raise RuntimeError(f"torchrl-gpu {word} {' '.join(args)}: ended with status {status}")


def _last_checkpoint(folder: Path) -> Path:
    (path,) = folder.rglob("last.ckpt")
    return path


def _write_demonstrations() -> None:
    """Write a rule's packings of bins of `CLONING`, and a checkpoint to begin with.

    The checkpoint is of a network.
    """
    from torchrl_gpu.envs import PackingEnv
    from torchrl_gpu.policies import AgentSpace, ClonedChoice, PlacementScores

    rule = ["--policy=deepest-bottom-left", "--episodes=12", "--output=demonstrations", "--model.env.items.pool=16"]
    _command("record", ["--config=packing_dqn.yaml", *rule, "--trainer.accelerator=cpu"])
    torch.manual_seed(0)
    space = AgentSpace.of(PackingEnv(1, orientations="fixed", device="cpu", seed=0))
    state = ClonedChoice(space, PlacementScores(space, 8, 1)).state_dict()
    torch.save({"state_dict": state}, "bc.ckpt")


# -- what is kept of a run ---------------------------------------------------------------------------------------------

# Of a hash.
DIGITS = 16
LIGHTNINGS_OWN = ("epoch", "loops", "callbacks", "pytorch-lightning_version")
CLOCKED = re.compile(r"throughput/|gpu/|memory|elapsed|^seconds$|(^|_)ms$|^ms/|(/|_per_)(s|h)$")
NOT_NUMBERS = ("machine", "versions", "commit", "arguments", "config", "path", "epoch")


def contents(checkpoint: Path) -> Result:
    """Return hashes of all tensors of a checkpoint and its parts, and its counts."""
    whole = torch.load(checkpoint, weights_only=True)
    weights, optimizers = whole.pop("state_dict"), whole.pop("optimizer_states")
    parts = [torch.load(part, weights_only=True) for part in checkpoint.parent.glob(f"{checkpoint.stem}-*.pt")]
    rest = list(tensors([{key: value for key, value in whole.items() if key not in LIGHTNINGS_OWN}, parts]))
    generator = torch.get_rng_state()
    random = [tensor for tensor in rest if tensor.dtype == generator.dtype and tensor.shape == generator.shape]
    learning_rates: list[float] = []
    for each in optimizers:
        learning_rates += [float(group["lr"]) for group in each.get("param_groups", ())]
    numbers_of_random = {id(tensor) for tensor in random}
    others = [tensor for tensor in rest if id(tensor) not in numbers_of_random]
    found: Result = {"updates": whole["global_step"], "learning rates": learning_rates}
    found |= {"weights": hashes(tensors(weights)), "optimizer": hashes(tensors(optimizers))}
    return found | {"random": hashes(random), "environment and replay": hashes(others)}


def tensors(tree: object) -> Iterator[Tensor]:
    """Those in dicts, lists and tuples, however deep."""
    if isinstance(tree, Tensor):
        yield tree
    elif isinstance(tree, Mapping | list | tuple):
        for each in tree.values() if isinstance(tree, Mapping) else tree:
            yield from tensors(each)


def hashes(found: Iterable[Tensor]) -> list[str]:
    """Return a line for each tensor, sorted.

    It holds type, shape, and the beginning of the SHA-256 of both and of the bytes.
    """
    lines = []
    for tensor in found:
        about = f"{str(tensor.dtype).removeprefix('torch.')} {'×'.join(map(str, tensor.shape)) or 'scalar'}"
        content = tensor.contiguous().flatten().view(torch.uint8).numpy().tobytes()
        lines.append(f"{about} {hashlib.sha256(about.encode() + content).hexdigest()[:DIGITS]}")
    return sorted(lines)


def written(folder: Path) -> Result:
    """Curves, tables and plans that a run has left in a folder."""
    found: Result = {}
    for path in folder.rglob("metrics.csv"):
        found["curves"] = curves(path)
    for path in folder.rglob("*.json"):
        content = without_clocks(json.loads(path.read_text(encoding="utf-8")))
        is_table = path.name == "evaluation.json"
        content = {key: each for key, each in content.items() if key != "tested"} if is_table else content
        found[path.name] = content if is_table else [_hash_of(plan) for plan in content]
    return found


def curves(path: Path) -> dict[str, list[float]]:
    """Return the values of each column of a CSV file that no clock decides.

    Empty cells are left out.
    """
    with path.open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    kept = sorted(name for name in rows[0] if not _is_left_out(name))
    columns = {}
    for name in kept:
        columns[name] = [float(row[name]) for row in rows if row[name]]
    return columns


def without_clocks(tree: Any) -> Any:
    """Return a tree of plain values without what a clock, machine or place decides.

    The place is that of a file.
    """
    if isinstance(tree, Mapping):
        return {name: without_clocks(value) for name, value in tree.items() if not _is_left_out(name)}
    return [without_clocks(each) for each in tree] if isinstance(tree, list) else tree


def _is_left_out(name: str) -> bool:
    return name in NOT_NUMBERS or CLOCKED.search(name) is not None


def _hash_of(tree: object) -> str:
    return hashlib.sha256(json.dumps(tree, sort_keys=True).encode()).hexdigest()[:DIGITS]


# -- what has changed --------------------------------------------------------------------------------------------------


def differences(recorded: object, found: object, where: str = "") -> Iterator[str]:
    """Return a line for each place where a recorded value is missing or has changed.

    New values are ignored.
    """
    if isinstance(recorded, Mapping) and isinstance(found, Mapping):
        for name, value in recorded.items():
            place = f"{where}, {name}" if where else str(name)
            if name in found:
                yield from differences(value, found[name], place)
            else:
                yield f"{place}: is missing"
    elif _is_hashes(recorded) and _is_hashes(found):
        yield from _other_tensors(recorded, found, where)
    elif isinstance(recorded, list) and isinstance(found, list):
        if len(recorded) != len(found):
            yield f"{where}: {len(recorded)} entries were recorded; now {len(found)}"
        for i, (a, b) in enumerate(zip(recorded, found, strict=False)):
            yield from differences(a, b, f"{where}[{i}]")
    # By `repr` nan is equal to nan, but 0.0 is not equal to -0.0, nor 1 to 1.0.
    elif repr(recorded) != repr(found):
        yield f"{where}: {_short(recorded)} was recorded; now {_short(found)}"


def additions(recorded: object, found: object, where: str = "") -> Iterator[str]:
    """Yield the names of curves and entries of tables that were not recorded."""
    if isinstance(recorded, Mapping) and isinstance(found, Mapping):
        for name, value in found.items():
            place = f"{where}, {name}" if where else str(name)
            yield from additions(recorded[name], value, place) if name in recorded else [place]
    elif isinstance(recorded, list) and isinstance(found, list):
        for i, (a, b) in enumerate(zip(recorded, found, strict=False)):
            yield from additions(a, b, f"{where}[{i}]")


def _state(end: Result) -> Result:
    return {key: value for key, value in end.items() if key != "curves"}


def unequal_ends(runs: Mapping[str, Result]) -> Iterator[str]:
    """Compare the end of a resumed run with that of the same run in one go."""
    for resumed, straight in SAME_END.items():
        if {resumed, straight} <= set(runs):
            first = _state(runs[straight][f"fit-{RUNS[straight].updates}"])
            second = _state(runs[resumed][f"fit-{RUNS[resumed].updates}"])
            yield from differences(first, second, f"{resumed} beside {straight}")


def _is_hashes(value: object) -> bool:
    return isinstance(value, list) and all(isinstance(line, str) and _HASH.fullmatch(line) for line in value)


_HASH = re.compile(r"\w+ [\d×a-z]+ [0-9a-f]{16}")


def _other_tensors(recorded: Sequence[str], found: Sequence[str], where: str) -> Iterator[str]:
    """Compared without order: tensors have no names here."""
    gone, new = Counter(recorded) - Counter(found), Counter(found) - Counter(recorded)
    if not gone and not new:
        return
    yield f"{where}: {gone.total()} of {len(recorded)} tensors are gone, {new.total()} are new"
    if gone.keys() <= set(found) and new.keys() <= set(recorded):
        yield f"{where}: the same tensors, some of them held more or less often"
    gone_forms = _count_forms(gone)
    new_forms = _count_forms(new)
    for form in sorted(gone_forms.keys() | new_forms.keys())[:LONGEST]:
        yield f"{where}: {form}: {gone_forms[form]} gone, {new_forms[form]} new"


def _count_forms(lines: Counter[str]) -> Counter[str]:
    """Count tensors by type and shape."""
    return Counter(line.rpartition(" ")[0] for line in lines.elements())


# Lines of one place.
LONGEST = 8


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "..."


def other_machine(recorded: Result, present: Result) -> list[str]:
    """Return differences of the machine from that of the record, on which bits depend."""
    return list(differences({name: value for name, value in recorded.items() if name != "commit"}, present))


def machine() -> Result:
    """Processor, instructions that torch uses, versions and commit: they decide bits."""
    lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines() if Path("/proc/cpuinfo").exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    found: Result = {"cpu": names[0] if names else platform.processor()}
    found["instructions"] = torch.backends.cpu.get_cpu_capability()
    found["system"] = f"{platform.system()} {platform.machine()}, Python {platform.python_version()}"
    found["versions"] = {name: metadata.version(name) for name in PACKAGES}
    is_changed = bool(_git("status", "--porcelain", "--", "torchrl_gpu"))
    found["commit"] = _git("rev-parse", "HEAD") + ("+" if is_changed else "")
    return found


def _git(*words: str) -> str:
    return subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True, check=False).stdout.strip()


# -- command -----------------------------------------------------------------------------------------------------------


def played(name: str) -> tuple[Result, float]:
    """Play a run in a folder of its own, and return its seconds.

    It is for a process of its own, whose output goes to a file.
    """
    begun, before = time.perf_counter(), Path.cwd()
    with tempfile.TemporaryDirectory(prefix=f"golden-{name}-") as folder:
        os.chdir(folder)
        log = os.open("log", os.O_CREAT | os.O_WRONLY)
        os.dup2(log, 1)
        os.dup2(log, 2)
        try:
            return play(name), time.perf_counter() - begun
        except Exception as error:
            told = Path("log").read_text(encoding="utf-8")[-4000:]
            raise RuntimeError(f"golden_runs: {name} fails with {error!r} after\n{told}") from error
        finally:
            os.chdir(before)


def play_all(names: Sequence[str], jobs: int) -> Result:
    """Play runs by name.

    Each has a copy of this process, which has imported everything: that takes longer than a run.
    """
    torch.set_num_threads(1)
    runs = {}
    with redirect_stdout(io.StringIO()):
        for config in dict.fromkeys(RUNS[name].config for name in names):
            _command("fit", ["--config", config, "--print_config"])
    with multiprocessing.get_context("fork").Pool(jobs, maxtasksperchild=1) as pool:
        for name, (found, seconds) in zip(names, pool.imap(played, names), strict=True):
            print(f"{name}: {seconds:.0f} s", file=sys.stderr, flush=True)
            runs[name] = found
    return runs


def main(argv: Sequence[str] | None = None) -> int:
    """Record or check.

    Returns 1 where something differs.
    """
    args = _arguments(argv)
    names = args.only or list(RUNS)
    runs = play_all(names, args.jobs)
    before = json.loads(args.file.read_text(encoding="utf-8")) if args.file.exists() else {"machine": {}, "runs": {}}
    found = list(unequal_ends(runs))
    kept = {name: before["runs"][name] for name in names if name in before["runs"]}
    changed = list(differences(kept, runs))
    if args.record:
        others = {name: run for name, run in before["runs"].items() if name in RUNS and args.only}
        result = {"benchmark": "golden_runs", "machine": machine(), "runs": others | runs}
        args.file.write_text(as_text(result), encoding="utf-8")
        print("Not as it was recorded before:" if changed else "As it was recorded before.", *changed, sep="\n  ")
        print(f"Written: {args.file}")
    else:
        found += [f"{name}: was never recorded" for name in names if name not in kept]
        found += changed
        _print_notes(before["machine"], kept, runs)
    print("\n".join(found) or f"{len(names)} runs, no difference")
    return int(bool(found))


def as_text(result: object) -> str:
    """JSON with a line for each entry, but one line for a list of numbers."""
    text = json.dumps(result, indent=1, ensure_ascii=False) + "\n"
    return re.sub(r"\[[^][{}\"]+\]", lambda numbers: " ".join(numbers[0].split()), text)


def _print_notes(there: Result, kept: Result, runs: Mapping[str, Result]) -> None:
    if others := other_machine(there, machine()):
        print("Recorded elsewhere, where bits may differ without any fault of the code:", *others, sep="\n  ")
    if news := list(additions(kept, {name: runs[name] for name in kept})):
        print("Not recorded, and so not compared:", *news, sep="\n  ")


def _arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--check", action="store_true", help="compare with what was recorded; the default")
    what.add_argument("--record", action="store_true", help="write what the runs come to")
    parser.add_argument("--only", nargs="+", choices=RUNS, metavar="RUN", help=", ".join(RUNS))
    parser.add_argument("--jobs", type=int, default=1, help="runs at a time, each on one thread")
    parser.add_argument("--file", type=Path, default=RECORDED, help="what was recorded, or is to be")
    return parser.parse_args(argv)


if __name__ == "__main__":
    if os.environ.items() >= ALONE.items():
        sys.exit(main())
    # Libraries read these when they are loaded, and torch has been.
    os.execve(sys.executable, [sys.executable, *sys.argv], os.environ | ALONE)
