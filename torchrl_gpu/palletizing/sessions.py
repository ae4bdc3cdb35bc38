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
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NoReturn

import torch

from torchrl_gpu.envs.packing.types import MOST_CELLS as MOST_CELLS_ASIDE
from torchrl_gpu.palletizing.closed import FOLDER, ClosedSessions
from torchrl_gpu.palletizing.events import WHERE, Plain
from torchrl_gpu.palletizing.session import MOST_CELLS, SETTINGS, PackingSession, Progress
from torchrl_gpu.system import arguments, locks
from torchrl_gpu.system.files import publish

FORMAT = "torchrl_gpu packing session, 2"
# Formats that are read. The first has no snapshot and no id.
_FORMATS = ("torchrl_gpu packing session, 1", FORMAT)
# Bytes of a message, and of a file.
MOST_BYTES = 2**22
_MOST_KEPT = 2**27
# Most signs of a message, which are counted before it is parsed.
_MOST_SIGNS = {"{": 1100, "[": 2 * MOST_CELLS_ASIDE, ",": 2 * MOST_CELLS, '"': 2**15}
_ID_DIGITS = 12
_ID = re.compile(rf"[0-9a-f]{{{_ID_DIGITS}}}")
_LONGEST_REQUEST = 100
# Names of open sessions in a message.
_MOST_NAMES = 8
_NAME = re.compile(r"[a-z0-9][a-z0-9_-]{0,63}")
# Arguments of each call: those that it needs, and those that may be left out. A session opens without any.
_FIELDS: dict[str, tuple[str, ...]] = {
    "open": SETTINGS,
    "status": (),
    "offer": (),
    "confirm": (),
    "skip": (),
    "next": (),
    "report": ("center", "turn"),
    "measure": ("heights",),
    "undo": (),
    "close": (),
}
_OPTIONAL = {"offer": ("boxes",), "report": ("sure",), "measure": ("sure",)}
_ALWAYS = ("do", "session", "request")
# Of this process, by folder. The newest one of a process takes its folder over: a notebook makes it anew in each run
# of a cell, while the older one may be alive.
_HOLDERS: weakref.WeakValueDictionary[Path, PackingSessions] = weakref.WeakValueDictionary()


@dataclass(frozen=True)
class _LastRequest:
    """The last request of a session, and what it was answered."""

    request: str | int
    answer: Plain

    @staticmethod
    def read(given: object) -> _LastRequest | None:
        """Read what `to_json` wrote, or None."""
        if given is None:
            return None
        entries = given if isinstance(given, dict) else {}
        request = entries.get("request")
        answer = entries.get("answer")
        if not isinstance(request, str | int) or not isinstance(answer, dict):
            arguments.refuse(WHERE, "last", "a request and its answer", given)
        return _LastRequest(request, answer)

    def to_json(self) -> Plain:
        return {"request": self.request, "answer": self.answer}


@dataclass(frozen=True)
class _OpenSession:
    """An open session.

    Attributes:
        session: Its rules.
        progress: What happened so far.
        last: Its last request, if that had a number.
        id: No other session has it, not even a later one of the same name.
    """

    session: PackingSession
    progress: Progress
    last: _LastRequest | None
    id: str


@dataclass(frozen=True)
class _Message:
    """A message whose form is checked.

    Attributes:
        do: One of the keys of `_FIELDS`.
        session: Name of the session.
        request: If the client may have to send it again.
        given: Arguments of the call, unchecked.
    """

    do: str
    session: str
    request: str | int | None
    given: Plain


