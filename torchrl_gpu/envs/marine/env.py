"""`MarineNavEnv`: batched navigation of many robots across a square of sea."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, cast

import torch
from tensordict import NestedKey, TensorDict, TensorDictBase
from torch import Tensor

from torchrl_gpu import native
from torchrl_gpu.envs.base import DONE_KEYS, BatchedEnv, Conflict, NumEnvs
from torchrl_gpu.envs.counter_rng import draw_bits, draw_integers, episode_key, seed_bits
from torchrl_gpu.envs.marine import fused
from torchrl_gpu.envs.marine.compiled import sail
from torchrl_gpu.envs.marine.dynamics import Unicycle, Vessel
from torchrl_gpu.envs.marine.generator import Pool, generate
from torchrl_gpu.envs.marine.levels import Sizes, choose_levels
from torchrl_gpu.envs.marine.reward import Outcome, rewards_and_ends, starboard_turn
from torchrl_gpu.envs.marine.sensors import (
    NOISE_STREAM,
    Sight,
    draw_noise,
    object_mask,
    observation,
    radius_factors,
    see_v2,
    see_v3,
)
from torchrl_gpu.envs.marine.specs import GROUP, make_specs
from torchrl_gpu.envs.marine.types import (
    CORE_RADIUS,
    CRAFTS,
    FAR,
    MOTION_SIZE,
    QUIRKS,
    After,
    Derived,
    MarineState,
    Scene,
    contiguous_copy,
    to_bool,
)
from torchrl_gpu.envs.memory import check_fits
from torchrl_gpu.envs.state_validation import Bounds
from torchrl_gpu.system import arguments
from torchrl_gpu.system.threads import runs_single_threaded
from torchrl_gpu.system.tracing import is_traced

# Kinds of actions of each version, the published one first.
ACTIONS = {"v2": ("discrete",), "v3": ("continuous", "discrete")}
# Tensors by key. The robots are a nested TensorDict unless the environment is flat.
Outputs = dict[str, Any]

_DTYPES = {"float32": torch.float32, "float64": torch.float64}
MOST_STEPS = 2**53
MOST_WORLDS = 2**20

# Bound of any number of a state: far more than a robot can reach, and so little that its square does not overflow.
MOST_MOTION = 1e9

# Measured: up to here a step on one thread of torch is as fast as on all.
_FEW_ENVS = {"native": 1024, "torch": 256}


class MarineNavEnv(BatchedEnv):
    """Marine navigation of many robots across a square of sea.

    Each robot heads for its own goal, past currents, obstacles and the other robots. Keys, physics and rewards are
    those of `docs/environments/marine-reference.md`. Robots are the nested group "robots", padded to the most of any
    level; those that a world does not have, or that have arrived or collided, are not `active`.

    Args:
        num_envs: N, worlds side by side; in the config of a run also "auto", see `docs/training.md`.
        version: "v2" (unicycles in currents; Lin et al., ICRA 2024) or "v3" (vessels with two thrusters; RA-L 2025).
        robots, cores, obstacles: Number of each; by default 5, 6, 6 (v2) and 5, 0, 4 (v3).
        min_distance: Least distance between a start and its goal, metres; 40 by default.
        curriculum: Instead of these four, rows (from step, robots, cores, obstacles, min_distance), or a word of
            `levels.CURRICULA`; `set_level` goes from one row to the next.
        max_steps: Actions after which an episode is cut off.
        actions: "discrete" (9 in v2, 25 in v3), "continuous" (v3: two thrusters in [−1, 1]), or "auto": what the
            version was published with.
        upstream_compat: Do as the released code does where that is not what it means: all of `types.QUIRKS`, or those
            named.
        end_on_collision: Whether the first collision ends the episode for all, as in the papers' evaluations.
        sensor_noise: v3: whether sensors have errors.
        pool: Worlds drawn at construction for each level; episodes pick from them.
        in_order: Whether environment i plays the world i of its level, then i + N, …, instead of any.
        flat: With one robot, its keys without the group.
        dtype: "float32", or "float64" for comparisons.
        device: As in `get_device`.
        seed: Seed of the worlds and of every episode; None draws one from torch's global generator.
        first_env: Number of the first environment, so that ranks or shards see different episodes.
        copy_observations: Give observations as copies. Otherwise some of what `reset` and `step` give are the state's
            own tensors, not copies, until the next step: writing into one changes the environment.

    An action that does not exist, or of a robot that is not active, does nothing.
    """

    state: MarineState
    _state: MarineState
    # Whether a step, and a restart, is one launch.
    is_fused: bool = False

    def __init__(
        self,
        num_envs: NumEnvs = 64,
        *,
        version: str = "v2",
        robots: int | None = None,
        cores: int | None = None,
        obstacles: int | None = None,
        min_distance: float | None = None,
        curriculum: str | Sequence[Sequence[float]] | None = None,
        max_steps: int = 1000,
        actions: str = "auto",
        upstream_compat: bool | Sequence[str] = False,
        end_on_collision: bool = False,
        sensor_noise: bool = True,
        pool: int = 2048,
        in_order: bool = False,
        flat: bool = False,
        dtype: str | torch.dtype = "float32",
        device: str | torch.device = "auto",
        seed: int | None = None,
        first_env: int = 0,
        copy_observations: bool = False,
    ) -> None:
        where = "MarineNavEnv"
        arguments.choice(where, "version", version, CRAFTS)
        arguments.choice(where, "actions", actions, ("auto", *ACTIONS[version]))
        single = robots, cores, obstacles, min_distance
        self.levels = choose_levels(version, single, curriculum)
        self.sizes = Sizes.of(self.levels)
        self.craft = CRAFTS[version]
        quirks = upstream_compat
        if isinstance(upstream_compat, bool):
            quirks = QUIRKS if upstream_compat else ()
        self.quirks = frozenset(arguments.choices(where, "upstream_compat", quirks, QUIRKS))
        most = math.sqrt(2) * self.craft.side
        for level in self.levels:
            if level.min_distance > most:
                raise ValueError(
                    f"{where}: min_distance must be at most {most:.6g}, the map's diagonal in metres,"
                    f" not {level.min_distance:g}"
                )
        max_steps = arguments.whole(where, "max_steps", max_steps, 1, MOST_STEPS)
        pool = arguments.whole(where, "pool", pool, 1, MOST_WORLDS)
        self.end_on_collision = arguments.flag(where, "end_on_collision", end_on_collision)
        self.copy_observations = arguments.flag(where, "copy_observations", copy_observations)
        self.sensor_noise = arguments.flag(where, "sensor_noise", sensor_noise)
        self.in_order = arguments.flag(where, "in_order", in_order)
        self.flat = arguments.flag(where, "flat", flat)
        if flat and self.sizes.robots > 1:
            raise ValueError(f"{where}: flat=True needs worlds of one robot, not of {self.sizes.robots}")
        self.dtype = _DTYPES[arguments.choice(where, "dtype", str(dtype).removeprefix("torch."), _DTYPES)]
        super().__init__(num_envs, device, seed, first_env)
        check_fits(self.num_envs, self.least_bytes(), self.device, where=where)
        self.version = version
        self.curriculum = curriculum
        self.max_steps = max_steps
        self.robots, self.cores, self.obstacles, self.min_distance = single
        self.actions = ACTIONS[version][0] if actions == "auto" else actions
        self.upstream_compat = upstream_compat
        self.pool = pool
        self.cleared_keys = () if self.flat else tuple((GROUP, key) for key in DONE_KEYS)
        self.group_map = {GROUP: [f"robot_{i}" for i in range(self.num_robots)]}
        self._build()
        self._state = self._blank_state()
        if self.is_fused:
            # Once at this size, so that no step compiles anything.
            self.is_fused = fused.works(self.device, self.launch_fused)

    def least_bytes(self) -> int:
        """Return the bytes that one environment takes at least.

        They are those of the state, of the state after it, and of the last observation.
        """
        robots, cores, obstacles = self.sizes
        observed = self.craft.observation_size + self.craft.num_seen
        scene = 2 * robots + 3 * cores + 3 * obstacles
        motion = robots * (MOTION_SIZE[self.craft.version] + 3)
        return (2 * (scene + motion) + 3 * robots * observed) * self.dtype.itemsize

    # -- levels, worlds and specs ----------------------------------------------------------------------------------

    @property
    def num_robots(self) -> int:
        """Number of robots R to which every world is padded."""
        return self.sizes.robots

    @property
    def num_actions(self) -> int:
        """Number of discrete actions A of a robot, 0 if they are continuous."""
        return self.craft.num_actions if self.actions == "discrete" else 0

    @property
    def scene(self) -> Scene:
        """Current goals, cores and obstacles."""
        return Scene.split(self.state.scene, self.sizes)

    def level_at(self, step: int) -> int:
        """Return the row of the curriculum after a count of environment steps."""
        step = arguments.whole("MarineNavEnv.level_at", "step", step)
        return max(0, sum(level.from_step <= step for level in self.levels) - 1)

    @property
    def outcomes(self) -> tuple[NestedKey, ...]:  # type: ignore[override]
        """Keys of `success`, that all robots arrived, and of `collided`, by robot."""
        return "success", "collided" if self.flat else (GROUP, "collided")

    def episode_outcomes(self, after: TensorDictBase) -> dict[str, Tensor]:
        """Return flags by name, (…, 1).

        `success` says that all robots arrived, and `collided` that at least one collided.
        """
        found = super().episode_outcomes(after)
        return found if self.flat else found | {"collided": found["collided"].any(-2)}

    def set_frames(self, frames: int) -> None:
        self.set_level(frames)

    def set_level(self, step: int) -> None:
        """Set the level of future episodes to that for a count of environment steps."""
        self.state.next_level.fill_(self.level_at(step))

    def assign_levels(self, levels: Sequence[int]) -> None:
        """Set a curriculum level for the future episodes of each environment, (N,)."""
        where = "MarineNavEnv.assign_levels"
        wanted = f"{self.num_envs} rows below {len(self.levels)}"
        rows = arguments.listed(where, "levels", wanted, levels)
        try:
            numbers = [arguments.whole(where, "levels", row, 0, len(self.levels) - 1) for row in rows]
        except ValueError:
            numbers = []
        if len(numbers) != self.num_envs:
            arguments.refuse(where, "levels", wanted, levels)
        self.state.next_level.copy_(torch.tensor(numbers, dtype=torch.int64, device="cpu"))

    def _build(self) -> None:
        like = torch.empty(0, dtype=self.dtype, device=self.device)
        lagged = "lagged_velocity" in self.quirks
        self.model = Unicycle(like, lagged) if self.version == "v2" else Vessel(like, lagged)
        self.is_fused = not fused.problem(self.device)
        self.is_native = self.version == "v2" and native.runs_on(like)
        self.few_envs = _FEW_ENVS["native" if self.is_native else "torch"]
        self._radius_factors = radius_factors(self.dtype, self.device)
        self._robot_index = torch.arange(self.num_robots, device=self.device, dtype=torch.int64)[:, None, None]
        actions = torch.arange(self.num_actions, device=self.device, dtype=torch.int64)
        self._idle = (actions == self.craft.idle).to(torch.uint8)
        self._make_pool()
        shape = (self.num_envs,) if self.flat else (self.num_envs, self.num_robots)
        specs = make_specs(self.craft, shape, discrete=bool(self.num_actions), dtype=self.dtype, device=self.device)
        self.observation_spec, self.action_spec, self.reward_spec, self.done_spec = specs

    def _make_pool(self) -> None:
        worlds = generate(self.craft, self.levels, self.pool, self.seed, self.quirks)
        like = torch.empty(0, dtype=self.dtype, device=self.device)
        stream = torch.full((len(worlds),), seed_bits(self.seed), device=self.device, dtype=torch.int64)
        self._pool_seed = self.seed

        def look(motion: Tensor, scene: Scene, there: Tensor) -> Sight:
            number = torch.arange(len(worlds), device=self.device, dtype=torch.int64)
            return self._look(motion, scene, there, draw_bits(stream, number), torch.zeros_like(number))

        self._pool = Pool(worlds, self.model, look, like, "still_start" in self.quirks)

    def _blank_state(self) -> MarineState:
        n, device = self.num_envs, self.device
        number = torch.zeros(n, dtype=torch.int64, device=device)
        begun = self._pool.begin(number)
        nobody = torch.zeros(self.num_robots, n, dtype=torch.bool, device=device)
        nothing = torch.zeros(self.num_robots, n, dtype=self.dtype, device=device)
        flags = {name: nobody.clone() for name in ("exists", "active", "arrived", "collided")}
        numbers = {name: nothing.clone() for name in ("energy", "score")}
        counts = {name: number.clone() for name in ("step_count", "episode", "level", "next_level", "key")}
        return MarineState(
            scene=begun.scene,
            motion=begun.motion,
            **flags,
            **numbers,
            observation=torch.zeros_like(begun.observation),
            object_mask=torch.zeros_like(begun.object_mask),
            clearance=begun.clearance,
            **counts,
        )

    @property
    def stored_keys(self) -> list[Any]:
        names = ["observation", "object_mask", "active", "clearance"]
        return names if self.flat else [(GROUP, name) for name in names]

    def restore(self, tensordict: TensorDictBase, replay: object = None) -> TensorDictBase:
        """Add `action_mask` (B, A) in place to observations (B,) of one robot each.

        Continuous actions have no mask.
        """
        if self.num_actions:
            tensordict["action_mask"] = tensordict["active"] | self._idle.bool()
        return tensordict

    # -- a step -----------------------------------------------------------------------------------------------------

    @runs_single_threaded
    def _step(self, tensordict: TensorDictBase) -> TensorDictBase:
        if self.is_fused and not is_traced():
            return self.step_fused(tensordict)
        s = self.state
        scene = self.scene
        there = s.active.to(self.dtype)
        after = self.state_after(self._actions(tensordict), scene, there)
        outcome = self._outcome(after, scene)
        energy = s.energy + after.energy * there
        score = s.score + outcome.reward
        clearance = torch.lerp(s.clearance, after.clearance, there)
        step_count = s.step_count + 1
        self._state = replace(
            s,
            motion=after.motion,
            active=outcome.active,
            arrived=outcome.arrived,
            collided=outcome.collided,
            energy=energy,
            score=score,
            observation=after.observation,
            object_mask=after.object_mask,
            clearance=clearance,
            step_count=step_count,
        )
        return self._result(outcome)

    def step_fused(self, tensordict: TensorDictBase) -> TensorDictBase:
        """`_step` as one launch."""
        self._state, outcome, derived = fused.kernels().step(self.state, self._given(tensordict), self._rules)
        return self._result(outcome, derived)

    @property
    def _rules(self) -> fused.Rules:
        has_noise = self.version == "v3" and self.sensor_noise
        radius_factors = self._radius_factors if has_noise else None
        late_limit = "late_limit" in self.quirks
        terminal_limit = "terminal_limit" in self.quirks
        return fused.Rules(
            craft=self.craft,
            sizes=self.sizes,
            max_steps=self.max_steps,
            discrete=bool(self.num_actions),
            lagged=self.model.lagged,
            late_limit=late_limit,
            terminal_limit=terminal_limit,
            end_on_collision=self.end_on_collision,
            radius_factors=radius_factors,
        )

    def launch_fused(self) -> None:
        """Launch a step and a restart at this size, and drop their results."""
        per_robot = () if self.num_actions else (2,)
        shape = (self.num_envs, self.num_robots, *per_robot)
        dtype = torch.int64 if self.num_actions else self.dtype
        action = torch.zeros(shape, dtype=dtype, device=self.device)
        nobody = torch.zeros(self.num_envs, dtype=torch.bool, device=self.device)
        fused.kernels().step(self.state, action, self._rules)
        self._restart_fused(nobody)

    def state_after(self, action: Tensor, scene: Scene, there: Tensor) -> After:
        """Move all robots by an action, and sense from their new places.

        The action is (R, N), or (2, R, N) if it is continuous. `there` is 1 for active robots and 0 for others, which
        stay where they are.
        """
        s = self.state
        if isinstance(self.model, Unicycle) and native.runs_on(s.motion):
            return sail(self.model, s.motion, action, s.scene, s.active, self.sizes, self.craft)
        moved, energy = self.model.move(s.motion, action, scene)
        # Inactive robots stay where they were.
        motion = torch.lerp(s.motion, moved, there)
        sight = self._look(motion, scene, there, s.key, s.step_count + 1)
        turn = None
        if self.version == "v3":
            turn = starboard_turn(sight.own[:, 2:4], sight.objects[0], self.craft.radius)
        return After(motion, energy, observation(sight), object_mask(sight), sight.clearance, sight.touches, turn)

    def _actions(self, tensordict: TensorDictBase) -> Tensor:
        """Return the actions, (R, N) int64, or (2, R, N) if they are continuous."""
        action = self._given(tensordict)
        if self.num_actions:
            return contiguous_copy(action.t())
        return contiguous_copy(action.permute(2, 1, 0))

    def _given(self, tensordict: TensorDictBase) -> Tensor:
        """Return the given actions, (N, R) int64, or (N, R, 2) if they are continuous."""
        key: NestedKey = "action" if self.flat else (GROUP, "action")
        shape = (self.num_envs,) if self.flat else (self.num_envs, self.num_robots)
        if self.num_actions:
            action = self._given_action(tensordict, key, shape, whole=True)
            return action.reshape(self.num_envs, self.num_robots)
        action = self._given_action(tensordict, key, (*shape, 2), whole=False).to(self.dtype)
        return action.reshape(self.num_envs, self.num_robots, 2)

    def _look(self, motion: Tensor, scene: Scene, there: Tensor, key: Tensor, step: Tensor) -> Sight:
        if self.version == "v2":
            return see_v2(motion, scene, there, self.craft)
        return see_v3(motion, scene, there, self.craft, self.draw_errors(key, step))

    def draw_errors(self, key: Tensor, step: Tensor) -> Tensor | None:
        """Draw the errors of all sensors in a step.

        They are as `draw_noise` returns them, or None for sensors without errors.
        """
        if not self.sensor_noise:
            return None
        streams = draw_bits(draw_bits(key, torch.full_like(key, NOISE_STREAM)), self._robot_index)  # (R, 1, N)
        return draw_noise(streams, step, self.sizes.obstacles + self.sizes.robots, self._radius_factors)

    def _outcome(self, after: After, scene: Scene) -> Outcome:
        counted = self.state.step_count + (0 if "late_limit" in self.quirks else 1)
        return rewards_and_ends(
            self.state,
            after.motion,
            scene,
            self.craft,
            touches=after.touches,
            turn=after.turn,
            cut=counted >= self.max_steps,
            end_on_collision=self.end_on_collision,
            cut_is_end="terminal_limit" in self.quirks,
        )

    def _result(self, outcome: Outcome, derived: Derived | None = None) -> TensorDictBase:
        robots, root = self._observed(derived)
        robots["reward"] = _by_env(outcome.reward)
        root |= {"done": outcome.over, "terminated": outcome.decided, "truncated": outcome.cut}
        if not self.flat:
            robots |= {"terminated": _by_env(outcome.terminated), "truncated": _by_env(outcome.truncated)}
            known = None if derived is None else derived.done
            done = outcome.terminated | outcome.truncated if known is None else known
            robots["done"] = _by_env(done)
        return TensorDict(self._nested(robots, root), batch_size=self.batch_size, device=self.device)

    # -- observations and resets ------------------------------------------------------------------------------------

    def observation(self, index: int) -> TensorDictBase:
        """Return the current observation of one world, batch size (1,)."""
        seen = TensorDict(self._nested(*self._observed()), batch_size=self.batch_size, device=self.device)
        return seen[index : index + 1]

    def _observed(self, known: Derived | None = None) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """Return the current observations of robots, (N, R, …), and worlds, (N,).

        A kernel may have written some of them: those are `known`.
        """
        s = self.state
        if self.copy_observations:
            robots_own = ("observation", "object_mask", "active", "arrived", "collided", "clearance", "energy")
            names = (*robots_own, "step_count", "level")
            s = replace(s, **{name: getattr(s, name).clone() for name in names})
        derived = self._derive(s) if known is None else known
        robots = {"observation": s.observation, "object_mask": derived.object_mask}
        for name in ("active", "arrived", "collided", "clearance", "energy"):
            robots[name] = _by_env(getattr(s, name))
        if derived.action_mask is not None:
            robots["action_mask"] = derived.action_mask
        return robots, {"episode_step": s.step_count, "level": s.level, "success": derived.success}

    def _derive(self, state: MarineState) -> Derived:
        """Return the outputs that are derived from a state."""
        action_mask = None
        if self.num_actions:
            action_mask = (_by_env(state.active).view(torch.uint8) | self._idle).view(torch.bool)
        success = (state.arrived | ~state.exists).all(0)
        return Derived(to_bool(state.object_mask), action_mask, success, None)

    def _nested(self, robots: dict[str, Tensor], root: dict[str, Tensor]) -> Outputs:
        out: Outputs = {name: value.unsqueeze(-1) for name, value in root.items()}
        if self.flat:
            return out | {name: value.squeeze(1) for name, value in robots.items()}
        size = self.num_envs, self.num_robots
        out[GROUP] = TensorDict(cast(Outputs, robots), batch_size=size, device=self.device)
        return out

    def _add_done_flags(self, observation: Outputs) -> TensorDict:
        out = super()._add_done_flags(observation)
        if not self.flat:
            size = len(DONE_KEYS), self.num_envs, self.num_robots, 1
            none = torch.zeros(size, dtype=torch.bool, device=self.device)
            for key, flags in zip(DONE_KEYS, none.unbind(), strict=True):
                out[GROUP].set(key, flags)
        return out

    @runs_single_threaded
    def _observe_reset(self, mask: Tensor) -> Outputs:
        if self.is_fused and not is_traced():
            self._state, derived = self._restart_fused(mask)
            return self._nested(*self._observed(derived))
        return self._observe_reset_plain(mask)

    def _observe_reset_plain(self, mask: Tensor) -> Outputs:
        """`_observe_reset` by torch's operators."""
        s = self.state
        env = self._env_index
        episode = s.episode
        level = s.next_level

        # On a CPU reading the mask costs nothing, and few worlds begin at a time: only their rows are made. Elsewhere
        # all rows are made, and the mask chooses between old and new, so that the host never waits.
        row = None
        if native.runs_on(mask):
            row = mask.nonzero()[:, 0]
            if not len(row):
                return self._nested(*self._observed())
            env = env[row]
            episode = episode[row]
            level = level[row]
        key = episode_key(self.seed, env, episode)
        world = self._world(key, env, episode, level)
        if row is None:
            # Fetching the same world for all that do not begin costs less.
            world = world * mask
        begun = self._pool.begin(world)

        def put(old: Tensor, new: Tensor, axis: int = -1) -> Tensor:
            if row is not None:
                return old.index_copy(axis, row, new)
            if old.is_floating_point():
                num_trailing = old.ndim - 1 if axis == 0 else 0
                share = mask.to(self.dtype).view(-1, *[1] * num_trailing)
                return torch.lerp(old, new, share)
            return torch.where(mask, new, old)

        scene = put(s.scene, begun.scene)
        motion = put(s.motion, begun.motion)
        exists = put(s.exists, begun.exists)
        active = put(s.active, begun.exists)
        arrived = s.arrived & ~mask
        collided = s.collided & ~mask
        energy = s.energy * (~mask).to(self.dtype)
        score = s.score * (~mask).to(self.dtype)
        observation = put(s.observation, begun.observation, 0)
        object_mask = put(s.object_mask, begun.object_mask, 0)
        clearance = put(s.clearance, begun.clearance)
        step_count = s.step_count * ~mask
        next_episode = s.episode + mask
        played = put(s.level, level)
        next_key = put(s.key, key)
        self._state = MarineState(
            scene=scene,
            motion=motion,
            exists=exists,
            active=active,
            arrived=arrived,
            collided=collided,
            energy=energy,
            score=score,
            observation=observation,
            object_mask=object_mask,
            clearance=clearance,
            step_count=step_count,
            episode=next_episode,
            level=played,
            next_level=s.next_level,
            key=next_key,
        )
        return self._nested(*self._observed())

    def _restart_fused(self, mask: Tensor) -> tuple[MarineState, Derived]:
        """Start new episodes in the worlds of `mask`, as one launch."""
        draws = fused.Draws(seed_bits(self.seed), self._env_index, self.in_order, self.pool)
        discrete = bool(self.num_actions)
        return fused.kernels().restart(self.state, mask, self._pool, draws, self.craft, self.sizes, discrete)

    def _world(self, key: Tensor, env: Tensor, episode: Tensor, level: Tensor) -> Tensor:
        """Return indices (N,) in the world pool for episodes, by their `key` and level."""
        if self.in_order:
            picked = (env + self.num_envs * episode) % self.pool
        else:
            picked = draw_integers(key, torch.zeros_like(key), self.pool)
        return level * self.pool + picked

    def set_env_state(self, state: dict[str, Tensor]) -> None:
        if self.seed != self._pool_seed:
            self._make_pool()
        super().set_env_state(state)

    def _state_bounds(self) -> dict[str, Bounds]:
        count = Bounds(0, 2**62)
        flag = Bounds(0, 1)
        level = Bounds(0, len(self.levels) - 1)
        number = Bounds(-MOST_MOTION, MOST_MOTION)
        r, c, m = self.sizes
        scene = [FAR] * (2 * r + 2 * c) + [CORE_RADIUS * self.craft.edge_speed[1]] * c + [FAR] * (2 * m)
        low = torch.tensor([-value for value in scene] + [0.0] * m, dtype=self.dtype, device=self.device)[:, None]
        high = torch.tensor(scene + [FAR] * m, dtype=self.dtype, device=self.device)[:, None]
        # Values at a bound may have been rounded beyond it.
        slack = 1 + 1e-4
        scene_bounds = Bounds(low * slack, high * slack)
        energy = Bounds(0, MOST_MOTION)
        key = Bounds(0, 2**32 - 1)
        return {
            "scene": scene_bounds,
            "motion": number,
            "energy": energy,
            "score": number,
            "observation": number,
            "object_mask": flag,
            "clearance": number,
            "step_count": count,
            "episode": count,
            "level": level,
            "next_level": level,
            "key": key,
        }

    def _state_conflict(self, state: dict[str, Tensor]) -> Conflict | None:
        """Return the first conflict of robot flags.

        Only robots that exist are active, arrived or collided, and a robot is at most one of these.
        """
        exists, ended = state["exists"], state["arrived"] | state["collided"]
        if bool((state["active"] & (ended | ~exists)).any()):
            return Conflict("active", "false for robots that do not exist, arrived or collided", "one that is true")
        if bool((ended & ~exists).any()):
            return Conflict("exists", "true for robots that arrived or collided", "one that is false")
        if bool((state["arrived"] & state["collided"]).any()):
            return Conflict("collided", "false for robots that arrived", "one that is true")
        return None


def _by_env(rows: Tensor) -> Tensor:
    """Return values (R, N) as (N, R, 1)."""
    return rows.t().unsqueeze(-1)
