"""`torchrl-gpu encode VIDEO…`: demonstrations decoded once, into a folder.

The folder opens in no time.

A VIDEO is an MP4 file with a file of actions beside it, a folder of such files, or a folder with a LeRobotDataset v3.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from torchrl_gpu.cli.parser import OneLineParser

if TYPE_CHECKING:
    from torchrl_gpu.demonstrations import ClipStore

WHERE = "torchrl-gpu encode"


def main(argv: list[str]) -> None:
    args = make_parser().parse_args(argv)
    out = args.output or args.videos[0].with_name(args.videos[0].resolve().name + ".clips")
    for path in args.videos:
        if not path.exists():
            raise FileNotFoundError(f"{WHERE}: there is no video or folder {path}")
    # Before anything heavy is loaded, as what follows takes minutes.
    if out.exists():
        raise FileExistsError(f"{WHERE}: --output must be a folder that is not there yet; got {out}")
    from torchrl_gpu.demonstrations import load_demonstrations, save_store
    from torchrl_gpu.demonstrations.memmap import has_frames
    from torchrl_gpu.system.console import progress_bar, wide_console

    if has_frames(args.videos[0]):
        raise ValueError(f"{WHERE}: {args.videos[0]} has been encoded already: use it as it is")
    with progress_bar(WHERE, "frames") as report:
        store = load_demonstrations(
            args.videos,
            size=args.size,
            device="cpu",
            fps=args.fps,
            camera=args.camera,
            on_bad=args.on_bad,
            decoder=args.decoder,
            progress=report,
        )
        save_store(store, out)
    wide_console().print(_table(store))
    print(f"Written: {out}, {len(store):,} frames of {store.num_episodes} episodes")


def make_parser() -> OneLineParser:
    parser = OneLineParser(prog=WHERE, description=__doc__)
    add = parser.add_argument
    add("videos", nargs="+", type=Path, metavar="VIDEO", help="MP4 file, or a folder")
    add("--output", type=Path, help="folder to write, not there yet; the first VIDEO with .clips behind it by default")
    add("--size", nargs=2, type=int, metavar=("H", "W"), help="pixels of a frame; those of the videos by default")
    add("--fps", type=float, help="frames per second that every video must have; those of the first by default")
    add("--camera", help="feature of a LeRobotDataset that has several, such as observation.images.top")
    add("--on_bad", choices=("skip", "raise"), default="skip", help="what becomes of a video that cannot be used")
    add("--decoder", choices=("auto", "pyav", "torchcodec"), default="auto", help="see the page on demonstrations")
    return parser


def _table(store: ClipStore) -> object:
    from rich.markup import escape
    from rich.table import Table

    height, width = store.size
    table = Table(title=f"{store.num_episodes} episodes, frames of {height}×{width}")
    for name in ("video", "frames", "size", "fps", "seconds", "MB", "skipped because"):
        table.add_column(name, justify="left" if name in ("video", "skipped because") else "right", overflow="fold")
    for video in store.videos:
        size = f"{video.height}×{video.width}" if video.height else "–"
        rate = f"{video.fps:g}" if video.fps else "–"
        num_bytes = video.frames * height * width * 3
        megabytes = f"{num_bytes / 1e6:.1f}"
        played = f"{video.frames:,}", size, rate, f"{video.frames / store.fps:.1f}", megabytes
        table.add_row(
            escape(video.name), *(("–", size, rate, "–", "–") if video.problem else played), escape(video.problem)
        )
    return table
