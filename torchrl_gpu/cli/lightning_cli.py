"""LightningCLI over any module and data module named by class path.

Checkpoints are opened safely. This module imports Lightning.
"""

from __future__ import annotations

import copy
import importlib
import inspect
import logging
import os
import re
import warnings
from enum import Enum
from functools import partial
from pathlib import Path
from typing import Any, Literal, TypeVar, cast

import yaml
from jsonargparse import Namespace
from lightning.fabric.connector import _PRECISION_INPUT
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.callbacks import Checkpoint, ModelSummary, ProgressBar
from lightning.pytorch.cli import ArgsType, LightningArgumentParser, LightningCLI, SaveConfigCallback
from lightning.pytorch.utilities import rank_zero_info, rank_zero_warn
from lightning.pytorch.utilities.model_helpers import is_overridden

from torchrl_gpu import callbacks as own_callbacks
from torchrl_gpu.cli.errors import is_for_user, one_line
from torchrl_gpu.device import get_device
from torchrl_gpu.system import machine
from torchrl_gpu.system.allocator import keep_freed_memory
from torchrl_gpu.system.arguments import refuse, whole

Value = TypeVar("Value")

_NOISY = [f"lightning.{each}" for each in ("pytorch.utilities.rank_zero", "fabric.utilities.rank_zero")]
_NOISY += ["lightning.fabric.utilities.seed"]
# Lines of the logs that tell users nothing. The seed is in the saved config.
_NOISE = (
    "💡 Tip:",
    "TPU available:",
    "Seed set to",
    "Trainer already configured with model summary callbacks",
)
_ROLES: dict[str, type[Callback]] = {
    "enable_progress_bar": ProgressBar,
    "enable_model_summary": ModelSummary,
    "enable_checkpointing": Checkpoint,
}
"""The role of callback that each of the Trainer's switches turns off."""
_LEAST = {"check_val_every_n_epoch": 1, "log_every_n_steps": 0, "num_sanity_val_steps": -1}
"""Least values of options that Lightning takes unchecked and divides by later."""
_HARMLESS = (
    # Tables have no gradients.
    "`LightningModule.configure_optimizers` returned `None`",
    # Rollouts are made inside the training step, so that the loader only counts.
    ".*does not have many workers",
    # This would matter with more than one worker.
    "Your `IterableDataset` has `__len__` defined",
    # Lightning 2.6 calls an older name of torch.
    ".*isinstance\\(treespec, LeafSpec\\)` is deprecated",
)


class _Trainer(Trainer):
    """Trainer whose precision may be "auto" in a config.

    `PackageCLI.before_instantiate_classes` settles it.
    """

    def __init__(self, *, precision: _PRECISION_INPUT | Literal["auto"] | None = None, **kwargs: Any) -> None:
        super().__init__(precision=None if precision == "auto" else precision, **kwargs)


