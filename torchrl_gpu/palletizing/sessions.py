"""`PackingSessions`: packing sessions by name, kept in a folder.

They are asked in JSON messages.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import threading
import time
import uuid
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

import torch

from torchrl_gpu.envs.packing.types import MOST_CELLS as MOST_CELLS_ASIDE
from torchrl_gpu.palletizing.closed import FOLDER, ClosedSessions
from torchrl_gpu.palletizing.measured import WHERE
from torchrl_gpu.palletizing.session import MOST_CELLS, SETTINGS, PackingSession, Progress
from torchrl_gpu.system import arguments, locks
from torchrl_gpu.system.files import publish

FORMAT = "torchrl_gpu packing session, 2"
# Formats that are read. The first has no snapshot and no id.
_FORMATS = ("torchrl_gpu packing session, 1", FORMAT)
# Bytes of a message, and of a file.
MOST_BYTES = 2**22
_MOST_KEPT = 2**27
# Signs of a message, which are counted before it is parsed.
_MOST_SIGNS = {"{": 128, "[": 2 * MOST_CELLS_ASIDE, ",": 2 * MOST_CELLS, '"': 4096}
_ID = re.compile(r"[0-9a-f]{12}")
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
_OPTIONAL = {"report": ("sure",), "measure": ("sure",)}
_ALWAYS = ("do", "session", "request")
# Of this process, by folder. The newest one of a process takes its folder over: a notebook makes it anew in each run
# of a cell, while the older one may be alive.
_HOLDERS: weakref.WeakValueDictionary[Path, PackingSessions] = weakref.WeakValueDictionary()


class _Open(NamedTuple):
    """An open session.

    Attributes:
        last: Its last request, with the answer.
        id: No other session has it, not even a later one of the same name.
    """

    session: PackingSession
    progress: Progress
    last: dict[str, Any] | None
    id: str


class PackingSessions:
    """Pallets that are packed one box at a time, by messages.

    Each message does one thing in one session. A message is a JSON object: `do`, one of open, status, offer, confirm,
    report, measure, undo and close; `session`, a name that the client chooses; the arguments of `PackingSession`; and,
    if the client may have to send it again, `request`, a text or number: the last message of a session with the same
    `request` gets the same answer and does nothing; so does the `close` of a session for a day, see `ClosedSessions`.
    Sessions are in the folder before they are answered, and those in it go on. Any thread may ask. The folder is
    locked: another process cannot take it.

    Args:
        folder: Holds a file NAME.json of each session; made if it is not there.
        most: Sessions that may be open.
        device: As in `get_device`.
        now: Seconds since 1970, by which answers of closed sessions are kept.

    Raises:
        ValueError: A file in the folder is none of a session, or another process has the folder.
    """

    def __init__(
        self,
        folder: str | Path,
        most: int = 64,
        device: str | torch.device = "auto",
        *,
        now: Callable[[], float] = time.time,
    ) -> None:
        self.most = arguments.whole("PackingSessions", "most", most, 1, 4096)
        self._device = device
        self._folder = Path(folder)
        self._lock = threading.Lock()
        self._folder.mkdir(parents=True, exist_ok=True)
        self._open: dict[str, _Open] = {}
        self._refusal = ""
        self._take_folder()
        try:
            self._closed = ClosedSessions(self._folder / FOLDER, now)
            for path in sorted(self._folder.glob("*.json")):
                self._load(path)
        except BaseException:
            self.close()
            raise

    @property
    def names(self) -> list[str]:
        """Sessions that are open."""
        return list(self._open)

    def close(self) -> None:
        """Give the folder back, with the sessions in it.

        Messages are refused from then on.
        """
        with self._lock:
            self._refusal = self._refusal or f"{WHERE}: the sessions of {self._folder} are not served any more"
            self._release()

    def answer(self, message: str | bytes) -> tuple[bool, dict[str, Any]]:
        """Carry out a message, and return whether that succeeded, and the answer.

        The answer is plain data. `message` in it says why a message was not carried out.
        """
        asked: dict[str, Any] = {}
        try:
            asked = _parsed(message)
            with self._lock:
                if self._refusal:
                    raise ValueError(self._refusal)
                answer = self._answer(asked)
        except ValueError as error:
            answer = {"message": str(error)}
            done = False
        else:
            done = True
        told = {name: asked[name] for name in ("session", "request") if name in asked}
        return done, answer | told

    def _answer(self, asked: dict[str, Any]) -> dict[str, Any]:
        name = asked["session"]
        do = asked["do"]
        request = asked.get("request")
        given = {key: value for key, value in asked.items() if key not in _ALWAYS}
        known = self._open.get(name)
        if request is not None:
            again = self._answered(name, known, request)
            if again is not None:
                return again
        if do == "open":
            if known is not None:
                raise ValueError(f"{WHERE}: {name} is open already: take another name, or close it")
            if len(self._open) >= self.most:
                raise ValueError(f"{WHERE}: {self.most} sessions are open, and no more may be: close one")
            session = PackingSession(given, self._device)
            progress = session.begin()
            answer = session.about(progress)
            known = _Open(session, progress, None, uuid.uuid4().hex[:12])
        elif known is None:
            names = ", ".join(list(self._open)[:8]) or "none"
            raise ValueError(f"{WHERE}: {name} is not open. Open are {names}")
        elif do == "status":
            return known.session.about(known.progress)
        elif do == "close":
            return self._close(name, known, request)
        else:
            progress, answer = getattr(known.session, do)(known.progress, **given)
        last = None if request is None else {"request": request, "answer": answer}
        known = known._replace(progress=progress, last=last)
        self._write(name, known)
        self._open[name] = known
        return answer

    def _answered(self, name: str, known: _Open | None, request: str | int) -> dict[str, Any] | None:
        """Return the answer that the same request got before, if any."""
        if known is not None and known.last is not None and known.last["request"] == request:
            again: dict[str, Any] = known.last["answer"]
            return again
        return self._closed.answer(name, request)

    def _close(self, name: str, known: _Open, request: str | int | None) -> dict[str, Any]:
        answer = known.session.told(known.progress) | {"plan": known.session.plan(known.progress)}
        if request is not None:
            self._closed.add(known.id, name, request, answer)
        del self._open[name]
        (self._folder / f"{name}.json").unlink(missing_ok=True)
        return answer

    def _take_folder(self) -> None:
        """Lock the folder.

        ValueError where another process has it. An older object of this process gives it up.
        """
        place = self._folder.resolve()
        earlier = _HOLDERS.get(place)
        if earlier is not None:
            earlier._give_up()
        try:
            descriptor = locks.lock(self._folder)
        except BlockingIOError as error:
            holder = locks.holder_of(self._folder)
            raise ValueError(
                f"PackingSessions: {self._folder} is served by {holder}; end that first, or give another folder"
            ) from error
        self._release = weakref.finalize(self, lambda: None if descriptor is None else os.close(descriptor))
        _HOLDERS[place] = self

    def _give_up(self) -> None:
        with self._lock:
            self._refusal = f"{WHERE}: a newer PackingSessions of the same process has taken over {self._folder}"
            self._release()

    def _load(self, path: Path) -> None:
        known = self._read(path)
        # It was closed, and the program ended before its file was removed.
        if known.id in self._closed.ids:
            path.unlink()
        else:
            self._open[path.stem] = known

    def _write(self, name: str, known: _Open) -> None:
        progress = known.progress
        content: dict[str, Any] = {
            "format": FORMAT,
            "id": known.id,
            "opened": known.session.opened,
            "events": progress.events,
        }
        content |= {"waits": progress.waits, "state": progress.cut, "last": known.last}
        path = self._folder / f"{name}.json"
        fresh = path.with_suffix(".json-new")
        fresh.write_text(json.dumps(content), encoding="utf-8")
        publish(fresh, path)

    def _read(self, path: Path) -> _Open:
        try:
            if path.stat().st_size > _MOST_KEPT:
                raise ValueError(f"{path.stat().st_size:,} bytes, more than {_MOST_KEPT:,}")
            raw = path.read_bytes()
            kept = json.loads(raw, parse_constant=_no_number)
            if not isinstance(kept, dict) or kept.get("format") not in _FORMATS or not _NAME.fullmatch(path.stem):
                raise ValueError(f"no file of {FORMAT!r}")
            # A file of an earlier version has no id: the same file gets the same one again.
            session_id = kept.get("id", hashlib.sha256(raw).hexdigest()[:12])
            if not isinstance(session_id, str) or not _ID.fullmatch(session_id):
                arguments.refuse(WHERE, "id", "twelve hexadecimal digits", session_id)
            session = PackingSession(kept["opened"], self._device)
            progress = session.restore(kept["events"], kept["waits"], kept.get("state"))
            return _Open(session, progress, kept["last"], session_id)
        except Exception as error:
            # A file that somebody made up fails in many ways.
            reason = " ".join(str(error).split())[:200] or type(error).__name__
            raise ValueError(f"PackingSessions: {path} is no session that was kept: {reason}. Move it away") from error


def _parsed(message: str | bytes) -> dict[str, Any]:
    """Parse a message, which must have its keys and no others."""
    if len(message) > MOST_BYTES:
        raise ValueError(f"{WHERE}: a message has at most {MOST_BYTES:,} bytes, and this one {len(message):,}")
    try:
        text = message if isinstance(message, str) else message.decode()
        for sign, most in _MOST_SIGNS.items():
            number = text.count(sign)
            if number > most:
                raise ValueError(f"{number:,} times {sign}, of which no message needs more than {most:,}")
        asked = json.loads(text, parse_constant=_no_number)
    except (ValueError, RecursionError) as error:
        reason = " ".join(str(error).split())[:160]
        raise ValueError(f"{WHERE}: the message is no JSON: {reason}") from None
    do = asked.get("do") if isinstance(asked, dict) else None
    if not isinstance(do, str) or do not in _FIELDS:
        raise ValueError(f"{WHERE}: do must be one of {', '.join(_FIELDS)}; got {arguments.shown(do)}")
    known = {*_ALWAYS, *_FIELDS[do], *_OPTIONAL.get(do, ())}
    wanted = set() if do == "open" else set(_FIELDS[do])
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
