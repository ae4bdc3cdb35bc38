"""Reads each of some files in a process of its own, and says how that ended.

Run as a program: paths come as lines on stdin, a JSON list of outcomes goes to stdout. A process is forked for each
file, so that a crash is seen and torch is imported once. Whatever a file would have run or unpickled ends its process.
"""

from __future__ import annotations

import json
import os
import resource
import sys
from pathlib import Path
from typing import Any

REFUSED, READ, OTHER, RAN = 0, 1, 2, 3
WORDS = {REFUSED: "refused", READ: "read", OTHER: "another error", RAN: "ran code"}
FORBIDDEN = (
    "pickle.find_class",
    "subprocess.Popen",
    "os.system",
    "os.exec",
    "os.posix_spawn",
    "os.fork",
    "socket.connect",
)
MOST_BYTES = 6 << 30  # of address space
MOST_SECONDS = 20


def outcome(path: Path) -> tuple[int, str]:
    """How reading ended, and what was said."""
    from torchrl_gpu.demonstrations import read_demonstrations

    try:
        read_demonstrations(path)
    except ValueError as error:
        said = str(error)
        return (REFUSED if said.startswith("demonstrations: ") and "\n" not in said else OTHER), said
    except FileNotFoundError as error:
        return REFUSED, str(error)
    except BaseException as error:
        return OTHER, f"{type(error).__name__}: {error}"
    return READ, ""


def _forbid(event: str, arguments: Any) -> None:
    if event.startswith(FORBIDDEN):
        os.write(1, f"{event} {arguments}"[:200].encode())
        os._exit(RAN)


def in_a_process(path: Path) -> dict[str, Any]:
    """The outcome of one file; a signal if that is what ended the process."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.dup2(writer, 1)
        resource.setrlimit(resource.RLIMIT_CPU, (MOST_SECONDS, MOST_SECONDS))
        resource.setrlimit(resource.RLIMIT_AS, (MOST_BYTES, MOST_BYTES))
        sys.addaudithook(_forbid)
        status, said = outcome(path)
        os.write(1, said[:4000].encode())
        os._exit(status)
    os.close(writer)
    said = b""
    while part := os.read(reader, 1 << 16):
        said += part
    os.close(reader)
    _, status = os.waitpid(child, 0)
    word = f"signal {os.WTERMSIG(status)}" if os.WIFSIGNALED(status) else WORDS[os.WEXITSTATUS(status)]
    return {"path": str(path), "outcome": word, "said": said.decode(errors="replace")}


def main() -> None:
    """Reads paths, prints outcomes."""
    import h5py  # noqa: F401  # before the forks
    import pyarrow.parquet  # noqa: F401

    import torchrl_gpu.demonstrations  # noqa: F401

    print(json.dumps([in_a_process(Path(line.strip())) for line in sys.stdin if line.strip()]))


if __name__ == "__main__":
    main()