class SaveConfig(SaveConfigCallback):
    """Saves the resolved configuration beside the logs, without tokens and passwords."""

    def __init__(self, parser: LightningArgumentParser, config: Namespace, **kwargs: Any) -> None:
        from torchrl_gpu.checkpoints.record import is_secret

        model = config.get("model")
        config = config.clone()
        if model is not None:
            # Not a copy, as `num_envs: auto` in it becomes a number once the device and the checkpoint are known.
            config.model = model
        config.trainer.callbacks = copy.deepcopy(config.trainer.callbacks)
        callbacks = config.trainer.callbacks or []
        for callback in callbacks if isinstance(callbacks, list) else [callbacks]:
            arguments: Namespace | None = getattr(callback, "init_args", None)
            if arguments is None:
                continue
            for name in list(vars(arguments)):
                if is_secret(name):
                    arguments[name] = None
        # The config was valid when it was parsed.
        parser.save = partial(parser.save, skip_validation=True)
        super().__init__(parser, config, **kwargs)

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Save nothing yet, so that a run that does not begin leaves an earlier file."""

    def on_train_batch_end(self, trainer: Trainer, pl_module: LightningModule, *args: object) -> None:
        # This brings torchrl, and --help does without it.
        from torchrl_gpu.training.trainer_fields import is_trial

        if not is_trial(trainer):
            super().setup(trainer, pl_module, "fit")


class PackageCLI(LightningCLI):
    """One of `fit`, `validate`, `test` and `predict`, parsed, built and run.

    With `run` false it is only built. It departs from
    LightningCLI: only the subcommand that was asked for gets a parser (a fourth of the time); the config
    alone decides what is built, never the hyper-parameters inside a checkpoint; checkpoints are checked before anything
    is built and are always loaded with `weights_only=True`; parse errors are one-line ValueErrors.
    """

    def __init__(self, subcommand: str, args: list[str], *, run: bool = True, gone_back: int = 0) -> None:
        self.name = subcommand
        self.runs = run
        self.gone_back = gone_back
        self.given = args
        # A shortened option is more often a misspelt one.
        strict: dict[str, object] = {"exit_on_error": False, "allow_abbrev": False}
        super().__init__(
            args=[subcommand, *args],
            trainer_class=_Trainer,
            save_config_callback=SaveConfig if subcommand == "fit" else None,
            save_config_kwargs={"overwrite": True},
            seed_everything_default=0,
            auto_configure_optimizers=False,
            parser_kwargs=strict | {subcommand: dict(strict)},
        )

    def subcommands(self) -> dict[str, set[str]]:  # type: ignore[override]  # a static method upstream
        """The arguments of the Trainer's method that cannot be set from outside."""
        return {self.name: LightningCLI.subcommands()[self.name] | {"weights_only", "verbose"}}

    def parse_arguments(self, parser: LightningArgumentParser, args: ArgsType) -> None:
        """Fill `self.config`.

        ValueError, in one line, where the command line or a config is wrong.
        """
        own = self._subcommand_parsers[self.name]
        # The constructor gives them in this form.
        words = cast("list[str]", args)
        try:
            _import_short_names(words)
            if any(word.startswith("--print_config") for word in words):
                # This prints the config and exits.
                self.config = parser.parse_args(words)
            # `parser` would parse once more what the subcommand's own parser has made.
            parsed = own.parse_args(words[1:])
            self.config = Namespace({"subcommand": self.name, self.name: parsed})
        except Exception as error:
            if not is_for_user(error):
                raise
            options = [each.dest for each in own._actions if each.option_strings and not each.dest.endswith(".help")]
            raise ValueError(one_line(error, options)) from error
        _plain_strings(self.config)
        _check_types(self.config)

    def _dump_config(self) -> None:
        if not hasattr(self, "config_dump"):
            own = self._subcommand_parsers[self.name]
            unchanged = {"skip_link_targets": False, "skip_none": False, "skip_validation": True}
            self.config_dump = yaml.safe_load(own.dump(self.config[self.name], format="yaml", **unchanged))

    def _parse_ckpt_path(self) -> None:
        """Leave the config alone.

        A checkpoint brings weights and state, and names no classes to import.
        """

    def before_instantiate_classes(self) -> None:
        self._settle_precision()
        self._move_loggers()
        # A bad checkpoint is refused before an environment is built for it.
        self._open_checkpoint()

    def _settle_precision(self) -> None:
        """Replace the precision "auto" by what the device multiplies fast.

        No clock decides what a run computes.
        """
        trainer = self._get(self.config, "trainer")
        if trainer.precision == "auto":
            device = get_device("cpu" if trainer.accelerator == "cpu" else "auto")
            # In software such products take several times as long as in float32.
            fast = machine.multiplies_bfloat16(device)
            trainer.precision = "bf16-mixed" if fast else "32-true"
            if self.name == "fit":
                found = "multiplies bfloat16" if fast else "has no products in bfloat16"
                rank_zero_info(f"precision {trainer.precision}: this {device.type} {found}")

    # A fixed number would be simpler. But a GPU is idle with as many environments as suit a CPU, and a run that goes on
    # on another machine must keep its number, or it would be another run.
    def settle_num_envs(self) -> None:
        """Replace `num_envs: auto` by the number of the checkpoint, or of the device.

        The config's own number, or else the default of the environment's class, is that of a CPU.
        """
        # This brings torchrl.
        from torchrl_gpu.envs.base import AUTO

        model = self.model
        env = _inner(self._get(self.config, "model"), "init_args", "env")
        options = _inner(env, "init_args")
        if _inner(options, "num_envs") != AUTO or not hasattr(model, "set_num_envs"):
            return
        device = self.trainer.strategy.root_device
        usual = self._usual_num_envs(env.class_path)
        kept = self._resumed_num_envs()
        on_cuda = model.num_envs_on_cuda if device.type == "cuda" else None
        if kept is not None:
            number = kept
            why = f"that of {self.checkpoint}"
        elif on_cuda is not None and on_cuda > usual:
            number = on_cuda
            of = f"of {type(model).__name__} on cuda, where a CPU has {usual}"
            why = f"that {of}: as many updates play {number / usual:g} times the steps"
        else:
            number = usual
            why = f"the usual number, on {device.type}"
        options.num_envs = number
        # Lightning has dumped the config with the word in it.
        self.__dict__.pop("config_dump", None)
        model.set_num_envs(number)
        if self.name == "fit":
            rank_zero_info(f"num_envs {number}: {why}")

    def _usual_num_envs(self, class_path: str) -> int:
        """Return the number of environments of the config, or of their class."""
        number = self._configured(int, "model", "init_args", "env", "init_args", "num_envs")
        if number is not None:
            return number
        made = _named(class_path)
        # Of the constructor, as the metaclass of environments takes whatever it passes on.
        parameters = inspect.signature(made.__init__ if inspect.isclass(made) else made).parameters
        default = parameters["num_envs"].default
        if not isinstance(default, int):
            refuse(class_path, "num_envs", "a number, as its constructor has no default for auto", "auto")
        return default

    def _resumed_num_envs(self) -> int | None:
        """Return the number of environments of the run that is resumed, if one is."""
        from torchrl_gpu.checkpoints.record import saved_option
        from torchrl_gpu.envs.base import MOST_ENVS

        opened = self._open_checkpoint() if self.name == "fit" else None
        if opened is None:
            return None
        path, content = opened
        name = "model.env.num_envs"
        number = saved_option(content, name)
        return None if number is None else whole(f"checkpoint {path}", name, number, 1, MOST_ENVS)

    # A config names the folder of a run and that of its logs, and who changes the first by an option expects the second
    # to follow. YAML's own references would not see the option.
    def _move_loggers(self) -> None:
        """Move loggers from the run folder of the config to that of the command line."""
        trainer = self._get(self.config, "trainer")
        root = str(trainer.default_root_dir)
        before = self._configured(str, "trainer", "default_root_dir")
        loggers = trainer.logger if isinstance(trainer.logger, list) else [trainer.logger]
        if before is None or before == root or any("save_dir" in arg for arg in self.given):
            return
        for logger in loggers:
            arguments: Namespace | None = getattr(logger, "init_args", None)
            folder = None if arguments is None else arguments.get("save_dir")
            if arguments is not None and folder is not None and Path(before) in (Path(folder), *Path(folder).parents):
                below = Path(folder).relative_to(before)
                arguments.save_dir = str(Path(root) / below)

    def _configured(self, kind: type[Value], *keys: str) -> Value | None:
        """Return the value of a type in the last config file that has one.

        The command line does not count. None where no file has one.
        """
        found: Value | None = None
        for path in self._get(self.config, "config") or []:
            try:
                value = yaml.safe_load(Path(str(path)).read_text(encoding="utf-8"))
                for key in keys:
                    value = value[key]
            except (OSError, ValueError, yaml.YAMLError, KeyError, TypeError):
                # There is no such value, or no file.
                continue
            if isinstance(value, kind):
                found = value
        return found

    def after_instantiate_classes(self) -> None:
        """Check the checkpoint against the model before anything is run or written."""
        # This brings torchrl.
        from torchrl_gpu.callbacks.checkpoint import find_checkpoint
        from torchrl_gpu.checkpoints.resume import CheckedRestore, check_resumed

        asked = self._get(self.config, "ckpt_path")
        found = find_checkpoint(self.trainer, asked, fits=self.name == "fit")
        self._found = None if found is None else str(found)
        self.settle_num_envs()
        # The environment decides the shapes of networks, whose weights are checked below.
        make_env = getattr(self.model, "make_env", None)
        if make_env is not None:
            # In a fit the processes must play different episodes, which their rank decides.
            rank = self.trainer.global_rank if self.name == "fit" else 0
            make_env(self.trainer.strategy.root_device, rank)
        model = self.model
        if hasattr(model, "run_config"):
            self._dump_config()
            model.run_config = dict(self.config_dump)
        opened = self._open_checkpoint()
        # It would stay in memory for the whole run otherwise.
        self._opened = None
        # A module with `configure_model` makes its layers inside the run, so that there are none to compare yet.
        if opened is not None and not is_overridden("configure_model", model):
            check_resumed(*opened, model)
        CheckedRestore.install(self.trainer, opened)

    _found: str | None = None
    _opened: tuple[str, dict[str, object]] | None = None

    # A checkpoint may be large, and is asked for three times: before anything is built, for the number of environments,
    # and for its weights. It is read once and kept until then.
    def _open_checkpoint(self) -> tuple[str, dict[str, object]] | None:
        # This brings torchrl, and --help does without it.
        from torchrl_gpu.checkpoints.resume import open_checkpoint

        path = self.checkpoint
        is_open = self._opened is not None and self._opened[0] == path
        if path is not None and not is_open:
            self._opened = path, open_checkpoint(path)
        return self._opened

    @property
    def checkpoint(self) -> str | None:
        """Path of the checkpoint file that was asked for.

        None for Lightning's own words and for addresses.
        """
        path = self._found or self._get(self.config, "ckpt_path")
        if path is None or "://" in path:
            return None
        is_word = path in ("best", "last", "latest", "hpc") or path.startswith("registry")
        return None if is_word else str(path)

    def _prepare_subcommand_kwargs(self, subcommand: str) -> dict[str, object]:
        shows_own_table = subcommand in ("validate", "test") and getattr(self.datamodule, "shows_own_table", False)
        silent = {"verbose": False} if shows_own_table else {}
        found = {} if self._found is None else {"ckpt_path": self._found}
        return super()._prepare_subcommand_kwargs(subcommand) | {"weights_only": True} | silent | found

    def _instantiate_trainer(self, config: dict[str, Any], callbacks: list[Callback]) -> Trainer:
        """Add the progress bar, summary and guards of this package where they lack.

        A switch such as `enable_progress_bar=false` removes the callbacks of its role, which Lightning would refuse;
        `barebones` removes all of these, the guards and the loggers.
        """
        from torchrl_gpu.callbacks.divergence import Divergence
        from torchrl_gpu.callbacks.logger_guard import LoggerGuard
        from torchrl_gpu.callbacks.progress import NetworkSummary, RunProgress

        if config.get("barebones"):
            config.update({switch: False for switch in _ROLES} | {"logger": False, "log_every_n_steps": 0})
            config["num_sanity_val_steps"] = 0
        for name, least in _LEAST.items():
            value = config.get(name)
            if isinstance(value, int | float) and value < least:
                refuse("Trainer", name, f"at least {least}", value)
        above_zero = ["val_check_interval"]
        if self.name == "fit":
            above_zero.append("limit_train_batches")
        for name in above_zero:
            value = config.get(name)
            if isinstance(value, int | float) and value == 0:
                refuse("Trainer", name, "above 0", value)
        named = config.get("callbacks") or []
        named = named if isinstance(named, list) else [named]
        given = [*named, *callbacks]
        off = tuple(role for switch, role in _ROLES.items() if config.get(switch) is False)
        given = [each for each in given if not isinstance(each, off)]
        for switch, default in (("enable_progress_bar", RunProgress), ("enable_model_summary", NetworkSummary)):
            if config.get(switch) is not False and not any(isinstance(each, _ROLES[switch]) for each in given):
                given.append(default())
        guards: tuple[type[Callback], ...] = () if config.get("barebones") else (Divergence, LoggerGuard)
        for guard in guards:
            if not any(isinstance(each, guard) for each in given):
                given.append(guard())
        _refuse_twins(given)
        for each in given:
            if isinstance(each, Divergence):
                each.times = self.gone_back
        config["callbacks"] = given
        return super()._instantiate_trainer(config, [])

    def _run_subcommand(self, subcommand: str) -> None:
        if self.runs:
            super()._run_subcommand(subcommand)


