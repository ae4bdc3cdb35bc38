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
        "            scheduler.step()\n        return {name: loss",
        "            scheduler.step() if self.trainer.global_step % 2 else None\n        return {name: loss",
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
        "return self.squash(z), (normal - self.squash.log_slope(z)).sum(-1)",
        "return self.squash(z), (normal + self.squash.log_slope(z)).sum(-1)",
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

_SAVED = "callbacks/test_checkpoint.py"
_DIVERGED = "callbacks/test_divergence.py"
_DISK = "callbacks/test_full_disk.py"
_GPU = "callbacks/test_gpu_stats.py"
FAULTS = [
    _mutant(
        "saving_keeps_to_its_share",
        "due = trainer.is_global_zero and time.monotonic() >= self._owed_until",
        "due = trainer.is_global_zero",
        _SAVED,
        k="share",
    ),
    _mutant(
        "what_saving_owes", "time.monotonic() + took / self.most_share", "time.monotonic() + took", _SAVED, k="share"
    ),
    _mutant(
        "best_is_a_number",
        "if math.isfinite(value) and (self._best is None",
        "if (self._best is None",
        _SAVED,
        k="best or never",
    ),
    _mutant(
        "the_best_is_no_broken_one",
        "if (broken := not_finite(pl_module)) is not None:",
        "if replay and (broken := not_finite(pl_module)) is not None:",
        _DIVERGED,
        k="never",
    ),
    _mutant(
        "names_of_strangers_remove_nothing", "and own.fullmatch(name)]", "and own.search(name)]", _SAVED, k="strangers"
    ),
    _mutant(
        "what_is_due_waits_for_the_validation",
        "if _validates_next(trainer):",
        "if False:",
        _SAVED,
        k="validation",
    ),
    _mutant(
        "the_second_interrupt_ends",
        "if self.come:\n            raise",
        "if False:\n            raise",
        _SAVED,
        k="second",
    ),
    _mutant("unsaved_ones_are_forgotten", "            self._saved = before\n", "            pass\n", _DISK, k="nobodys"),
    _mutant("unsaved_best_is_forgotten", "                self._best = before\n", "                pass\n", _DISK, k="nobodys"),
    _mutant(
        "rates_are_lowered_once_for_each_time",
        "self.rate_factor ** (self.times - self._rates_taken)",
        "self.rate_factor**self.times",
        _DIVERGED,
        k="lower_rate or so_often",
    ),
    _mutant(
        "schedules_follow_lowered_rates",
        "base[:] = [rate * lower for rate in base]",
        "base[:] = list(base)",
        _DIVERGED,
        k="lower_rate or so_often",
    ),
    _mutant("skipped_in_a_row_is_no_sum", "(in_a_row + 1) * broken", "in_a_row + broken", _DIVERGED, k="skips or skip"),
    _mutant(
        "back_so_often_and_no_more", "and self.times < self.most:", "and self.times <= self.most:", _DIVERGED, k="often"
    ),
    _mutant(
        "batches_are_bounded",
        "while len(self._batches) > max(1, most):",
        "while len(self._batches) > 2 * most:",
        _DIVERGED,
        k="batches",
    ),
    _mutant(
        "an_update_is_skipped_whole",
        "gradient.copy_(torch.where(broken, 0.0, gradient))",
        "gradient.copy_(torch.where(gradient.isfinite(), gradient, 0.0))",
        _DIVERGED,
        k="gradients",
    ),
    _mutant("a_logger_that_recovers", "self._in_a_row[key] = 0", "pass", "callbacks/test_logger_guard.py"),
    _mutant(
        "a_dead_logger_is_left_alone",
        "if self._in_a_row[key] >= _IN_A_ROW:",
        "if self._in_a_row[key] > _IN_A_ROW:",
        "callbacks/test_logger_guard.py",
    ),
    _mutant(
        "the_first_start_is_none_again",
        "count.isdigit() and int(count) > 0",
        "count.isdigit() and int(count) >= 0",
        "callbacks/test_end_signals.py",
        k="counts",
    ),
    _mutant(
        "a_refused_requeue_is_noticed",
        "None if asked.returncode == 0 else",
        "None if asked.returncode >= 0 else",
        "callbacks/test_end_signals.py",
        k="refuses",
    ),
    _mutant(
        "storage_of_other_runs_stays",
        "if remote.run == run]",
        "if remote.run]",
        "training/test_remote_checkpoints.py",
        k="old_ones",
    ),
    _mutant(
        "as_many_stay_on_storage",
        "others[keep:]",
        "others[keep + 1 :]",
        "training/test_remote_checkpoints.py",
        k="old_ones",
    ),
    _mutant(
        "short_parts_on_storage",
        'if (there := files.size(f"{remote.path}/{name}")) != size:',
        'if (there := files.size(f"{remote.path}/{name}")) > size:',
        "training/test_remote_checkpoints.py",
        k="missing_or_short",
    ),
    _mutant(
        "the_best_and_the_newest_wait_apart",
        'self._pending.pop(checkpoint.stem == "best", None)\n            self._pending[checkpoint.stem == "best"]',
        "self._pending.pop(False, None)\n            self._pending[False]",
        "callbacks/test_mirror.py",
        k="never_waits",
    ),
    _mutant("the_cause_of_the_last_while", "seconds - self._before.get(name, 0.0)", "seconds", _GPU, k="cause"),
    _mutant(
        "idling_is_measured_long_enough",
        "len(self._busy) * self.every_s <",
        "len(self._busy) <",
        _GPU,
        k="idle or cause",
    ),
]

