"""Faults in runs: rollouts, replay, updates, cloning, tables."""

from __future__ import annotations

from faults.mutant import Mutant, mutant

TRAINING: list[Mutant] = [
    mutant("rank_folds_seed", "self.global_rank * 0x9E3779B97F4A7C15", "0", "training/test_ranks.py"),
    mutant(
        "part_id_is_checked",
        'if content.get("id") != entry["id"] or content.get("rank") != rank:',
        'if content.get("rank") != rank:',
        "callbacks/test_checkpoint.py",
        k="another or torn",
    ),
    mutant(
        "newest_whole_is_found",
        "for *_, path in sorted(found, reverse=True):",
        "for *_, path in sorted(found):",
        "callbacks/test_checkpoint.py",
        k="updates_decide",
    ),
    mutant(
        "warmup_refills_replay",
        "self._refilled_from = self.frames",
        "self._refilled_from = 0",
        "training/test_off_policy.py",
        k="without_its_replay",
    ),
    mutant(
        "frames_are_restored",
        '"frames": self.frames,\n            "rollout"',
        '"frames": 0,\n            "rollout"',
        "training/test_off_policy.py",
        k="without_its_replay",
    ),
    mutant(
        "torn_part_is_passed_over",
        "if size is not None and found != size:",
        "if size is not None and found is None:",
        "callbacks/test_checkpoint.py",
        k="another or torn",
    ),
    mutant(
        "beta_goes_to_one",
        "self._first_beta + (1 - self._first_beta) * share",
        "self._first_beta + (1 - self._first_beta) * share / 2",
        "training/test_agents.py",
        k="exponent",
    ),
    mutant(
        "inactive_robots_are_left_out",
        '~transitions["active"]',
        '~transitions["active"] & False',
        "training/test_agents.py",
        k="take_part",
    ),
    mutant(
        "pending_steps_of_lanes",
        "joined.shape[1] - self.n_steps + 1",
        "joined.shape[1] - self.n_steps",
        "training/collect/test_rollout.py",
    ),
    mutant(
        "meter_keeps_its_memory",
        "torch.where(self.finished > 0, self.memory, 0.0)",
        "torch.where(self.finished > 0, self.memory, self.memory)",
        "training/collect/test_rollout.py",
    ),
]

CLIPS: list[Mutant] = [
    mutant(
        "clips_begin_with_their_episode",
        "(number[:, None] - torch.minimum(back, earlier[:, None]))",
        "(number[:, None] - back)",
        "training/replay/test_clips.py",
    ),
    mutant(
        "lost_frames_are_not_drawn",
        "self._newest - self.capacity + 1)",
        "self._newest - 2 * self.capacity)",
        "training/replay/test_clips.py",
    ),
    mutant(
        "actors_teach_no_encoder",
        "return batch.detach() if has_gradients",
        "return batch if has_gradients",
        "policies/encoders/test_from_clips.py",
    ),
    mutant("outcomes_are_not_seen", "or key in outcomes:", ":", "policies/test_spaces.py", "training/test_configs.py"),
]

UPDATES: list[Mutant] = [
    mutant(
        "targets_count_updates",
        "self.agent.update_targets(self.trainer.global_step)",
        "self.agent.update_targets(self.trainer.global_step + 1)",
        "training/updates/test_graphed.py",
        k="by_graphs_is_the_same",
    ),
    mutant(
        "schedule_steps_at_each_update",
        "            self.count_updates(1)\n        self.step_schedule()",
        "            self.count_updates(1)\n        self.step_schedule() if self.trainer.global_step % 2 else None",
        "training/test_off_policy.py",
        k="schedule",
    ),
    mutant(
        "gradients_of_one_update_alone",
        "        optimizer.zero_grad()\n        self.manual_backward(loss)\n        if max_grad_norm is not None:",
        "        self.manual_backward(loss)\n        if max_grad_norm is not None:",
        "training/updates/test_graphed.py",
        k="by_graphs_is_the_same",
    ),
    mutant(
        "manager_learns_once_in_a_period",
        "self.joint and step % self.manager_period == 0",
        "self.joint and (step + 1) % self.manager_period == 0",
        "training/test_hierarchical.py",
        k="learns_when",
    ),
    mutant(
        "packer_targets_follow_behind_the_step",
        "        self.descend(loss, [weights], self.max_grad_norm)\n        self._follow()\n",
        "        self._follow()\n        self.descend(loss, [weights], self.max_grad_norm)\n",
        "training/test_hierarchical.py",
        k="targets",
    ),
]

