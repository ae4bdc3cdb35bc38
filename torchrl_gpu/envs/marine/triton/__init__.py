"""A step and a restart of marine navigation in Triton, one launch each; the torch form of `env` defines both."""
