from __future__ import annotations

import itertools
import math
import threading
import time
from typing import Any

import cv2
import numpy as np
import pytest
import torch

from tests.streaming.pictures import decode_jpeg
from tests.streaming.ros2.robots import (
    ACTION,
    CAMERA,
    CLIPS,
    IMAGES,
    MESSAGES,
    SAFE,
    SOON,
    VECTOR,
    VECTORS,
    InProcess,
    Robot,
    Told,
    decided,
    is_safe,
    until,
)
from tests.streaming.viewers import hub_of, server
from torchrl_gpu.policies import AgentSpace, InferencePolicy
from torchrl_gpu.policies.networks.vectors import perceptron
from torchrl_gpu.policies.policy import Entry
from torchrl_gpu.streaming import RosBridge
from torchrl_gpu.streaming.ros2.messages import COMPRESSED, FLOATS, IMAGE, JOINTS, TEXT

# An age in seconds that no test reaches.
LONG = 60.0


def bridge(policy: Any, robot: Robot, **options: Any) -> RosBridge:
    """Build a bridge for a robot.

    Its topics are those of what the policy takes.
    """
    keys = [] if policy is None else policy.in_keys
    topics: dict[str, Any] = {"image_topic": CAMERA} if {"frame", "clip", "depth"} & set(keys) else {}
    topics |= {"observation_topic": VECTOR} if "observation" in keys else {}
    given = {"safe_action": SAFE, "max_age": LONG, "rate": 1000.0, "transport": robot.transport}
    return RosBridge(policy, **given | topics | options)


def with_pictures() -> tuple[Robot, list[bytes]]:
    robot, pictures = Robot(), list[bytes]()
    robot.transport.subscribe("/view/compressed", COMPRESSED, pictures.append)
    return robot, pictures


def threads() -> set[str]:
    return {thread.name for thread in threading.enumerate() if " ros" in thread.name}


def test_from_a_vector_to_an_action() -> None:
    robot = Robot()
    policy = Told(lambda seen: seen["observation"][:2] * 2, confidence=0.5)
    stamps = []
    robot.transport.subscribe(
        ACTION, JOINTS, lambda data: stamps.append(MESSAGES.store.deserialize_cdr(data, JOINTS).header.stamp)
    )
    with bridge(policy, robot, action_names=("left", "right")):
        begun = time.time_ns()
        robot.feel(0.25, -0.125, 9.0)
        action = robot.wait(decided)
    assert list(action) == ["left", "right", "confidence", "safe", "age_s"]
    assert (action["left"], action["right"], action["confidence"]) == (0.5, -0.25, 0.5)
    assert 0 <= action["age_s"] < (time.time_ns() - begun) / 1e9
    assert begun <= stamps[-1].sec * 10**9 + stamps[-1].nanosec <= time.time_ns(), "the moment of sending"
    assert not threads()


@pytest.mark.parametrize("image_type", ["Image", "CompressedImage"])
def test_from_an_image_to_an_action(image_type: str) -> None:
    robot, policy = Robot(), Told(observations=IMAGES)
    jpeg = cv2.imencode(".jpg", np.full((8, 12, 3), 50, np.uint8))[1].tobytes()
    with bridge(policy, robot, image_type=image_type):
        if image_type == "Image":
            robot.see(50, encoding="bgr8")
        else:
            robot.transport.publish(CAMERA, COMPRESSED, MESSAGES.jpeg(jpeg, time.time_ns()))
        robot.wait(decided)
    assert policy.seen[0]["frame"].shape == (3, 4, 6)
    assert (policy.seen[0]["frame"] == 50).all()


