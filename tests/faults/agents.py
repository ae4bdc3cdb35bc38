"""Faults in agents and losses."""

from __future__ import annotations

from faults.mutant import Mutant, mutant

AGENTS: list[Mutant] = [
    mutant(
        "epsilon_stops_at_its_end",
        "progress = min(1.0, frame / self.frames)",
        "progress = frame / self.frames",
        "policies/test_exploration.py",
    ),
    mutant(
        "masks_hold_when_bootstrapping",
        'torch.where(state.get("action_mask"), values, -torch.inf)',
        'torch.where(state.get("action_mask"), values, 0.0)',
        "policies/agents/test_twins.py",
        "policies/agents/test_legal.py",
        "policies/agents/test_contract.py",
        k="losses or legal or bad_actions",
    ),
    mutant(
        "discount_of_m_steps",
        "factor = gamma if steps is None else gamma ** steps.to(value.dtype)",
        "factor = gamma if steps is None else gamma * steps.to(value.dtype)",
        "policies/test_losses.py",
    ),
    mutant(
        "target_tau",
        "torch._foreach_lerp_(targets, online, self.tau)",
        "torch._foreach_lerp_(targets, online, 1 - self.tau)",
        "policies/test_targets.py",
    ),
    mutant(
        "cvar_level_when_acting",
        "taus = self.risk(tensordict) * self.even",
        "taus = torch.ones_like(self.risk(tensordict)) * self.even",
        "policies/agents/test_dqn.py",
    ),
    mutant(
        "density_of_squashed_actions",
        "density = normal - self.log_slope(z)",
        "density = normal + self.log_slope(z)",
        "policies/test_actors.py",
    ),
]

_SURROGATE = "policies/test_losses.py"
LEARNERS: list[Mutant] = [
    mutant(
        "the_price_is_no_business_of_the_actor",
        "self.log_alpha.exp().detach() * log_prob - value",
        "self.log_alpha.exp() * log_prob - value",
        "policies/agents/test_dqn.py",
    ),
    mutant(
        "entropy_is_worth_something_later",
        "soft = value - self.log_alpha.exp()",
        "soft = value + self.log_alpha.exp()",
        "policies/agents/test_twins.py",
        "policies/agents/test_dqn.py",
        k="sac or price",
    ),
    mutant(
        "the_smaller_critic_is_believed",
        "value = torch.minimum(*values)",
        "value = torch.maximum(*values)",
        "policies/agents/test_twins.py",
        k="sac",
    ),
    mutant(
        "one_action_for_all_quantiles",
        "return of_action(values, chosen, 2)",
        "return values.amax(-1)",
        "policies/agents/test_twins.py",
        k="IQN or losses",
    ),
    mutant(
        "iqn_chooses_by_the_target_if_told",
        "chooser = self.scores.network if self._double else self.target",
        "chooser = self.scores.network",
        "policies/agents/test_twins.py",
        k="IQN or losses",
    ),
    mutant(
        "quantiles_lean_the_right_way",
        "is_above = (target < value).to",
        "is_above = (target > value).to",
        "policies/test_losses.py",
        k="quantile",
    ),
    mutant(
        "values_beyond_the_atoms",
        "inside = torch.minimum(inside, support[-1])",
        "inside = torch.maximum(inside, support[0])",
        "policies/test_losses.py",
    ),
    mutant(
        "target_noise_is_drawn_too",
        "for network in (self.online, self.target):",
        "for network in (self.online,):",
        "policies/agents/test_dqn.py",
        k="noise",
    ),
    mutant(
        "weights_are_of_a_mean",
        "return (losses * weight).sum() / weight.sum()",
        "return (losses * weight).sum() / torch.ones_like(weight).sum()",
        "policies/test_losses.py",
    ),
    mutant(
        "nothing_follows_an_end",
        "following = torch.where(done[:, t], 0.0, advantage)",
        "following = torch.where(terminated[:, t], 0.0, advantage)",
        _SURROGATE,
        k="advantages",
    ),
    mutant(
        "cut_off_steps_are_bootstrapped",
        "torch.where(terminated, 0.0, gamma * next_value)",
        "torch.where(done, 0.0, gamma * next_value)",
        _SURROGATE,
        k="advantages",
    ),
    mutant(
        "the_clip_holds_on_both_sides",
        "clipped = ratio.clamp(1 - clip, 1 + clip)",
        "clipped = ratio.clamp_max(1 + clip)",
        _SURROGATE,
        k="surrogate",
    ),
    mutant(
        "entropy_is_sought",
        "actor_loss = -gain - self.entropy_coeff * entropy",
        "actor_loss = -gain + self.entropy_coeff * entropy",
        "policies/agents/test_ppo.py",
        k="torchrl",
    ),
    mutant(
        "values_are_learnt_unstandardised",
        "advantage + value\n",
        'out["advantage"] + value\n',
        "policies/agents/test_ppo.py",
        k="rollout or torchrl",
    ),
    mutant(
        "the_divergence_is_an_estimate",
        '"kl": ratio - 1 - log_ratio',
        '"kl": ratio - 1 + log_ratio',
        "policies/agents/test_ppo.py",
        k="how_far",
    ),
    mutant(
        "variances_are_squares",
        "(2 * log_std).exp(), reduction",
        "log_std.exp(), reduction",
        "policies/test_cloning.py",
        k="hand",
    ),
    mutant(
        "choices_are_among_legal_actions",
        'values = torch.where(batch.get("action_mask"), values, -torch.inf)\n        action',
        "action",
        "policies/test_cloning.py",
        k="legal",
    ),
    mutant(
        "a_class_is_named_with_its_module",
        'and f"{each.__module__}.".startswith(f"{module}.")',
        "and True",
        "policies/test_loading.py",
        k="never_imported",
    ),
]
