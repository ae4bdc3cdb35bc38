"""`torchrl-gpu pack orders.csv --pallet eur`: orders of boxes onto pallets.

The list may be text of any encoding, a workbook (.xlsx, .xls, .ods), Parquet or JSON, or - for standard input: its
columns are found by name, in twelve languages. What was read is shown first; where something in it is doubtful, nothing
is packed without --yes. --check reads the list and stops. The whole of an order is planned at once, full layers of an
article first; with --in-order boxes go onto a pallet as they come in the list, and where nothing fits any more the
pallet is closed and the next one opened. Lengths below are millimetres, or say their unit:
150cm, 48in.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from torchrl_gpu.cli.parser import OneLineParser, positive, whole

WHERE = "torchrl-gpu pack"
# Exit status of a list that is doubtful, and so is not packed.
DOUBTFUL = 3
# Exit status where some pallet does not hold on the road. Its plan is written.
UNSAFE = 4
# Options of `ListOptions`, and of `pack`.
_LIST_OPTIONS = ("unit", "weight_unit", "decimal", "encoding", "sheet", "hidden", "counts", "weights")
_PACK_OPTIONS = (
    *("pallet", "height", "weight", "gap", "overhang", "cell", "open_pallets", "visible", "tries", "layers"),
    *("turns", "stability", "policy", "physics", "friction", "device"),
)


def main(argv: list[str]) -> None:
    """Read a list, show what was read, and pack it unless it is doubtful.

    Raises:
        SystemExit: The list is doubtful and `--yes` is not given, with the status `DOUBTFUL`; or a pallet does not hold
            on the road, with the status `UNSAFE`.
    """
    args = make_parser().parse_args(argv)
    columns = _columns(args.column)
    if args.out.exists() and not args.out.is_dir():
        raise NotADirectoryError(f"{WHERE}: --out must be a folder; got {args.out}, which is a file")
    from rich.console import Console

    from torchrl_gpu.lists.reading import ListOptions
    from torchrl_gpu.lists.report import first_rows, list_table
    from torchrl_gpu.palletizing.packing import pack, read_orders
    from torchrl_gpu.palletizing.plan import road_lines
    from torchrl_gpu.system.allocator import keep_freed_memory
    from torchrl_gpu.system.console import progress, wide_console

    keep_freed_memory()
    said = {name: getattr(args, name) for name in _LIST_OPTIONS}
    options = ListOptions(columns=columns, **said)
    with progress("pack") as say:
        say("reading")
        found = read_orders(args.list, options=options)
        say("")
    console = wide_console()
    console.print(list_table(found, str(args.list)))
    console.print(first_rows(found))
    is_doubtful = bool(found.doubts or found.faults)
    if is_doubtful and not args.yes and not _confirms(args):
        print(f"Not packed: {_number_of_doubts(found.doubts, found.faults)}. Say what is meant, or --yes to go on.")
        raise SystemExit(DOUBTFUL)
    if args.check:
        return
    given = {name: getattr(args, name) for name in _PACK_OPTIONS}
    given["road"] = args.transport is not None
    if args.in_order:
        given["visible"] = _in_order(args.visible)
    with progress("pack") as say:
        plans = pack(found, say=say, **given)
        say("")
    # Written before anything more is printed: a terminal that breaks must not cost the plan.
    notes: list[str] = []
    with progress("pack") as say:
        say("writing the plan")
        plans.write(args.out, notes.append)
        say("")
    if plans.told:
        Console(soft_wrap=True).print(plans.told, highlight=False)
    console.print(plans.table())
    for line, order, reason in plans.misfits():
        Console(soft_wrap=True).print(f"left out: line {line}, order {order}: {reason}", style="yellow", markup=False)
    for words in road_lines(plans):
        Console(soft_wrap=True).print(words, markup=False, highlight=False)
    for words in notes:
        Console(soft_wrap=True).print(words, style="yellow", markup=False, highlight=False)
    print(_written_words(args.out))
    if plans.road is not None and not all(road.holds for road in plans.road):
        raise SystemExit(UNSAFE)


def _written_words(folder: Path) -> str:
    """Which files there are, of which some need an extra."""
    names = [name for name in ("plan.csv", "plan.xlsx", "plan.json", "plan.pdf") if (folder / name).exists()]
    return f"Written: {folder}/{', '.join(names)} and index.html, which opens the page of every pallet"


def _in_order(visible: int | str | None) -> int | str:
    if visible == "all":
        raise ValueError(f"{WHERE}: --visible all plans a whole order, and --in-order takes boxes as they come")
    return visible or 1


def _confirms(args: argparse.Namespace) -> bool:
    """Ask at a terminal whether a doubtful list is packed all the same."""
    if args.check or str(args.list) == "-" or not (sys.stdin.isatty() and sys.stdout.isatty()):
        return False
    from rich.prompt import Confirm

    return Confirm.ask("Pack it as it is read?", default=False)


def _number_of_doubts(doubts: Sequence[str], faults: Sequence[object]) -> str:
    parts = []
    if doubts:
        parts.append("1 thing is doubtful" if len(doubts) == 1 else f"{len(doubts):,} things are doubtful")
    if faults:
        parts.append("1 row gives no box" if len(faults) == 1 else f"{len(faults):,} rows give no box")
    return " and ".join(parts)


def make_parser() -> OneLineParser:
    parser = OneLineParser(prog=WHERE, description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("list", type=Path, help="of boxes; - is standard input")
    _add_list_options(parser)
    _add_pallet_options(parser)
    _add_packing_options(parser)
    return parser


def _add_list_options(parser: OneLineParser) -> None:
    add = parser.add_argument_group("what the list does not say itself").add_argument
    add("--check", action="store_true", help="read the list, show it and stop")
    add("--yes", action="store_true", help="pack it although something is doubtful, or rows give no box")
    add("--unit", help="of lengths without one: mm, cm, m, in or ft")
    add("--weight-unit", help="of weights without one: kg, g, t, lb or oz; kg by default")
    add("--decimal", choices=(".", ","), help="the decimal sign, where 1.200 may be 1.2 or 1,200")
    add("--encoding", help="of a text file, such as shift_jis or cp1252")
    add("--sheet", help="name or number of the sheet; the active one by default")
    add("--hidden", action="store_true", help="read hidden and filtered rows of a workbook as well")
    add("--counts", choices=("boxes", "pieces"), help="what the quantity counts, if a box holds several pieces")
    add("--weights", choices=("box", "row"), help="of what a weight is: one box, or all boxes of its row")
    add("--column", nargs="+", default=[], metavar="NAME=HEADER", help="a column that is not found: length='dim 1'")


def _add_pallet_options(parser: OneLineParser) -> None:
    add = parser.add_argument_group("the pallet").add_argument
    pallets = "eur, 1200x1000, 48x40 (gma), RoboBPP's repetitive, diverse and boards, or sides: 1200x800, 120x80x150cm"
    add("--pallet", default="eur", help=f"{pallets}, of which the third is the most height; eur by default")
    add("--height", help="most height of the load; 1500 by default, or the container's")
    add("--weight", type=positive, metavar="KG", help="most weight of the load")
    add("--gap", default=0.0, help="free room between boxes, as a gripper needs")
    add("--overhang", default=0.0, help="what boxes may stick out over each edge")
    add("--cell", help="side of the cells that sides are rounded up to; chosen from the list by default")


def _add_packing_options(parser: OneLineParser) -> None:
    add = parser.add_argument_group("packing").add_argument
    open_ = "pallets of an order open at once"
    add("--open", type=whole(1, 64), default=1, dest="open_pallets", metavar="M", help=open_)
    add("--in-order", action="store_true", help="boxes come in the order of the list, one at a time: --visible 1")
    known = "next boxes of an order to choose from, as they come; all (by default): the whole order"
    add("--visible", type=_visible, metavar="K", help=known)
    tries = "how often each pallet of a mixed order is filled; 128 by default, fewer beyond 78 kinds of boxes"
    add("--tries", type=whole(1, 2**16), help=tries)
    layers = "boxes of one article as columns (by default), or every second layer turned so that they interlock"
    add("--layers", choices=("columns", "interlocked"), default="columns", help=layers)
    add("--turns", choices=("fixed", "yaw", "axis"), default="yaw", help="about the vertical, or with any side up")
    rules = (
        "rule for where a box may stand: load_bearing (by default; no promise that nothing tips, see --physics),"
        " support, com, corners or none"
    )
    add("--stability", default="load_bearing", help=rules)
    policies = "orders (by default) or another policy that comes with the package, dbl, hm, lsah, first-fit, or a file"
    add("--policy", default="orders", help=policies)
    add("--physics", action="store_true", help="simulate every pallet without walls, with the weights of the list")
    road = "push every pallet by 0.5 g in every direction, loose; the status is 4 where one does not hold"
    add("--transport", choices=("eumos",), help=road)
    add("--friction", type=positive, default=0.5, help="Coulomb's coefficient in that simulation; 0.5 by default")
    add("--device", default="auto", help="that the places are chosen on")
    add("--out", type=Path, default=Path("pallets"), metavar="DIR", help="folder of the plan; pallets by default")


def _visible(text: str) -> int | str:
    if text != "all" and not text.isdecimal():
        raise argparse.ArgumentTypeError(f"must be a whole number or all; got {text}")
    return text if text == "all" else whole(1, 1024)(text)


def _columns(given: list[str]) -> dict[str, str]:
    columns = {}
    for each in given:
        name, equals, header = each.partition("=")
        if not equals:
            raise ValueError(f"{WHERE}: --column must be NAME=HEADER, such as length='dim 1'; got {each}")
        columns[name] = header
    return columns
