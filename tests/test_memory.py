"""Freed memory stays with the process: allocating a tensor again causes no page faults."""

import platform
import subprocess
import sys

import pytest

FAULTS = """
import resource, torch
from tammes._common.memory import keep_freed_memory
{call}
def make():
    for _ in range(10):
        torch.zeros(16_000_000)
make()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
make()
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def faults(call: str) -> int:
    """Page faults of ten tensors of 64 MB, one after the other, in a process of their own."""
    command = [sys.executable, "-c", FAULTS.format(call=call)]
    return int(subprocess.run(command, capture_output=True, text=True, check=True).stdout)


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only glibc has the setting")
def test_kept_memory_is_not_faulted_in_again() -> None:
    assert faults("") > 1000
    assert faults("keep_freed_memory()") < 100
