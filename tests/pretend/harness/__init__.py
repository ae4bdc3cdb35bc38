"""The parts of `tests.pretend_cuda`."""
