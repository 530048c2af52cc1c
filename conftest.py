"""For all tests, before torch is imported: one thread per worker, and ints are accepted as floats."""

import os
from collections.abc import Iterator

import beartype
import jaxtyping
import pytest

# `pytest -n 2` has one process per core; more threads would compete for them.
os.environ.setdefault("OMP_NUM_THREADS", "1")

# PEP 484 accepts an int as a float; beartype does not by default.
beartype.beartype = beartype.beartype(conf=beartype.BeartypeConf(is_pep484_tower=True))


@pytest.fixture
def unchecked() -> Iterator[None]:
    """Call as users do, without the type checks of the tests, which would raise first."""
    before = jaxtyping.config.jaxtyping_disable
    jaxtyping.config.update("jaxtyping_disable", True)
    yield
    jaxtyping.config.update("jaxtyping_disable", before)