def test_a_clip_is_of_the_last_frames_repeats_the_first_and_begins_anew_after_a_gap() -> None:
    robot, policy = Robot(), Told(observations=CLIPS)
    with bridge(policy, robot, max_age=5.0) as made:
        for value in (10, 20, 30, 40, 50):
            robot.see(value)
            until(lambda value=value: len(policy.seen) == value // 10)
        robot.see(60, stamp_ns=time.time_ns() - 10**11)
        until(lambda: made.metrics()["stale"] == 1)
        robot.see(70)
        until(lambda: len(policy.seen) == 6)
    clips = [seen["clip"][:, 0, 0, 0].tolist() for seen in policy.seen]
    assert clips[:2] == [[10, 10, 10, 10], [10, 10, 10, 20]]
    assert clips[4:] == [[20, 30, 40, 50], [70] * 4]


def test_image_and_vector_together() -> None:
    robot, policy = Robot(), Told(observations=IMAGES | VECTORS)
    with bridge(policy, robot) as made:
        robot.see(1)
        until(lambda: made.metrics()["frame_received"] == 1)
        # The vector has not come.
        assert not policy.seen
        robot.feel(1, 2, 3)
        robot.see(2)
        robot.wait(decided)
    assert policy.seen[0]["observation"].tolist() == [1, 2, 3]
    assert (policy.seen[0]["frame"] == 2).all()


def test_depth_and_several_vectors_and_masks() -> None:
    observations = {"depth": ((1, 4, 6), "float32"), "goal": ((2,), "float32"), "action_mask": ((5,), "bool")}
    robot, policy = Robot(), Told(lambda _: 4, observations, num_actions=5)
    topics = {"goal": "/goal", "action_mask": "/mask"}
    with bridge(policy, robot, observation_topic=topics, safe_action=1):
        robot.transport.publish("/goal", FLOATS, MESSAGES.floats([1, 2]))
        robot.transport.publish("/mask", FLOATS, MESSAGES.floats([1, 0, 0, 0, 1]))
        robot.see(1500, encoding="16UC1")
        action = robot.wait(decided)
    assert action["action_0"] == 4
    assert robot.actions[0]["action_0"] == 1
    assert policy.seen[0]["depth"].allclose(torch.tensor(1.5))
    assert policy.seen[0]["action_mask"].tolist() == [True, False, False, False, True]


def test_confidence_of_a_discrete_policy_is_its_probability() -> None:
    robot = Robot()
    with bridge(Told(lambda _: 2, num_actions=3, action_log_prob=math.log(0.7)), robot, safe_action=0):
        robot.feel(0, 0, 0)
        assert robot.wait(decided)["confidence"] == pytest.approx(0.7)


def test_a_loaded_policy_decides_as_it_does_alone() -> None:
    torch.manual_seed(0)
    space = AgentSpace("a file", (), VECTORS, low=(-math.inf,) * 2, high=(math.inf,) * 2)
    policy = InferencePolicy(Entry("action", perceptron((3, 8, 2), "relu")), space, "Perceptron")
    robot = Robot()
    with bridge(policy, robot):
        robot.feel(0.1, 0.2, 0.3)
        action = robot.wait(decided)
    wanted = policy(torch.tensor([[0.1, 0.2, 0.3]]))
    assert isinstance(wanted, torch.Tensor)
    assert [action["action_0"], action["action_1"]] == pytest.approx(wanted[0].tolist())


def test_before_the_first_input_and_after_the_last_the_action_is_safe() -> None:
    robot = Robot()
    with bridge(Told(), robot):
        assert is_safe(robot.wait(lambda _: True))
        robot.feel(0, 0, 0)
        robot.wait(decided)
    assert is_safe(robot.actions[-1])


def test_the_safe_action_follows_when_inputs_stop() -> None:
    robot = Robot()
    with bridge(Told(), robot, max_age=0.1, rate=50.0):
        until(lambda: robot.feel(0, 0, 0) or any(map(decided, robot.actions)))
        robot.wait(is_safe, len(robot.actions) + 3)
    at = max(i for i, action in enumerate(robot.actions) if decided(action))
    after = robot.actions[at + 1 :]
    assert len(after) > 2
    # The last action is never sent again.
    assert all(map(is_safe, after))
    assert robot.times[at + 1] - robot.times[at] + robot.actions[at]["age_s"] > 0.099


@pytest.mark.parametrize("late_s", [0.5, 1e6])
def test_an_image_with_an_old_stamp_is_stale_however_new_it_is_here(late_s: float) -> None:
    robot, policy = Robot(), Told(observations=IMAGES)
    with bridge(policy, robot, max_age=0.2) as made:
        robot.see(1, stamp_ns=time.time_ns() - int(late_s * 1e9))
        until(lambda: made.metrics()["stale"] == 1)
    assert not policy.seen
    assert all(map(is_safe, robot.actions))


def test_a_stamp_of_another_clock_is_refused_unless_it_is_said() -> None:
    robot, policy = Robot(), Told(observations=IMAGES)
    ahead = time.time_ns() + 10**12
    with bridge(policy, robot, max_age=0.2) as made:
        robot.see(1, stamp_ns=ahead)
        until(lambda: made.metrics()["bad_messages"] == 1)
        assert "same_clock=False" in made.metrics()["last_error"]
    assert not policy.seen
    robot = Robot()
    with bridge(Told(observations=IMAGES), robot, same_clock=False):
        robot.see(1, stamp_ns=ahead)
        robot.wait(decided)


def test_a_stale_vector_stops_a_policy_whose_images_are_fresh() -> None:
    robot, policy = Robot(), Told(observations=IMAGES | VECTORS)
    with bridge(policy, robot, max_age=0.15) as made:
        robot.feel(1, 2, 3)
        ends = time.monotonic() + 20
        while made.metrics()["stale"] == 0 and time.monotonic() < ends:
            robot.see(1)
            time.sleep(0.01)
        assert made.metrics()["stale"] > 0
        assert made.metrics()["observation_age_ms"] > 150
        assert is_safe(robot.next())


@pytest.mark.parametrize(
    ("bad", "said"),
    [
        *(((math.nan, 0.0), "finite"), ((math.inf, 0.0), "finite")),
        *(((0.0,), "finite"), ((0.0, 0.0, 0.0), "finite")),
        (RuntimeError("out of order"), "policy_errors: out of order"),
    ],
)
def test_wrong_action_becomes_the_safe_one(bad: Any, said: str, caplog: pytest.LogCaptureFixture) -> None:
    def decide(seen: dict[str, torch.Tensor]) -> Any:
        if seen["observation"].any() and isinstance(bad, Exception):
            raise bad
        return bad if seen["observation"].any() else (0.0, 0.0)

    robot = Robot()
    with bridge(Told(decide), robot) as made:
        for number in (1, 2):
            robot.feel(1, 1, 1)
            until(lambda number=number: made.metrics()["policy_errors"] == number)
            assert said in made.metrics()["last_error"]
        robot.feel(0, 0, 0)
        # It continues.
        robot.wait(decided)
    assert all(is_safe(action) or decided(action) for action in robot.actions)
    assert sum(map(decided, robot.actions)) == 1
    assert len(caplog.records) == 1


def test_a_policy_that_hangs_does_not_hold_the_robot_up() -> None:
    free, stuck = threading.Event(), threading.Event()

    def decide(seen: dict[str, torch.Tensor]) -> tuple[float, float]:
        if seen["observation"].any():
            stuck.set()
            free.wait(20)
        return 0.5, 0.5

    robot = Robot()
    with bridge(Told(decide), robot, max_age=0.1, rate=100.0) as made:
        until(lambda: robot.feel(0, 0, 0) or any(map(decided, robot.actions)))
        until(lambda: robot.feel(1, 0, 0) or stuck.is_set())
        at, stale_at = len(robot.actions), time.monotonic() + 0.1
        robot.wait(is_safe, at + 2)
        until(lambda: time.monotonic() > stale_at)
        free.set()
        until(lambda: made.metrics()["late"] > 0)
    # What came too late is never sent.
    assert not any(map(decided, robot.actions[at:]))


def test_only_the_newest_image_is_decided_on() -> None:
    free, busy = threading.Event(), threading.Event()

    def decide(seen: dict[str, torch.Tensor]) -> tuple[float, float]:
        if seen["frame"].any():
            busy.set()
            free.wait(20)
        return 0.0, 0.0

    robot, policy = Robot(), Told(decide, IMAGES)
    with bridge(policy, robot) as made:
        robot.see(1)
        assert busy.wait(20)
        for value in range(2, 50):
            robot.see(value)
        free.set()
        until(lambda: len(policy.seen) == 2)
        assert made.metrics()["frame_received"] == 49
        assert made.metrics()["frame_dropped"] == 47
    assert [int(seen["frame"][0, 0, 0]) for seen in policy.seen] == [1, 49]


def test_a_rate_is_kept() -> None:
    robot, policy = Robot(), Told()
    with bridge(policy, robot, rate=40.0):
        begun = time.monotonic()
        while time.monotonic() - begun < 0.25:
            robot.feel(0, 0, 0)
            time.sleep(0.002)
    assert 4 <= len(policy.seen) <= 14


@pytest.mark.parametrize(
    ("topic", "type_name", "data"),
    [
        (CAMERA, IMAGE, b"no message"),
        (CAMERA, IMAGE, MESSAGES.pixels(np.zeros((8, 12, 3), np.uint8), "yuv422", 1)),
        (CAMERA, IMAGE, MESSAGES.pixels(np.zeros((8, 12), np.uint16), "16UC1", 0)),
        (VECTOR, FLOATS, MESSAGES.floats([1.0, math.nan, 0.0])),
        (VECTOR, FLOATS, MESSAGES.floats([1.0])),
    ],
)
def test_a_bad_message_is_answered_by_the_safe_action(topic: str, type_name: str, data: bytes) -> None:
    robot, policy = Robot(), Told(observations=IMAGES | VECTORS)
    with bridge(policy, robot) as made:
        robot.feel(0, 0, 0)
        robot.see(1)
        robot.wait(decided)
        robot.transport.publish(topic, type_name, data)
        if topic == VECTOR:
            robot.see(1)
        until(lambda: made.metrics()["bad_messages"] == 1)
        at = len(robot.actions)
        robot.feel(0, 0, 0)
        robot.see(1)
        robot.wait(decided, at)
    assert is_safe(robot.actions[-1])


def test_policies_are_swapped_without_a_gap() -> None:
    robot = Robot()
    first = Told(lambda _: (0.1, 0.1))
    second = Told(lambda _: (0.9, 0.9))
    with bridge(first, robot) as made:
        robot.feel(0, 0, 0)
        assert robot.wait(decided)["action_0"] == pytest.approx(0.1)
        made.swap(second)
        # It is warm before it takes over.
        assert second.calls == 2
        robot.feel(0, 0, 0)
        robot.wait(lambda action: action["action_0"] == pytest.approx(0.9))
        assert made.metrics()["swaps"] == 1
    # The last action is that of closing.
    safe = [action["safe"] for action in robot.actions[:-1]]
    # Nothing had been felt before.
    assert set(safe[safe.index(0.0) :]) == {0.0}


@pytest.mark.parametrize(
    ("other", "said"),
    [
        (Told(lambda _: (math.nan, 0.0)), "finite"),
        (Told(observations={"observation": ((4,), "float32")}), "as before"),
        (Told(observations=IMAGES), "image_topic"),
        (Told(lambda _: 1, num_actions=3), "policy must give 2 numbers"),
    ],
)
def test_policy_that_cannot_take_over_leaves_the_one_before(other: Told, said: str) -> None:
    robot = Robot()
    with bridge(Told(), robot) as made:
        with pytest.raises(ValueError, match=said):
            made.swap(other)
        robot.feel(0, 0, 0)
        assert robot.wait(decided)["action_0"] == 0.5
        assert made.metrics()["swaps"] == 0


def test_a_network_that_fails_is_counted_and_survived() -> None:
    class Failing(InProcess):
        failing = False

        def publish(self, topic: str, type_name: str, data: bytes) -> None:
            if self.failing:
                raise OSError("unplugged")
            super().publish(topic, type_name, data)

    transport = Failing()
    robot = Robot(transport)
    with bridge(Told(), robot) as made:
        Failing.failing = True
        made.inputs.put("observation", MESSAGES.floats([0, 0, 0]))
        until(lambda: made.metrics()["send_errors"] > 0)
        Failing.failing = False
        robot.feel(0, 0, 0)
        robot.wait(decided)


def test_the_camera_goes_out_as_jpegs_at_its_rate() -> None:
    robot, pictures = with_pictures()
    with bridge(None, robot, image_topic=CAMERA, camera_topic="/view/compressed", camera_rate=1.0) as made:
        for value in (100, 120, 140):
            robot.see(value)
            until(lambda: made.metrics()["camera_frames"] == 1)
    assert len(pictures) == 1
    message = MESSAGES.store.deserialize_cdr(pictures[0], COMPRESSED)
    assert (message.format, message.header.frame_id) == ("jpeg", "cam")
    assert abs(decode_jpeg(message.data.tobytes()).astype(int) - 100).max() < 5
    assert not threads()


def test_rendered_frames_go_out() -> None:
    robot, pictures = with_pictures()
    frame = torch.full((8, 12, 3), 90, dtype=torch.uint8)
    with bridge(None, robot, camera_topic="/view/compressed", camera_rate=0.1) as made:
        assert made.publish_frame(frame, 5 * 10**9)
        # This is within the same tenth of a second.
        assert not made.publish_frame(frame)
    stamp = MESSAGES.store.deserialize_cdr(pictures[0], COMPRESSED).header.stamp
    assert (len(pictures), stamp.sec) == (1, 5)
    assert MESSAGES.image(pictures[0], COMPRESSED).pixels.shape == (8, 12, 3)
    with pytest.raises(ValueError, match=r"camera_topic .*server"), bridge(Told(), Robot()) as without:
        without.publish_frame(frame)


def test_the_page_shows_the_camera_what_the_policy_saw_and_the_metrics() -> None:
    robot, policy = Robot(), Told(observations=CLIPS)
    with server() as page, bridge(policy, robot, server=page, camera_rate=1000.0) as made:
        for value in range(40, 60):
            robot.see(value)
            until(lambda value=value: len(policy.seen) == value - 39)
        hub = hub_of(page)
        until(lambda: isinstance(hub.state.get("inference_ms"), float))
        assert made.metrics()["camera_errors"] == 0
        streams = {stream["name"]: stream for stream in hub.describe_streams()}
        assert (streams["camera"]["width"], streams["camera"]["height"]) == (12, 8)
        assert (streams["camera:seen"]["width"], streams["camera:seen"]["height"]) == (6, 4)
        assert all(stream["published"] > 0 for stream in streams.values())


def test_metrics_are_plain() -> None:
    robot = Robot()
    with bridge(Told(), robot) as made:
        empty = made.metrics()
        assert (empty["inference_ms"], empty["last_error"]) == (None, None)
        robot.feel(0, 0, 0)
        robot.wait(decided)
        until(lambda: made.metrics()["latency_ms"] is not None)
        found = made.metrics()
    assert found["actions"] == 1
    assert found["confidence"] is None
    assert 0 < found["inference_ms"] <= found["latency_ms"]
    assert found["overhead_ms"] == pytest.approx(found["latency_ms"] - found["inference_ms"])
    assert found["action"] == [0.5, 0.75]
    assert all(isinstance(value, int | float | str | list | None) for value in found.values())


def test_a_flood_is_answered_at_the_rate_and_no_faster() -> None:
    """A flood of messages does not speed up the actions.

    Half a million bad ones in four seconds brought 38 actions a second where 30 are allowed.
    """
    good = MESSAGES.floats([0, 0, 0])
    bad = [b"", b"\0\1\0\0" + b"\xff" * 40, good[:-4], MESSAGES.floats([math.nan] * 3), MESSAGES.floats([0] * 4)]
    robot = Robot()
    with bridge(Told(), robot, rate=50.0) as made:
        for i in range(20_000):
            robot.transport.publish(VECTOR, FLOATS, bad[i % len(bad)])
        until(lambda: made.metrics()["bad_messages"] > 2)
        begin = len(robot.times)
        until(lambda: len(robot.times) > begin + 5)
        assert made.metrics()["actions"] == 0
        times = list(robot.times)
        assert min(after - before for before, after in itertools.pairwise(times)) > 0.019
        robot.feel(0, 0, 0)
        robot.wait(decided)


class Unplugged(InProcess):
    """Has no room for another subscription."""

    closed = False

    def subscribe(self, topic: str, type_name: str, callback: Any) -> None:
        if topic in (VECTOR, CAMERA):
            raise RuntimeError("no more readers")
        super().subscribe(topic, type_name, callback)

    def close(self) -> None:
        self.closed = True


@pytest.mark.parametrize("observations", [VECTORS, CLIPS])
def test_a_start_that_fails_leaves_nothing_running(observations: Any) -> None:
    """The actions went on being published after the `with` had failed."""
    transport = Unplugged()
    robot = Robot(transport)
    with server() as page:
        made = bridge(Told(observations=observations), robot, server=page, camera_topic="/view")
        with pytest.raises(RuntimeError, match=r"more readers"):
            made.start()
        assert transport.closed
        assert not threads()
        assert [is_safe(action) for action in robot.actions] == [True], "the safe action, once"
        with pytest.raises(RuntimeError, match="closed"):
            made.start()


def test_the_camera_of_a_policy_with_many_inputs_is_shown() -> None:
    """A page takes the facts of many inputs.

    Three of each of 20 were more than its state took at once, and no picture came.
    """
    names = [f"vector_{i}" for i in range(20)]
    robot, policy = Robot(), Told(observations={name: ((1,), "float32") for name in names})
    topics = {name: f"/{name}" for name in names}
    with (
        server() as page,
        bridge(policy, robot, server=page, observation_topic=topics, image_topic=CAMERA, camera_rate=1000.0) as made,
    ):
        hub = hub_of(page)
        robot.see(40)
        until(lambda: hub.streams["camera"].published > 0)
        assert made.metrics()["camera_errors"] == 0
        assert {f"{name}_received" for name in names} <= set(hub.state)


def test_closing_is_clean_and_final() -> None:
    transport = Unplugged()
    # It never started.
    bridge(Told(), Robot(transport)).close()
    assert transport.closed
    robot = Robot()
    made = bridge(Told(), robot)
    assert not robot.actions
    made.start().start()
    made.close()
    made.close()
    assert not threads()
    sent = len(robot.actions)
    made.inputs.put("observation", MESSAGES.floats([0, 0, 0]))
    assert len(robot.actions) == sent
    with pytest.raises(RuntimeError, match="closed"):
        made.start()


def test_bridge_idles_while_nothing_comes() -> None:
    robot = Robot()
    with bridge(Told(), robot, rate=10.0):
        robot.next()
        begun, at = time.process_time(), time.monotonic()
        robot.wait(lambda _: True, len(robot.actions) + 1)
        assert time.process_time() - begun < 0.5 * (time.monotonic() - at)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"safe_action": None}, "safe_action must be 2 numbers, as the policy gives; got None"),
        ({"safe_action": (0.0,)}, "safe_action must be 2 numbers"),
        ({"safe_action": (0.0, math.nan)}, "safe_action must be a finite number"),
        ({"safe_action": (0.0, 3.0)}, r"safe_action must be within \[-1.0, -1.0\]"),
        ({"observation_topic": None}, "observation_topic must be a topic for each of observation"),
        ({"observation_topic": {"other": "/a"}}, "observation_topic must be a topic for each of observation"),
        ({"observation_topic": "relative"}, "an absolute topic"),
        ({"action_topic": "/a b"}, "an absolute topic"),
        ({"action_topic": "//a"}, "an absolute topic"),
        ({"action_names": ("one",)}, "action_names must be 2 names"),
        ({"action_names": ("one", "safe")}, "action_names must be 2 names"),
        ({"max_age": 0}, "max_age must be above 0"),
        ({"rate": math.inf}, "rate must be a finite number"),
        ({"camera_rate": -1}, "camera_rate must be above 0"),
        ({"image_type": "Video"}, "image_type must be one of Image, CompressedImage"),
        ({"observation_type": "Pose"}, "observation_type must be one of Float32MultiArray"),
        ({"transport": "carrier pigeon"}, "transport must be one of auto, cyclonedds"),
        ({"jpeg_quality": 0}, "1 to 100"),
    ],
)
def test_bad_arguments_are_one_line(options: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said) as error:
        bridge(Told(), Robot(), **options)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("policy", "said"),
    [
        (Told(observations=IMAGES | {"clip": CLIPS["clip"]}), "one entry of images"),
        (Told(observations={"box_heightmap": ((10, 10), "float32")}), "one entry of images, and vectors"),
        (Told(observations={"observation": ((3,), "int64")}), "vectors of float32 or bool"),
        (Told(lambda _: (math.nan, 0.0)), "finite"),
        *((Told(confidence=bad), "confidence must be from 0 to 1") for bad in (1.5, math.nan, -0.1)),
        (None, "policy, image_topic, camera_topic and pallets"),
    ],
)
def test_policies_that_cannot_run_are_refused_at_once(policy: Told | None, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        bridge(policy, Robot())


def test_images_need_their_topic() -> None:
    with pytest.raises(ValueError, match="image_topic"):
        bridge(Told(observations=IMAGES), Robot(), image_topic=None)


class Counts:
    """Packing sessions that answer with the number of messages.

    One message in three is refused.
    """

    def __init__(self) -> None:
        self.came: list[str] = []
        self.goes_on = threading.Event()
        self.goes_on.set()

    def answer(self, message: str | bytes) -> tuple[bool, dict[str, Any]]:
        assert self.goes_on.wait(SOON)
        self.came.append(str(message))
        if message == "fail":
            raise OSError("no space left")
        return len(self.came) % 3 > 0, {"number": len(self.came)}


def test_requests_to_pallets_are_answered_in_their_order() -> None:
    transport = InProcess()
    pallets = Counts()
    answers = list[str]()
    transport.subscribe("/cell/answer", TEXT, lambda data: answers.append(MESSAGES.text(data)))
    with RosBridge(pallets=pallets, pallet_topic="/cell", transport=transport) as made:
        for number in range(6):
            transport.publish("/cell/request", TEXT, MESSAGES.string(f"é {number}"))
        until(lambda: len(answers) == 6)
        transport.publish("/cell/request", TEXT, b"\x00\x01")
        transport.publish("/cell/request", TEXT, MESSAGES.string("fail"))
        until(lambda: made.metrics()["unanswered"] == 1)
        found = made.metrics()
        transport.publish("/cell/request", TEXT, MESSAGES.string("last"))
    assert pallets.came == [*(f"é {number}" for number in range(6)), "fail", "last"]
    assert answers == [f'{{"number": {number}}}' for number in (1, 2, 3, 4, 5, 6, 8)]
    assert (found["answers"], found["refusals"], found["bad_messages"]) == (4, 2, 1)
    assert found["last_error"] == "unanswered: no space left"
    assert not threads()


def test_too_many_requests_at_once_are_counted() -> None:
    transport, pallets = InProcess(), Counts()
    pallets.goes_on.clear()
    with RosBridge(pallets=pallets, transport=transport) as made:
        for number in range(80):
            transport.publish("/pallet/request", TEXT, MESSAGES.string(str(number)))
        assert 80 - 65 <= made.metrics()["unanswered"] <= 80 - 64
        pallets.goes_on.set()
    assert pallets.came[:64] == [str(number) for number in range(64)]
