"""Exceptions of workers that fail or die."""


class WorkerFailed(RuntimeError):
    """A worker cannot go on: its environment raised, or it died several times in a row."""


class WorkerDied(Exception):
    """The process of a worker is gone; the message has the reason, as far as it is known."""
