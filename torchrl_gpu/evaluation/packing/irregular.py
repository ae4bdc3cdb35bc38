"""The tables of irregular packing (Huang et al., RA-L 8(1), 2023): all methods on the same cases, set by set."""

from __future__ import annotations

import inspect
import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor

from torchrl_gpu.envs import PackingEnv
from torchrl_gpu.envs.packing.items import ItemSource, ProceduralSolids
from torchrl_gpu.evaluation.estimates import comparison_data, comparison_table
from torchrl_gpu.evaluation.packing.episodes import PackedBins, PackingResults
from torchrl_gpu.evaluation.packing.suite import PackingSuite
from torchrl_gpu.evaluation.reports import print_whole
from torchrl_gpu.evaluation.suite import UNSEEN_SEED, TableOptions
from torchrl_gpu.policies.packing.heuristics import (
    BOTH,
    DEEPEST,
    LESS_WASTE,
    MANAGER,
    RANDOM,
    RULE,
    VALUES,
    WORKER,
)

HARD_SHAPES = ("bowl", "mug", "l_shape", "u_shape")
HARD_SCALE = 1.1
METHODS = {"random": RANDOM, "dbl": DEEPEST, "hm": RULE, "waste": LESS_WASTE}
METHODS |= {"values": VALUES, "worker": WORKER, "manager": MANAGER, "both": BOTH}
UNTRAINED = "No --ckpt_path: the rows of the learned methods are left out; untrained networks repeat the rules."
NO_CHOICE = "K = 0: one object is shown, in box order, and passed over if it fits nowhere; no manager."


class IrregularSuite(PackingSuite):
    """Bins to pack with irregular objects; its tables are those of Huang et al., RA-L 2023."""

    def tables(self, run: Any, options: TableOptions) -> Iterator[dict[str, Any]]:
        """A table for each set of objects and setting, each as plain data once it is printed."""
        notes = []
        if not run.trained:
            notes.append(UNTRAINED)
        if 0 in (options.visible or ()):
            notes.append(NO_CHOICE)
        for line in notes:
            Console().print(line, soft_wrap=True)
        base = self.env
        resolutions: Sequence[int | tuple[int, int]] = options.resolutions or [base.resolution]
        turns = ["cube" if step == 90 else step for step in options.steps or ()] or [base.orientations]
        for name, items in _sets(options, run.env.items, base).items():
            for resolution, orientations in itertools.product(resolutions, turns):
                given = name, resolution, orientations
                made = base if given == ("easy", base.resolution, base.orientations) else None
                for visible in options.visible or [base.visible_items]:
                    setting: dict[str, Any] = {"visible_items": max(1, visible), "skip_unplaceable": visible == 0}
                    setting |= {"orientations": orientations, "resolution": resolution}
                    source = items if made is None else made.shared_items()
                    made = base.like(1, items=source, order="box", stability_judge="com", **setting)
                    one = IrregularSuite(made, False, self.num_episodes, self.batch_size)
                    one.say = self.say
                    about: dict[str, Any] = {"set": name, "notes": notes, "objects": _arguments_of(items)}
                    about["setting"] = {"K": visible, **setting}
                    yield about | _table(one, run, options, f"{name}: K = {visible}", type(items).__name__)


def packing_suite(
    env: PackingEnv, num_episodes: int, *, seed: int = UNSEEN_SEED, pictures: bool = True, batch_size: int | None = None
) -> PackingSuite:
    """Bins like those of an environment, of boxes or of irregular objects; arguments as in `suite_for`."""
    suite = PackingSuite if env.catalogue.flat else IrregularSuite
    judge = "rule" if env.catalogue.flat and env.stability_judge == "rule" else "com"
    unseen = env.like(1, items=env.items.reseeded(seed), seed=seed, first_env=0, stability_judge=judge)
    return suite(unseen, pictures, num_episodes, batch_size)


def _sets(options: TableOptions, items: ItemSource, base: PackingEnv) -> dict[str, ItemSource]:
    makers: dict[str, Callable[[], ItemSource]] = {
        "easy": lambda: easy(items, base.seed),
        "hard": lambda: hard(items, base.seed, options.shapes or HARD_SHAPES),
    }
    names = options.sets if options.sets or options.meshes else list(makers)
    made = {name: makers[name]() for name in names or ()}
    if options.meshes:
        from torchrl_gpu.envs.packing.items import MeshItems

        arguments = {"unit": options.unit or "m", "device": base.device, "seed": base.seed}
        made["meshes"] = MeshItems(str(options.meshes), skip_invalid=True, **arguments)
    return made


def easy(items: ItemSource, seed: int) -> ItemSource:
    """Other objects of the kinds and sizes that were trained on; the same ones from a source without a pool."""
    if getattr(items, "seed", None) == seed:
        raise ValueError(f"evaluate: --seed must differ from that of the objects trained on; got {seed}")
    return items.reseeded(seed)


