from __future__ import annotations

import io
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.numpy import save
from tensordict import TensorDictBase
from tensordict.nn import TensorDictModuleBase

from tests.policies import checkpoints
from tests.serving.clients import ask
from torchrl_gpu.policies import AgentSpace, InferencePolicy, PolicyWrapper
from torchrl_gpu.serving import page
from torchrl_gpu.serving.page import STREAM, PolicyPage
from torchrl_gpu.serving.server import policy_server
from torchrl_gpu.streaming import PolicyView, StreamServer

CLIP = ((4, 3, 16, 24), "uint8")


class Idles(TensorDictModuleBase):
    """Twice the least byte of a clip, or the number that it is given."""

    def __init__(self, *names: str) -> None:
        super().__init__()
        self.in_keys, self.out_keys = list(names), ["action"]

    def forward(self, tensordict: TensorDictBase) -> TensorDictBase:
        least = tensordict[self.in_keys[0]].flatten(1).amin(1, keepdim=True).float()
        return tensordict.set("action", torch.cat([2 * least, -least], 1))


def policy(**observations: Any) -> InferencePolicy:
    space = AgentSpace("test", (), observations, low=(-1e9, -1e9), high=(1e9, 1e9))
    return InferencePolicy(Idles(*observations), space, "Idles")


class Notes(StreamServer):
    """Notes what it is to show."""

    def __init__(self, is_wanted: bool = True) -> None:
        super().__init__(port=0)
        self.is_wanted, self.shown = is_wanted, []  # type: ignore[var-annotated]

    def wanted(self, stream: str = "main") -> bool:
        return self.is_wanted

    def show_policy(self, view: PolicyView, stream: str = "main", meta: Any = None, *, bgr: bool = False) -> None:
        self.shown.append((stream, view))


def shown(found: InferencePolicy, seen: Any, action: Any = ((0.0, 0.0),), is_wanted: bool = True) -> Any:
    """The one view of the page after a request, whose pass took 1.5 ms."""
    server = Notes(is_wanted)
    PolicyPage(server, found).show(seen, np.asarray(action), 1.5, 0.0)
    ((stream, view),) = server.shown
    assert stream == (STREAM if is_wanted else "main")
    return view


def clip(rows: int = 1) -> dict[str, np.ndarray]:
    frames = np.arange(rows * 4, dtype=np.uint8).reshape(rows, 4, 1, 1, 1)
    return {"clip": np.broadcast_to(10 * frames, (rows, 4, 3, 16, 24))}


def test_the_last_row_of_a_request_with_the_newest_frame_of_its_clip() -> None:
    server = Notes()
    PolicyPage(server, policy(vector=((2,), "float32"), clip=CLIP)).show(clip(2), np.array([[1, 2], [3, 4]]), 1.5, 0.25)
    ((stream, view),) = server.shown
    assert stream == STREAM
    assert view.seen.shape == (4, 16, 24, 3)
    assert [int(frame.max()) for frame in view.seen] == [40, 50, 60, 70]
    assert (view.frame == view.seen[3]).all()
    facts = {"policy": "Idles", "inference_ms": 1.5, "message_age_ms": 250.0, "action/0": 3.0, "action/1": 4.0}
    assert view.facts() == facts


def test_page_shows_numbers_where_there_is_no_picture() -> None:
    for observations in ({"v": ((2,), "float32")}, {"m": ((3, 4, 5), "bool")}, {"m": ((2, 8, 8), "uint8")}):
        view = shown(policy(**observations), {}, [7], is_wanted=False)
        assert view.frame is None
        assert view.seen is None
        assert view.facts()["action/0"] == 7


def packing(rows: int = 1) -> tuple[InferencePolicy, dict[str, np.ndarray]]:
    agent, _ = checkpoints.EVERY["DQN packs"]()
    seen = checkpoints.observations(agent, rows)
    found = InferencePolicy(PolicyWrapper(agent, flat=True), agent.space, agent.name)
    return found, {name: seen[name].numpy() for name in found.in_keys}


