"""`python -m torchrl_gpu`: the program `torchrl-gpu`."""

import sys

from torchrl_gpu.cli import main

if __name__ == "__main__":
    sys.exit(main())
