"""Faults in evaluation and demonstrations."""

from __future__ import annotations

from faults.mutant import Mutant, mutant

EVALUATION: list[Mutant] = [
    mutant(
        "standard_error_by_root_n",
        "return (values.std() / len(values) ** 0.5).item()",
        "return (values.std() / (len(values) - 1) ** 0.5).item()",
        "evaluation/test_estimates.py",
    ),
    mutant(
        "same_episodes_for_all_policies",
        "        env.set_seed(env.seed)\n        yield env.reset()",
        "        yield env.reset()",
        "evaluation/test_results.py",
        k="eval_mode",
    ),
    mutant(
        "differences_are_paired",
        "estimate(values.double() - reference.double())",
        "estimate(values.double() - reference.double().mean())",
        "evaluation/test_estimates.py",
    ),
    mutant(
        "batches_go_on_numbering",
        "env.renumber(self._first_env + first)",
        "env.renumber(self._first_env)",
        "evaluation/packing/test_episodes.py",
        k="batch or differ",
    ),
    mutant(
        "plans_are_in_metres_of_each_axis",
        "metres = (x * env.cell[0], y * env.cell[1], cells * env.cell[0])",
        "metres = (x * env.cell[0], y * env.cell[0], cells * env.cell[0])",
        "evaluation/packing/test_suite.py",
        k="plans",
    ),
    mutant(
        "headline_of_navigation",
        'headline = "success"',
        'headline = "arrived"',
        "training/test_agents.py",
        k="evaluated and DQN",
    ),
]

_FILE = "demonstrations/test_mcap.py"
_EPISODES = "evaluation/test_recording.py"
RECORDINGS: list[Mutant] = [
    mutant("nanoseconds_of_messages", "divmod(time_ns, _SECOND)", "time_ns // _SECOND, 0", _FILE),
    mutant("key_frames_begin_videos", "number % key_frame_period == 0", "(number + 1) % key_frame_period == 0", _FILE),
    mutant(
        "turns_of_shapes",
        '_set_fields(primitive.pose.orientation, "wxyz"',
        '_set_fields(primitive.pose.orientation, "xyzw"',
        _FILE,
    ),
    mutant("every_edge_of_outlines", "[_EDGES.ravel()]:", "[_EDGES.ravel()][2:]:", _FILE),
    mutant(
        "errors_leave_no_file", "self._free()\n            self._part.unlink(missing_ok=True)", "self._free()", _FILE
    ),
    mutant(
        "cylinders_are_no_cones",
        "primitive.bottom_scale = primitive.top_scale = 1.0",
        "primitive.top_scale = 1.0",
        _FILE,
    ),
    mutant(
        "rewards_come_after_steps",
        'self.num_steps += 1\n        self.writer.write_scalar("/reward", reward, self.time_ns)',
        'self.writer.write_scalar("/reward", reward, self.time_ns)\n        self.num_steps += 1',
        _EPISODES,
    ),
    mutant(
        "value_of_what_was_chosen",
        "values.gather(-1, chosen.unsqueeze(-1))",
        "values.amax(-1, keepdim=True)",
        "demonstrations/test_mcap.py",
    ),
    mutant("picture_of_the_row", "self.view.pictures([self.row]", "self.view.pictures([0]", _EPISODES),
    mutant("metrics_of_the_row", "values[self.row].item(), at)", "values[0].item(), at)", _EPISODES),
]

_SHOWN_DATA = "demonstrations/test_minari.py"
DEMONSTRATIONS: list[Mutant] = [
    mutant(
        "the_last_observation_has_no_action",
        "batch = batch.slice(0, len(batch) - 1)",
        "batch = batch.slice(1, len(batch) - 1)",
        _SHOWN_DATA,
        k="hdf5_is",
    ),
    mutant(
        "saved_rows_are_as_long_as_said",
        "if size != wanted:",
        "if size < wanted:",
        "demonstrations/test_memmap.py",
        k="longer",
    ),
    mutant(
        "copies_are_held_back_together",
        "held = torch.isin(alike, torch.tensor(chosen or [least]",
        "held = torch.isin(torch.arange(len(alike)) % num, torch.tensor(chosen or [least]",
        "demonstrations/test_transitions.py",
    ),
    mutant(
        "rows_in_another_order_are_others",
        "digest * (2 * weights[step] + 1)",
        "digest",
        "demonstrations/test_transitions.py",
        k="order",
    ),
    mutant(
        "frames_are_at_their_times",
        '> 0.5 / fps:\n                refuse(recording.name, f"frame',
        '> 50 / fps:\n                refuse(recording.name, f"frame',
        "demonstrations/test_loading.py",
    ),
]
