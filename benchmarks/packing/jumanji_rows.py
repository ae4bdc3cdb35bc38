"""Jumanji's BinPack-v2 with random valid actions, jitted and batched.

Bonnet et al., ICLR 2024. The package is `jumanji` on PyPI.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from importlib.util import find_spec

from torchrl_gpu.cli.packing.bench import TimedRow

MISSING = "not installed; the extra peers brings it"
# Environment steps of one call over the whole batch, and at least of each environment. Fewer would measure the call
# itself.
_STEPS = 1024
_LEAST_SCAN = 4


def jumanji_rows(batches: list[int]) -> list[TimedRow]:
    """Make one row for each batch size.

    There is none where jumanji is not installed.
    """
    if find_spec("jumanji") is None:
        return []
    return [_row(batch) for batch in batches]


def _row(batch: int) -> TimedRow:
    steps = max(_LEAST_SCAN, _STEPS // batch)
    wrapper = "AutoResetWrapper" if batch == 1 else "VmapAutoResetWrapper"
    return TimedRow(
        name=f"Jumanji BinPack-v2, {batch}",
        run=_runner(batch, steps),
        per_call=batch * steps,
        threads="XLA's",
        notes=f"jit, scan of {steps}, {wrapper}",
    )


def _runner(batch: int, steps: int) -> Callable[[int], None]:
    """Play `steps` steps of `batch` environments a call.

    The next call goes on where the last one stopped.
    """
    import jax
    import jax.numpy as jnp
    import jumanji
    from jumanji.wrappers import AutoResetWrapper, VmapAutoResetWrapper

    plain = jumanji.make("BinPack-v2")
    env = AutoResetWrapper(plain) if batch == 1 else VmapAutoResetWrapper(plain)
    keys = jax.random.split(jax.random.PRNGKey(0), batch)

    def random_valid(key, mask):  # type: ignore[no-untyped-def]
        flat = mask.reshape(*mask.shape[:-2], -1)
        action = jax.random.categorical(key, jnp.where(flat, 0.0, -jnp.inf))
        return jnp.stack(jnp.divmod(action, mask.shape[-1]), -1).astype(jnp.int32)

    def advance(carried, key):  # type: ignore[no-untyped-def]
        state, mask = carried
        state, timestep = env.step(state, random_valid(key, mask))
        return (state, timestep.observation.action_mask), timestep.reward.sum()

    @jax.jit
    def play(carried, key):  # type: ignore[no-untyped-def]
        carried, rewards = jax.lax.scan(advance, carried, jax.random.split(key, steps))
        return carried, rewards.sum()

    # jax warns of what jumanji does.
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        state, timestep = jax.jit(env.reset)(keys[0] if batch == 1 else keys)
        now = [(state, timestep.observation.action_mask)]
        play.lower(now[0], keys[0]).compile()
    drawn = [0]

    def run(calls: int) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            for _ in range(calls):
                drawn[0] += 1
                now[0], rewards = play(now[0], jax.random.PRNGKey(drawn[0]))
            jax.block_until_ready(rewards)

    return run
