"""Clients of a policy server."""

from __future__ import annotations

import http.client
import re
from pathlib import Path
from typing import Any

from torchrl_gpu.streaming import StreamServer

TOKEN = "a-long-enough-token"
_DOCUMENT = Path(__file__).parents[2] / "docs" / "deploy.md"


def ask(
    server: StreamServer,
    body: bytes | None = None,
    path: str = "/act",
    kind: str = "application/octet-stream",
    token: str = TOKEN,
) -> tuple[int, bytes]:
    """Status and body of the answer to a POST, or without a body to a GET."""
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=20)
    headers = {"Content-Type": kind, "Authorization": f"Bearer {token}"}
    connection.request("GET" if body is None else "POST", path, body, headers)
    answer = connection.getresponse()
    found = answer.status, answer.read()
    connection.close()
    return found


def documented(name: str, most_lines: int, until: str | None = None) -> Any:
    """A class as the document shows it, in at most so many lines up to some text."""
    blocks = re.findall(r"```python\n(.*?)```", _DOCUMENT.read_text(encoding="utf-8"), re.DOTALL)
    code = next(block for block in blocks if f"class {name}" in block)
    assert len(code.splitlines()) <= most_lines
    found: dict[str, Any] = {}
    exec(compile(code.partition(until)[0] if until else code, str(_DOCUMENT), "exec"), found)
    return found[name]
