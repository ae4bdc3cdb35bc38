"""Mutation check: faults planted one at a time in the lines that matter, each of which some test must notice.

    python tests/mutants.py                     # all of them
    python tests/mutants.py --only target_tau   # some of them
    python tests/mutants.py --list              # where each would be planted; runs nothing

A mutant names no module, only text that stands once in the package, so that it survives moves; one whose text is not
there any more, or there twice, is reported as "to be planted anew". The exit status is 0 only if all mutants died.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import importlib.util
import json
import os
import re
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import NoReturn

import pytest

ROOT = Path(__file__).resolve().parent.parent
COPIED = ("torchrl_gpu", "tests", "docs", "examples", "benchmarks", "setup.cfg", "pyproject.toml", "README.md")
PRELOADED = ("torch", "torchvision", "tensordict.nn", "torchrl.envs", "torchrl.modules", "torchrl.objectives")
PRELOADED += ("lightning.pytorch.cli", "segmentation_models_pytorch", "aiohttp.web", "av", "cv2", "rich.table")
DIED, LIVED, ANEW, UNTESTED, BROKEN = "died", "LIVED", "to be planted anew", "NO TESTS", "BROKEN"


@dataclass(frozen=True)
class Mutant:
    """A fault and what should notice it.

    Attributes:
        name: Of the mutant.
        tests: Files or folders in `tests/`; one that has moved is looked for by its name.
        changes: Pairs of a text and its replacement; the first whose text stands once in the package is planted.
        k: As pytest's `-k`.
    """

    name: str
    tests: tuple[str, ...]
    changes: tuple[tuple[str, str], ...]
    k: str = ""


@dataclass(frozen=True)
class Result:
    """What came of a mutant: which test noticed it first, after how many seconds."""

    name: str
    outcome: str
    seconds: float = 0.0
    module: str = ""
    noticed_by: str = ""


def _mutant(name: str, old: str, new: str, *tests: str, k: str = "", also: Sequence[tuple[str, str]] = ()) -> Mutant:
    return Mutant(name, tests, ((old, new), *also), k)


TRAINING = [
    _mutant(
        "rank_folds_seed",
        "seed + rank * 0x9E3779B97F4A7C15",
        "seed + 0 * rank",
        "callbacks/test_two_ranks.py",
    ),
    _mutant(
        "part_id_is_checked",
        'if content.get("id") != entry["id"] or content.get("rank") != rank:',
        'if content.get("rank") != rank:',
        "callbacks/test_checkpoint.py",
        k="another or torn or newest",
    ),
    _mutant(
        "newest_whole_is_found",
        "at if newest is None else max(newest, at)",
        "at if newest is None else min(newest, at)",
        "callbacks/test_checkpoint.py",
        k="another or torn or newest",
    ),
    _mutant(
        "warmup_refills_replay",
        "self.warmup_frames += self.frames",
        "self.warmup_frames += 0",
        "training/test_off_policy.py",
        k="without_its_replay or stopped_and_resumed",
    ),
    _mutant(
        "frames_are_restored",
        '"frames": self.frames,\n            "rollout"',
        '"frames": 0,\n            "rollout"',
        "training/test_off_policy.py",
        k="without_its_replay or stopped_and_resumed",
    ),
    _mutant(
        "torn_part_is_passed_over",
        "if size is not None and found != size:",
        "if size is not None and found is None:",
        "callbacks/test_checkpoint.py",
        k="another or torn or newest",
    ),
    _mutant(
        "beta_goes_to_one",
        "self._first_beta + (1 - self._first_beta) * share",
        "self._first_beta + (1 - self._first_beta) * share / 2",
        "training/test_packing_agents.py",
        k="exponent",
    ),
    _mutant(
        "inactive_robots_are_left_out",
        '~transitions["active"]',
        '~transitions["active"] & False',
        "training/test_navigation.py",
        k="take_part",
    ),
    _mutant(
        "pending_steps_of_lanes",
        "joined.shape[1] - self.n_steps + 1",
        "joined.shape[1] - self.n_steps",
        "training/collect/test_rollout.py",
    ),
    _mutant(
        "meter_keeps_its_memory",
        "torch.where(self.finished > 0, self.memory, 0.0)",
        "torch.where(self.finished > 0, self.memory, self.memory)",
        "training/collect/test_episodes.py",
    ),
]

CLIPS = [
    _mutant(
        "clips_begin_with_their_episode",
        "(number[:, None] - torch.minimum(back, earlier[:, None]))",
        "(number[:, None] - back)",
        "training/replay/test_clips.py",
    ),
    _mutant(
        "lost_frames_are_not_drawn",
        "self._newest - self.capacity + 1)",
        "self._newest - 2 * self.capacity)",
        "training/replay/test_clips.py",
    ),
    _mutant(
        "actors_teach_no_encoder",
        "return batch.detach() if any(",
        "return batch if any(",
        "policies/video/test_from_clips.py",
    ),
    _mutant(
        "outcomes_are_not_seen",
        "and key not in told",
        "",
        "policies/test_spaces.py",
        "training/test_dishwashing_configs.py",
    ),
]

UPDATES = [
    _mutant(
        "targets_count_updates",
        "self.agent.update_targets(self.trainer.global_step)",
        "self.agent.update_targets(self.trainer.global_step + 1)",
        "training/updates/test_graphed.py",
        k="by_graphs_is_the_same",
    ),
    _mutant(
        "schedule_steps_at_each_update",
        "            scheduler.step()\n",
        "            scheduler.step() if self.trainer.global_step % 2 else None\n",
        "training/test_off_policy.py",
        k="schedule",
    ),
    _mutant(
        "gradients_of_one_update_alone",
        "        optimizer.zero_grad()\n        self.manual_backward(loss)\n        if max_grad_norm is not None:",
        "        self.manual_backward(loss)\n        if max_grad_norm is not None:",
        "training/updates/test_graphed.py",
        k="by_graphs_is_the_same",
    ),
    _mutant(
        "manager_learns_once_in_a_period",
        "self.joint and step % self.manager_period == 0",
        "self.joint and (step + 1) % self.manager_period == 0",
        "training/test_hierarchical.py",
        k="learns_when",
    ),
    _mutant(
        "packer_targets_follow_behind_the_step",
        "        self.descend(loss, [weights], self.max_grad_norm)\n        self._follow()\n",
        "        self._follow()\n        self.descend(loss, [weights], self.max_grad_norm)\n",
        "training/test_hierarchical.py",
        k="targets",
    ),
]

AGENTS = [
    _mutant(
        "epsilon_stops_at_its_end",
        "self.start + (self.end - self.start) * min(1.0, frame / self.frames)",
        "self.start + (self.end - self.start) * (frame / self.frames)",
        "policies/test_exploration.py",
    ),
    _mutant(
        "masks_hold_when_bootstrapping",
        'torch.where(state.get("action_mask"), values, -torch.inf)',
        'torch.where(state.get("action_mask"), values, 0.0)',
        "policies/agents/test_twins.py",
        "policies/agents/test_illegal_values.py",
        "policies/agents/test_contract.py",
        k="losses or legal or bad_actions",
    ),
    _mutant(
        "discount_of_m_steps",
        "factor = gamma if steps is None else gamma ** steps.to(value.dtype)",
        "factor = gamma if steps is None else gamma * steps.to(value.dtype)",
        "policies/losses/test_returns.py",
    ),
    _mutant(
        "target_tau",
        "torch._foreach_lerp_(targets, online, self.tau)",
        "torch._foreach_lerp_(targets, online, 1 - self.tau)",
        "policies/test_targets.py",
    ),
    _mutant(
        "cvar_level_when_acting",
        "taus = self.risk(tensordict) * self.even",
        "taus = torch.ones_like(self.risk(tensordict)) * self.even",
        "policies/agents/test_iqn.py",
    ),
    _mutant(
        "density_of_squashed_actions",
        "(normal - self.squash.log_slope(z)).sum(-1)",
        "(normal + self.squash.log_slope(z)).sum(-1)",
        "policies/test_squashing.py",
    ),
]

EVALUATION = [
    _mutant(
        "standard_error_by_root_n",
        "error = (values.std() / len(values) ** 0.5).item()",
        "error = (values.std() / (len(values) - 1) ** 0.5).item()",
        "evaluation/test_comparison.py",
    ),
    _mutant(
        "same_episodes_for_all_policies",
        "        env.set_seed(env.seed)\n        yield env.reset()",
        "        yield env.reset()",
        "evaluation/packing/test_suite.py",
        k="twice or loops",
    ),
    _mutant(
        "differences_are_paired",
        "estimate(values.double() - reference.double())",
        "estimate(values.double() - reference.double().mean())",
        "evaluation/test_comparison.py",
    ),
    _mutant(
        "batches_go_on_numbering",
        "env.renumber(self._first_env + first)",
        "env.renumber(self._first_env)",
        "evaluation/packing/test_episodes.py",
        k="batch or differ",
    ),
    _mutant(
        "plans_are_in_metres_of_each_axis",
        "corner = [x * env.cell[0], y * env.cell[1], z]",
        "corner = [x * env.cell[0], y * env.cell[0], z]",
        "evaluation/packing/test_suite.py",
        k="plans",
    ),
    _mutant(
        "headline_of_navigation",
        'plans_name = "success", "worlds"',
        'plans_name = "arrived", "worlds"',
        "training/test_navigation.py",
        k="evaluated and DQN",
    ),
]

CALLBACKS = [
    _mutant(
        "checkpoint_once_a_multiple",
        "        self._passed = passed\n",
        "",
        "callbacks/test_checkpoint.py",
        k="multiple",
    ),
    _mutant(
        "drawing_keeps_to_its_share",
        "names = watched if self._budget.allows(begin) else self._streams.chosen()",
        "names = watched",
        "callbacks/test_frame_stream.py",
        k="share",
    ),
    _mutant(
        "best_may_be_the_smallest",
        "sign * value > sign * self._best",
        "value > self._best",
        "callbacks/test_checkpoint.py",
        k="best",
    ),
    _mutant(
        "old_checkpoints_go",
        "self._saved[: -self.keep], self._saved[-self.keep :]",
        "self._saved[: -self.keep - 1], self._saved[-self.keep - 1 :]",
        "callbacks/test_checkpoint.py",
        k="old or dropping",
    ),
]

STREAMING = [
    _mutant(
        "whole_token_opens",
        'hmac.compare_digest(given.encode("utf-8", "surrogatepass"), secret)',
        'hmac.compare_digest(given.encode("utf-8", "surrogatepass"), secret[: len(given)])',
        "streaming/test_security.py",
    ),
    _mutant(
        "newest_frame_wins",
        "old, self._waiting = self._waiting, frame\n",
        "old, self._waiting = (None, frame) if self._waiting is None else (frame, self._waiting)\n",
        "streaming/broadcast/test_mailboxes.py",
    ),
    _mutant("two_pictures_under_way", "_MOST = 2\n", "_MOST = 3\n", "streaming/web/test_ack_window.py"),
    _mutant(
        "joiners_wait_for_a_key_picture",
        "elif self.needs_key or len(self._held) == self._limit:",
        "elif len(self._held) == self._limit:",
        "streaming/broadcast/test_mailboxes.py",
        "streaming/broadcast/test_streams.py",
    ),
    _mutant(
        "no_address_takes_all_connections",
        "max(1, -(-2 * self._limit // 3))",
        "self._limit",
        "streaming/web/test_connection_limit.py",
        k="address or room",
    ),
    _mutant(
        "mjpeg_boundary_on_its_own_line",
        r'encoded.data + b"\r\n" + _BOUNDARY + _PART',
        "encoded.data + _BOUNDARY + _PART",
        "streaming/test_mjpeg.py",
    ),
    _mutant(
        "header_length_is_big_endian",
        '_LENGTH = struct.Struct(">I")',
        '_LENGTH = struct.Struct("<I")',
        "streaming/test_protocol.py",
    ),
]

ENVS = [
    _mutant(
        "cut_off_rows_restart",
        'done = tensordict.get("done").reshape(self.num_envs)',
        'done = tensordict.get("terminated").reshape(self.num_envs)',
        "envs/test_base.py",
    ),
    _mutant("states_are_finite", "out = ~value.isfinite()", "out = value.isnan()", "envs/test_entries.py"),
]

_FILE = "recordings/test_mcap.py"
_EPISODES = "evaluation/test_recording.py"
RECORDINGS = [
    _mutant("nanoseconds_of_messages", "divmod(time_ns, 1_000_000_000)", "time_ns // 1_000_000_000, 0", _FILE),
    _mutant("key_frames_begin_videos", "number % max(1, round(_KEY", "(number + 1) % max(1, round(_KEY", _FILE),
    _mutant(
        "turns_of_shapes", '_set(primitive.pose.orientation, "wxyz"', '_set(primitive.pose.orientation, "xyzw"', _FILE
    ),
    _mutant("every_edge_of_outlines", "[_EDGES.ravel()]:", "[_EDGES.ravel()][2:]:", _FILE),
    _mutant(
        "errors_leave_no_file", "self._free()\n            self._part.unlink(missing_ok=True)", "self._free()", _FILE
    ),
    _mutant(
        "cylinders_are_no_cones",
        "primitive.bottom_scale = primitive.top_scale = 1.0",
        "primitive.top_scale = 1.0",
        _FILE,
    ),
    _mutant(
        "rewards_come_after_steps",
        'self.num_steps += 1\n        self.writer.write_scalar("/reward", reward, self.time_ns)',
        'self.writer.write_scalar("/reward", reward, self.time_ns)\n        self.num_steps += 1',
        _EPISODES,
    ),
    _mutant(
        "value_of_what_was_chosen",
        'values.gather(-1, decided.get(found["action"])[self.row].unsqueeze(-1))',
        "values.amax(-1, keepdim=True)",
        "recordings/test_episodes.py",
    ),
    _mutant("picture_of_the_row", "self.view.pictures([self.row]", "self.view.pictures([0]", _EPISODES),
    _mutant("metrics_of_the_row", "values[self.row].item(), at)", "values[0].item(), at)", _EPISODES),
]

_VIEW = "streaming/broadcast/test_policy_view.py"
_SHOWN = "streaming/test_server.py"
PAGE = [
    _mutant("ages_in_milliseconds", "else 1e3 * self.message_age_s", "else self.message_age_s", _VIEW),
    _mutant("finite_numbers_on_the_page", "return found if math.isfinite(found) else None", "return found", _VIEW),
    _mutant("so_many_actions_shown", "(self.action))[:MAX_ACTIONS]", "(self.action))[: MAX_ACTIONS + 1]", _VIEW),
    _mutant("least_is_black", "255.0 / max(high - low, 1e-12)", "255.0 / max(high, 1e-12)", _VIEW),
    _mutant(
        "what_was_seen_is_its_own_stream",
        '(view.seen, f"{stream}:{SEEN}")',
        '(view.frame, f"{stream}:{SEEN}")',
        _SHOWN,
        k="policy",
    ),
    _mutant(
        "each_picture_is_wanted_by_itself",
        "if frame is not None and self.wanted(name):",
        "if frame is not None and self.wanted(stream):",
        _SHOWN,
        k="policy",
    ),
    _mutant(
        "last_row_of_a_request",
        "view = PolicyView(action=action[-1]",
        "view = PolicyView(action=action[0]",
        "serving/test_page.py",
    ),
    _mutant("newest_frame_of_a_clip", "else seen[-1], seen=seen)", "else seen[0], seen=seen)", "serving/test_page.py"),
    _mutant("a_few_of_many_requests", "self._next_at = now + _PERIOD_S", "self._next_at = now", "serving/test_page.py"),
    _mutant(
        "rows_of_the_request_shown",
        "actions[start - request.rows : start]",
        "actions[: request.rows]",
        "serving/test_batching.py",
    ),
    _mutant(
        "clip_of_the_row_shown",
        "clips.sheet(self._clip[index]",
        "clips.sheet(self._clip[0]",
        "envs/test_pixels.py",
        k="page",
    ),
]

_QUICK = "not trains and not learns"
_GYMNASIUM, _SB3, _RSL = (f"envs/adapters/test_{name}.py" for name in ("gymnasium", "stable_baselines3", "rsl_rl"))
ADAPTERS = [
    _mutant("ends_are_no_truncations", "truncated = done & ~terminated", "truncated = done", _GYMNASIUM),
    _mutant("final_observations", "final = self._seen(after)", "final = self._seen(self._current)", _GYMNASIUM),
    _mutant("arrays_are_copies", "np.array(value.cpu().numpy())", "value.cpu().numpy()", _GYMNASIUM),
    _mutant(
        "robots_that_wait_earn_nothing",
        "= where(there, reward, 0.0), terminated & there",
        "= reward, terminated & there",
        "envs/adapters/test_rows.py",
    ),
    _mutant("outcomes_of_whole_episodes", 'over = done & self._rows.flat(after["done"])', "over = done", _GYMNASIUM),
    _mutant("time_limits_are_told", "bool(truncated[row])", "not bool(truncated[row])", _SB3, k=_QUICK),
    _mutant(
        "terminal_observations",
        'self._told["final_obs"][row]',
        "({n: v[row] for n, v in seen.items()} if isinstance(seen, dict) else seen[row])",
        _SB3,
        k=_QUICK,
    ),
    _mutant("masks_of_the_rows_asked", "[masks[row] for row in", "[masks[0] for row in", _SB3, k=_QUICK),
    _mutant("time_outs_of_runners", '"time_outs": done & ~terminated', '"time_outs": done', _RSL, k=_QUICK),
    _mutant("bounds_of_runners", "(actions.clamp(-1, 1) + 1)", "(actions + 1)", _RSL, k=_QUICK),
    _mutant(
        "last_step_of_runners",
        "self.episode_length_buf >= self.max",
        "self.episode_length_buf > self.max",
        _RSL,
        k=_QUICK,
    ),
    _mutant(
        "masks_of_runners", "torch.where(mask, actions, -torch.inf)", "torch.where(mask, actions, 0.0)", _RSL, k=_QUICK
    ),
]

MUTANTS = [*TRAINING, *CLIPS, *UPDATES, *AGENTS, *EVALUATION, *CALLBACKS, *STREAMING, *ENVS]
MUTANTS += [*RECORDINGS, *PAGE, *ADAPTERS]


def place(mutant: Mutant, tree: Path) -> tuple[Path, str, str] | None:
    """Module in which a mutant is planted, with what it holds before and after; None where it cannot be."""
    modules = {path: path.read_text() for path in sorted((tree / "torchrl_gpu").rglob("*.py"))}
    for old, new in mutant.changes:
        holding = [path for path, text in modules.items() if old in text]
        if len(holding) == 1 and modules[holding[0]].count(old) == 1:
            text = modules[holding[0]]
            return holding[0], text, text.replace(old, new)
    return None


def tests_of(mutant: Mutant, tree: Path) -> list[str] | None:
    """Paths of a mutant's tests in a tree; None if one is not there under any folder, or under several."""
    paths = []
    for name in mutant.tests:
        here = tree / "tests" / name
        found = [here] if here.exists() else sorted((tree / "tests").rglob(Path(name).name))
        if len(found) != 1:
            return None
        paths.append(str(found[0].relative_to(tree)))
    return paths