_RUNS = "training/test_off_policy.py"
_BC = "training/test_behaviour_cloning.py"
_TABLES = "training/test_afterstates.py"
_REPLAY = "training/replay/test_buffer.py"
RUNS: list[Mutant] = [
    mutant(
        "what_is_exchanged_is_told_once",
        "changes.num.zero_()",
        "pass",
        "training/test_shared_tables.py",
        k="bits_of_one",
    ),
    mutant(
        "others_take_all_images_over",
        "tables.weight[plan.images(table, first)] = weight",
        "tables.weight[at] = weight",
        "training/test_shared_tables.py",
        k="bits_of_one",
    ),
    mutant(
        "tables_that_would_not_come_back_stay_whole",
        "if not torch.equal(restored.view(torch.int32), weight.view(torch.int32)):",
        "if False:",
        "policies/packing/ntuple/test_packed_tables.py",
    ),
    mutant(
        "packed_tables_name_no_entry_twice",
        "rises = (steps > 0).all()",
        "rises = (steps >= 0).all()",
        "policies/packing/ntuple/test_packed_tables.py",
    ),
    mutant(
        "packed_tables_name_entries_that_are_there",
        "& (learned[-1] < most)",
        "& (learned[-1] <= most)",
        "policies/packing/ntuple/test_packed_tables.py",
    ),
    mutant(
        "averages_are_made_whole",
        '_STATES = {"state_dict", "current_model_state"}',
        '_STATES = {"state_dict"}',
        "training/test_afterstates.py",
        k="average",
    ),
    mutant(
        "clips_of_workers_are_numbered_by_the_run",
        "value[:, 0] = torch.arange(len(value), device=value.device, dtype=torch.int64)",
        "pass",
        "envs/workers/test_pool.py",
        k="clips",
    ),
    mutant("max_steps_is_met_exactly", "        return left\n", "        return most\n", _RUNS, k="max_steps"),
    mutant(
        "replay_keeps_its_returns",
        '{"n_steps": self.rollout.n_steps, "gamma": float(self.rollout.gamma)}',
        '{"n_steps": self.rollout.n_steps}',
        "checkpoints/test_record.py",
        k="returns",
    ),
    mutant(
        "more_environments_are_no_other_ones",
        'name.startswith("model.env") and name not in _SAME_REPLAY',
        'name.startswith("model.env")',
        "checkpoints/test_record.py",
        k="environment",
    ),
    mutant(
        "each_update_may_be_averaged",
        "for step in range(self._step, trainer.global_step)",
        "for step in [trainer.global_step - 1]",
        "training/test_lightning_callbacks.py",
        k="hand or period",
    ),
    mutant(
        "ended_bins_are_worth_nothing",
        "ends_before = ends[t - 1]",
        "ends_before = ends[t]",
        _TABLES,
        k="twin",
    ),
    mutant(
        "unknown_futures_are_left_out",
        "counts = ends[last]",
        "counts = torch.ones_like(ends[last])",
        _TABLES,
        k="twin",
    ),
    mutant(
        "robots_that_wait_are_spread",
        "spread = order.view(-1, self.minibatches).t().flatten()",
        "spread = order",
        "training/test_on_policy.py",
        k="spread",
    ),
    mutant(
        "each_pass_has_its_order",
        "(self.seed * 1_000_003 + number) % 2**63",
        "(self.seed * 1_000_003) % 2**63",
        _BC,
        k="every_row",
    ),
    mutant("restored_priority_sums", 'self._sums.copy_(state_dict["sums"])', "pass", _REPLAY, k="sums or goes_on"),
    mutant(
        "the_largest_priority_so_far",
        "self.largest = torch.maximum(self.largest, value.max())",
        "self.largest = value.max()",
        _REPLAY,
        k="twin",
    ),
    mutant(
        "left_out_at_the_edge_of_a_block",
        "torch.searchsorted(ends, spot, right=True)",
        "torch.searchsorted(ends, spot)",
        _REPLAY,
        k="a_block",
    ),
    mutant("clips_of_what_follows", " & (later[:, 1] <= self._newest[row])", "", "training/replay/test_clips.py"),
    mutant(
        "first_frames_are_restored",
        'self._first.copy_(state["first"])',
        "pass",
        "training/replay/test_clips.py",
        k="restored or stranger or before",
    ),
    mutant(
        "what_an_update_had_made",
        "needed, room = made + more,",
        "needed, room = more,",
        "training/test_off_policy.py",
    ),
]
