"""The setting `capturable` of optimizers, by the device of their weights."""

from __future__ import annotations

from torch.optim import Optimizer


def keep_capturable(optimizer: Optimizer) -> None:
    """`set_capturable`, now and whenever the optimizer has loaded a state, which brings its own setting along."""
    set_capturable(optimizer)
    optimizer.register_load_state_dict_post_hook(set_capturable)


def set_capturable(optimizer: Optimizer) -> None:
    """Has an optimizer count its steps where its weights are: on CUDA without host reads, which a CPU refuses.

    Optimizers without such a setting are left as they are.
    """
    for group in optimizer.param_groups:
        if "capturable" not in group:
            continue
        group["capturable"] = all(weight.device.type == "cuda" for weight in group["params"])
        for weight in group["params"]:
            if "step" in (state := optimizer.state.get(weight, {})):
                state["step"] = state["step"].to(weight.device if group["capturable"] else "cpu")
