"""Stability rules: which placements stand, one file per rule.

Here: `rule` (what a rule answers, and the table of rules), the five rules, and what they share: `footprints` for one
placement in NumPy, `contacts` for all placements in torch, `hulls` for the hull of contacts. Not here: the fast forms
of rules, which are part of the kernels (`kernels`, `native`). Read `rule.py` first, then `support.py`.
"""

from torchrl_gpu.envs.packing.stability.com import CentreOfMass
from torchrl_gpu.envs.packing.stability.corners import Corners
from torchrl_gpu.envs.packing.stability.load_bearing import LoadBearing
from torchrl_gpu.envs.packing.stability.rule import AnyPlacement, StabilityRule, register, rule_of
from torchrl_gpu.envs.packing.stability.support import Support

__all__ = ["StabilityRule", "register", "rule_of"]

register(AnyPlacement())
register(Corners())
register(Support())
register(CentreOfMass())
register(LoadBearing())
