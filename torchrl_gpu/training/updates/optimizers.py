"""Optimizers without host reads, and clipping of gradients."""

from __future__ import annotations

from collections.abc import Iterable

from torch import Tensor
from torch.amp import GradScaler
from torch.nn.utils import clip_grads_with_norm_, get_total_norm
from torch.optim import Optimizer


def keep_capturable(optimizer: Optimizer) -> None:
    """Call `set_capturable` now, and whenever the optimizer has loaded a state.

    A state brings its own setting along.
    """
    set_capturable(optimizer)
    optimizer.register_load_state_dict_post_hook(set_capturable)


def set_capturable(optimizer: Optimizer) -> None:
    """Let an optimizer count its steps where its weights are.

    On CUDA it then reads nothing back, by its setting `capturable`, which a CPU refuses.
    """
    for group in optimizer.param_groups:
        # Optimizers that count no steps, such as SGD, have no such setting.
        if "capturable" not in group:
            continue
        group["capturable"] = all(weight.device.type == "cuda" for weight in group["params"])
        for weight in group["params"]:
            state = optimizer.state.get(weight, {})
            if "step" in state:
                home = weight.device if group["capturable"] else "cpu"
                state["step"] = state["step"].to(home)


def clip_gradients(weights: Iterable[Tensor], max_norm: float, scaler: GradScaler | None = None) -> None:
    """Clip the gradients of some weights together to a norm, in place.

    Weights without gradients are left. Lightning's `clip_gradients` takes gradients of float16, scaled by `scaler`, for
    the true ones in modules that step their own optimizer: they are unscaled only when it steps.
    """
    weights = [weight for weight in weights if weight.grad is not None]
    norm = get_total_norm(weight.grad for weight in weights if weight.grad is not None)
    if scaler is not None and scaler.is_enabled() and scaler._scale is not None:
        # `get_scale` would read it back.
        norm = norm / scaler._scale
    clip_grads_with_norm_(weights, max_norm, norm)
