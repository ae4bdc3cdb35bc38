"""`torchrl-gpu fetch URL FOLDER`: the newest whole checkpoint of a mirrored run.

The exit status is 0 where the folder holds a checkpoint afterwards (what is there already is left alone), and 3 where
the storage has none. A storage that cannot be read is an error, status 2: a run that was to go on must not begin anew.
"""

from __future__ import annotations

from pathlib import Path

from torchrl_gpu.cli.parser import OneLineParser

NONE_THERE = 3


def main(argv: list[str]) -> int:
    parser = OneLineParser(prog="torchrl-gpu fetch", description=__doc__)
    parser.add_argument("url", help="where `CheckpointMirror` puts them, such as s3://bucket/packing")
    parser.add_argument("folder", type=Path, help="of checkpoints, such as runs/packing/checkpoints")
    args = parser.parse_args(argv)
    from torchrl_gpu.callbacks.checkpoint_mirror import fetch
    from torchrl_gpu.checkpoints.files import newest_checkpoint
    from torchrl_gpu.checkpoints.storage import CheckpointStorage

    newest, _ = newest_checkpoint(args.folder)
    if newest is not None:
        print(f"torchrl-gpu fetch: {newest} is there already")
        return 0
    fetched = fetch(CheckpointStorage(args.url), args.folder)
    for path in fetched:
        print(f"torchrl-gpu fetch: {path} from {args.url}")
    if not any(path.name != "best.ckpt" for path in fetched):
        print(f"torchrl-gpu fetch: no whole checkpoint at {args.url}")
        return NONE_THERE
    return 0
