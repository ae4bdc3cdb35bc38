"""`PackingSessions`: packing sessions by name, asked in JSON messages and kept in a folder."""

from __future__ import annotations

import json
import re
import threading
from pathlib import Path
from typing import Any, NoReturn

import torch

from torchrl_gpu.envs.packing.types import MOST_CELLS as MOST_CELLS_ASIDE
from torchrl_gpu.palletizing.session import MOST_CELLS, SETTINGS, WHERE, PackingSession, Progress
from torchrl_gpu.system import arguments
from torchrl_gpu.system.files import publish

FORMAT = "torchrl_gpu packing session, 1"
MOST_BYTES = 2**22  # of a message
_MOST_KEPT = 2**27  # bytes of a file
_MOST_SIGNS = {"{": 128, "[": 2 * MOST_CELLS_ASIDE, ",": 2 * MOST_CELLS, '"': 4096}  # of a message, before it is parsed
_NAME = re.compile(r"[a-z0-9][a-z0-9_-]{0,63}")
_FIELDS: dict[str, tuple[str, ...]] = {
    "open": SETTINGS,
    "status": (),
    "offer": ("boxes",),
    "confirm": (),
    "report": ("center", "turn"),
    "measure": ("heights",),
    "undo": (),
    "close": (),
}
_ALWAYS = ("do", "session", "request")


class PackingSessions:
    """Pallets that are packed one box at a time: each message does one thing in one session.

    A message is a JSON object: `do`, one of open, status, offer, confirm, report, measure, undo and close; `session`,
    a name that the client chooses; the arguments of `PackingSession`; and, if the client may have to send it again,
    `request`, a text or number: the last message of a session with the same `request` gets the same answer and does
    nothing. Sessions are in the folder before they are answered, and those in it go on. Any thread may ask.

    Args:
        folder: Holds a file NAME.json of each session; made if it is not there.
        most: Sessions that may be open.
        device: As in `get_device`.

    Raises:
        ValueError: A file in the folder is none of a session.
    """

    def __init__(self, folder: str | Path, most: int = 64, device: str | torch.device = "auto") -> None:
        self.most, self._device = arguments.whole("PackingSessions", "most", most, 1, 4096), device
        self._folder, self._lock = Path(folder), threading.Lock()
        self._folder.mkdir(parents=True, exist_ok=True)
        self._open: dict[str, tuple[PackingSession, Progress, dict[str, Any] | None]] = {}
        for path in sorted(self._folder.glob("*.json")):
            self._open[path.stem] = self._read(path)

    @property
    def names(self) -> list[str]:
        """Sessions that are open."""
        return list(self._open)

    def answer(self, message: str | bytes) -> tuple[bool, dict[str, Any]]:
        """True if a message was carried out, and its answer, plain data: `message` says why it was not."""
        asked: dict[str, Any] = {}
        try:
            asked = _parsed(message)
            with self._lock:
                answer = self._answer(asked)
        except ValueError as error:
            answer, done = {"message": str(error)}, False
        else:
            done = True
        return done, answer | {name: asked[name] for name in ("session", "request") if name in asked}

    def _answer(self, asked: dict[str, Any]) -> dict[str, Any]:
        name, do, request = asked["session"], asked["do"], asked.get("request")
        given = {key: value for key, value in asked.items() if key not in _ALWAYS}
        session, progress, last = self._open.get(name, (None, None, None))
        if last is not None and request is not None and last["request"] == request:
            again: dict[str, Any] = last["answer"]
            return again
        if do == "open":
            if session is not None:
                raise ValueError(f"{WHERE}: want a name that is free; got {name}, which is open")
            if len(self._open) >= self.most:
                raise ValueError(f"{WHERE}: want at most {self.most} open at once; got another")
            session = PackingSession(given, self._device)
            progress = session.begin()
            answer = session.about(progress)
        elif session is None or progress is None:
            names = ", ".join(list(self._open)[:8]) or "none"
            raise ValueError(f"{WHERE}: want one that is open ({names}); got {name}")
        elif do == "status":
            return session.about(progress)
        elif do == "close":
            (self._folder / f"{name}.json").unlink(missing_ok=True)
            del self._open[name]
            return session.told(progress) | {"plan": session.plan(progress)}
        else:
            progress, answer = getattr(session, do)(progress, **given)
        last = None if request is None else {"request": request, "answer": answer}
        self._write(name, session, progress, last)
        self._open[name] = session, progress, last
        return answer

    def _write(self, name: str, session: PackingSession, progress: Progress, last: dict[str, Any] | None) -> None:
        content = {"format": FORMAT, "opened": session.opened, "events": progress.events, "waits": progress.waits}
        path = self._folder / f"{name}.json"
        fresh = path.with_suffix(".json-new")
        fresh.write_text(json.dumps(content | {"last": last}), encoding="utf-8")
        publish(fresh, path)

    def _read(self, path: Path) -> tuple[PackingSession, Progress, dict[str, Any] | None]:
        try:
            if path.stat().st_size > _MOST_KEPT:
                raise ValueError(f"{path.stat().st_size:,} bytes, more than {_MOST_KEPT:,}")
            kept = json.loads(path.read_bytes(), parse_constant=_no_number)
            if not isinstance(kept, dict) or kept.get("format") != FORMAT or not _NAME.fullmatch(path.stem):
                raise ValueError(f"no file of {FORMAT!r}")
            session = PackingSession(kept["opened"], self._device)
            return session, session.restored(kept["events"], kept["waits"]), kept["last"]
        except Exception as error:  # of a file that somebody made up: of many kinds
            came = " ".join(str(error).split())[:200] or type(error).__name__
            raise ValueError(f"PackingSessions: {path}: want a session that was kept; got {came}") from error


def _parsed(message: str | bytes) -> dict[str, Any]:
    """A message, with the keys that it must have and no others."""
    if len(message) > MOST_BYTES:
        raise ValueError(f"{WHERE}: want a message of at most {MOST_BYTES:,} bytes; got {len(message):,}")
    try:
        text = message if isinstance(message, str) else message.decode()
        for sign, most in _MOST_SIGNS.items():
            if (number := text.count(sign)) > most:
                raise ValueError(f"{number:,} times {sign}, of which no message needs more than {most:,}")
        asked = json.loads(text, parse_constant=_no_number)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{WHERE}: want JSON; got what fails with {' '.join(str(error).split())[:160]}") from None
    do = asked.get("do") if isinstance(asked, dict) else None
    if not isinstance(do, str) or do not in _FIELDS:
        raise ValueError(f"{WHERE}: do must be one of {', '.join(_FIELDS)}; got {arguments.shown(do)}")
    known, wanted = {*_ALWAYS, *_FIELDS[do]}, set() if do == "open" else set(_FIELDS[do])
    if not {*wanted, "session"} <= set(asked) <= known:
        raise ValueError(
            f"{WHERE}: {do} must have {', '.join(('session', *_FIELDS[do]))}; got {', '.join(asked)[:200]}"
        )
    if not isinstance(asked["session"], str) or not _NAME.fullmatch(asked["session"]):
        name = asked.pop("session")
        arguments.refuse(WHERE, "session", "a name of 1 to 64 of a-z, 0-9, _ and -", name)
    request = asked.get("request", "")
    if not isinstance(request, str | int) or len(str(request)) > 100:
        del asked["request"]
        arguments.refuse(WHERE, "request", "a text or a whole number of at most 100 characters", request)
    return asked


def _no_number(text: str) -> NoReturn:
    raise ValueError(f"{text}, which is no number")