class PackingSessions:
    """Pallets that are packed one box at a time, by messages.

    Each message is a JSON object, and does one thing in one session:

    - `do` is open, status, offer, confirm, report, measure, skip, next, undo or close.
    - `session` is a name that the client chooses.
    - `request` is a text or number, for clients who may have to send a message again. If the last message of a session
      comes again with the same `request`, it gets the same answer, and nothing is done twice. For a day this holds for
      the `close` of a session as well, see `ClosedSessions`.
    - The other entries are the arguments of `PackingSession`, or of its method.

    A session is written to the folder before its message is answered, and a new object continues the sessions that it
    finds there. Any thread may ask. The folder is locked, so that no other process can take it.

    Args:
        folder: Holds a file NAME.json of each session; made if it is not there.
        most: Sessions that may be open.
        device: As in `get_device`.
        now: Seconds since 1970, by which answers of closed sessions are kept.

    Raises:
        ValueError: A file in the folder is not a session, or another process has the folder.
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
        self.folder = Path(folder)
        self._lock = threading.Lock()
        self.folder.mkdir(parents=True, exist_ok=True)
        self._open: dict[str, _OpenSession] = {}
        self._refusal = ""
        self._take_folder()
        try:
            self._closed = ClosedSessions(self.folder / FOLDER, now)
            for path in sorted(self.folder.glob("*.json")):
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
            self._refusal = self._refusal or f"{WHERE}: the sessions of {self.folder} are not served any more"
            self._release()

    def answer(self, message: str | bytes) -> tuple[bool, Plain]:
        """Carry out a message, and return whether that succeeded, and the answer.

        The answer is plain data. `message` in it says why a message was not carried out.
        """
        try:
            asked = _parse(message)
        except ValueError as error:
            return False, {"message": str(error)}
        try:
            with self._lock:
                if self._refusal:
                    raise ValueError(self._refusal)
                answer = self._answer(asked)
        except ValueError as error:
            answer = {"message": str(error)}
            done = False
        else:
            done = True
        answer = answer | {"session": asked.session}
        if asked.request is not None:
            answer["request"] = asked.request
        return done, answer

    def _answer(self, asked: _Message) -> Plain:
        name = asked.session
        known = self._open.get(name)
        if asked.request is not None:
            again = self._earlier_answer(name, known, asked.request)
            if again is not None:
                return again
        if asked.do == "open":
            known, answer = self._begin(asked)
        elif known is None:
            names = ", ".join(list(self._open)[:_MOST_NAMES]) or "none"
            raise ValueError(f"{WHERE}: {name} is not open. Open are {names}")
        elif asked.do == "status":
            return known.session.status(known.progress)
        elif asked.do == "close":
            return self._close(name, known, asked.request)
        else:
            progress, answer = _call(known.session, known.progress, asked)
            known = replace(known, progress=progress)
        last = None if asked.request is None else _LastRequest(asked.request, answer)
        known = replace(known, last=last)
        # First the file: what is answered outlives the program.
        self._write(name, known)
        self._open[name] = known
        return answer

    def _begin(self, asked: _Message) -> tuple[_OpenSession, Plain]:
        """Open a session."""
        if asked.session in self._open:
            raise ValueError(f"{WHERE}: {asked.session} is open already: take another name, or close it")
        if len(self._open) >= self.most:
            raise ValueError(f"{WHERE}: {self.most} sessions are open, and no more may be: close one")
        session = PackingSession(asked.given, self._device)
        progress = session.begin()
        session_id = uuid.uuid4().hex[:_ID_DIGITS]
        return _OpenSession(session, progress, None, session_id), session.status(progress)

    def _earlier_answer(self, name: str, known: _OpenSession | None, request: str | int) -> Plain | None:
        """Return the answer that the same request got before, if any."""
        if known is not None and known.last is not None and known.last.request == request:
            return known.last.answer
        return self._closed.answer(name, request)

    def _close(self, name: str, known: _OpenSession, request: str | int | None) -> Plain:
        answer = known.session.close(known.progress)
        if request is not None:
            self._closed.add(known.id, name, request, answer)
        del self._open[name]
        (self.folder / f"{name}.json").unlink(missing_ok=True)
        return answer

    def _take_folder(self) -> None:
        """Lock the folder. An older object of this process gives it up.

        Raises:
            ValueError: Another process has it.
        """
        place = self.folder.resolve()
        earlier = _HOLDERS.get(place)
        if earlier is not None:
            earlier._give_up()
        try:
            descriptor = locks.lock(self.folder)
        except BlockingIOError as error:
            holder = locks.holder_of(self.folder)
            raise ValueError(
                f"PackingSessions: {self.folder} is served by {holder}; end that first, or give another folder"
            ) from error
        self._release = weakref.finalize(self, lambda: None if descriptor is None else os.close(descriptor))
        _HOLDERS[place] = self

    def _give_up(self) -> None:
        with self._lock:
            self._refusal = f"{WHERE}: a newer PackingSessions of the same process has taken over {self.folder}"
            self._release()

    def _load(self, path: Path) -> None:
        known = self._read(path)
        # It was closed, and the program ended before its file was removed.
        if known.id in self._closed.ids:
            path.unlink()
        else:
            self._open[path.stem] = known

    def _write(self, name: str, known: _OpenSession) -> None:
        progress = known.progress
        # A box that waits is written as an event of its own.
        waits = None if progress.pending is None else progress.pending.to_json()
        last = None if known.last is None else known.last.to_json()
        content: Plain = {"format": FORMAT, "id": known.id, "opened": known.session.opened}
        content["events"] = [event.to_json() for event in progress.events]
        content["waits"] = waits
        content["state"] = progress.cut
        # Planning takes seconds, and another version might plan otherwise.
        if known.session.plan_data is not None:
            content["plan"] = known.session.plan_data
        content["last"] = last
        path = self.folder / f"{name}.json"
        # A program that ends while it writes leaves the older file as it was.
        fresh = path.with_suffix(".json-new")
        fresh.write_text(json.dumps(content), encoding="utf-8")
        publish(fresh, path)

    def _read(self, path: Path) -> _OpenSession:
        try:
            if path.stat().st_size > _MOST_KEPT:
                raise ValueError(f"{path.stat().st_size:,} bytes, more than {_MOST_KEPT:,}")
            raw = path.read_bytes()
            kept = json.loads(raw, parse_constant=_no_number)
            if not isinstance(kept, dict) or kept.get("format") not in _FORMATS or not _NAME.fullmatch(path.stem):
                raise ValueError(f"no file of {FORMAT!r}")
            # A file of an earlier version has no id: the same file gets the same one again.
            session_id = kept.get("id", hashlib.sha256(raw).hexdigest()[:_ID_DIGITS])
            if not isinstance(session_id, str) or not _ID.fullmatch(session_id):
                arguments.refuse(WHERE, "id", "twelve hexadecimal digits", session_id)
            session = PackingSession(kept["opened"], self._device, kept.get("plan"))
            progress = session.restore(kept["events"], kept["waits"], kept.get("state"))
            return _OpenSession(session, progress, _LastRequest.read(kept["last"]), session_id)
        except Exception as error:
            # A file that somebody made up fails in many ways.
            reason = " ".join(str(error).split())[:200] or type(error).__name__
            raise ValueError(f"PackingSessions: {path} is not a packing session: {reason}. Move it away") from error


def _call(session: PackingSession, progress: Progress, asked: _Message) -> tuple[Progress, Plain]:
    """Make the call that a message asks for."""
    given = asked.given
    match asked.do:
        case "offer":
            return session.offer(progress, given.get("boxes"))
        case "confirm":
            return session.confirm(progress)
        case "report":
            return session.report(progress, given["center"], given["turn"], given.get("sure", False))
        case "measure":
            return session.measure(progress, given["heights"], given.get("sure", False))
        case "skip":
            return session.skip(progress)
        case "next":
            return session.next(progress)
        case "undo":
            return session.undo(progress)
    raise AssertionError(asked.do)


def _parse(message: str | bytes) -> _Message:
    """Parse a message, which must have its keys and no others."""
    asked = _load(message)
    do = asked.get("do") if isinstance(asked, dict) else None
    if not isinstance(asked, dict) or not isinstance(do, str) or do not in _FIELDS:
        raise ValueError(f"{WHERE}: do must be one of {', '.join(_FIELDS)}; got {arguments.shown(do)}")
    known = {*_ALWAYS, *_FIELDS[do], *_OPTIONAL.get(do, ())}
    wanted = set() if do == "open" else set(_FIELDS[do])
    if not {*wanted, "session"} <= set(asked) <= known:
        raise ValueError(
            f"{WHERE}: {do} must have {', '.join(('session', *_FIELDS[do]))}; got {', '.join(asked)[:200]}"
        )
    session = asked["session"]
    if not isinstance(session, str) or not _NAME.fullmatch(session):
        arguments.refuse(WHERE, "session", "a name of 1 to 64 of a-z, 0-9, _ and -", session)
    request = _parse_request(asked["request"]) if "request" in asked else None
    given = {key: value for key, value in asked.items() if key not in _ALWAYS}
    return _Message(do, session, request, given)


def _parse_request(request: object) -> str | int:
    if not isinstance(request, str | int) or len(str(request)) > _LONGEST_REQUEST:
        wanted = f"a text or a whole number of at most {_LONGEST_REQUEST} characters"
        arguments.refuse(WHERE, "request", wanted, request)
    return request


def _load(message: str | bytes) -> object:
    """Load JSON, after its size and its signs are counted.

    A parser makes an object of every bracket. A short message of brackets alone would fill the memory, so that the size
    is no limit.
    """
    if len(message) > MOST_BYTES:
        raise ValueError(f"{WHERE}: a message has at most {MOST_BYTES:,} bytes, and this one {len(message):,}")
    try:
        text = message if isinstance(message, str) else message.decode()
        for sign, most in _MOST_SIGNS.items():
            number = text.count(sign)
            if number > most:
                raise ValueError(f"the sign {sign} stands there {number:,} times; no message needs more than {most:,}")
        loaded: object = json.loads(text, parse_constant=_no_number)
    except (ValueError, RecursionError) as error:
        reason = " ".join(str(error).split())[:160]
        raise ValueError(f"{WHERE}: invalid JSON: {reason}") from None
    return loaded


def _no_number(text: str) -> NoReturn:
    raise ValueError(f"{text} is not a number")
