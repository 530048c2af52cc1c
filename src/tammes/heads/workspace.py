"""Memory that one step leaves to the next."""

import torch
from torch import Tensor


class Workspace:
    """One buffer, taken in the forward and given back in the backward.

    On a CPU fresh memory costs a page fault every 4 KiB, about a twentieth of a step; other devices'
    allocators keep freed memory by themselves. A copy starts empty, and so does what is read from disk.
    """

    def __init__(self) -> None:
        self._free: Tensor | None = None

    def __reduce__(self) -> tuple[type["Workspace"], tuple[()]]:
        return Workspace, ()

    def take(self, size: int, like: Tensor) -> Tensor:
        """A flat buffer of `size` entries, whatever was in it."""
        free, self._free = self._free, None
        if free is not None and len(free) >= size and free.dtype == like.dtype:
            return free[:size]
        return like.new_empty(size)

    def give(self, buffer: Tensor) -> None:
        """Leave `buffer`, which nobody reads any more, to the next step."""
        if buffer.device == torch.device("cpu"):
            self._free = buffer
