"""`python -m torchrl_gpu.cli`: the program `torchrl-gpu`."""

import sys

from torchrl_gpu.cli import main

sys.exit(main())
