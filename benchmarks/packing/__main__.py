"""`python -m benchmarks.packing`: PackingEnv compared with others."""

import sys

from benchmarks.packing.command import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
