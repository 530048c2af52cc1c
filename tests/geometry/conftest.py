"""Shared by the tests of geometry: type checks off where our own errors are tested, tiles of any size."""

from collections.abc import Callable, Iterator

import jaxtyping
import pytest

from tammes.geometry import tiles


@pytest.fixture
def unchecked() -> Iterator[None]:
    """Calls as users make them: without the type checks of the tests, which would speak first."""
    before = jaxtyping.config.jaxtyping_disable
    jaxtyping.config.update("jaxtyping_disable", True)
    yield
    jaxtyping.config.update("jaxtyping_disable", before)


@pytest.fixture
def tile_of(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """Sets how many rows a tile has, so that a few prototypes make many tiles."""
    return lambda rows: monkeypatch.setattr(tiles, "TILE", rows)