_RUNS = "training/test_off_policy.py"
_BC = "training/test_behaviour_cloning.py"
_TABLES = "training/test_afterstates.py"
_REPLAY = "training/replay/test_buffer.py"
RUNS = [
    _mutant("max_steps_is_met_exactly", "return min(most, left) if", "return most if", _RUNS, k="max_steps"),
    _mutant(
        "replay_keeps_its_returns",
        '{"n_steps": self.rollout.n_steps, "gamma": float(self.rollout.gamma)}',
        '{"n_steps": self.rollout.n_steps}',
        "training/test_resumed_options.py",
        k="returns",
    ),
    _mutant(
        "more_environments_are_no_other_ones",
        'name.startswith("model.env") and name not in _FREE',
        'name.startswith("model.env")',
        "training/test_resumed_options.py",
        k="environment",
    ),
    _mutant(
        "other_weights_to_begin_with_change_nothing",
        'if old != new and name != "model.warm_start"}',
        "if old != new}",
        "training/test_resumed_options.py",
        k="named or environment",
    ),
    _mutant(
        "each_update_may_be_averaged",
        "for step in range(self._step, trainer.global_step)",
        "for step in [trainer.global_step - 1]",
        "training/test_averaging.py",
        k="hand or period",
    ),
    _mutant(
        "averages_are_restored",
        "getattr(self, place).data.copy_(value)",
        "getattr(self, place).data.copy_(getattr(self, place))",
        "training/test_averaging.py",
        k="resumed",
    ),
    _mutant("the_module_takes_the_average", "callback.finish(self)", "pass", "training/test_averaging.py", k="hand"),
    _mutant(
        "ended_bins_are_worth_nothing",
        "goal = torch.where(done[t - 1], 0.0, reward[t]",
        "goal = torch.where(done[t], 0.0, reward[t]",
        _TABLES,
        k="twin",
    ),
    _mutant(
        "unknown_futures_are_left_out",
        "torch.zeros_like(reward[0]), done[last], []",
        "torch.zeros_like(reward[0]), torch.ones_like(done[last]), []",
        _TABLES,
        k="twin",
    ),
    _mutant(
        "lambda_mixes_the_right_way",
        "torch.lerp(value, known, self.lam)",
        "torch.lerp(known, value, self.lam)",
        _TABLES,
        k="twin",
    ),
    _mutant(
        "robots_that_wait_are_spread",
        "spread = order.view(-1, self.minibatches).t().flatten()",
        "spread = order",
        "training/test_on_policy.py",
        k="spread",
    ),
    _mutant(
        "rewards_are_scaled_before_they_are_valued",
        'after["reward"] * self.reward_scale))',
        'after["reward"]))',
        "training/test_on_policy.py",
        k="scaled",
    ),
    _mutant(
        "each_pass_has_its_order",
        "(self.seed * 1_000_003 + number) % 2**63",
        "(self.seed * 1_000_003) % 2**63",
        _BC,
        k="every_row",
    ),
    _mutant(
        "held_out_means_are_of_rows",
        "for parts in sums.values()]) / len(held.index)",
        "for parts in sums.values()]) / _CHUNK",
        _BC,
        k="held_back or rule or vectors_without",
    ),
    _mutant(
        "statistics_are_of_what_is_learned",
        "for index in self._rows.split(1 << 16)]",
        "for index in torch.arange(len(self.demonstrations), device=self._rows.device).split(1 << 16)]",
        _BC,
        k="held_back or vectors_without",
    ),
    _mutant(
        "restored_priority_sums",
        'self._sums.copy_(state_dict["sums"])',
        "pass",
        _REPLAY,
        k="sums or goes_on",
    ),
    _mutant(
        "rare_draws_weigh_more", "clamp_min(1e-12) ** -self.beta", "clamp_min(1e-12) ** self.beta", _REPLAY, k="weights"
    ),
    _mutant(
        "the_largest_priority_so_far",
        "self.largest = torch.maximum(self.largest, value.max())",
        "self.largest = value.max()",
        _REPLAY,
        k="largest",
    ),
    _mutant(
        "left_out_at_the_edge_of_a_block",
        "torch.searchsorted(ends, spot, right=True)",
        "torch.searchsorted(ends, spot)",
        _REPLAY,
        k="left_out or twin or least",
    ),
    _mutant("clips_of_what_follows", " & (later[:, 1] <= self._newest[row])", "", "training/replay/test_clips.py"),
    _mutant(
        "first_frames_are_restored",
        'self._first.copy_(state["first"])',
        "pass",
        "training/replay/test_clips.py",
        k="restored or stranger or before",
    ),
    _mutant(
        "what_an_update_had_made",
        "needed, room = made + more,",
        "needed, room = more,",
        "training/test_out_of_memory.py",
    ),
]

