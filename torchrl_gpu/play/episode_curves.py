"""What the episodes of a show came to, as curves on its page."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor

    from torchrl_gpu.envs.viewable import Viewable

SHOWN = ("return", "utilization")


class EpisodeCurves:
    """Logs the return and other figures of each episode that ends, by the number of the episode.

    Args:
        server: A started `StreamServer`, or what looks like one.
        view: The environments.
    """

    def __init__(self, server: Any, view: Viewable) -> None:
        self._server, self._view, self.finished = server, view, 0
        server.state(curve_axis="episode")

    def add(self, done: Tensor) -> None:
        """Logs the environments that are done, (N,) bool, before they start again."""
        ended = done.nonzero().flatten().tolist()
        if not ended:
            return
        figures = {name: values.tolist() for name, values in self._view.metrics().items() if name in SHOWN}
        for index in ended:
            self.finished += 1
            self._server.log(self.finished, **{f"episode/{name}": values[index] for name, values in figures.items()})
