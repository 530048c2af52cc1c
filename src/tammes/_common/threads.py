"""Thread settings for small problems: a second thread does not help with matrices of a few kilobytes."""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext

import torch


@contextmanager
def one_thread() -> Iterator[None]:
    """Run torch and BLAS on a single thread within the context."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with _one_blas_thread():
            yield
    finally:
        torch.set_num_threads(before)


def _one_blas_thread() -> AbstractContextManager:
    """One thread for the BLAS of numpy and scipy, if threadpoolctl is installed, as it is with the lab.

    Their threads wait for each other in every product: `free_features` then takes six times as long.
    """
    try:
        from threadpoolctl import threadpool_limits
    except ImportError:
        return nullcontext()
    return threadpool_limits(limits=1, user_api="blas")