_SURROGATE = "policies/losses/test_policy_gradient.py"
LEARNERS = [
    _mutant(
        "the_price_is_no_business_of_the_actor",
        "self.log_alpha.exp().detach() * log_prob - value",
        "self.log_alpha.exp() * log_prob - value",
        "policies/agents/test_sac.py",
    ),
    _mutant(
        "entropy_is_worth_something_later",
        "soft = value - self.log_alpha.exp()",
        "soft = value + self.log_alpha.exp()",
        "policies/agents/test_torchrl.py",
        "policies/agents/test_sac.py",
        k="sac or price",
    ),
    _mutant(
        "the_smaller_critic_is_believed",
        "value = torch.minimum(*(critic(*observed(critic, after), action)",
        "value = torch.maximum(*(critic(*observed(critic, after), action)",
        "policies/agents/test_torchrl.py",
        k="sac",
    ),
    _mutant(
        "one_action_for_all_quantiles",
        "return _of_action(values, legal_values(scores, after, self.space).argmax(-1))",
        "return values.amax(-1)",
        "policies/agents/test_iqn.py",
        "policies/agents/test_twins.py",
        k="iqn or IQN or losses",
    ),
    _mutant(
        "iqn_chooses_by_the_target_if_told",
        "chooser = self.scores.network if self._double else self.target",
        "chooser = self.scores.network",
        "policies/agents/test_iqn.py",
        "policies/agents/test_twins.py",
        k="iqn or IQN or losses",
    ),
    _mutant(
        "quantiles_lean_the_right_way",
        "(taus[..., None] - (target < value).to",
        "(taus[..., None] - (target > value).to",
        "policies/losses/test_quantile.py",
        k="hand",
    ),
    _mutant(
        "values_beyond_the_atoms",
        "inside = torch.minimum(torch.maximum(values, support[0]), support[-1])",
        "inside = torch.maximum(values, support[0])",
        "policies/losses/test_categorical.py",
    ),
    _mutant(
        "target_noise_is_drawn_too",
        "for network in (self.online, self.target):",
        "for network in (self.online,):",
        "policies/agents/test_rainbow.py",
        k="noise",
    ),
    _mutant(
        "weights_are_of_a_mean",
        "return (losses * weight).sum() / weight.sum()",
        "return (losses * weight).sum() / torch.ones_like(weight).sum()",
        "policies/losses/test_returns.py",
    ),
    _mutant(
        "nothing_follows_an_end",
        "carry = torch.where(done, 0.0, gamma * lam)",
        "carry = torch.where(terminated, 0.0, gamma * lam)",
        _SURROGATE,
        k="advantages",
    ),
    _mutant(
        "cut_off_steps_are_bootstrapped",
        "torch.where(terminated, 0.0, gamma * next_value)",
        "torch.where(done, 0.0, gamma * next_value)",
        _SURROGATE,
        k="advantages",
    ),
    _mutant(
        "the_clip_holds_on_both_sides",
        "ratio.clamp(1 - clip, 1 + clip) * advantage",
        "ratio.clamp_max(1 + clip) * advantage",
        _SURROGATE,
        k="surrogate",
    ),
    _mutant(
        "entropy_is_sought",
        "weighted_mean(-gain - self.entropy_coeff * entropy",
        "weighted_mean(-gain + self.entropy_coeff * entropy",
        "policies/agents/test_ppo.py",
        k="torchrl",
    ),
    _mutant(
        "values_are_learnt_unstandardised",
        "advantage + value\n",
        'out["advantage"] + value\n',
        "policies/agents/test_ppo.py",
        k="rollout or torchrl",
    ),
    _mutant(
        "the_divergence_is_an_estimate",
        '"kl": ratio - 1 - log_ratio',
        '"kl": ratio - 1 + log_ratio',
        "policies/agents/test_ppo.py",
        k="torchrl or counts or count",
    ),
    _mutant(
        "variances_are_squares",
        "(2 * log_std).exp(), reduction",
        "log_std.exp(), reduction",
        "policies/test_cloning.py",
        k="hand",
    ),
    _mutant(
        "choices_are_among_legal_actions",
        'values = torch.where(batch.get("action_mask"), values, -torch.inf)\n        action',
        "action",
        "policies/test_cloning.py",
        k="legal",
    ),
]

