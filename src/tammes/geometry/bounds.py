"""The largest class margin of k prototypes in d dimensions: exact where proved, otherwise upper bounds."""

import math
from typing import NamedTuple

import numpy as np

from tammes._common import checks


class LargestClassMargin(NamedTuple):
    """The largest class margin, or an upper bound on it.

    Attributes:
        angle: The angle in radians.
        exact: Whether a packing attains this angle; otherwise it is only an upper bound.
        name: Name of the theorem.
    """

    angle: float
    exact: bool
    name: str


def largest_class_margin(k: int, d: int) -> LargestClassMargin:
    r"""The largest possible minimum angle between k unit vectors in d dimensions.

    Exact for

    - k <= d + 1, the regular simplex: :math:`\arccos(-1/(k-1))`;
    - d + 2 <= k <= 2 d, part of the orthoplex (Rankin): 90 degrees;
    - d = 2, the regular polygon: :math:`2 \pi / k`;
    - a few more sizes with a proved optimum in closed form, such as d = 3 and k = 7 to 12 or 24.

    Otherwise the smallest applicable upper bound: Levenshtein's for every d (the best closed-form linear
    programming bound, attained by the icosahedron and the roots of E8, among others) and Fejes Tóth's for
    d = 3.

    >>> margin = largest_class_margin(8, 3)
    >>> f"{math.degrees(margin.angle):.4f}", margin.exact
    ('74.8585', True)
    >>> largest_class_margin(1000, 128).name
    'Levenshtein'
    """
    k = checks.at_least("k", k, 2)
    d = checks.at_least("d", d, 1)
    if k <= d + 1:
        return LargestClassMargin(math.pi - math.acos(1 / (k - 1)), True, "simplex")
    if d == 1:
        return LargestClassMargin(0.0, True, "two directions on a line")
    if d == 2:
        return LargestClassMargin(2 * math.pi / k, True, "polygon")
    if k <= 2 * d:
        return LargestClassMargin(math.pi / 2, True, "orthoplex (Rankin)")
    if (k, d) in _PROVED:
        cosine, name = _PROVED[k, d]
        return LargestClassMargin(math.acos(cosine), True, name)
    bounds = [LargestClassMargin(levenshtein(k, d), (k, d) in _SHARP, "Levenshtein")]
    if d == 3:
        bounds.append(LargestClassMargin(fejes_toth(k), False, "Fejes Tóth"))
    return min(bounds, key=lambda bound: bound.angle)


def fejes_toth(k: int) -> float:
    r"""Fejes Tóth's upper bound on the minimum angle between k >= 3 points in three dimensions, in radians.

    .. math:: \cos \theta \ge \tfrac{1}{2} (\cot^2 \omega - 1), \quad \omega = \frac{k \pi}{6 (k - 2)}

    The side of an equilateral spherical triangle such that 2 k - 4 of them cover the sphere; attained for
    k = 3, 4, 6 and 12.
    """
    omega = k * math.pi / (6 * (k - 2))
    # Equivalently sin(theta / 2) = sqrt(3 - cot^2) / 2, which is accurate for small angles.
    return 2 * math.asin(math.sqrt(max(0.0, 3 - 1 / math.tan(omega) ** 2)) / 2)


def levenshtein(k: int, d: int) -> float:
    r"""Levenshtein's upper bound on the minimum angle between k points in d >= 3 dimensions, in radians.

    A code whose largest cosine is s has at most :math:`L_m(s)` points, where for m = 2 l - 1 and 2 l

    .. math::
        L_{2l-1}(s) &= \binom{l+d-3}{l-1} \Bigl[ \frac{2l+d-3}{d-1}
            - \frac{P_{l-1}(s) - P_l(s)}{(1-s) P_l(s)} \Bigr] \\
        L_{2l}(s) &= \binom{l+d-2}{l} \Bigl[ \frac{2l+d-1}{d-1}
            - \frac{(1+s)(P_l(s) - P_{l+1}(s))}{(1-s)(P_l(s) + P_{l+1}(s))} \Bigr]

    with Gegenbauer polynomials, :math:`P_i(1) = 1`. Each :math:`L_m` holds between the largest zeros of
    two Jacobi polynomials, where it grows from one Delsarte number to the next; the bound is the s at
    which it equals k.

    Reference: V. I. Levenshtein, Designs as maximum codes in polynomial metric spaces, 1992.
    """
    m = 1
    while _delsarte(m + 1, d) < k:
        m += 1
    half = m // 2
    if m % 2:
        low, high = _largest_zero(half, 1, 1, d), _largest_zero(half + 1, 1, 0, d)
    else:
        low, high = _largest_zero(half, 1, 0, d), _largest_zero(half, 1, 1, d)
    for _ in range(80):
        middle = (low + high) / 2
        low, high = (middle, high) if _code_size(m, d, middle) < k else (low, middle)
    return math.acos(low)


