import sys

import scipy.linalg  # noqa: F401  has a BLAS of its own
import torch
from threadpoolctl import threadpool_info, threadpool_limits

from tammes._common.threads import one_thread


def blas_threads() -> set[int]:
    return {library["num_threads"] for library in threadpool_info() if library["user_api"] == "blas"}


def test_torch_and_blas_have_one_thread_within_and_theirs_afterwards():
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        with threadpool_limits(limits=2, user_api="blas"):
            assert blas_threads() == {2}
            with one_thread():
                assert blas_threads() == {1}
                assert torch.get_num_threads() == 1
            assert blas_threads() == {2}
            assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)


def test_torch_has_one_thread_without_threadpoolctl_too(monkeypatch):
    monkeypatch.setitem(sys.modules, "threadpoolctl", None)  # importing it now fails
    with one_thread():
        assert torch.get_num_threads() == 1