def run_tests(tree: Path, tests: Sequence[str], k: str, timeout_s: float) -> tuple[int, str]:
    """Exit status of pytest over a tree, and what it printed; 1 where it takes longer than `timeout_s`."""
    arguments = ["-x", "-q", "-p", "no:cacheprovider", "-n", "0", *tests, *(["-k", k] if k else [])]
    arguments += ["-W", "ignore:Module already imported:pytest.PytestAssertRewriteWarning"]  # by `preload`
    with tempfile.TemporaryFile("w+") as output:
        child = os.fork()
        if not child:
            _become_pytest(tree, arguments, output.fileno())
        end, status, late = time.monotonic() + timeout_s, None, ""
        while status is None:
            done, code = os.waitpid(child, os.WNOHANG)
            if done:
                status = os.waitstatus_to_exitcode(code)
            elif time.monotonic() > end:
                os.killpg(child, signal.SIGKILL)
                os.waitpid(child, 0)
                status, late = 1, f"\nFAILED after {timeout_s:.0f} s"
            else:
                time.sleep(0.05)
        output.seek(0)
        return status, output.read() + late


def _become_pytest(tree: Path, arguments: list[str], output: int) -> NoReturn:
    """Goes on as pytest in a tree, which is what is imported here and in every child process."""
    status = 3
    try:
        os.setsid()  # so that processes that tests start can be ended with them
        os.chdir(tree)
        for stream in (1, 2):
            os.dup2(output, stream)
        os.environ["PYTHONPATH"] = str(tree)
        sys.path[0] = str(tree)
        spec = importlib.util.find_spec("torchrl_gpu")
        assert spec is not None
        assert spec.origin == str(tree / "torchrl_gpu" / "__init__.py"), spec.origin
        status = int(pytest.main(arguments))
        sys.stdout.flush()
    except BaseException:
        traceback.print_exc()
    os._exit(status)