def _delsarte(m: int, d: int) -> int:
    """Minimum size of a spherical m-design in d dimensions, above which the bound of order m applies."""
    half = m // 2
    if m % 2:
        return 2 * math.comb(half + d - 1, d - 1)
    return math.comb(half + d - 1, d - 1) + math.comb(half + d - 2, d - 1)


def _code_size(m: int, d: int, s: float) -> float:
    """The bound :math:`L_m(s)` on the number of points with pairwise cosines of at most s."""
    if m % 2:
        order = (m + 1) // 2
        below, here = _gegenbauer(order, d, s)
        size = (2 * order + d - 3) / (d - 1) - (below - here) / ((1 - s) * here)
        return math.comb(order + d - 3, order - 1) * size
    order = m // 2
    here, above = _gegenbauer(order + 1, d, s)
    size = (2 * order + d - 1) / (d - 1) - (1 + s) * (here - above) / ((1 - s) * (here + above))
    return math.comb(order + d - 2, order) * size


def _gegenbauer(order: int, d: int, s: float) -> tuple[float, float]:
    """The Gegenbauer polynomials of degree order - 1 and order in d dimensions at s, normalized to 1 at 1."""
    below, here = 1.0, s
    for i in range(1, order):
        below, here = here, ((2 * i + d - 2) * s * here - i * below) / (i + d - 2)
    return below, here


def _largest_zero(degree: int, left: int, right: int, d: int) -> float:
    """Largest zero of the Jacobi polynomial with weight (1-x)^(left + (d-3)/2) (1+x)^(right + (d-3)/2).

    It is the largest eigenvalue of the matrix of the three-term recurrence (Golub and Welsch).
    """
    if degree == 0:
        return -1.0
    a, b = left + (d - 3) / 2, right + (d - 3) / 2
    n = np.arange(degree)
    total = 2 * n + a + b
    diagonal = (b * b - a * a) / (total * (total + 2))
    n, total = n[1:], total[1:]
    off = 4 * n * (n + a) * (n + b) * (n + a + b) / (total**2 * (total**2 - 1))
    matrix = np.diag(diagonal) + np.diag(np.sqrt(off), 1) + np.diag(np.sqrt(off), -1)
    return float(np.linalg.eigvalsh(matrix)[-1])


def _cubic_root(coefficients: list[float], near: float) -> float:
    """The real root nearest to `near` of a polynomial, highest power first."""
    roots = np.roots(coefficients)
    return float(roots[np.abs(roots - near).argmin()].real)


def _snub_cube() -> float:
    """Cosine of the edge of the snub cube seen from its center; t is the tribonacci constant."""
    t = (1 + math.cbrt(19 + 3 * math.sqrt(33)) + math.cbrt(19 - 3 * math.sqrt(33))) / 3
    return 1 - 2 * (2 - t) / (3 - t)


# Largest cosine for sizes with a proved optimum that the general bounds do not attain.
_PROVED = {
    (7, 3): (_cubic_root([3, -9, -3, 1], 0.21), "Schütte and van der Waerden 1951"),
    (8, 3): ((math.sqrt(8) - 1) / 7, "Schütte and van der Waerden 1951"),
    (9, 3): (1 / 3, "Schütte and van der Waerden 1951"),
    (10, 3): (_cubic_root([7, -4, -2, 1], 0.40), "Danzer 1963"),
    (11, 3): (1 / math.sqrt(5), "Danzer 1963"),
    (12, 3): (1 / math.sqrt(5), "Fejes Tóth"),
    (24, 3): (_snub_cube(), "Robinson 1961"),
    (10, 4): (1 / 6, "Bachoc and Vallentin 2009"),
    (24, 4): (1 / 2, "de Laat, Leijenhorst and de Muinck Keizer 2024"),
    (120, 4): ((1 + math.sqrt(5)) / 4, "Böröczky 1978"),
    (288, 16): (1 / 4, "Cohn, de Laat and Leijenhorst 2024"),
    (56, 20): (1 / 15, "Cohn, de Laat and Leijenhorst 2024"),
    (50, 21): (1 / 21, "Cohn, de Laat and Leijenhorst 2024"),
    (77, 21): (1 / 12, "Cohn, de Laat and Leijenhorst 2024"),
}

# Sizes of known packings that attain Levenshtein's bound (V. I. Levenshtein 1992; H. Cohn and A. Kumar 2007).
_SHARP = frozenset(
    {(16, 5), (27, 6), (56, 7), (240, 8), (112, 21), (162, 21), (100, 22), (275, 22), (891, 22)}
    | {(552, 23), (4600, 23), (196560, 24)}
)
