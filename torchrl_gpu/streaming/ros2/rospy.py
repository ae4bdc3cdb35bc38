"""ROS 1 by rospy, where that can be imported: Noetic, or Debian's packages python3-rospy and rosmaster.

Messages pass as bytes; no package of messages is needed. The master compares their checksums, which rosbags computes,
with those of the other nodes.
"""

from __future__ import annotations

import importlib
import threading
from typing import Any

from torchrl_gpu.streaming.ros2.messages import type_store
from torchrl_gpu.streaming.ros2.transport import Callback

_WHERE = "RosBridge"
_BUFFER = 1 << 24  # bytes; a smaller one splits images, and then they queue


class Rospy:
    """The one node of this process; see `Transport`. A process whose node has ended cannot have another.

    Args:
        node: Its name; a number is added.

    Raises:
        ModuleNotFoundError: There is no rospy.
        ValueError: No master answers at ROS_MASTER_URI.
    """

    ros1 = True

    def __init__(self, node: str = "torchrl_gpu") -> None:
        try:
            self._rospy = importlib.import_module("rospy")
            rosgraph = importlib.import_module("rosgraph")
        except ImportError as error:
            said = f"want ROS 1's rospy, for example by `source /opt/ros/noetic/setup.bash`; got {error}"
            raise ModuleNotFoundError(f"{_WHERE}: {said}", name=error.name) from error
        if not rosgraph.is_master_online():  # rospy itself would wait for one
            raise ValueError(f"{_WHERE}: want a ROS 1 master at {rosgraph.get_master_uri()}; got no answer")
        self._rospy.init_node(node, anonymous=True, disable_signals=True)
        self._lock = threading.Lock()
        self._publishers: dict[tuple[str, str], Any] = {}
        self._subscribers: list[Any] = []
        self._closed = False

    def subscribe(self, topic: str, type_name: str, callback: Callback) -> None:
        """As in `Transport`."""

        def receive(message: Any) -> None:
            if not self._closed:
                callback(message._buff)

        made = self._rospy.Subscriber(topic, self._type(type_name), receive, queue_size=1, buff_size=_BUFFER)
        self._subscribers.append(made)

    def publish(self, topic: str, type_name: str, data: bytes) -> None:
        """As in `Transport`.

        Raises:
            RuntimeError: It is closed.
        """
        with self._lock:
            if self._closed:
                raise RuntimeError("Rospy: want an open transport; got one that was closed")
            if (topic, type_name) not in self._publishers:
                made = self._rospy.Publisher(topic, self._type(type_name), queue_size=1)
                self._publishers[topic, type_name] = made
            publisher = self._publishers[topic, type_name]
        message = publisher.data_class()
        message._buff = data
        publisher.publish(message)

    def close(self) -> None:
        """As in `Transport`."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
        for each in [*self._subscribers, *self._publishers.values()]:
            each.unregister()
        self._rospy.signal_shutdown("closed")

    def _type(self, type_name: str) -> Any:
        """A type of messages that hold their bytes."""
        text, checksum = type_store(ros1=True).generate_msgdef(type_name)
        name = type_name.replace("/msg/", "/")
        return type(
            name.rpartition("/")[2],
            (self._rospy.AnyMsg,),
            {"_type": name, "_md5sum": checksum, "_full_text": text, "__slots__": ()},
        )
