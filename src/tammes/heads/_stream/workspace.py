"""Memory reused from step to step."""

from collections import deque
from typing import Generic, TypeVar

import torch
from torch import Tensor, UntypedStorage, nn

T = TypeVar("T")


class Handover(Generic[T]):
    """An object that only the first taker gets, in any thread; later ones get None."""

    def __init__(self, thing: T) -> None:
        self._things = deque([thing])

    def take(self) -> T | None:
        """The object, once."""
        try:
            return self._things.pop()  # atomic, unlike test and assignment
        except IndexError:
            return None


class Workspace:
    """A buffer, taken in the forward pass and returned in the backward pass, and the last gradient's memory.

    On a CPU, new memory costs a page fault per 4 KiB, which slows down a step; the allocators of other
    devices cache freed memory. Copies and unpickled workspaces start empty.
    """

    def __init__(self) -> None:
        self._free: deque[Tensor] = deque(maxlen=1)
        self._gradient: deque[UntypedStorage] = deque(maxlen=1)

    def __reduce__(self) -> tuple[type["Workspace"], tuple[()]]:
        return Workspace, ()

    def take(self, size: int, like: Tensor) -> Tensor:
        """A flat buffer of at least `size` entries with arbitrary content."""
        try:
            free = self._free.pop()  # atomic: no other thread gets the same buffer
        except IndexError:
            free = None
        if free is not None and len(free) >= size and (free.dtype, free.device) == (like.dtype, like.device):
            return free
        return like.new_empty(size)

    def give(self, buffer: Tensor) -> None:
        """Return `buffer`, which is no longer read, for the next step."""
        if _in_main_memory(buffer):
            self._free.append(buffer)

    def gradient(self, like: Tensor) -> Tensor:
        """Memory for a gradient of `like`: that of the last one, once no tensor refers to it.

        `zero_grad` drops a gradient just before the next one is computed. The workspace refers to the storage
        rather than the tensor, so that autograd need not copy what becomes `.grad`.
        """
        try:
            last = self._gradient.pop()
        except IndexError:
            last = None
        fits = _in_main_memory(like) and like.is_contiguous()
        if last is not None and fits and last.nbytes() == like.nbytes and _free_again(last):
            empty = like.new_empty(0)
            gradient = empty.set_(last, 0, like.shape)  # pyright: ignore[reportCallIssue]
        else:
            gradient = torch.empty_like(like)
        if _in_main_memory(gradient):
            self._gradient.append(gradient.untyped_storage())
        return gradient


def _in_main_memory(tensor: Tensor) -> bool:
    return type(tensor) in (Tensor, nn.Parameter) and tensor.device == torch.device("cpu")


def _free_again(storage: UntypedStorage) -> bool:
    """Whether no tensor, here or in another process, refers to `storage`."""
    return torch._C._storage_Use_Count(storage._cdata) == 1 and not storage.is_shared()