# Lightning would say that a state key is there twice, which tells nobody that a `+=` on the command line has added a
# second one.
def _refuse_twins(callbacks: list[Callback]) -> None:
    """Refuse two callbacks whose state a checkpoint would hold under one name.

    Lightning cannot run them.
    """
    seen: dict[str, Callback] = {}
    for callback in callbacks:
        if not is_overridden("state_dict", callback, parent=Callback):
            continue
        name = type(callback).__name__
        if callback.state_key in seen:
            raise ValueError(
                f"trainer.callbacks: {name} stands there twice. --trainer.callbacks+={name} adds one to those of the"
                f" config, where --trainer.callbacks.{_an_option(callback)} changes the last one"
            )
        seen[callback.state_key] = callback


def _an_option(callback: Callback) -> str:
    """Name an argument of a callback's constructor, for an example."""
    names = [*inspect.signature(type(callback)).parameters]
    return names[0] if names else "NAME"


def _plain_strings(node: Namespace | dict[str, object]) -> None:
    """Replace members of string enums by strings, in place.

    Lightning's defaults hold some, and YAML has none.
    """
    values = vars(node) if isinstance(node, Namespace) else node
    for key, value in list(values.items()):
        if isinstance(value, Enum) and isinstance(value, str):
            node[key] = value.value
        for inner in value if isinstance(value, list) else [value]:
            if isinstance(inner, Namespace | dict):
                _plain_strings(inner)


