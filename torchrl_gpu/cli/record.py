"""`torchrl-gpu record`: what a policy sees and does, written as demonstrations.

Formats: rows in a TensorDict memmap, thousands of episodes side by side; a LeRobotDataset v3 with video, of an
environment that can be drawn; or an MCAP file for each of all episodes, the worst, the best, or those that failed, for
Foxglove or Rerun. Other options go to the config, as in `lightning test`.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from torchrl_gpu.cli.parser import OneLineParser, whole
from torchrl_gpu.demonstrations import CHOICES

if TYPE_CHECKING:
    from tensordict import NestedKey
    from torchrl.data import TensorSpec

    from torchrl_gpu.cli.loading import LoadedPolicy
    from torchrl_gpu.envs.base import BatchedEnv
    from torchrl_gpu.policies.policy import Policy

WHERE = "torchrl-gpu record"
# Rows are of other episodes than `lightning test` has.
ROWS_SEED = 0
_PICTURES = ("lerobot", "mcap")
_FILES = ("mcap",)
# The formats in which an option has an effect, and the defaults.
_FORMATS = {"size": _PICTURES, "fps": _PICTURES, "choose": _FILES, "most": _FILES, "by": _FILES, "below": _FILES}
_DEFAULTS = {"size": (240, 320), "fps": 10.0, "choose": "all", "most": 10, "by": None, "below": None}


def main(argv: list[str]) -> None:
    args, words = make_parser().parse_run(argv)
    _check_options(args)
    if args.output.exists():
        raise FileExistsError(f"{WHERE}: --output must be a folder that is not there yet; got {args.output}")
    from torchrl_gpu.cli.loading import load_policy
    from torchrl_gpu.system.console import progress_bar

    # Rows are learned from, so that they must not be the episodes of `lightning test`, which measure what was learned.
    takes_given = args.seed is not None or args.format != "memmap"
    seed = args.seed if takes_given else ROWS_SEED
    if seed is not None:
        words.append(f"--data.seed={seed}")
    wanted = args.policy or (None if args.ckpt_path else "random")
    played = load_policy(words, args.ckpt_path, wanted, 1, stage="record")
    name = f"{type(played.env).__name__}, {played.name}"
    args.task = args.task or name
    with progress_bar(WHERE, "episodes") as bar:

        def report(done: int) -> None:
            bar(done, args.episodes)

        if args.format == "lerobot":
            unit = "frames"
            number = record(
                played.env,
                played.policy,
                args.output,
                args.episodes,
                args.size,
                fps=args.fps,
                task=args.task,
                progress=report,
            )
        elif args.format == "mcap":
            unit = "files"
            number = record_mcap(played, args, report)
        else:
            unit = "rows"
            number = record_rows(played, args, report)
    print(f"Written: {args.output}, {number:,} {unit} of {args.episodes} episodes, {name}")


def make_parser() -> OneLineParser:
    parser = OneLineParser(prog=WHERE, description=__doc__)
    add = parser.add_argument
    parser.add_config()
    add("--ckpt_path", help="checkpoint of a run of the config; without it actions are drawn at random")
    add("--policy", help="who plays: a name from the table of `lightning test`, such as deepest-bottom-left")
    add("--episodes", type=whole(1), default=10, help="how many")
    add("--output", type=Path, required=True, help="folder of the dataset, not there yet")
    formats = "rows, a data set with video, or files to look at"
    add("--format", choices=("memmap", "lerobot", "mcap"), default="memmap", help=formats)
    add("--seed", type=int, help=f"decides the episodes; of rows {ROWS_SEED}, else that of `lightning test`")
    add("--size", nargs=2, type=int, metavar=("H", "W"), help="of video and MCAP: pixels, even; 240 320 by default")
    add("--fps", type=float, help="of video and MCAP: steps per second; 10 by default")
    add("--choose", choices=CHOICES, help="of MCAP: which of the episodes are written; all by default")
    add("--most", type=int, help="of MCAP: how many of the worst, the best or the failures; 10 by default")
    add("--by", help="of MCAP: what ranks episodes, an outcome or return; the first outcome by default")
    add("--below", type=float, help="of MCAP: less than this is a failure; needed where the outcome is no flag")
    add("--task", help="what is done, in words; environment and policy by default")
    return parser


def _check_options(args: argparse.Namespace) -> None:
    """Refuse an option that would have no effect, and set the defaults of the others."""
    choose = args.choose or "all"
    choices = {"most": CHOICES[1:], "by": CHOICES[1:], "below": ("failures",)}
    for name, formats in _FORMATS.items():
        if getattr(args, name) is None:
            continue
        if args.format not in formats:
            needed = " or ".join(formats)
            raise ValueError(f"{WHERE}: --{name} has no effect with --format {args.format}; it needs {needed}")
        if choose not in choices.get(name, (choose,)):
            needed = " or ".join(choices[name])
            raise ValueError(f"{WHERE}: --{name} has no effect with --choose {choose}; it needs {needed}")
    for name, default in _DEFAULTS.items():
        if getattr(args, name) is None:
            setattr(args, name, default)


def record(
    env: BatchedEnv,
    policy: Policy,
    folder: Path,
    episodes: int,
    size: Sequence[int],
    *,
    fps: float = 10.0,
    task: str = "",
    progress: Callable[[int], None] = lambda done: None,
) -> int:
    """Play episodes greedily, write them as a LeRobotDataset, and count the frames.

    Episodes come one after another. A row is the picture before an action, `observation.state` where the environment
    shows a vector, the action, and the reward (of several agents their mean) and end that follow it. `size` is height
    and width of the pictures, even.
    """
    from torchrl_gpu.demonstrations import LeRobotWriter
    from torchrl_gpu.envs.viewable import viewable
    from torchrl_gpu.evaluation.episodes import MOST_STEPS
    from torchrl_gpu.evaluation.results import evaluation

    if env.num_envs != 1 or len(env.action_keys) != 1:
        raise ValueError(
            f"{WHERE}: video is written of one environment with one action, not of {env.num_envs} of {env.action_keys}"
        )
    view = viewable(env)
    state = _state_key(env)
    frames = 0
    features = {"action": _form(env.full_action_spec[env.action_key])}
    if state:
        features["observation.state"] = _form(env.observation_spec[state])
    features |= {"next.reward": ("float32", (1,)), "next.done": ("bool", (1,))}
    height, width = size
    writer = LeRobotWriter(folder, fps, features, size, task=task, robot=type(env).__name__)
    with writer, evaluation(env, policy) as current:
        for number in range(episodes):
            done = False
            step = 0
            while not done:
                picture = _array(view.pictures([0], width, height))[0]
                step += 1
                stepped = env.step(policy(current))
                after = stepped["next"]
                after["done"] |= step == MOST_STEPS
                done = bool(after["done"].any())
                row = {"action": stepped[env.action_key], "next.done": done}
                if state:
                    row["observation.state"] = stepped[state]
                row["next.reward"] = _array(after[env.reward_keys[0]]).mean()
                writer.add(picture, {name: _array(row[name]).reshape(form[1]) for name, form in features.items()})
                current = env.maybe_reset(env.step_mdp(stepped))
            writer.end_episode()
            frames += step
            progress(number + 1)
    return frames


def _state_key(env: BatchedEnv) -> NestedKey | None:
    """Return the key of the vector that an environment shows, None for none."""
    for key, spec in env.observation_spec.items(True, True):
        if key in ("observation", "state") and spec.ndim == 2 and spec.dtype.is_floating_point:
            return key
    return None


def record_rows(played: LoadedPolicy, args: argparse.Namespace, progress: Callable[[int], None]) -> int:
    """Play episodes greedily, many side by side, write their rows, and count them.

    See `play_rows`.
    """
    from torchrl_gpu.checkpoints.record import run_record
    from torchrl_gpu.demonstrations import memmap
    from torchrl_gpu.evaluation.demonstrations import play_rows

    assert played.suite is not None
    demonstrations = play_rows(played.suite, played.policy, args.episodes, progress)
    demonstrations.about |= {"task": args.task, "policy": played.name, "ckpt_path": args.ckpt_path}
    # Who learns from them later can tell from what policy and environment they are.
    demonstrations.about |= run_record(played.config)
    memmap.save(demonstrations, args.output)
    return len(demonstrations)


def record_mcap(played: LoadedPolicy, args: argparse.Namespace, progress: Callable[[int], None]) -> int:
    """Play episodes greedily, write chosen ones as MCAP, and count the files.

    See `record_episodes`.
    """
    from torchrl_gpu.evaluation.recording import record_episodes

    assert played.suite is not None
    facts = {"task": args.task, "policy": played.name, "ckpt_path": args.ckpt_path or ""}
    options = {name: getattr(args, name) for name in ("choose", "most", "by", "below", "size", "fps")}
    files = record_episodes(
        played.suite, played.policy, args.output, args.episodes, **options, facts=facts, progress=progress
    )
    return len(files)


def _form(spec: TensorSpec) -> tuple[str, tuple[int, ...]]:
    return str(spec.dtype).removeprefix("torch."), tuple(spec.shape[1:]) or (1,)


def _array(value: object) -> np.ndarray:
    return np.asarray(value.cpu() if hasattr(value, "cpu") else value)
