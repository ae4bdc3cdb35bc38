"""Builds every shipped config, without running it: `python -m torchrl_gpu.cli.check_configs`."""

from __future__ import annotations

import sys

from torchrl_gpu import configs
from torchrl_gpu.cli.errors import is_for_user, one_line


def main() -> int:
    """Exit status: 0 if every config parses and its objects can be made, else 1."""
    from torchrl_gpu.cli.lightning_cli import build

    failed = 0
    for name in configs.names():
        try:
            build("fit", ["--config", configs.find(name)])
        except Exception as error:
            if not is_for_user(error):
                raise
            failed += 1
            print(f"{name}: FAILED: {one_line(error)}", file=sys.stderr)
        else:
            print(f"{name}: ok")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
