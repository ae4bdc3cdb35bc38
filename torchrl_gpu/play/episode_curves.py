"""What the episodes that are shown came to, as curves on the page."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor

    from torchrl_gpu.envs.base import BatchedEnv
    from torchrl_gpu.envs.viewable import Viewable

ALWAYS = ("return",)


class EpisodeCurves:
    """Logs the return and the outcomes of each episode that ends, by the number of the episode.

    Args:
        server: A started `StreamServer`, or what looks like one.
        view: The environments.
        env: Names its outcomes.
    """

    def __init__(self, server: Any, view: Viewable, env: BatchedEnv) -> None:
        self._server, self._view, self.finished = server, view, 0
        self._shown = {*ALWAYS, *env.outcome_names}
        server.state(curve_axis="episode")

    def add(self, done: Tensor) -> None:
        """Logs the environments that are done, (N,) bool, before they start again."""
        ended = done.nonzero().flatten().tolist()
        if not ended:
            return
        figures = {name: values.tolist() for name, values in self._view.figures().items() if name in self._shown}
        for index in ended:
            self.finished += 1
            self._server.log(self.finished, **{f"episode/{name}": values[index] for name, values in figures.items()})