_DISHES = "envs/dishes/test_dynamics.py"
_ENDS = "envs/marine/test_reward.py"
_SIGHT = "envs/marine/test_sensors.py"
_PATCHES = "policies/packing/test_patch_tables.py"
KERNELS = [
    _mutant(
        "worn_sponges_are_replaced",
        "wear=torch.where(worn, 0.0, used)",
        "wear=torch.where(worn, used - 1, used)",
        _DISHES,
        k="parity",
    ),
    _mutant(
        "demand_keeps_its_spread",
        "math.sqrt(1 - memory**2) * weather",
        "(1 - memory) * weather",
        _DISHES,
        k="parity or usual",
    ),
    _mutant("sponges_are_paid_for", "reward=reward - prices.tool * worn,", "reward=reward,", _DISHES, k="parity"),
    _mutant(
        "broken_dishes_are_not_clean",
        'state["clean"] + worked.washed - worked.broken',
        'state["clean"] + worked.washed',
        "envs/dishes/test_env.py",
    ),
    _mutant(
        "slices_of_a_shift_are_seen",
        'dynamics.demand_of(prices, state["trend"]) / (_MOST_DEMAND * prices.demand)',
        'dynamics.demand_of(prices, state["trend"]) / prices.demand',
        "envs/dishes/test_env.py",
    ),
    _mutant("a_hit_is_no_arrival", "home = counts & ~touches &", "home = counts &", _ENDS),
    _mutant("time_goes_before_all", "before.active, before.active & ~cut", "before.active, before.active", _ENDS),
    _mutant("goals_have_an_edge", "(far <= GOAL_RADIUS)", "(far < GOAL_RADIUS)", _ENDS),
    _mutant(
        "head_on_within_45_degrees",
        "return here & (across.abs() < -along)",
        "return here & (along < 0)",
        "envs/marine/test_colregs.py",
    ),
    _mutant(
        "added_mass_takes_from_the_turn",
        "(ADDED_SURGE * u_r - MASS * u) * r",
        "(ADDED_SURGE * u_r + MASS * u) * r",
        "envs/marine/test_parity.py",
        "envs/marine/test_dynamics.py",
        k="hundred or power or thrust",
    ),
    _mutant("nobody_sees_itself", "return (1 - active + itself) * FAR", "return (1 - active) * FAR", _SIGHT),
    _mutant("noisy_radii_are_seen", "        radius = radius * noise[4]\n", "", _SIGHT, k="noise"),
    _mutant(
        "edges_of_the_corners_rule",
        "(corners == 3) & (share > 0.85)",
        "(corners == 3) & (share >= 0.85)",
        "envs/packing/kernels/test_stability.py",
        k="threshold or corners",
    ),
    _mutant(
        "two_contacts_hold",
        "((count >= 2) & sides[0]",
        "((count >= 1) & sides[0]",
        "envs/packing/kernels/test_eager.py",
        k="pattern",
    ),
    _mutant(
        "centres_on_an_edge_hold",
        "cells_from(centre[..., axis], size).abs() <= SIXTEENTHS // 2",
        "cells_from(centre[..., axis], size).abs() < SIXTEENTHS // 2",
        "envs/packing/kernels/test_eager.py",
        "envs/packing/kernels/test_stability.py",
        k="pattern or stability or hull",
    ),
    _mutant(
        "contact_is_within_a_tolerance",
        "_Contacts(windows, z - bin_.contact_tolerance,",
        "_Contacts(windows, z,",
        "envs/packing/kernels/test_stability.py",
        k="tolerance",
    ),
    _mutant(
        "restarts_show_the_first_items",
        "position=torch.where(mask, item_id.shape[1], state.position)",
        "position=torch.where(mask, 0, state.position)",
        "envs/packing/kernels/test_transition.py",
        k="restart",
    ),
    _mutant(
        "what_is_not_legal_leaves_no_trace",
        "legal[:, None], row, state.placements[at])",
        "legal[:, None] | True, row, state.placements[at])",
        "envs/packing/kernels/test_transition.py",
        k="illegal",
    ),
    _mutant(
        "actions_beyond_the_last",
        "inside = (action >= 0) & (action < state.legal[0].numel())",
        "inside = (action >= 0) & (action <= state.legal[0].numel())",
        "envs/packing/kernels/test_transition.py",
        k="illegal",
    ),
    _mutant(
        "pools_are_as_high_as_the_highest",
        ".unflatten(-3, sides[:2]).amax((-3, -1))",
        ".unflatten(-3, sides[:2]).amin((-3, -1))",
        _PATCHES,
    ),
    _mutant(
        "sides_are_whole_cells",
        "(sizes[..., :2] / self.cell).round().long()",
        "(sizes[..., :2] / self.cell).long()",
        _PATCHES,
    ),
    _mutant(
        "what_cannot_be_placed_is_worth_nothing",
        "return torch.where(best > NEVER / 2, best, 0.0).mean(1)",
        "return best.mean(1)",
        _PATCHES,
        k="expect",
    ),
    _mutant(
        "gains_are_of_the_turn",
        "gain = size[..., 3].flatten(1).gather(1, turn)",
        "gain = 0 * size[..., 3].flatten(1).gather(1, turn)",
        _PATCHES,
        k="expect",
    ),
    _mutant(
        "pyramids_are_of_all_cells",
        "_ratio(volume, heightmap.sum((1, 2)) * bin_.cell_area)",
        "_ratio(volume, heightmap.amax((1, 2)) * bin_.cell_area)",
        "envs/packing/test_reward.py",
        k="pyramid",
    ),
]

