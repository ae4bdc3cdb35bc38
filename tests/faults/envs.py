"""Faults in environments, kernels and adapters."""

from __future__ import annotations

from faults.mutant import Mutant, mutant

ENVS: list[Mutant] = [
    mutant(
        "cut_off_rows_restart",
        'done = tensordict.get("done").reshape(self.num_envs)',
        'done = tensordict.get("terminated").reshape(self.num_envs)',
        "envs/test_base.py",
    ),
    mutant("states_are_finite", "out = ~value.isfinite()", "out = value.isnan()", "envs/test_states.py", k="by_hand"),
]

_DISHES = "envs/dishes/test_dynamics.py"
_ENDS = "envs/marine/test_reward.py"
_SIGHT = "envs/marine/test_sensors.py"
_PATCHES = "policies/packing/ntuple/test_tables.py"
_NEXT = "policies/packing/planners/test_next_items.py"
KERNELS: list[Mutant] = [
    mutant(
        "worn_sponges_are_replaced",
        "wear=torch.where(worn, 0.0, used)",
        "wear=torch.where(worn, used - 1, used)",
        _DISHES,
        k="parity",
    ),
    mutant(
        "broken_dishes_are_not_clean",
        'state["clean"] + worked.washed - worked.broken',
        'state["clean"] + worked.washed',
        "envs/dishes/test_env.py",
        k="washed",
    ),
    mutant("a_hit_is_no_arrival", "home = counts & ~touches &", "home = counts &", _ENDS),
    mutant("time_goes_before_all", "counts = before.active & ~cut", "counts = before.active", _ENDS),
    mutant(
        "head_on_within_45_degrees",
        "head_on = before & (across.abs() < -along)",
        "head_on = before & (along < 0)",
        "envs/marine/test_reward.py",
    ),
    mutant(
        "what_overhangs_bears_nothing",
        "held = own & before_last & behind_first",
        "held = own & behind_first",
        "envs/packing/kernels/test_bearing.py",
    ),
    mutant(
        "the_margin_is_on_both_sides",
        "targets = y + half_y, per_cell * self._columns - y + half_y",
        "targets = y + half_y, per_cell * self._columns - y",
        "envs/packing/kernels/test_bearing.py",
        k="eager",
    ),
    mutant(
        "a_tilt_is_about_both_axes",
        "drop = torch.maximum(by_row[..., i], by_column[..., j])",
        "drop = by_row[..., i]",
        "envs/packing/kernels/test_bearing.py",
        k="eager",
    ),
    mutant("nobody_sees_itself", "return (1 - active + itself) * FAR", "return (1 - active) * FAR", _SIGHT),
    mutant("noisy_radii_are_seen", "        radius = radius * noise[4]\n", "", _SIGHT, k="noise"),
    mutant(
        "edges_of_the_corners_rule",
        "(corners == 3) & (share > 0.85)",
        "(corners == 3) & (share >= 0.85)",
        "envs/packing/kernels/test_stability.py",
        k="threshold or corners",
    ),
    mutant(
        "contact_is_within_a_tolerance",
        "self._level = z - bin_.contact_tolerance",
        "self._level = z",
        "envs/packing/kernels/test_stability.py",
        k="tolerance",
    ),
    mutant(
        "restarts_show_the_first_items",
        "position = torch.where(mask, item_id.shape[1], state.position)",
        "position = torch.where(mask, 0, state.position)",
        "envs/packing/kernels/test_transition.py",
        k="restart",
    ),
    mutant(
        "sides_are_whole_cells",
        "(sizes[..., :2] / self.cell).round().long()",
        "(sizes[..., :2] / self.cell).long()",
        _PATCHES,
    ),
    mutant(
        "what_cannot_be_placed_is_worth_nothing",
        "return torch.where(best > NEVER / 2, best, 0.0)",
        "return best",
        _PATCHES,
        k="expect",
    ),
    mutant(
        "next_items_follow_the_visible_one",
        "return self._shares[fill, item]",
        "return self._shares[fill, item.flip(0)]",
        _PATCHES,
        k="expect",
    ),
    mutant(
        "next_items_are_those_after_as_much",
        "fill_of(known[:, 0] + self.afterstates.gain(item))",
        "fill_of(known[:, 0])",
        _PATCHES,
        k="come",
    ),
    mutant(
        "the_network_foretells_each_item",
        "return self.next_items(known, item).softmax(1)",
        "return self.next_items(known, item).softmax(1).roll(1, 1)",
        _PATCHES,
        k="expect",
    ),
    mutant("latest_items_come_first", "at = number - 1 - age", "at = number - 2 - age", _NEXT, k="plain_loop"),
    mutant(
        "the_next_item_is_the_one_behind",
        "((number - 1) * draws).long().clamp_max(number - 2)",
        "((number - 2) * draws).long()",
        _NEXT,
        k="drawn",
    ),
    mutant("levels_are_filled", "(until <= filled + room)", "(until < filled + room)", _NEXT, k="bases"),
    mutant(
        "lines_differ_in_what_is_left",
        "self.item_numbers[lines.left + 1].sum(2)",
        "self.item_numbers[lines.left.clamp_max(-1) + 1].sum(2)",
        "policies/packing/planners/test_beam_search.py",
        k="what_is_left",
    ),
    mutant("what_was_packed_alone", "< s.num_packed[:, None]", "<= s.num_packed[:, None]", _NEXT, k="packed"),
    mutant(
        "lines_that_end_are_worth_what_they_fill",
        "stops = torch.where(legal.any(2), NEVER, lines.gain)",
        "stops = torch.where(legal.any(2), lines.gain, NEVER)",
        "policies/packing/planners/test_beam_search.py",
    ),
    mutant(
        "both_axes_are_wedged",
        "wedged = legal & _edge(level, 3) & _edge(level, 4)",
        "wedged = legal & _edge(level, 3)",
        "policies/packing/test_placement_values.py",
    ),
    mutant(
        "pyramids_are_of_all_cells",
        "_ratio(volume, heightmap.sum((1, 2)) * bin_.cell_area)",
        "_ratio(volume, heightmap.amax((1, 2)) * bin_.cell_area)",
        "envs/packing/test_reward.py",
        k="pyramid",
    ),
]

