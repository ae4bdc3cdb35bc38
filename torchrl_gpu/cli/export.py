"""`torchrl-gpu export`: a trained policy as ONNX or as a program of torch.export.

A JSON beside it tells of its inputs.

A policy that packs takes maps of legal placements beside the heightmap and the item. The program that runs the file
computes them, by the rules in the JSON beside it or with `PackingEnv.restore` of this package.
"""

from __future__ import annotations

from pathlib import Path

from torchrl_gpu.cli.parser import OneLineParser, check_checkpoint_path

WHERE = "torchrl-gpu export"


def main(argv: list[str]) -> None:
    parser = OneLineParser(prog=WHERE, description=__doc__)
    parser.add_argument("checkpoint", help="of a run, or a file of model_state_dict, obs_dim and action_dim")
    parser.add_argument("--format", choices=("onnx", "pt2"), default="onnx", help="onnx needs the extra `export`")
    parser.add_argument("--output", type=Path, help="the checkpoint's name with another suffix by default")
    parser.add_classes()
    args = parser.parse_args(argv)
    check_checkpoint_path(args.checkpoint)
    from torchrl_gpu.policies import export_policy, load_policy
    from torchrl_gpu.policies.export.exporter import milliseconds_a_row
    from torchrl_gpu.policies.export.manifest import computed_inputs
    from torchrl_gpu.policies.registry import import_classes

    out = args.output or Path(args.checkpoint).with_suffix(f".{args.format}")
    policy = load_policy(args.checkpoint, "cpu", classes=import_classes(WHERE, args.classes))
    written = export_policy(policy, out, args.format)
    print(f"Written: {written}, and what it means in {written.with_suffix('.json')}")
    of_file, of_policy = milliseconds_a_row(policy, written)
    print(f"It takes {of_file:.3g} ms a row here in batches of 64; load_policy takes {of_policy:.3g}")
    if computed := computed_inputs(policy):
        print(f"It takes {', '.join(computed)}, too: compute them by the rules there, or with PackingEnv.restore")