_ROS = "streaming/ros2/test_bridge.py"
SERVING = [
    _mutant(
        "as_much_waits_as_may",
        "if self._rows + rows > self._max_waiting:",
        "if self._rows + rows >= self._max_waiting:",
        "serving/test_batching.py",
        k="leaves or more_rows",
    ),
    _mutant(
        "who_left_takes_no_room",
        "if not request.decided.done():\n                batch.append(request)",
        "if True:\n                batch.append(request)",
        "serving/test_batching.py",
        k="leaves",
    ),
    _mutant(
        "watchers_do_not_act",
        'if role_of(request) != "control":\n        raise web.HTTPForbidden(**error_body("want the',
        'if role_of(request) is None:\n        raise web.HTTPForbidden(**error_body("want the',
        "serving/test_server.py",
        k="token",
    ),
    _mutant(
        "clips_end_with_the_newest",
        "torch.cat([self._clip[1:], frame[None]])",
        "torch.cat([frame[None], self._clip[1:]])",
        _ROS,
        k="clip_is",
    ),
    _mutant(
        "actions_stay_within_bounds",
        "np.clip(action, self.space.low, self.space.high)",
        "np.clip(action, self.space.low, None)",
        _ROS,
        k="bounds",
    ),
    _mutant(
        "what_comes_late_is_not_sent",
        "            if age > self._max_age:\n",
        "            if age > 2 * self._max_age:\n",
        _ROS,
        k="hang or stale or late",
    ),
    _mutant(
        "actions_are_as_old_as_their_inputs",
        "self._valid_until = oldest + self._max_age",
        "self._valid_until = time.monotonic() + 10 * self._max_age",
        _ROS,
        k="stop",
    ),
    _mutant(
        "clips_begin_anew_after_a_gap",
        "            decider.forget()\n            self._be_safe()",
        "            self._be_safe()",
        _ROS,
        k="gap",
    ),
    _mutant(
        "the_last_action_is_safe",
        "            self._closing = True\n            self._publish(self._safe)",
        "            self._closing = True",
        _ROS,
        k="closing or last",
    ),
]

