"""C++ kernels, compiled on this machine at first use: no binary to install, and the widest vectors that it has."""

from torchrl_gpu.native.build import CompilerError, compiler, library

__all__ = ["CompilerError", "compiler", "library"]