_QUICK = "not trains and not learns"
_GYMNASIUM, _SB3, _RSL = (f"envs/adapters/test_{name}.py" for name in ("gymnasium", "stable_baselines3", "rsl_rl"))
ADAPTERS: list[Mutant] = [
    mutant("ends_are_no_truncations", "truncated = done & ~terminated", "truncated = done", _GYMNASIUM),
    mutant("final_observations", "final = self._observe(after)", "final = self._observe(self._current)", _GYMNASIUM),
    mutant("arrays_are_copies", "np.array(value.cpu().numpy())", "value.cpu().numpy()", _GYMNASIUM),
    mutant(
        "robots_that_wait_earn_nothing",
        "RowResults(where(is_active, reward, 0.0), terminated",
        "RowResults(reward, terminated",
        "envs/adapters/test_agent_rows.py",
    ),
    mutant("outcomes_of_whole_episodes", 'over = done & self._rows.flatten(after["done"])', "over = done", _GYMNASIUM),
    mutant("time_limits_are_told", "bool(truncated[row])", "not bool(truncated[row])", _SB3, k=_QUICK),
    mutant(
        "terminal_observations",
        'self._infos["final_obs"][row]',
        "({n: v[row] for n, v in observed.items()} if isinstance(observed, dict) else observed[row])",
        _SB3,
        k=_QUICK,
    ),
    mutant("masks_of_the_rows_asked", "[masks[row] for row in", "[masks[0] for row in", _SB3, k=_QUICK),
    mutant("time_outs_of_runners", '"time_outs": done & ~terminated', '"time_outs": done', _RSL, k=_QUICK),
    mutant("bounds_of_runners", "return scaled.clamp(self._low, self._high)", "return scaled", _RSL, k=_QUICK),
    mutant(
        "last_step_of_runners",
        "self.episode_length_buf >= self.max",
        "self.episode_length_buf > self.max",
        _RSL,
        k=_QUICK,
    ),
    mutant(
        "masks_of_runners", "torch.where(mask, actions, -torch.inf)", "torch.where(mask, actions, 0.0)", _RSL, k=_QUICK
    ),
]
