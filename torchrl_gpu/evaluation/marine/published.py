"""Published tests of navigators, and the scores of the released agents."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from torchrl_gpu.envs.marine.env import MarineNavEnv
from torchrl_gpu.envs.marine.levels import EVALUATION, FINAL_TEST, Levels

SOURCE = "released weights, measured again; Lin et al. ICRA 2024 / RA-L 2025"


@dataclass(frozen=True)
class ReportedScores:
    """Published means over some worlds, named as in `NavigationMetrics`.

    Those that are not published are None.
    """

    success: float
    arrived: float | None = None
    time: float | None = None
    energy: float | None = None
    discounted: float | None = None


@dataclass(frozen=True)
class PublishedTest:
    """Published test, and the scores of the released agents in it.

    Attributes:
        version: As in `MarineNavEnv`.
        levels: Rows of its curriculum.
        max_steps: Most actions of an episode.
        end_on_collision: Whether the first collision ends a world.
        worlds: Number of worlds of each row.
        rows: Scores of each agent, row by row.
        overall: Scores of each agent over all rows.
    """

    version: str
    levels: Levels
    max_steps: int
    end_on_collision: bool
    worlds: int
    rows: Mapping[str, tuple[ReportedScores, ...]]
    overall: Mapping[str, ReportedScores] = field(default_factory=dict)

    def num_worlds(self, row: int | None = None) -> int:
        """Return the number of worlds of a row, or of all rows."""
        return self.worlds * (len(self.levels) if row is None else 1)

    def fits(self, env: MarineNavEnv) -> bool:
        """Return whether the environment plays this test."""
        own = env.version, env.levels, env.max_steps, env.end_on_collision
        return own == (self.version, self.levels, self.max_steps, self.end_on_collision)


def _successes(*shares: float) -> tuple[ReportedScores, ...]:
    return tuple(ReportedScores(share) for share in shares)


# Success, share of robots that arrived, time and energy, row by row.
_V2_ADAPTIVE_IQN = (
    ReportedScores(0.98, 0.993, 28.1, 78.7),
    ReportedScores(1.00, 1.000, 28.8, 82.7),
    ReportedScores(0.85, 0.958, 30.3, 88.2),
    ReportedScores(0.78, 0.943, 31.7, 93.6),
    ReportedScores(0.72, 0.943, 34.3, 103.0),
)
_V2_IQN = (
    ReportedScores(0.94, 0.973, 27.2, 76.8),
    ReportedScores(0.93, 0.968, 27.5, 79.4),
    ReportedScores(0.70, 0.908, 28.2, 82.7),
    ReportedScores(0.57, 0.885, 28.7, 85.2),
    ReportedScores(0.53, 0.871, 30.1, 90.8),
)
_V2_DQN = (
    ReportedScores(0.27, 0.593, 26.9, 75.2),
    ReportedScores(0.14, 0.550, 27.1, 77.0),
    ReportedScores(0.04, 0.502, 27.4, 79.7),
    ReportedScores(0.00, 0.380, 27.1, 78.8),
    ReportedScores(0.00, 0.374, 27.2, 78.8),
)
_V2_APF = (ReportedScores(0.71, 0.890, 43.4, 130.9),)
V2_TEST = PublishedTest(
    version="v2",
    levels=FINAL_TEST,
    max_steps=360,
    end_on_collision=False,
    worlds=100,
    rows={"adaptive IQN": _V2_ADAPTIVE_IQN, "IQN": _V2_IQN, "DQN": _V2_DQN, "APF": _V2_APF},
)

_V3_ROWS: dict[str, tuple[ReportedScores, ...]] = {}
_V3_ROWS["AC-IQN"] = _successes(0.8, 1.0, 0.9, 1.0, 0.3, 0.7)
_V3_ROWS["IQN"] = _successes(0.8, 1.0, 0.7, 0.9, 0.6, 0.5)
_V3_ROWS["DDPG"] = _successes(0.7, 0.5, 0.5, 0.6, 0.2, 0.1)
_V3_ROWS["DQN"] = _successes(0.8, 0.3, 0.4, 0.4, 0.1, 0.2)
_V3_ROWS["SAC (sampled)"] = _successes(0.9, 0.9, 0.8, 0.6, 0.6, 0.6)
_V3_ROWS["SAC (mean)"] = _successes(0.0, 0.0, 0.0, 0.0, 0.0, 0.0)
_V3_OVERALL: dict[str, ReportedScores] = {}
_V3_OVERALL["AC-IQN"] = ReportedScores(0.783, time=20.08, energy=30961.7, discounted=33.1)
_V3_OVERALL["IQN"] = ReportedScores(0.750, time=32.95, energy=35926.5, discounted=26.2)
_V3_OVERALL["DDPG"] = ReportedScores(0.433, time=18.7, energy=30429.9, discounted=23.8)
_V3_OVERALL["DQN"] = ReportedScores(0.367, time=20.04, energy=30669.7, discounted=23.4)
_V3_OVERALL["SAC (sampled)"] = ReportedScores(0.733, time=30.72, energy=40650.3, discounted=29.6)
_V3_OVERALL["SAC (mean)"] = ReportedScores(0.000, discounted=27.1)
V3_TEST = PublishedTest(
    version="v3",
    levels=EVALUATION["v3"],
    max_steps=1000,
    end_on_collision=True,
    worlds=10,
    rows=_V3_ROWS,
    overall=_V3_OVERALL,
)
"""The test of v3 during training, 60 worlds.

The final test of v3 was made with another simulator.
"""

PUBLISHED = (V2_TEST, V3_TEST)


def published_for(env: MarineNavEnv) -> PublishedTest | None:
    """Return the published test that an environment plays, if any."""
    for test in PUBLISHED:
        if test.fits(env):
            return test
    return None
