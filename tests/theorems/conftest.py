"""Points to try the theorems on, and the class counts of the paper's imbalanced CIFAR-10."""

from collections.abc import Callable, Iterator

import jaxtyping
import pytest
import torch
from torch import Tensor
from torch.nn.functional import normalize

Points = Callable[..., Tensor]


@pytest.fixture(autouse=True)
def unchecked() -> Iterator[None]:
    """Shapes are checked in the tests of the parts; here they would double the time of long descents."""
    before = jaxtyping.config.jaxtyping_disable
    jaxtyping.config.update("jaxtyping_disable", True)
    yield
    jaxtyping.config.update("jaxtyping_disable", before)


@pytest.fixture
def units() -> Points:
    """`units(n, d, seed)`: n random unit vectors in d dimensions."""

    def draw(n: int, d: int, seed: int) -> Tensor:
        generator = torch.Generator().manual_seed(seed)
        return normalize(torch.randn(n, d, dtype=torch.float64, generator=generator))

    return draw


@pytest.fixture
def centered(units: Points) -> Points:
    """`centered(k, d, seed)`: k random unit vectors whose sum is zero."""

    def draw(k: int, d: int, seed: int) -> Tensor:
        points = units(k, d, seed)
        for _ in range(500):
            points = normalize(points - points.mean(0))
        assert points.mean(0).norm() < 1e-9
        return points

    return draw


@pytest.fixture
def trials(units: Points) -> Callable[[int, Tensor], list[tuple[Tensor, Tensor]]]:
    """`trials(n, best)`: n pairs of prototypes and features, a few anywhere, most of them around `best`."""

    def draw(n: int, best: Tensor) -> list[tuple[Tensor, Tensor]]:
        k, d = best.shape
        radii = torch.logspace(-3, 1, n).tolist()
        return [
            (normalize(best + r * units(k, d, 2 * i)), normalize(best + r * units(k, d, 2 * i + 1)))
            for i, r in enumerate(radii)
        ]

    return draw


LONG_TAILED_100 = [int(5000 * 0.01 ** (j / 9)) for j in range(10)]


@pytest.fixture
def long_tailed() -> list[int]:
    """CIFAR-10 with class sizes that fall from 5000 to 50."""
    return LONG_TAILED_100


@pytest.fixture
def cifar10_counts() -> dict[str, list[int]]:
    """The four imbalanced CIFAR-10 sets of Table 2."""
    return {
        "long-tailed 100": LONG_TAILED_100,
        "long-tailed 10": [int(5000 * 0.1 ** (j / 9)) for j in range(10)],
        "step 100": [5000] * 5 + [50] * 5,
        "step 10": [5000] * 5 + [500] * 5,
    }
