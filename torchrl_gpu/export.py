"""`torchrl-gpu export`: a trained policy as ONNX or as a program of torch.export, and what its inputs mean."""

from __future__ import annotations

from pathlib import Path

from torchrl_gpu.cli.options import check_checkpoint_path
from torchrl_gpu.cli.subcommands import OneLineParser

WHERE = "torchrl-gpu export"


def main(argv: list[str]) -> None:
    """Writes the file and its sidecars, once they decide as the checkpoint does."""
    parser = OneLineParser(prog=WHERE, description=__doc__, allow_abbrev=False)
    parser.add_argument("checkpoint", help="of a run, or a file of model_state_dict, obs_dim and action_dim")
    parser.add_argument("--format", choices=("onnx", "pt2"), default="onnx", help="onnx needs the extra `export`")
    parser.add_argument("--output", type=Path, help="the checkpoint's name with another suffix by default")
    args = parser.parse_args(argv)
    check_checkpoint_path(args.checkpoint)
    from torchrl_gpu.policies import export_policy

    out = args.output or Path(args.checkpoint).with_suffix(f".{args.format}")
    written = export_policy(args.checkpoint, out, args.format)
    print(f"Written: {written}, and what it means in {written.with_suffix('.json')}")
