"""Clock of a server's pictures, which never steps: setting the machine's clock changes no age, order or rate."""

from __future__ import annotations

import time

_OFFSET = time.time() - time.monotonic()


def stream_time() -> float:
    """Seconds since 1970 as the machine's clock had them at import, counted on by the monotonic clock."""
    return time.monotonic() + _OFFSET