def hard(items: ItemSource, seed: int, shapes: Sequence[str] = HARD_SHAPES) -> ItemSource:
    """Concave objects alone, with sides a tenth longer than those trained on."""
    if not isinstance(items, ProceduralSolids):
        raise ValueError(f"evaluate: the set hard wants a config with ProceduralSolids; got {type(items).__name__}")
    smallest, largest = HARD_SCALE * items.min_size, HARD_SCALE * items.max_size
    return ProceduralSolids(items.num_objects, smallest, largest, items.scale, seed, tuple(shapes))


def _table(suite: PackingSuite, run: Any, options: TableOptions, title: str, items: str) -> dict[str, Any]:
    env = suite.env
    rows = run.baselines(env)  # of a packer, and without its manager where there is no choice
    rows = suite.policies_of(run) if rows is None else rows
    wanted = set(rows) if options.methods is None else {METHODS[word] for word in options.methods}
    if not wanted & rows.keys():
        came = " ".join(options.methods or ())
        raise ValueError(f"evaluate: --methods must name a row that there is; got {came}")
    policies = {name: policy for name, policy in rows.items() if name in wanted}
    alone = suite.packed_alone(policies, 3 if options.timed is None else options.timed)
    results = suite.play_all(policies)
    methods, agreements = {}, []
    for name, each in results.items():
        shares = None
        if options.physics:
            suite.say(f"{name}, physics")
            shares, agreement = drop(env, each, min(options.physics, suite.num_episodes))
            agreements.append({"method": name, **agreement.data()})
        methods[name] = each.columns(shares) | {"objects/s": each.num_packed.sum()[None] / each.seconds}
        if alone[name]:
            taken = [1e3 * bin_.seconds / max(1.0, bin_.num_packed.item()) for bin_ in alone[name]]
            methods[name]["ms/object"] = torch.tensor(taken, dtype=torch.float32, device="cpu")
    cells = "×".join(str(side) for side in env.bin.cells)
    title += f" of {env.num_items} objects, {env.num_orientations} orientations, {cells} cells"
    title += f", {suite.num_episodes} cases"
    suite.say("")
    print()
    print_whole(comparison_table(methods, title, RULE))
    if agreements:
        print_whole(agreement_table(agreements))
    data = {"title": title, "episodes": suite.describe() | {"items": items}, "cases": suite.num_episodes}
    data |= {"batch": suite.side_by_side, "reference": RULE}
    return data | {"methods": comparison_data(methods, RULE), "agreement": agreements}


def _arguments_of(source: ItemSource) -> dict[str, Any]:
    values = {name: getattr(source, name) for name in inspect.signature(type(source)).parameters}
    return {k: v if isinstance(v, int | float | str | list | tuple | None) else str(v) for k, v in values.items()}


# -- physics --------------------------------------------------------------------------------------------------------


@dataclass
class Agreement:
    """On how many placements the rule `com` and physics agree, and how they do not."""

    both_hold: int = 0
    only_com_holds: int = 0
    only_physics_holds: int = 0
    none_holds: int = 0

    def count(self, com: Tensor, physics: Tensor) -> None:
        """Adds the placements of a bin, (I,) bool each."""
        self.both_hold += int((com & physics).sum())
        self.only_com_holds += int((com & ~physics).sum())
        self.only_physics_holds += int((~com & physics).sum())
        self.none_holds += int((~com & ~physics).sum())

    def data(self) -> dict[str, Any]:
        """For JSON; `share` is that of the placements on which they agree, None where there are no placements."""
        placements = sum(asdict(self).values())
        share = (self.both_hold + self.none_holds) / placements if placements else None
        return {"share": share, "placements": placements, **asdict(self)}


def drop(env: PackingEnv, results: PackingResults, number: int) -> tuple[Tensor, Agreement]:
    """Drops the first bins in MuJoCo, item by item: shares that hold, (number,), and where the rule says otherwise."""
    from torchrl_gpu.envs.packing.physics import plan_of, settle_cases

    assert results.stable is not None
    bins, agreement = PackedBins(env, results), Agreement()
    settled = settle_cases([plan_of(bins, index) for index in range(number)], friction=env.friction)
    for stable, each in zip(results.stable, settled, strict=False):
        agreement.count(stable[stable >= 0] > 0, torch.from_numpy(each.stable))  # a step may pass an item over
    return torch.tensor([each.share for each in settled], dtype=torch.float32, device="cpu"), agreement


def agreement_table(agreements: list[dict[str, Any]]) -> Table:
    """Verdicts of the rule `com` beside those of physics."""
    counts = ("placements", "both_hold", "only_com_holds", "only_physics_holds", "none_holds")
    shown = Table(title="S com against S physics, placement by placement", title_justify="left")
    for column in ("method", "agree", *(name.replace("_", " ") for name in counts)):
        shown.add_column(column, justify="left" if column == "method" else "right", no_wrap=True)
    for row in agreements:
        share = "–" if row["share"] is None else f"{row['share']:.1%}"
        shown.add_row(row["method"], share, *(str(row[name]) for name in counts))
    return shown
