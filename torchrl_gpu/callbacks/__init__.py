"""Lightning callbacks."""

from torchrl_gpu.callbacks.checkpoint import EpisodeCheckpoint
from torchrl_gpu.callbacks.final_table import FinalTable
from torchrl_gpu.callbacks.frame_stream import FrameStream
from torchrl_gpu.callbacks.navigation_pictures import NavigationPictures
from torchrl_gpu.callbacks.pictures import PackingPictures
from torchrl_gpu.callbacks.progress import RunProgress
from torchrl_gpu.callbacks.summary import NetworkSummary
from torchrl_gpu.callbacks.throughput import Throughput

__all__ = [
    "EpisodeCheckpoint",
    "FinalTable",
    "FrameStream",
    "NavigationPictures",
    "NetworkSummary",
    "PackingPictures",
    "RunProgress",
    "Throughput",
]