_SEEN = "streaming/broadcast/test_streams.py"
VIEWERS = [
    _mutant(
        "viewers_get_no_more_than_the_server_gives",
        "Subscription(stream, codec, min(fps or self.fps, self.fps))",
        "Subscription(stream, codec, fps or self.fps)",
        "streaming/broadcast/test_hub.py",
    ),
    _mutant(
        "the_fastest_viewer_sets_the_rate", "self.schedule.interval = min(", "self.schedule.interval = max(", _SEEN
    ),
    _mutant(
        "late_frames_begin_a_new_grid",
        "self._slot = due if now - due <= self.interval / 2 else now",
        "self._slot = due",
        "streaming/broadcast/test_rates.py",
    ),
    _mutant(
        "a_bucket_gives_its_last",
        "if self._left < number:",
        "if self._left <= number:",
        "streaming/broadcast/test_rates.py",
    ),
    _mutant(
        "members_linger",
        "now - stream.idle_since >= MEMBER_LINGER_S:",
        "now - stream.idle_since >= 0:",
        "streaming/broadcast/test_hub.py",
        k="member",
    ),
    _mutant(
        "states_are_spaced",
        "now - self._state_at >= _STATE_SPACING:",
        "True:",
        "streaming/broadcast/test_hub.py",
        k="state",
    ),
]

_SHOWN_DATA = "demonstrations/test_minari.py"
DEMONSTRATIONS = [
    _mutant(
        "the_last_observation_has_no_action",
        "batch = batch.slice(0, len(batch) - 1)",
        "batch = batch.slice(1, len(batch) - 1)",
        _SHOWN_DATA,
        k="hdf5_is",
    ),
    _mutant(
        "saved_rows_are_as_long_as_said",
        "        if size != wanted:",
        "        if size < wanted:",
        "demonstrations/test_memmap.py",
        "demonstrations/test_reading.py",
        also=[
            (
                '    if size != wanted:\n        refuse(where, f"{wanted:,} bytes, {shape}',
                '    if size < wanted:\n        refuse(where, f"{wanted:,} bytes, {shape}',
            )
        ],
    ),
    _mutant(
        "flags_are_flags",
        'if stored == "bool" and (raw > 1).any():',
        "if False:",
        "demonstrations/test_memmap.py",
        "demonstrations/test_reading.py",
    ),
    _mutant(
        "copies_are_held_back_together",
        "held = rank[alike] < max(",
        "held = rank[torch.arange(len(alike)) % num] < max(",
        "demonstrations/test_rows.py",
    ),
    _mutant(
        "rows_in_another_order_are_others",
        "digest * (2 * weights[step] + 1)",
        "digest",
        "demonstrations/test_rows.py",
        k="order",
    ),
    _mutant(
        "frames_are_at_their_times",
        '> 0.5 / fps:\n                refuse(recording.name, f"frame',
        '> 50 / fps:\n                refuse(recording.name, f"frame',
        "demonstrations/test_loading.py",
        k="bad_videos_are",
    ),
    _mutant(
        "a_frame_more_or_less",
        "if not needed - 1 <= seen or seen == 0",
        "if not needed - 2 <= seen or seen == 0",
        "demonstrations/test_loading.py",
        k="within_one",
    ),
]

MUTANTS = [*TRAINING, *CLIPS, *UPDATES, *AGENTS, *EVALUATION, *CALLBACKS, *STREAMING, *ENVS]
MUTANTS += [*RECORDINGS, *PAGE, *ADAPTERS]
MUTANTS += [*FAULTS, *RUNS, *LEARNERS, *KERNELS, *SERVING, *VIEWERS, *DEMONSTRATIONS]


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