# To import all of this package would be simpler, and `--help` would take seconds more.
def _import_short_names(args: list[str]) -> None:
    """Import the classes of this package that are named without their module.

    A parser knows only what is imported.
    """
    paths = [Path(arg.removeprefix("--config=")) for arg in args if arg.startswith("--config=")]
    files = [path for path in paths if path.is_file()]
    texts = [*args, *(path.read_text(encoding="utf-8") for path in files)]
    words: set[str] = set()
    for text in texts:
        words.update(re.findall(r"class_path\W+([A-Z]\w+)(?![\w.])", text))
    given = [arg for arg in args if re.fullmatch(r"(?:--.*=)?[A-Z]\w+", arg)]
    words |= {arg.rpartition("=")[2] for arg in given}
    for word in words & {*own_callbacks.__all__}:
        getattr(own_callbacks, word)
    if not words:
        return
    for name in ("training", "policies", "envs", "envs.packing.items"):
        importlib.import_module(f"torchrl_gpu.{name}")


def _check_types(node: Namespace | list[object]) -> None:
    """Refuse a class that is given to an argument without a type annotation.

    jsonargparse would not build it.
    """
    values = vars(node).values() if isinstance(node, Namespace) else node
    for value in values:
        if isinstance(value, (Namespace, list)):
            _check_types(value)
    given = getattr(node, "init_args", None)
    if not isinstance(node, Namespace) or not isinstance(given, Namespace):
        return
    for name, parameter in inspect.signature(_named(node.class_path)).parameters.items():
        value = getattr(given, name, None)
        path = value.get("class_path") if isinstance(value, (Namespace, dict)) else value
        if parameter.annotation is parameter.empty and isinstance(path, str) and inspect.isclass(_named(path)):
            raise ValueError(
                f"{node.class_path}: `{name}` has no type in its constructor, so that {path} of the config is not made."
                f" Write one there (`{name}: NetworkFactory` for a network)"
            )