def test_of_a_packing_the_pile_is_the_picture_and_the_placement_is_on_it() -> None:
    """It was `item_size`, 4×1 pixels."""
    packer, seen = packing()
    # The bin is 5 high.
    seen["box_heightmap"][0, 3:, 3:] = 4.0
    action = int(seen["action_mask"][0].argmax())
    pictures = []
    for chosen in (action, int(seen["action_mask"][0].argmin())):
        view = shown(packer, seen, [chosen])
        assert (view.frame.shape, view.seen) == ((320, 480, 3), None)
        pictures.append(view.frame.astype(int))
    orange = [((picture[..., 0] > 200) & (picture[..., 2] < 120)).sum() for picture in pictures]
    assert orange[0] > 500 > orange[1], "where the item goes; an illegal placement is not drawn"
    dark = pictures[1].max(2) < 140
    assert dark[: dark.shape[0] // 2, : dark.shape[1] * 2 // 3].sum() > 2000, "the high corner: x to the right, y up"
    assert dark[dark.shape[0] // 2 :, : dark.shape[1] // 4].sum() < 500


def test_page_shows_numbers_as_bars_and_leaves_flags_out() -> None:
    seen = {"mask": ((90,), "bool"), "observation": ((6,), "float32")}
    space = AgentSpace("DishwashingEnv", (), seen, low=(0.0, 0.0), high=(1.0, 1.0))
    numbers = np.array([[0, 0.5, 1, -1, 0, 0]], np.float32)
    given = {"mask": np.ones((1, 90), np.bool_), "observation": numbers}
    view = shown(InferencePolicy(Idles(*seen), space, "Idles"), given, [[0.25, 1.0]])
    orange = (abs(view.frame.astype(int) - (240, 138, 36)).max(2) < 40).sum(1)
    assert orange[3 * 14 : 6 + 4 * 14].max() > 1.5 * orange[14 : 2 * 14].max() > 10
    timing = {"policy": "Idles", "inference_ms": 1.5, "message_age_ms": 0.0}
    assert view.facts() == timing | {"action/speed": 0.25, "action/care": 1.0}


@pytest.mark.parametrize(
    ("shape", "dtype", "height"),
    [
        ((16, 24, 3), "uint8", 16),
        ((16, 24), "float32", 16),
        ((1, 16, 24), "float32", 16),
        ((2, 1, 16, 24), "uint8", 16),
    ],
)
def test_pictures_of_every_form(shape: tuple[int, ...], dtype: str, height: int) -> None:
    assert shown(policy(x=(shape, dtype)), {"x": np.ones((1, *shape), dtype)}).frame.shape[:2] == (height, 24)


def test_bytes_before_numbers() -> None:
    both = policy(depth=((1, 8, 8), "float32"), image=((3, 8, 8), "uint8"))
    assert (shown(both, {"image": np.full((1, 3, 8, 8), 9, np.uint8)}).seen == 9).all()


def test_a_few_of_many_are_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr(page.time, "monotonic", lambda: now[0])
    server = Notes()
    page_of_many = PolicyPage(server, policy(v=((2,), "float32")))
    # 2.5 seconds.
    for _ in range(50):
        page_of_many.show({}, np.array([[0.0]]), 1.0, 0.0)
        now[0] += 0.05
    assert 20 <= len(server.shown) <= 26


def test_unwatched_page_makes_nothing_of_observations(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(page, "observation_picture", lambda _: pytest.fail("made"))
    PolicyPage(Notes(is_wanted=False), policy(clip=CLIP)).show(clip(), np.zeros((1, 2)), 1.0, 0.0)


def snapshot(server: StreamServer, stream: str) -> np.ndarray:
    # Each waits a quarter of a second for the first picture.
    for _ in range(40):
        status, body = ask(server, path=f"/snapshot.jpg?stream={stream}")
        if status != 503:
            break
    assert status == 200
    return np.asarray(Image.open(io.BytesIO(body)))


def test_requests_are_on_the_page() -> None:
    body = save({"clip": np.ascontiguousarray(clip()["clip"]) + np.uint8(100)})
    with policy_server(policy(clip=CLIP), page=True, port=0) as server:
        assert ask(server, body)[0] == 200
        newest = snapshot(server, STREAM)
        assert newest.shape == (16, 24, 3)
        assert abs(int(newest.mean()) - 130) <= 2
        all_four = snapshot(server, f"{STREAM}:seen")
        assert abs(int(all_four.max()) - 130) <= 3
        assert all_four.size > newest.size
    with policy_server(policy(clip=CLIP), port=0) as server:
        assert ask(server, body)[0] == 200
        assert not server.service.hub.streams  # type: ignore[union-attr]
