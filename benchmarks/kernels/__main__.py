"""`python -m benchmarks.kernels`: z-maps of every backend."""

import sys

from benchmarks.kernels.command import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
