"""Allocator settings for training loops, where each step allocates again what the last one freed."""

import ctypes

M_TRIM_THRESHOLD, M_MMAP_MAX = -1, -4
"""Constants from malloc.h."""


def keep_freed_memory() -> None:
    """Make the C library keep freed memory for later tensors.

    By default glibc returns each large tensor to the system, and the next allocation faults in zeroed pages
    one by one, which slows down small networks on CPUs. Does nothing on systems without glibc.
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, TypeError, AttributeError):
        return
    mallopt(M_MMAP_MAX, 0)
    mallopt(M_TRIM_THRESHOLD, -1)


def give_back_freed_memory() -> None:
    """Make the C library return freed memory to the system, including that held by per-thread arenas."""
    try:
        trim = ctypes.CDLL(None).malloc_trim
    except (OSError, TypeError, AttributeError):
        return
    trim(0)
