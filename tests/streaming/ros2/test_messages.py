from __future__ import annotations

from contextlib import suppress
from typing import Any

import cv2
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from torchrl_gpu.streaming.ros2.messages import COMPRESSED, DOUBLES, FLOATS, IMAGE, JOINTS, Messages
from torchrl_gpu.system.policy_messages import BadMessage

MESSAGES = Messages()
STAMP = 1_700_000_000_000_000_123
PICTURE = np.random.default_rng(0).integers(0, 256, (4, 6, 3), np.uint8)
BYTES = {
    IMAGE: MESSAGES.pixels(PICTURE, "rgb8", STAMP, "cam"),
    COMPRESSED: MESSAGES.jpeg(cv2.imencode(".jpg", PICTURE)[1].tobytes(), STAMP, "cam"),
    JOINTS: MESSAGES.joints(["a", "b"], [1.5, -2.0], STAMP),
    FLOATS: MESSAGES.floats([1.0, 2.5]),
    DOUBLES: MESSAGES.floats([1.0, 2.5], DOUBLES),
}


def joints(**fields: list[float]) -> bytes:
    empty = {name: np.array(fields.get(name, ()), np.float64) for name in ("position", "velocity", "effort")}
    return MESSAGES._write(JOINTS, header=MESSAGES._header(STAMP, ""), name=[], **empty)


@pytest.mark.parametrize("type_name", BYTES)
def test_bytes_are_those_of_rosbags(type_name: str) -> None:
    store = MESSAGES.store
    message = store.deserialize_cdr(BYTES[type_name], type_name)
    assert bytes(store.serialize_cdr(message, type_name)) == BYTES[type_name]


def test_bytes_of_known_messages() -> None:
    """Worked by hand from the CDR rules: header 00 01 00 00, little endian, each number aligned to its size."""
    array = bytes.fromhex("00010000 00000000 00000000 02000000 0000803f 00002040")
    assert BYTES[FLOATS] == array
    stamp = (1_700_000_000).to_bytes(4, "little") + (123).to_bytes(4, "little")
    image = bytes.fromhex("00010000") + stamp + bytes.fromhex("04000000 63616d00 04000000 06000000 05000000")
    image += b"rgb8\0" + bytes(3) + bytes.fromhex("12000000 48000000") + PICTURE.tobytes()
    assert BYTES[IMAGE] == image
    joint = bytes.fromhex("00010000") + stamp + bytes.fromhex("01000000 00000000 02000000")
    joint += bytes.fromhex("02000000 61000000 02000000 62000000 02000000")
    assert BYTES[JOINTS] == joint + np.array([1.5, -2.0]).tobytes() + bytes(8)


def test_an_image_there_and_back() -> None:
    found = MESSAGES.image(BYTES[IMAGE])
    np.testing.assert_array_equal(found.pixels, PICTURE)
    assert (found.encoding, found.stamp_ns, found.frame_id) == ("rgb8", STAMP, "cam")
    assert not found.pixels.flags.writeable


@pytest.mark.parametrize("kind", [".jpg", ".png"])
def test_a_compressed_image(kind: str) -> None:
    smooth = cv2.resize(PICTURE, (64, 48))
    found = MESSAGES.image(MESSAGES.jpeg(cv2.imencode(kind, smooth)[1].tobytes(), STAMP, "cam"), COMPRESSED)
    assert (found.encoding, found.stamp_ns, found.frame_id) == ("bgr8", STAMP, "cam")
    assert np.abs(found.pixels.astype(int) - smooth).mean() < (1 if kind == ".png" else 12)


@pytest.mark.parametrize("type_name", [FLOATS, DOUBLES])
def test_a_vector(type_name: str) -> None:
    found = MESSAGES.vector(BYTES[type_name], type_name, 2)
    assert found.values.dtype == np.float32
    assert (found.values.tolist(), found.stamp_ns) == ([1.0, 2.5], 0)


def test_joints_are_positions_then_velocities_then_efforts() -> None:
    data = joints(position=[1, 2], velocity=[3, 4])
    found = MESSAGES.vector(data, JOINTS, 4)
    assert (found.values.tolist(), found.stamp_ns) == ([1, 2, 3, 4], STAMP)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf, 1e300])
def test_numbers_are_finite_as_float32(bad: float) -> None:
    with pytest.raises(BadMessage, match="want finite numbers"):
        MESSAGES.vector(MESSAGES.floats([0.0, bad], DOUBLES), DOUBLES, 2)
    with pytest.raises(BadMessage, match="want finite numbers"):
        MESSAGES.vector(joints(position=[0.0, bad]), JOINTS, 2)


@pytest.mark.parametrize("count", [0, 1, 3, 100_000])
def test_a_vector_has_its_width(count: int) -> None:
    with pytest.raises(BadMessage, match=f"want 2 numbers; got {count}"):
        MESSAGES.vector(MESSAGES.floats(np.zeros(count)), FLOATS, 2)


@pytest.mark.parametrize("type_name", BYTES)
@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_mangled_bytes_are_one_kind_of_error(type_name: str, data: Any) -> None:
    body = bytearray(BYTES[type_name])
    for _ in range(data.draw(st.integers(0, 4))):
        body[data.draw(st.integers(0, min(len(body), 120) - 1))] = data.draw(st.integers(0, 255))
    cut = bytes(body[: data.draw(st.integers(0, len(body)))])
    with suppress(BadMessage):
        if type_name in (IMAGE, COMPRESSED):
            assert MESSAGES.image(cut, type_name).pixels.nbytes < 1 << 24
        else:
            assert np.isfinite(MESSAGES.vector(cut, type_name, 2).values).all()
