"""A policy drives the scene of any simulator while browsers watch its camera."""

from __future__ import annotations

import argparse
import time
from collections import deque
from collections.abc import Callable
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from torchrl_gpu.policies import InferencePolicy, load_policy
from torchrl_gpu.policies.registry import import_classes
from torchrl_gpu.serving.ending import Flag, until_told_to_end
from torchrl_gpu.streaming import GpuFramePipeline, PolicyView, StreamServer
from torchrl_gpu.streaming.codecs.images import Frame
from torchrl_gpu.system import arguments

STREAM = "camera"
# Decisions of whose times the median is taken.
_RECENT = 1000
_PORT_TRIES = 20


class Simulator(Protocol):
    """A scene with a camera, whatever simulates it."""

    def observe(self) -> Tensor:
        """Return the observation of a policy, (F,) float32, on any device."""

    def step(self, action: Tensor | None) -> None:
        """Go on by one period.

        Args:
            action: (D,) float32, or () int64 of a choice, on the device of the observation; None without a policy.
        """

    def render(self) -> Frame:
        """Return the camera's picture, uint8 (H, W, 3) RGB.

        A tensor on a GPU stays there until it is encoded.
        """


class Driven(NamedTuple):
    """What `drive` did.

    Attributes:
        steps: Periods.
        pictures: Rendered.
        inference_ms: Median time of a decision; None without a policy.
    """

    steps: int
    pictures: int
    inference_ms: float | None


def drive(
    simulator: Simulator,
    server: StreamServer,
    policy: InferencePolicy | None = None,
    *,
    steps: int | None = None,
    period_s: float = 1 / 30,
    stop: Flag | None = None,
) -> Driven:
    """Let a policy drive a scene in real time, and publish its camera.

    A picture is rendered whenever somebody wants one.

    Args:
        simulator: The scene.
        server: Shows the stream "camera", with the number of the step, the action and how long the policy took.
        policy: Decides in every period by one vector; None leaves the scene to itself.
        steps: After which it returns; None goes on.
        period_s: From one step to the next; a step that takes longer delays those behind it.
        stop: Once set, it returns after the step that runs.
    """
    steps = None if steps is None else arguments.whole("drive", "steps", steps, 0)
    period_s = arguments.number("drive", "period_s", period_s, 0)
    server.declare(STREAM)
    took_ms: deque[float] = deque(maxlen=_RECENT)
    step = 0
    pictures = 0
    due = time.perf_counter()
    while (steps is None or step < steps) and not (stop is not None and stop.is_set()):
        action = None
        if policy is not None:
            begin = time.perf_counter()
            action = policy(simulator.observe())
            assert isinstance(action, Tensor)
            took_ms.append(1e3 * (time.perf_counter() - begin))
        simulator.step(action)
        if server.wanted(STREAM):
            view = PolicyView(simulator.render())
            if policy is not None and action is not None:
                view = view._replace(action=action.cpu(), inference_ms=round(took_ms[-1], 3), policy=policy.name)
            server.show_policy(view, STREAM, {"step": step})
            pictures += 1
        step += 1
        # A late step is not made up for: the scene would run faster than real time.
        due = max(due + period_s, time.perf_counter())
        time.sleep(max(0.0, due - time.perf_counter()))
    return Driven(step, pictures, _median(took_ms))


def _median(values: deque[float]) -> float | None:
    """Return the lower median of some values, None if there are none."""
    if not values:
        return None
    return torch.tensor(list(values), dtype=torch.float32, device="cpu").median().item()


def main(make: Callable[[str], Simulator], description: str | None, fps: float = 30.0) -> None:
    """Run a command line around `drive`.

    An interrupt or SIGTERM ends it as `--steps` does.

    Args:
        make: Makes the scene for a device, before anything else looks at that: simulators want to be first.
        description: Of the program.
        fps: Periods in a second.
    """
    args = make_parser(description).parse_args()
    # Loading may take minutes, and is not asked whether to end. The loop below is.
    with until_told_to_end() as ending, ending.at_once():
        simulator = make(args.device)
        pipeline = GpuFramePipeline(args.device, fps=fps)
        classes = import_classes("--classes", args.classes)
        policy = None if args.policy is None else load_policy(args.policy, args.device, classes=classes)
    if ending.event.is_set():
        return
    print(f"Device: {pipeline.device}")
    with (
        until_told_to_end() as ending,
        pipeline,
        StreamServer(port=args.port, port_tries=_PORT_TRIES, fps=fps, pipeline=pipeline) as server,
    ):
        # Whoever reads the address may ask for the stream at once.
        server.declare(STREAM)
        print(f"Watch at {server.url}", flush=True)
        driven = drive(simulator, server, policy, steps=args.steps, period_s=1 / fps, stop=ending.event)
    decided = "nobody decided" if driven.inference_ms is None else f"a decision took {driven.inference_ms:.2f} ms"
    print(f"{driven.steps} steps, {driven.pictures} pictures; {decided}")


def make_parser(description: str | None) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--policy", help="a file that load_policy reads; without one nobody decides")
    parser.add_argument("--classes", help="agents and networks of your own: module.Class,module.Class")
    parser.add_argument("--device", default="auto", help="auto, cpu, cuda or cuda:N (default: %(default)s)")
    parser.add_argument("--port", type=int, default=8080, help="or the next that is free (default: %(default)s)")
    parser.add_argument("--steps", type=int, help="after which it ends; runs on without")
    return parser
