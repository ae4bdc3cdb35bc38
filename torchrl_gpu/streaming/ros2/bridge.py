"""A policy between a robot's sensors and its actuators."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from typing import Any

from torch import Tensor

from torchrl_gpu.streaming.broadcast.policy_view import PolicyView
from torchrl_gpu.streaming.codecs.images import Frame, check_quality
from torchrl_gpu.streaming.codecs.pipeline import GpuFramePipeline
from torchrl_gpu.streaming.ros2.camera import SEEN, CameraOut
from torchrl_gpu.streaming.ros2.control import Action, Control, Read
from torchrl_gpu.streaming.ros2.decider import WHERE, Decider, ImageEntry, check_action
from torchrl_gpu.streaming.ros2.inputs import NewestMessages, State, Statistics
from torchrl_gpu.streaming.ros2.messages import COMPRESSED, IMAGES, JOINTS, TEXT, VECTORS, Messages
from torchrl_gpu.streaming.ros2.questions import Answering, Questions
from torchrl_gpu.streaming.ros2.transport import TRANSPORTS, Transport, open_transport
from torchrl_gpu.streaming.server import StreamServer
from torchrl_gpu.system import arguments
from torchrl_gpu.system.policy_messages import Policy

BESIDE = ("confidence", "safe", "age_s")
"""Names behind those of the action in its message."""

_COUNTED = (
    *("actions", "safe_actions", "stale", "late", "bad_messages", "policy_errors", "send_errors"),
    *("camera_frames", "camera_errors", "swaps", "answers", "refusals", "unanswered"),
)
_TIMED = ("inference", "latency", "overhead")
# Characters of a topic.
_LONGEST_TOPIC = 200


class RosBridge:
    """A policy on a robot's topics: images and vectors in, actions and pictures out.

    The policy decides on the newest message only, on a thread of its own. An action is sent as a `JointState` with the
    time of sending as its stamp; `name` and `position` hold first the action, then `confidence` (0 to 1; NaN if the
    policy does not say), `safe` (1 for the safe action) and `age_s` (of the oldest input). It is one message, so that
    nothing ever acts on an action with another one's confidence.

    The safe action is sent, at `rate`, while an input is missing or older than `max_age`, and whenever a message cannot
    be read or the policy raises, takes too long or gives what is not finite; the last action is never repeated. It is
    the first one and the last one that is sent, too.

    A policy of clips (T, 3, H, W) decides on the last T images, averaged over areas to H×W as its demonstrations were;
    `rate` must then be that of its frames in training. Depth comes in millimetres (16UC1, mono16) or metres (32FC1).

    Args:
        policy: An `InferencePolicy`, as `load_policy` gives it, or what has its `in_keys`, `space`, `device` and
            `policy`. None only shows the camera.
        safe_action: What to do when it cannot be known what to do: numbers within the policy's bounds, or an index.
        image_topic: Camera in.
        observation_topic: Vector in; of several vectors, a topic for each entry of the policy by its name.
        action_topic: Actions out.
        camera_topic: `CompressedImage` out, of the camera or of `publish_frame`.
        pallets: Packing sessions, `PackingSessions`: each `String` of JSON on `pallet_topic`/request is a message to
            them, and is answered on `pallet_topic`/answer.
        pallet_topic: Begins the two topics of packing sessions.
        max_age: Seconds, by the header's stamp and by arrival.
        rate: Actions a second, at most; inputs that come a tenth faster are decided on, too, since clocks differ.
        camera_rate: Pictures a second, at most, to the page and to `camera_topic`.
        image_type: "Image" or "CompressedImage".
        observation_type: "Float32MultiArray", "Float64MultiArray", or "JointState": positions, then velocities, then
            efforts.
        action_names: Of the numbers of an action, such as those of joints; `action_0`, … by default.
        same_clock: Whether stamps are of a clock in step with this machine's. If not, age counts from arrival alone.
        transport: "cyclonedds", "rclpy", or "auto" (rclpy if it can be imported, else cyclonedds); or a
            `Transport`, which the bridge closes.
        domain: Of ROS 2; None for ROS_DOMAIN_ID, or 0.
        server: Shows the camera as the stream "camera", what the policy saw and did (`PolicyView`), and the metrics.
        jpeg_quality: 1 to 100.

    Raises:
        ValueError: An argument is invalid, or the policy takes what no topic brings, or fails on zeros.
        ModuleNotFoundError: The extra `ros2` is not installed.
    """

    def __init__(
        self,
        policy: Policy | None = None,
        *,
        safe_action: int | Sequence[float] | None = None,
        image_topic: str | None = None,
        observation_topic: str | Mapping[str, str] | None = None,
        action_topic: str = "/policy/action",
        camera_topic: str | None = None,
        pallets: Answering | None = None,
        pallet_topic: str = "/pallet",
        max_age: float = 0.2,
        rate: float = 30.0,
        camera_rate: float = 10.0,
        image_type: str = "Image",
        observation_type: str = "Float32MultiArray",
        action_names: Sequence[str] | None = None,
        same_clock: bool = True,
        transport: str | Transport = "auto",
        domain: int | None = None,
        server: StreamServer | None = None,
        jpeg_quality: int = 80,
    ) -> None:
        max_age = arguments.number(WHERE, "max_age", max_age, above=0, high=3600)
        rate = arguments.number(WHERE, "rate", rate, above=0, high=10_000)
        self._camera_rate = arguments.number(WHERE, "camera_rate", camera_rate, above=0, high=1000)
        same_clock = arguments.flag(WHERE, "same_clock", same_clock)
        check_quality(jpeg_quality, WHERE)
        self._image_type = IMAGES[arguments.choice(WHERE, "image_type", image_type, IMAGES)]
        self._image_topic = None if image_topic is None else _topic("image_topic", image_topic)
        self._vector_type = VECTORS[arguments.choice(WHERE, "observation_type", observation_type, VECTORS)]
        self._action_topic = _topic("action_topic", action_topic)
        self._camera_topic = None if camera_topic is None else _topic("camera_topic", camera_topic)
        self._pallet_topic = _topic("pallet_topic", pallet_topic)
        self._given_topics = observation_topic
        self._given_transport = transport
        self._domain = domain
        self._server = server
        self._jpeg_quality = jpeg_quality
        self._pipeline: GpuFramePipeline | None = None
        self._statistics = Statistics()
        self._messages = Messages()
        self._read_image = partial(self._messages.image, type_name=self._image_type)
        self.inputs = NewestMessages([])
        # Topics of vectors, by name.
        self._vectors: dict[str, str] = {}
        self._names: list[str] = []
        self._control: Control | None = None
        self._camera: CameraOut | None = None
        if policy is not None:
            decider = Decider(policy)
            self._vectors = self._topics(decider)
            safe = check_action(policy.space, "safe_action", safe_action)
            self._names = _action_names(action_names, decider.width)
            readers = self._readers(decider)
            self.inputs = NewestMessages(list(readers))
            decider.warm_up()
            self._control = Control(
                decider,
                self.inputs,
                readers=readers,
                send=self._send_action,
                safe_action=safe,
                max_age=max_age,
                rate=rate,
                same_clock=same_clock,
                statistics=self._statistics,
            )
        elif self._image_topic is None and self._camera_topic is None and pallets is None:
            raise ValueError(f"{WHERE}: policy, image_topic, camera_topic and pallets are None: there is nothing to do")
        self._questions: Questions | None = None
        if pallets is not None:
            self._questions = Questions(pallets, self._send_answer, self._statistics)
        self._state = "made"
        self._resources = ExitStack()
        if isinstance(transport, str):
            arguments.choice(WHERE, "transport", transport, TRANSPORTS)
        else:
            self._resources.callback(transport.close)

    # -- begin and end -------------------------------------------------------------------------------------------------

    def start(self) -> RosBridge:
        """Open the transport, subscribe and decide.

        A bridge that was started goes on.

        A start that fails closes the bridge, which then cannot be started again.

        Raises:
            RuntimeError: The bridge is closed.
        """
        if self._state == "closed":
            raise RuntimeError("RosBridge is closed")
        if self._state == "made":
            self._state = "started"
            try:
                self._open()
            except BaseException:
                self.close()
                raise
        return self

    def _open(self) -> None:
        """Open and start everything, each after what it needs.

        `close` goes back through it.
        """
        transport = self._open_transport()
        decider = None if self._control is None else self._control.decider
        if self._camera_topic is not None:
            device = "auto" if decider is None else decider.device
            self._pipeline = self._resources.enter_context(GpuFramePipeline(device))
        if self._camera_topic is not None or self._server is not None:
            self._camera = CameraOut(
                read=self._read_image,
                send=None if self._camera_topic is None else self._send_picture,
                server=self._server,
                facts=self._facts,
                rate=self._camera_rate,
                statistics=self._statistics,
            )
            self._resources.callback(self._camera.close)
        if self._control is not None:
            # It sends the safe action when it is closed, while there still is a transport.
            self._resources.callback(self._control.close)
        if self._questions is not None:
            self._resources.callback(self._questions.close)
            transport.subscribe(f"{self._pallet_topic}/request", TEXT, self._questions.put)
            self._questions.start()
        for name, topic in self._vectors.items():
            transport.subscribe(topic, self._vector_type, partial(self.inputs.put, name))
        if self._image_topic is not None:
            transport.subscribe(self._image_topic, self._image_type, self._put_image)
        if self._camera is not None:
            self._camera.start()
            if self._server is not None and decider is not None and decider.image is not None:
                self._server.declare(SEEN)
        if self._control is not None:
            self._control.start()

    def _open_transport(self) -> Transport:
        given = self._given_transport
        if isinstance(given, str):
            self._transport = open_transport(given, self._domain)
            self._resources.callback(self._transport.close)
        else:
            self._transport = given
        return self._transport

    def close(self) -> None:
        """Send the safe action, and end every thread and subscription.

        Raises:
            RuntimeError: The policy does not come to an end.
        """
        if self._state != "closed":
            self._state = "closed"
            self._resources.close()

    def __enter__(self) -> RosBridge:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.close()

    # -- while it runs -------------------------------------------------------------------------------------------------

    def swap(self, policy: Policy) -> None:
        """Let another policy decide from the next input on.

        Until it has decided on zeros, the one before does.

        Raises:
            ValueError: The policy takes other inputs, gives other actions or fails on zeros. The one before goes on.
        """
        if self._control is None:
            raise ValueError(f"{WHERE}: this bridge has no policy to swap")
        before = self._control.decider
        decider = Decider(policy)
        self._topics(decider)
        has_same_image = _name_of(decider.image) == _name_of(before.image)
        if not has_same_image or decider.vectors != before.vectors:
            raise ValueError(
                f"{WHERE}: policy must take {', '.join(self.inputs.received)} as before,"
                f" not {', '.join(policy.in_keys)}"
            )
        num_actions = decider.space.num_actions
        if decider.width != before.width or num_actions != before.space.num_actions:
            raise ValueError(f"{WHERE}: policy must give {before.width} numbers as before, not {decider.width}")
        safe = self._control.safe_action
        # The bounds may be narrower now, and the safe action must be one of the new policy too.
        values = int(safe[0]) if num_actions else safe.tolist()
        check_action(policy.space, "safe_action", values)
        decider.warm_up()
        self._control.decider = decider
        self._statistics.count("swaps")

    def publish_frame(self, frame: Frame, stamp_ns: int | None = None, *, bgr: bool = False) -> bool:
        """Send a rendered frame as the camera's picture.

        Args:
            frame: One of `StreamServer.publish`. One on the GPU is encoded there.
            stamp_ns: When it was rendered; None for now.
            bgr: Whether blue comes first.

        Returns:
            False for a frame that is left out, as one was sent within `camera_rate`.
        """
        if self._camera is None:
            raise ValueError(f"{WHERE}: publish_frame needs a started bridge with a camera_topic or a server")
        rendered_ns = time.time_ns() if stamp_ns is None else stamp_ns
        return self._camera.show_rendered(frame, rendered_ns, bgr=bgr)

    def metrics(self) -> dict[str, Any]:
        """Return what has happened up to now.

        That is counts of messages, actions and errors; medians and 95th percentiles of the last 256 times in
        milliseconds, `inference` of the policy alone, `latency` from the arrival of an input to its action and
        `overhead`, their difference; the age of each input; the last action with its confidence.
        """
        counts = self._statistics.snapshot(_COUNTED, _TIMED)
        found: dict[str, Any] = {**counts}
        for name, number in self.inputs.received.items():
            found[f"{name}_received"] = number
            found[f"{name}_dropped"] = self.inputs.dropped[name]
        if self._control is None:
            return found
        for name, age in self._control.ages().items():
            found[f"{name}_age_ms"] = 1000 * age
        # Read once: the policy's thread may send another one meanwhile.
        last = self._control.last
        if last is not None:
            found["confidence"] = None if math.isnan(last.confidence) else last.confidence
            found["safe"] = last.is_safe
            found["action"] = last.values.tolist()
        return found

    # -- what the threads call -----------------------------------------------------------------------------------------

    def _put_image(self, data: bytes) -> None:
        if self._control is not None and self._control.decider.image is not None:
            self.inputs.put(self._control.decider.image.name, data)
        if self._camera is not None:
            self._camera.put(data)

    def _send_action(self, action: Action) -> None:
        beside = [action.confidence, float(action.is_safe), action.age]
        values = [*action.values, *beside]
        data = self._messages.joints(self._names, values, time.time_ns())
        self._transport.publish(self._action_topic, JOINTS, data)

    def _send_answer(self, data: bytes) -> None:
        self._transport.publish(f"{self._pallet_topic}/answer", TEXT, data)

    def _send_picture(self, frame: Frame, stamp_ns: int, frame_id: str, bgr: bool) -> None:
        assert self._camera_topic is not None
        assert self._pipeline is not None
        jpeg = self._pipeline.encode_jpeg(frame, self._jpeg_quality, bgr=bgr)
        message = self._messages.jpeg(jpeg, stamp_ns, frame_id)
        self._transport.publish(self._camera_topic, COMPRESSED, message)
        self._statistics.count("camera_frames")

    def _facts(self) -> tuple[PolicyView, State]:
        """Return what the page shows.

        That is the view of the policy, without the camera's frame, and the metrics.
        """
        found = self.metrics()
        action = found.pop("action", None)
        if self._control is None:
            return PolicyView(), found
        decider = self._control.decider
        ages = self._control.ages()
        oldest = max(ages.values()) if ages else None
        named = None if action is None else dict(zip(self._names, action, strict=False))
        view = PolicyView(
            seen=_as_frame(decider.seen),
            action=named,
            inference_ms=found.get("inference_ms"),
            message_age_s=oldest,
            stale=found.get("safe"),
            confidence=found.get("confidence"),
            policy=getattr(decider.policy, "name", "policy"),
        )
        return view, found

    # -- inputs --------------------------------------------------------------------------------------------------------

    def _topics(self, decider: Decider) -> dict[str, str]:
        """Return the topic of each vector by its name.

        Raises:
            ValueError: An input has none.
        """
        if decider.image is not None and self._image_topic is None:
            raise ValueError(f"{WHERE}: image_topic is None, and the policy needs it for {decider.image.name}")
        given = self._given_topics or {}
        names = list(decider.vectors)
        if isinstance(given, str) and len(names) == 1:
            given = {names[0]: given}
        if isinstance(given, str) or set(given) != set(names):
            wanted = f"a topic for each of {', '.join(names)}" if names else "none, since the policy takes no vector"
            arguments.refuse(WHERE, "observation_topic", wanted, self._given_topics)
        return {name: _topic("observation_topic", given[name]) for name in names}

    def _readers(self, decider: Decider) -> dict[str, Read]:
        """Return what reads the messages of each input, the image first."""
        readers: dict[str, Read] = {}
        if decider.image is not None:
            readers[decider.image.name] = self._read_image
        for name, width in decider.vectors.items():
            readers[name] = partial(self._messages.vector, type_name=self._vector_type, width=width)
        return readers


def _name_of(entry: ImageEntry | None) -> str | None:
    return None if entry is None else entry.name


def _as_frame(seen: Tensor | None) -> Tensor | None:
    """Return a picture (C, H, W) as `StreamServer.publish` takes it."""
    if seen is None:
        return None
    picture = seen.permute(1, 2, 0)
    return picture if picture.shape[2] == 3 else picture[..., 0]


def _topic(name: str, value: object) -> str:
    """Return a topic.

    Raises:
        ValueError: It is no absolute one.
    """
    text = value if isinstance(value, str) else ""
    before, *words = text.split("/")
    are_names = all(word.isascii() and word.isidentifier() for word in words)
    is_absolute = before == "" and len(words) > 0
    if not is_absolute or not are_names or len(text) > _LONGEST_TOPIC:
        arguments.refuse(WHERE, name, "an absolute topic, such as /camera/image_raw", value)
    return text


def _action_names(given: Sequence[str] | None, width: int) -> list[str]:
    """Return the names of an action's numbers, and those behind them.

    Raises:
        ValueError: There are not as many, or one stands twice.
    """
    if given is None:
        return [*(f"action_{i}" for i in range(width)), *BESIDE]
    own_names = arguments.listed(WHERE, "action_names", f"{width} names", given)
    names = [*own_names, *BESIDE]
    if len(set(names)) != width + len(BESIDE) or not all(isinstance(name, str) and name for name in names):
        arguments.refuse(WHERE, "action_names", f"{width} names, none twice nor one of {', '.join(BESIDE)}", given)
    return names