def preload() -> None:
    """Imports what takes seconds, so that every run of tests, a fork of this process, has it at once."""
    os.environ["OMP_NUM_THREADS"] = "1"
    for name in PRELOADED:
        with contextlib.suppress(ImportError):
            importlib.import_module(name)


def write(path: Path, text: str) -> None:
    """Writes a module, of which no compiled copy may be taken for the new one."""
    path.write_text(text)
    Path(importlib.util.cache_from_source(str(path))).unlink(missing_ok=True)


def check(mutant: Mutant, tree: Path, passing: dict[tuple[str, ...], bool], timeout_s: float) -> Result:
    """Plants a mutant in a tree, runs its tests and takes it out again.

    Args:
        mutant: The mutant.
        tree: A copy of the repository.
        passing: Selections of tests that have been run on the tree as it is, and whether they pass; added to.
        timeout_s: Of one run of tests.
    """
    planted, tests = place(mutant, tree), tests_of(mutant, tree)
    if planted is None:
        return Result(mutant.name, ANEW)
    module, before, after = planted
    where = str(module.relative_to(tree))
    if tests is None:
        return Result(mutant.name, UNTESTED, module=where)
    selection = (*tests, mutant.k)
    if selection not in passing:
        status, said = run_tests(tree, tests, mutant.k, timeout_s)
        passing[selection] = status == 0
        if status:
            print(said[-3000:], flush=True)
    if not passing[selection]:
        return Result(mutant.name, UNTESTED, module=where)
    begin = time.perf_counter()
    write(module, after)
    try:
        status, said = run_tests(tree, tests, mutant.k, timeout_s)
    finally:
        write(module, before)
    first = re.search(r"^(?:FAILED|ERROR) (.*?)(?: - .*)?$", said, re.MULTILINE)
    outcome = {0: LIVED, 1: DIED}.get(status, BROKEN)
    return Result(mutant.name, outcome, round(time.perf_counter() - begin, 1), where, first[1] if first else "")


