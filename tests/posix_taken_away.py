"""A process in which this package finds what Windows has.

`python -m tests.posix_taken_away` imports and runs everything.

Other packages go on seeing the machine as it is, and do what they do on Linux.
"""

from __future__ import annotations

import builtins
import ctypes
import importlib
import multiprocessing
import os
import pkgutil
import signal
import socket
import sys
import time
from pathlib import Path
from types import ModuleType
from typing import Any

MODULES = {"fcntl", "grp", "posix", "pty", "pwd", "resource", "syslog", "termios", "tty"}
NAMES = {
    os: """chown chroot confstr ctermid fchdir fchmod fchown fork forkpty fstatvfs getegid geteuid getgid getgroups
        getloadavg getpgid getpgrp getpriority getresuid getsid getuid initgroups killpg lchown lockf major makedev
        minor mkfifo mknod nice openpty pathconf pidfd_open posix_fadvise posix_fallocate posix_spawn pread pwrite readv
        register_at_fork sched_getaffinity sched_setaffinity sched_yield sendfile setegid seteuid setgid setpgid
        setpriority setsid setuid statvfs sync sysconf sysconf_names uname wait wait3 wait4 waitid writev
        O_CLOEXEC O_DIRECTORY O_NOFOLLOW O_NONBLOCK O_SYNC WNOHANG memfd_create eventfd""",
    signal: """SIGALRM SIGBUS SIGCHLD SIGCONT SIGHUP SIGIO SIGKILL SIGPIPE SIGPROF SIGQUIT SIGSTOP SIGTSTP SIGTTIN
        SIGTTOU SIGURG SIGUSR1 SIGUSR2 SIGVTALRM SIGWINCH ITIMER_REAL ITIMER_VIRTUAL alarm getitimer pause pthread_kill
        pthread_sigmask setitimer siginterrupt sigpending sigtimedwait sigwait sigwaitinfo""",
    socket: "AF_NETLINK AF_PACKET AF_UNIX CMSG_LEN MSG_DONTWAIT MSG_NOSIGNAL SO_REUSEPORT sethostname",
    time: "clock_gettime clock_getres CLOCK_BOOTTIME CLOCK_MONOTONIC CLOCK_REALTIME pthread_getcpuclockid tzset",
}
FOLDERS = ("/proc", "/dev", "/sys")


def asks(depth: int = 2) -> bool:
    """True for a frame of this package."""
    return str(sys._getframe(depth).f_globals.get("__name__", "")).startswith("torchrl_gpu")


def hide(module: ModuleType, names: set[str], instead: dict[str, Any]) -> None:
    """Hide names of a module from this package alone.

    Others may stand in their place.
    """

    class Hiding(ModuleType):
        def __getattribute__(self, name: str) -> Any:
            if (name in names or name in instead) and asks():
                if name in names:
                    raise AttributeError(f"Windows has no {module.__name__}.{name}")
                return instead[name]
            return super().__getattribute__(name)

    module.__class__ = Hiding


def take_away() -> None:
    """From here on this package finds what Windows has."""
    real_import = builtins.__import__
    real_open = os.open
    real_cdll = ctypes.CDLL

    def imported(name: str, *args: Any, **kwargs: Any) -> ModuleType:
        if name in MODULES and asks():
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
        return real_import(name, *args, **kwargs)

    def opened(path: Any, *args: Any, **kwargs: Any) -> int:
        if os.path.isdir(path):
            raise PermissionError(13, "Permission denied", str(path))
        return real_open(path, *args, **kwargs)

    def loaded(name: Any, *args: Any, **kwargs: Any) -> Any:
        if name is None:
            raise TypeError("argument of type 'NoneType' is not iterable")
        return real_cdll(name, *args, **kwargs)

    def context(method: str | None = None) -> Any:
        if method not in (None, "spawn"):
            raise ValueError(f"cannot find context for {method!r}")
        return real_context("spawn")

    def there(real: Any) -> Any:
        def told(path: Any, *args: Any, **kwargs: Any) -> Any:
            if str(path).startswith(FOLDERS) and asks():
                return False
            return real(path, *args, **kwargs)

        return told

    def read(path: Path, *args: Any, **kwargs: Any) -> str:
        if str(path).startswith(FOLDERS) and asks():
            raise FileNotFoundError(2, "No such file or directory", str(path))
        return real_read(path, *args, **kwargs)

    real_context, real_read = multiprocessing.get_context, Path.read_text
    for owner, name in ((os.path, "isdir"), (os.path, "exists"), (Path, "is_dir"), (Path, "exists"), (Path, "is_file")):
        setattr(owner, name, there(getattr(owner, name)))
    Path.read_text = read  # type: ignore[method-assign]
    builtins.__import__ = imported
    for module, names in NAMES.items():
        hide(module, set(names.split()), {"name": "nt", "open": opened} if module is os else {})
    hide(sys, {"abiflags", "getdlopenflags"}, {"platform": "win32"})
    hide(ctypes, set(), {"CDLL": loaded})
    hide(multiprocessing, set(), {"get_context": context})


def import_everything() -> list[str]:
    """Import every module of the package.

    Returns what could not be imported for want of a package of its extra.
    """
    import torchrl_gpu

    lacking = []
    for found in pkgutil.walk_packages(torchrl_gpu.__path__, "torchrl_gpu."):
        if found.name.rpartition(".")[2] == "__main__":
            continue
        try:
            importlib.import_module(found.name)
        except ModuleNotFoundError as error:
            if str(error.name).partition(".")[0] == "torchrl_gpu":
                raise
            lacking.append(f"{found.name}: {error.name}")
    return lacking


def say_help() -> None:
    """Print the help of every command.

    Those of the Trainer share one.
    """
    from torchrl_gpu import cli
    from torchrl_gpu.cli.program import OWN_SUBCOMMANDS

    for word in ("", "fit", *OWN_SUBCOMMANDS):
        try:
            status = cli.main([*filter(None, [word]), "--help"], "torchrl-gpu")
        except SystemExit as stop:
            status = stop.code  # type: ignore[assignment]
        assert not status, (word, status)


def run_plainly(folder: Path) -> None:
    """A tiny run, and its policy played in the browser and served, until an interrupt."""
    from tests.test_end_to_end import small
    from torchrl_gpu import cli
    from torchrl_gpu.cli.session import ViewerSession
    from torchrl_gpu.serving.ending import Flag

    def interrupted(*_: object) -> bool:
        signal.raise_signal(signal.SIGINT)
        return True

    Flag.wait = ViewerSession.run = interrupted  # type: ignore[method-assign, assignment]
    os.chdir(folder)
    bin_of_four = ["--model.env.bin_size=[4,4,4]", "--model.env.resolution=4", "--model.env.items.max_side=2"]
    config = [*small("packing.yaml"), *bin_of_four, "--model.env.items.min_side=1", "--model.tables.patches=[2x2]"]
    assert not cli.main(["fit", *config, "--trainer.max_steps=2", "--trainer.limit_val_batches=0"], "lightning")
    (checkpoint,) = folder.glob("runs/*/checkpoints/last.ckpt")
    assert not cli.main(["play", *config, "--ckpt_path=last", "--port=0"], "torchrl-gpu")
    assert not cli.main(["serve-policy", str(checkpoint), "--port=0"], "torchrl-gpu")


if __name__ == "__main__":
    take_away()
    print(*import_everything(), sep="\n")
    say_help()
    run_plainly(Path(sys.argv[1]))
