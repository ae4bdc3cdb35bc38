"""What `tests/mutants.py` plants: a hundred faults and more, by the part of the package that they are in."""

from __future__ import annotations

from faults.agents import AGENTS, LEARNERS
from faults.checkpoints import CALLBACKS, FAULTS
from faults.envs import ADAPTERS, ENVS, KERNELS
from faults.evaluation import DEMONSTRATIONS, EVALUATION, RECORDINGS
from faults.mutant import Mutant
from faults.palletizing import PALLETIZING
from faults.streaming import PAGE, SERVING, STREAMING, VIEWERS
from faults.training import CLIPS, RUNS, TRAINING, UPDATES

__all__ = ["MUTANTS", "Mutant"]

MUTANTS: list[Mutant] = [
    *TRAINING,
    *CLIPS,
    *UPDATES,
    *RUNS,
    *CALLBACKS,
    *FAULTS,
    *AGENTS,
    *LEARNERS,
    *ENVS,
    *KERNELS,
    *ADAPTERS,
    *EVALUATION,
    *RECORDINGS,
    *DEMONSTRATIONS,
    *PALLETIZING,
    *STREAMING,
    *VIEWERS,
    *PAGE,
    *SERVING,
]
