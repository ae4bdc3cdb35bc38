"""Tables of irregular packing (Huang et al., RA-L 8(1), 2023).

All methods play the same cases, set by set.
"""

from __future__ import annotations

import inspect
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import cast

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor

from torchrl_gpu.envs import PackingEnv
from torchrl_gpu.envs.packing.items import ItemSource, ProceduralSolids
from torchrl_gpu.evaluation.estimates import comparison_data, comparison_table
from torchrl_gpu.evaluation.packing.episodes import PackedBins, PackingResults
from torchrl_gpu.evaluation.packing.suite import PackingSuite
from torchrl_gpu.evaluation.reports import PlainData, print_whole
from torchrl_gpu.evaluation.suite import UNSEEN_SEED, ComparedRun, TableOptions
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
from torchrl_gpu.policies.policy import Policy

# Shapes of the hard set, and how much longer their sides are than those trained on.
HARD_SHAPES = ("bowl", "mug", "l_shape", "u_shape")
HARD_SCALE = 1.1

# Cases that are packed alone for their times, unless an option says how many.
_TIMED = 3

# Names of methods by the words of `--methods`.
METHODS = {
    "random": RANDOM,
    "dbl": DEEPEST,
    "hm": RULE,
    "waste": LESS_WASTE,
    "values": VALUES,
    "worker": WORKER,
    "manager": MANAGER,
    "both": BOTH,
}
UNTRAINED = "No --ckpt_path: the rows of the learned methods are left out; untrained networks repeat the rules."
NO_CHOICE = "K = 0: one object is shown, in box order, and skipped if it fits nowhere; no manager."


class IrregularSuite(PackingSuite):
    """Bins to pack with irregular objects.

    Its tables are those of Huang et al., RA-L 2023.
    """

    def tables(self, run: ComparedRun, options: TableOptions) -> Iterator[PlainData]:
        """Print a table for each set of objects and setting, and yield it as plain data."""
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
        trained_on = cast("PackingEnv", run.env).items
        for name, items in _sets(options, trained_on, base).items():
            for resolution, orientations in itertools.product(resolutions, turns):
                # Objects of the setting that the environment has already been made for are not made again.
                has_objects = (name, resolution, orientations) == ("easy", base.resolution, base.orientations)
                made = base if has_objects else None
                for visible in options.visible or [base.visible_items]:
                    setting: PlainData = {"visible_items": max(1, visible), "skip_unplaceable": visible == 0}
                    setting |= {"orientations": orientations, "resolution": resolution}
                    source = items if made is None else made.shared_items()
                    made = base.like(1, items=source, order="box", stability_judge="com", **setting)
                    one = IrregularSuite(made, False, self.num_episodes, self.batch_size)
                    one.announce = self.announce
                    facts: PlainData = {"set": name, "notes": notes, "objects": _arguments_of(items)}
                    facts["setting"] = {"K": visible, **setting}
                    yield facts | _table(one, run, options, f"{name}: K = {visible}", type(items).__name__)


def packing_suite(
    env: PackingEnv, num_episodes: int, *, seed: int = UNSEEN_SEED, pictures: bool = True, batch_size: int | None = None
) -> PackingSuite:
    """Return bins like those of an environment, for boxes or for irregular objects.

    Arguments are as in `suite_for`.
    """
    # S of irregular objects is by the rule `com`, also where every legal placement counts as stable in training.
    suite = PackingSuite if env.catalogue.flat else IrregularSuite
    judge = "rule" if env.catalogue.flat and env.stability_judge == "rule" else "com"
    unseen = env.like(1, items=env.items.reseeded(seed), seed=seed, first_env=0, stability_judge=judge)
    return suite(unseen, pictures, num_episodes, batch_size)


def _sets(options: TableOptions, items: ItemSource, base: PackingEnv) -> dict[str, ItemSource]:
    """Make the sets of objects that the options ask for, by name."""
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
    """Make other objects of the kinds and sizes that were trained on.

    A source without a pool gives the same ones.
    """
    # The same seed would give the very objects that were trained on.
    if getattr(items, "seed", None) == seed:
        raise ValueError(f"evaluate: --seed must differ from that of the objects trained on, which is {seed}, too")
    return items.reseeded(seed)


def hard(items: ItemSource, seed: int, shapes: Sequence[str] = HARD_SHAPES) -> ItemSource:
    """Make concave objects only, with sides a tenth longer than those trained on."""
    if not isinstance(items, ProceduralSolids):
        raise ValueError(f"evaluate: --sets hard is for a config with ProceduralSolids, not {type(items).__name__}")
    smallest = HARD_SCALE * items.min_size
    largest = HARD_SCALE * items.max_size
    return ProceduralSolids(items.num_objects, smallest, largest, items.scale, seed, tuple(shapes))


