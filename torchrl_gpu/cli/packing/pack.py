"""`torchrl-gpu pack orders.csv --pallet eur`: orders of boxes onto pallets.

The list may be .csv, .xlsx, .parquet or .json: its columns (length, width, height, quantity, weight, order, article,
this side up, fragile) are found by name, in several languages. Boxes go onto a pallet in the order of the list; where
nothing fits any more the pallet is closed and the next one opened. Lengths below are in the unit of the list, or say
their own: 1500mm, 15cm, 48in.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from torchrl_gpu.cli.parser import OneLineParser, positive, whole

WHERE = "torchrl-gpu pack"


def main(argv: list[str]) -> None:
    args = _parser().parse_args(argv)
    columns = _columns(args.column)
    if args.out.exists() and not args.out.is_dir():
        raise NotADirectoryError(f"{WHERE}: --out must be a folder; got {args.out}, which is a file")
    from rich.console import Console

    from torchrl_gpu.envs.packing.items.list_table import list_table
    from torchrl_gpu.palletizing.packing import pack, read_orders
    from torchrl_gpu.system.allocator import keep_freed_memory
    from torchrl_gpu.system.console import progress, wide_console

    keep_freed_memory()
    given: dict[str, Any] = {name: value for name, value in vars(args).items() if name not in ("list", "out", "column")}
    with progress("pack") as say:
        found = read_orders(args.list, given.pop("unit"), columns)
        plans = pack(found, say=say, **given)
        say("")
    # Written before anything is printed, since a terminal that breaks must not cost the plan.
    plans.write(args.out)
    console = wide_console()
    console.print(list_table(found, str(args.list), plans.misfits()))
    if plans.told:
        Console(soft_wrap=True).print(plans.told, highlight=False)
    console.print(plans.table())
    print(f"Written: {args.out}/plan.csv, plan.json and index.html, which opens the page of every pallet")


def _parser() -> OneLineParser:
    parser = OneLineParser(prog=WHERE, description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("list", type=Path, help="of boxes")
    pallets = (
        "eur, 1200x1000, 48x40, RoboBPP's repetitive, diverse and boards, or sides: 1200x800mm, 120x80x150cm, of which"
    )
    add("--pallet", default="eur", help=f"{pallets} the third is the most height; eur by default")
    add("--unit", help="of a list that does not say it: mm, cm, m, in or ft")
    add("--column", nargs="+", default=[], metavar="NAME=HEADER", help="a column that is not found: length='dim 1'")
    add("--height", help="most height of the load; 1500mm by default, or the container's")
    add("--weight", type=positive, metavar="KG", help="most weight of the load")
    add("--gap", default=0.0, help="free room between boxes, as a gripper needs")
    add("--overhang", default=0.0, help="what boxes may stick out over each edge")
    add("--cell", help="side of the cells that sides are rounded up to; chosen from the list by default")
    open_ = "pallets of an order open at once"
    add("--open", type=whole(1, 64), default=1, dest="open_pallets", metavar="M", help=open_)
    known = "next boxes of an order to choose from; all: the program sorts the order, by many tries"
    add("--visible", type=_visible, default=1, metavar="K", help=known)
    add("--tries", type=whole(1, 2**16), default=64, help="of every order, with --visible all; 64 by default")
    add("--turns", choices=("fixed", "yaw", "axis"), default="yaw", help="about the vertical, or with any side up")
    rules = (
        "rule for where a box may stand: load_bearing (by default; no promise that nothing tips, see --physics),"
        " support, com, corners or none"
    )
    add("--stability", default="load_bearing", help=rules)
    add(
        "--policy",
        default="orders",
        help="orders (by default) or another policy that comes with the package, dbl, hm, lsah, first-fit, or a file",
    )
    add("--physics", action="store_true", help="simulate every pallet without walls, with the weights of the list")
    add("--friction", type=positive, default=0.5, help="Coulomb's coefficient in that simulation; 0.5 by default")
    add("--device", default="auto", help="that the places are chosen on")
    add("--out", type=Path, default=Path("pallets"), metavar="DIR", help="folder of the plan; pallets by default")
    return parser


def _visible(text: str) -> int | str:
    if text != "all" and not text.isdecimal():
        raise argparse.ArgumentTypeError(f"must be a whole number or all; got {text}")
    return text if text == "all" else whole(1, 1024)(text)


def _columns(given: list[str]) -> dict[str, str]:
    for each in given:
        if "=" not in each:
            raise ValueError(f"{WHERE}: --column must be NAME=HEADER, such as length='dim 1'; got {each}")
    return dict(tuple(each.split("=", 1)) for each in given)  # type: ignore[misc]
