"""For all tests, before torch is imported: one thread a worker, and an int may stand for a float."""

import os
from collections.abc import Iterator

import beartype
import jaxtyping
import pytest

# `pytest -n 2` has a process for each core; threads on top would wait for each other.
os.environ.setdefault("OMP_NUM_THREADS", "1")

# PEP 484 takes an int for a float; beartype by itself does not.
beartype.beartype = beartype.beartype(conf=beartype.BeartypeConf(is_pep484_tower=True))


@pytest.fixture
def unchecked() -> Iterator[None]:
    """Calls as users make them: without the type checks of the tests, which would speak first."""
    before = jaxtyping.config.jaxtyping_disable
    jaxtyping.config.update("jaxtyping_disable", True)
    yield
    jaxtyping.config.update("jaxtyping_disable", before)
