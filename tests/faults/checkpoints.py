"""Faults in what keeps a run: checkpoints, divergence, loggers, signals, storage."""

from __future__ import annotations

from faults.mutant import Mutant, mutant

CALLBACKS: list[Mutant] = [
    mutant(
        "checkpoint_once_a_multiple",
        "        self._passed = passed\n",
        "",
        "callbacks/test_checkpoint.py",
        k="multiple",
    ),
    mutant(
        "drawing_keeps_to_its_share",
        "names = watched if self._budget.allows(begin) else self._streams.chosen()",
        "names = watched",
        "callbacks/test_frame_stream.py",
        k="share",
    ),
    mutant(
        "best_may_be_the_smallest",
        "sign * value > sign * before",
        "value > before",
        "callbacks/test_checkpoint.py",
        k="best",
    ),
    mutant(
        "old_checkpoints_go",
        "dropped = saved[:-keep]\n        self._numbered = saved[-keep:]",
        "dropped = saved[: -keep - 1]\n        self._numbered = saved[-keep - 1 :]",
        "callbacks/test_checkpoint.py",
        k="old or dropping",
    ),
]

_SAVED = "callbacks/test_checkpoint.py"
_DIVERGED = "callbacks/test_divergence.py"
_DISK = "callbacks/test_full_disk.py"
_GPU = "callbacks/test_gpu_stats.py"
FAULTS: list[Mutant] = [
    mutant("saving_has_a_share", "share > _SHARE and not self._warned", "not self._warned", _SAVED, k="too_much"),
    mutant(
        "best_is_a_number",
        "if math.isfinite(value) and (before is None",
        "if (before is None",
        _SAVED,
        k="best or never",
    ),
    mutant(
        "the_best_is_no_broken_one",
        "broken = not_finite(module)",
        'broken = None if path.name == "best.ckpt" else not_finite(module)',
        _DIVERGED,
        k="never",
    ),
    mutant("names_of_strangers_remove_nothing", "if numbered.fullmatch(Path(name).stem)]", "]", _SAVED, k="copy"),
    mutant("what_is_due_waits_for_the_validation", "if validates_next(trainer):", "if False:", _SAVED, k="validation"),
    mutant(
        "the_second_interrupt_ends",
        "if self.interrupt:\n            raise",
        "if False:\n            raise",
        _SAVED,
        k="second",
    ),
    mutant(
        "unsaved_ones_are_forgotten",
        "if self._save(trainer, pl_module, name, self.save_replay):",
        "if self._save(trainer, pl_module, name, self.save_replay) is not None:",
        _DISK,
        k="nobodys",
    ),
    mutant("unsaved_best_is_forgotten", "folder.best = before\n", "pass\n", _DISK, k="nobodys"),
    mutant(
        "rates_are_lowered_once_for_each_time",
        "_LOWER ** (self.times - self._rates_taken)",
        "_LOWER**self.times",
        _DIVERGED,
        k="a_schedule",
    ),
    mutant(
        "schedules_follow_lowered_rates",
        "[rate * factor for rate in rates]",
        "list(rates)",
        _DIVERGED,
        k="a_schedule",
    ),
    mutant("skipped_in_a_row_is_no_sum", "(in_a_row + 1) * broken", "in_a_row + broken", _DIVERGED, k="now_and_then"),
    mutant("back_so_often_and_no_more", "and self.times < _MOST:", "and self.times <= _MOST:", _DIVERGED, k="often"),
    mutant(
        "an_update_is_skipped_whole",
        "gradient.copy_(torch.where(broken, 0.0, gradient))",
        "gradient.copy_(torch.where(gradient.isfinite(), gradient, 0.0))",
        _DIVERGED,
        k="gradients",
    ),
    mutant("a_logger_that_recovers", "self._in_a_row[key] = 0", "pass", "callbacks/test_full_disk.py", k="anew"),
    mutant(
        "a_dead_logger_is_left_alone",
        "if self._in_a_row[key] >= _IN_A_ROW:",
        "if self._in_a_row[key] > _IN_A_ROW:",
        "callbacks/test_full_disk.py",
    ),
    mutant(
        "the_first_start_is_none_again",
        "count.isdigit() and int(count) > 0",
        "count.isdigit() and int(count) >= 0",
        "callbacks/test_end_signals.py",
        k="counts",
    ),
    mutant(
        "a_refused_requeue_is_noticed",
        "None if asked.returncode == 0 else",
        "None if asked.returncode >= 0 else",
        "callbacks/test_end_signals.py",
        k="refuses",
    ),
    mutant(
        "storage_of_other_runs_stays",
        "if remote.run == run]",
        "if remote.run]",
        "checkpoints/test_storage.py",
        k="old_ones",
    ),
    mutant(
        "as_many_stay_on_storage", "others[keep:]", "others[keep + 1 :]", "checkpoints/test_storage.py", k="old_ones"
    ),
    mutant("the_cause_of_the_last_while", "seconds - self._before.get(name, 0.0)", "seconds", _GPU, k="cause"),
]
