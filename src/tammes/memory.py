"""Memory of training: what a step frees, the next one asks for again."""

import ctypes

M_TRIM_THRESHOLD, M_MMAP_MAX = -1, -4
"""As in malloc.h."""


def keep_freed_memory() -> None:
    """Have the C library keep what this process frees, for its next tensors.

    Otherwise glibc gives each large tensor back to the system, and the next one is cleared page by page,
    which small networks on CPUs feel. Systems without glibc are left as they are.
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, TypeError, AttributeError):
        return
    mallopt(M_MMAP_MAX, 0)
    mallopt(M_TRIM_THRESHOLD, -1)