def _inner(node: object, *names: str) -> Any:
    """Return what lies below a part of a config under these names, or None."""
    for name in names:
        node = node.get(name) if isinstance(node, Namespace) else None
    return node


def _named(path: str) -> Any:
    module, _, name = path.rpartition(".")
    try:
        return getattr(importlib.import_module(module), name, None)
    except (ImportError, ValueError):
        # An empty name of a module is a ValueError.
        return None


def run(subcommand: str, args: list[str]) -> None:
    """Run `lightning SUBCOMMAND ARGS`.

    A diverged run is restarted from its checkpoint where `Divergence` goes back.
    """
    from torchrl_gpu.training.divergence import Diverged

    quiet()
    keep_freed_memory()
    gone_back = 0
    checkpoint: Path | None = None
    while True:
        # Built anew from the same words: nothing of the run that diverged is left, such as the state of its optimizer.
        again = args if checkpoint is None else [*args, f"--ckpt_path={checkpoint}"]
        try:
            PackageCLI(subcommand, again, gone_back=gone_back)
            return
        except Diverged as error:
            if error.checkpoint is None:
                raise
            rank_zero_warn(str(error))
            gone_back = error.times
            checkpoint = error.checkpoint


def build(subcommand: str, args: list[str]) -> PackageCLI:
    """Build `model`, `datamodule` and `trainer` without starting the Trainer."""
    quiet()
    return PackageCLI(subcommand, args, run=False)


def quiet() -> None:
    """Filter log lines and warnings that tell users of this package nothing."""
    for name in _NOISY:
        logging.getLogger(name).addFilter(_is_of_use)
    # Lightning 2.6 calls older names of jsonargparse.
    os.environ.setdefault("JSONARGPARSE_DEPRECATION_WARNINGS", "off")
    for message in _HARMLESS:
        warnings.filterwarnings("ignore", message=message)


def _is_of_use(record: logging.LogRecord) -> bool:
    return not record.getMessage().startswith(_NOISE)