def copy_tree(to: Path) -> None:
    """Copies what the tests need."""
    for name in COPIED:
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, to / name, ignore=shutil.ignore_patterns("__pycache__"))
        elif (ROOT / name).exists():
            shutil.copy(ROOT / name, to / name)


def main() -> int:
    """Checks the mutants; 0 if all of them died."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", nargs="+", metavar="NAME", choices=[mutant.name for mutant in MUTANTS])
    parser.add_argument("--output", type=Path, help="JSON file for the results")
    parser.add_argument("--list", action="store_true", help="print where each would be planted")
    parser.add_argument("--timeout", type=float, default=600.0, help="seconds for the tests of one mutant")
    args = parser.parse_args()
    chosen = [mutant for mutant in MUTANTS if args.only is None or mutant.name in args.only]
    if args.list:
        for mutant in chosen:
            planted = place(mutant, ROOT)
            print(f"{mutant.name:40} {planted[0].relative_to(ROOT) if planted else ANEW}  {tests_of(mutant, ROOT)}")
        return 0
    results: list[Result] = []
    passing: dict[tuple[str, ...], bool] = {}
    with tempfile.TemporaryDirectory(prefix="mutants-") as folder:
        tree = Path(folder).resolve()
        copy_tree(tree)
        preload()
        for mutant in chosen:
            result = check(mutant, tree, passing, args.timeout)
            results.append(result)
            print(f"{result.name:40} {result.outcome:18} {result.seconds:6.1f} s  {result.noticed_by}", flush=True)
    counts = {outcome: n for outcome in (DIED, LIVED, ANEW, UNTESTED, BROKEN) if (n := _count(results, outcome))}
    print(f"{len(results)} mutants: " + ", ".join(f"{n} {outcome}" for outcome, n in counts.items()))
    if args.output is not None:
        args.output.write_text(json.dumps([asdict(result) for result in results], indent=2) + "\n")
    return 0 if set(counts) <= {DIED} else 1


def _count(results: Sequence[Result], outcome: str) -> int:
    return sum(result.outcome == outcome for result in results)


if __name__ == "__main__":
    sys.exit(main())
