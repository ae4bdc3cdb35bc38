"""How a worker ends before its time."""


class WorkerFailed(RuntimeError):
    """A worker cannot go on: its environment raised, or it died several times in a row."""


class WorkerDied(Exception):
    """The process of a worker is gone; the message says how, as far as that is known."""
