"""The words `play` and `serve`, as a process.

An address is printed, pictures come, and SIGTERM ends it cleanly.
"""

from __future__ import annotations

import json
import re
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from email.message import Message
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.cli.serving import Serving
from tests.test_end_to_end import small
from torchrl_gpu import cli
from torchrl_gpu.cli import play

pytest.importorskip("aiohttp")
pytest.importorskip("cv2")
pytest.importorskip("av")

JPEG = b"\xff\xd8\xff"


@pytest.fixture
def serving(tmp_path: Path) -> Iterator[Serving]:
    """Run `torchrl-gpu serve` of a heuristic, at any port.

    Its token comes from the environment.
    """
    words = ["serve", *small("packing_dqn.yaml"), "--port", "0", "--speed", "50"]
    with Serving(words, tmp_path / "log", TORCHRL_GPU_TOKEN="sesame") as made:
        yield made


def asked(url: str) -> urllib.request.Request:
    return urllib.request.Request(url, headers={"Authorization": "Bearer sesame"})


def headers(url: str) -> Message:
    with urllib.request.urlopen(asked(url), timeout=60) as answer:
        found: Message = answer.headers
        return found


def get(url: str, tries: int = 10) -> bytes:
    try:
        with urllib.request.urlopen(asked(url), timeout=60) as answer:
            return answer.read()
    except urllib.error.HTTPError as error:
        # 503 means no frame within the server's own patience.
        if error.code != 503 or tries == 1:
            raise
        return get(url, tries - 1)


def test_served_until_it_is_told_to_end(serving: Serving) -> None:
    first = serving.says(r"serve: loading the policy, watch at (http://127\.0\.0\.1:\d+/)\?token=sesame")
    assert get(f"{first[1]}healthz") == b"ok\n"
    assert [each["name"] for each in json.loads(get(f"{first[1]}streams"))] == ["env0"]
    found = serving.says(r"serve: pretrained at (http://127\.0\.0\.1:\d+/)\?token=sesame")
    assert found[1] == first[1]
    first_picture = picture = get(f"{found[1]}snapshot.jpg?stream=env0")
    assert picture.startswith(JPEG)
    # Pictures that come at once are of one frame, and waiting for a younger one counts as watching.
    for _ in range(500):
        picture = get(f"{found[1]}snapshot.jpg?stream=env0")
        if picture != first_picture:
            break
    # The bin fills while it is watched.
    assert picture != first_picture
    listed = json.loads(get(f"{found[1]}streams"))
    assert [(each["name"], each["base"], each.get("overlay")) for each in listed] == [
        ("env0", "env0", None),
        ("env0:mask", "env0", "mask"),
        ("env0:action", "env0", "action"),
        ("env0:q", "env0", "q"),
    ]
    assert get(f"{found[1]}snapshot.jpg?stream=env0:action").startswith(JPEG)
    meta = json.loads(headers(f"{found[1]}snapshot.jpg?stream=env0")["X-Frame"])["meta"]
    assert meta["policy"] == "pretrained"
    assert meta["action/0"] >= 0 < meta["inference_ms"]
    assert not [line for line in serving.ends() if "Traceback" in line]


def test_told_to_end_while_the_policy_is_loaded(serving: Serving) -> None:
    serving.says("serve: loading the policy.*")
    # The message came, and the policy was not waited for.
    (line,) = serving.ends()
    assert "loading the policy" in line


def test_the_page_is_served_and_mistakes_are_found_before_anything_heavy_is_loaded() -> None:
    code = (
        "import sys\n"
        "from torchrl_gpu import cli\n"
        "from torchrl_gpu.cli import play\n"
        "def load(args, rest, names, server):\n"
        "    (stream,) = server.service.hub.describe_streams()\n"
        "    print(stream['title'], server.service.hub.state, server.port > 0)\n"
        "    raise ValueError(str([m for m in ('torch', 'lightning', 'jsonargparse') if m in sys.modules]))\n"
        "play._load = load\n"
        "sys.exit(cli.main(['play', '--config', 'packing_dqn.yaml', '--port', '0'], 'torchrl-gpu'))\n"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=600)
    assert (run.returncode, run.stderr) == (2, "error: []\n")
    assert run.stdout.splitlines()[1] == "Environment 0 (loading) {'policy': 'loading'} True"


def test_a_policy_that_cannot_be_loaded_ends_the_server(capfd: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    (tmp_path / "bad.ckpt").write_bytes(b"none")
    args = ["--config", "packing_dqn.yaml", "--port", "0", "--ckpt_path", str(tmp_path / "bad.ckpt")]
    assert cli.main(["play", *args], "torchrl-gpu") == 2
    said = capfd.readouterr()
    assert "bad.ckpt: not a complete archive" in said.err
    found = re.search(r"http://127\.0\.0\.1:(\d+)/", said.out)
    assert found
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", int(found[1])), timeout=10)


def test_serve_wants_its_port_and_no_other(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(play, "_load", pytest.fail)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        assert cli.main(["serve", *small("packing_dqn.yaml"), "--port", port], "torchrl-gpu") == 2
    assert f"no port is free from {port} to {port}" in capfd.readouterr().err


def test_help_says_what_viewers_can_do(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["serve", "--help"], "torchrl-gpu") == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "pause, resume, step, reset, slower, faster" in said
    assert "TORCHRL_GPU_TOKEN" in said


def test_names_are_known_before_addresses(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """It came at once, and the error seventeen seconds later."""

    def load(*_: object) -> None:
        raise ValueError("play: --policy must be one of random; got 'foo'")

    monkeypatch.setattr(play, "_load", load)
    assert cli.main(["play", *small("packing_dqn.yaml"), "--port", "0", "--policy", "foo"], "torchrl-gpu") == 2
    said = capfd.readouterr()
    assert "play: loading the policy 'foo'\n" in said.out
    assert "http" not in said.out
    assert "got 'foo'" in said.err


@pytest.mark.parametrize("is_stopgap", [True, False])
def test_untrained_is_told(
    is_stopgap: bool, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    played: Any = SimpleNamespace(name="random", is_stopgap=is_stopgap)
    monkeypatch.setattr(play, "_load", lambda *_: (played, SimpleNamespace(run=lambda _: None)))
    assert cli.main(["play", *small("packing_dqn.yaml"), "--port", "0"], "torchrl-gpu") is None
    assert ("actions are drawn at random; --ckpt_path takes a checkpoint" in capfd.readouterr().out) is is_stopgap
