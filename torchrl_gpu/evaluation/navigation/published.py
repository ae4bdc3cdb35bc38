"""Scores of the released navigators, for comparison with one's own.

Measured with the weights that were released with Lin, Huang, Chen, Englot, "Decentralized Multi-Robot Navigation for
Autonomous Surface Vehicles with Distributional Reinforcement Learning", ICRA 2024 (v2), and Lin, Szenher, Huang,
Englot, "Distributional Reinforcement Learning Based Integrated Decision Making and Control for Autonomous Surface
Vehicles", RA-L 10(2), 2025 (v3), by the released programs: one run, one set of weights each. Worlds are of the same
rows as ours, but other ones, since the released programs draw theirs from another generator; those of v3 are ten of a
row, so that a share may be off by 15 points. The programs also count otherwise, see "The published evaluations" in
`docs/environments/marine-reference.md`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from torchrl_gpu.envs.marine.env import MarineNavEnv
from torchrl_gpu.envs.marine.levels import EVALUATION, FINAL_TEST, Levels

SOURCE = "released weights, measured again; Lin et al. ICRA 2024 / RA-L 2025"


@dataclass(frozen=True)
class ReportedScores:
    """Means over some worlds, as in `NavigationMetrics`; None where they were not given."""

    success: float
    arrived: float | None = None
    time: float | None = None
    energy: float | None = None
    discounted: float | None = None


@dataclass(frozen=True)
class PublishedTest:
    """A published test: rows of so many worlds each, and what the agents came to in each row and over all."""

    version: str
    levels: Levels
    max_steps: int
    end_on_collision: bool
    worlds: int
    rows: Mapping[str, tuple[ReportedScores, ...]]
    overall: Mapping[str, ReportedScores] = field(default_factory=dict)

    def num_worlds(self, row: int | None = None) -> int:
        return self.worlds * (len(self.levels) if row is None else 1)

    def fits(self, env: MarineNavEnv) -> bool:
        """True if the environment plays this test."""
        own = env.version, env.levels, env.max_steps, env.end_on_collision
        return own == (self.version, self.levels, self.max_steps, self.end_on_collision)


def _successes(*shares: float) -> tuple[ReportedScores, ...]:
    return tuple(ReportedScores(share) for share in shares)


V2_TEST = PublishedTest(
    version="v2",
    levels=FINAL_TEST,
    max_steps=360,
    end_on_collision=False,
    worlds=100,
    rows={
        "adaptive IQN": (
            ReportedScores(0.98, 0.993, 28.1, 78.7),
            ReportedScores(1.00, 1.000, 28.8, 82.7),
            ReportedScores(0.85, 0.958, 30.3, 88.2),
            ReportedScores(0.78, 0.943, 31.7, 93.6),
            ReportedScores(0.72, 0.943, 34.3, 103.0),
        ),
        "IQN": (
            ReportedScores(0.94, 0.973, 27.2, 76.8),
            ReportedScores(0.93, 0.968, 27.5, 79.4),
            ReportedScores(0.70, 0.908, 28.2, 82.7),
            ReportedScores(0.57, 0.885, 28.7, 85.2),
            ReportedScores(0.53, 0.871, 30.1, 90.8),
        ),
        "DQN": (
            ReportedScores(0.27, 0.593, 26.9, 75.2),
            ReportedScores(0.14, 0.550, 27.1, 77.0),
            ReportedScores(0.04, 0.502, 27.4, 79.7),
            ReportedScores(0.00, 0.380, 27.1, 78.8),
            ReportedScores(0.00, 0.374, 27.2, 78.8),
        ),
        "APF": (ReportedScores(0.71, 0.890, 43.4, 130.9),),
    },
)

V3_TEST = PublishedTest(
    version="v3",
    levels=EVALUATION["v3"],
    max_steps=1000,
    end_on_collision=True,
    worlds=10,
    rows={
        "AC-IQN": _successes(0.8, 1.0, 0.9, 1.0, 0.3, 0.7),
        "IQN": _successes(0.8, 1.0, 0.7, 0.9, 0.6, 0.5),
        "DDPG": _successes(0.7, 0.5, 0.5, 0.6, 0.2, 0.1),
        "DQN": _successes(0.8, 0.3, 0.4, 0.4, 0.1, 0.2),
        "SAC (sampled)": _successes(0.9, 0.9, 0.8, 0.6, 0.6, 0.6),
        "SAC (mean)": _successes(0.0, 0.0, 0.0, 0.0, 0.0, 0.0),
    },
    overall={
        "AC-IQN": ReportedScores(0.783, time=20.08, energy=30961.7, discounted=33.1),
        "IQN": ReportedScores(0.750, time=32.95, energy=35926.5, discounted=26.2),
        "DDPG": ReportedScores(0.433, time=18.7, energy=30429.9, discounted=23.8),
        "DQN": ReportedScores(0.367, time=20.04, energy=30669.7, discounted=23.4),
        "SAC (sampled)": ReportedScores(0.733, time=30.72, energy=40650.3, discounted=29.6),
        "SAC (mean)": ReportedScores(0.000, discounted=27.1),
    },
)
"""Of 60 worlds, as during training; the last test of v3 was made with a simulator of its own."""

PUBLISHED = (V2_TEST, V3_TEST)


def published_for(env: MarineNavEnv) -> PublishedTest | None:
    """The published test that the environment plays."""
    return next((test for test in PUBLISHED if test.fits(env)), None)
