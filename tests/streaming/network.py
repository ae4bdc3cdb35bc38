"""What of a network a machine has."""

from __future__ import annotations


def only_loopback() -> bool:
    """Whether this machine has no address but its own, by which ICE finds no way: 127.0.0.1 is never a candidate."""
    import aioice.ice

    return not aioice.ice.get_host_addresses(use_ipv4=True, use_ipv6=True)