def _table(suite: PackingSuite, run: ComparedRun, options: TableOptions, title: str, items: str) -> PlainData:
    """Play one setting with all methods, print its table, and return it as plain data."""
    env = suite.env
    policies = _chosen_policies(suite, run, options.methods)
    alone = suite.pack_alone(policies, _TIMED if options.timed is None else options.timed)
    results = suite.play_all(policies)
    methods = {}
    agreements: list[PlainData] = []
    for name, each in results.items():
        shares = None
        if options.physics:
            suite.announce(f"{name}, physics")
            number = min(options.physics, suite.num_episodes)
            shares, agreement = drop(env, each, number)
            agreements.append({"method": name, **agreement.data()})
        methods[name] = each.columns(shares)
        packed = each.num_packed.sum()[None]
        methods[name]["objects/s"] = packed / each.seconds
        if alone[name]:
            methods[name]["ms/object"] = _milliseconds_per_object(alone[name])
    cells = "×".join(str(side) for side in env.bin.cells)
    title += f" of {env.num_items} objects, {env.num_orientations} orientations, {cells} cells"
    title += f", {suite.num_episodes} cases"
    suite.announce("")
    print()
    print_whole(comparison_table(methods, title, RULE))
    if agreements:
        print_whole(agreement_table(agreements))
    data: PlainData = {"title": title, "episodes": suite.describe() | {"items": items}, "cases": suite.num_episodes}
    data |= {"batch": suite.side_by_side, "reference": RULE}
    return data | {"methods": comparison_data(methods, RULE), "agreement": agreements}


def _chosen_policies(suite: PackingSuite, run: ComparedRun, methods: Sequence[str] | None) -> dict[str, Policy]:
    """Return the policies of the rows that `--methods` names, or of all rows."""
    # Those of a packer leave its manager out if there is no choice.
    rows = run.baselines(suite.env)
    if rows is None:
        rows = suite.policies_of(run)
    if methods is None:
        return dict(rows)
    wanted = {METHODS[word] for word in methods}
    if not wanted & rows.keys():
        raise ValueError(f"evaluate: --methods {' '.join(methods)}: there is no such row here")
    return {name: policy for name, policy in rows.items() if name in wanted}


def _milliseconds_per_object(alone: Sequence[PackingResults]) -> Tensor:
    """Return the time for an object in each bin that was packed alone, float32."""
    taken = [1e3 * each.seconds / max(1.0, each.num_packed.item()) for each in alone]
    return torch.tensor(taken, dtype=torch.float32, device="cpu")


def _arguments_of(source: ItemSource) -> PlainData:
    """Return the constructor arguments of a source as plain data."""
    names = inspect.signature(type(source)).parameters
    values = {name: getattr(source, name) for name in names}
    return {name: _as_plain(value) for name, value in values.items()}


def _as_plain(value: object) -> object:
    """Return a value for JSON, as text if it is no plain one."""
    return value if isinstance(value, int | float | str | list | tuple | None) else str(value)


# -- physics --------------------------------------------------------------------------------------------------------


@dataclass
class Agreement:
    """Numbers of placements on which the rule `com` and physics agree or disagree."""

    both_hold: int = 0
    only_com_holds: int = 0
    only_physics_holds: int = 0
    none_holds: int = 0

    def count(self, com: Tensor, physics: Tensor) -> None:
        """Add the placements of a bin, (I,) bool each."""
        self.both_hold += int((com & physics).sum())
        self.only_com_holds += int((com & ~physics).sum())
        self.only_physics_holds += int((~com & physics).sum())
        self.none_holds += int((~com & ~physics).sum())

    def data(self) -> PlainData:
        """Return the numbers as plain data.

        `share` is that of the placements on which they agree, or None if there are no placements.
        """
        placements = sum(asdict(self).values())
        share = (self.both_hold + self.none_holds) / placements if placements else None
        return {"share": share, "placements": placements, **asdict(self)}


def drop(env: PackingEnv, results: PackingResults, number: int) -> tuple[Tensor, Agreement]:
    """Drop the items of the first bins in MuJoCo, one by one.

    Returns:
        Shares of items that hold, (number,), and how far the rule `com` agrees.
    """
    from torchrl_gpu.envs.packing.physics import plan_of, settle_cases

    assert results.stable is not None
    # One by one, each on those that have settled, as a robot would place them.
    bins = PackedBins(env, results)
    plans = [plan_of(bins, index) for index in range(number)]
    settled = settle_cases(plans, friction=env.friction)
    agreement = Agreement()
    for stable, each in zip(results.stable, settled, strict=False):
        # A step that skips an item places none.
        placed = stable[stable >= 0] > 0
        agreement.count(placed, torch.from_numpy(each.stable))
    shares = torch.tensor([each.share for each in settled], dtype=torch.float32, device="cpu")
    return shares, agreement


def agreement_table(agreements: Sequence[Mapping[str, object]]) -> Table:
    """Make a table of how far the rule `com` and physics agree."""
    counts = ("placements", "both_hold", "only_com_holds", "only_physics_holds", "none_holds")
    shown = Table(title="S com against S physics, placement by placement", title_justify="left")
    titles = [name.replace("_", " ") for name in counts]
    for column in ("method", "agree", *titles):
        shown.add_column(column, justify="left" if column == "method" else "right", no_wrap=True)
    for row in agreements:
        share = "–" if row["share"] is None else f"{row['share']:.1%}"
        numbers = [str(row[name]) for name in counts]
        shown.add_row(str(row["method"]), share, *numbers)
    return shown
