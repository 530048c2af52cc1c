"""Charts as inline SVG: Python computes the layout, and templates in `templates/charts/` draw it."""

import base64
import io
import math
from collections.abc import Collection, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float, Int, UInt8
from markupsafe import Markup

from tammes.lab.report.templating import render

COLORS = 10
"""Colors in the palette of the style sheet."""

BINS = 40
MAX_SPOTS = 60
"""Maximum number of points of a curve that show a tooltip."""

MAX_MARKERS = 12
"""Curves of at most this many points get markers, because a single point would be invisible."""

COUNTED_CELLS = 20
"""Maximum number of classes for which a confusion matrix shows counts."""

LABELED = 40
"""Maximum number of classes whose names are shown beside a matrix, or in the legend of a map."""

NAME_WIDTH, NAME_HEIGHT = 7.5, 13
"""Room of a letter and of a line in the names on a map, in its units."""


class Curve(NamedTuple):
    """The values of one run; `run` decides its color."""

    name: str
    run: int
    x: Sequence[float]
    y: Sequence[float]


class Series(NamedTuple):
    """Values to count; `color` is any CSS color."""

    name: str
    color: str
    values: Float[np.ndarray, " n"]


class Dot(NamedTuple):
    """A sample on a map, misclassified or not, with the key of its photo; or a prototype, drawn as a star."""

    x: float
    y: float
    label: int
    tip: str
    wrong: bool = False
    star: bool = False
    photo: str = ""


class Bar(NamedTuple):
    """A rectangle in pixels, and its tooltip."""

    x: float
    y: float
    width: float
    height: float
    tip: str


AxisTick = tuple[float, str]


class Frame(NamedTuple):
    """Data coordinates to pixels of a chart."""

    x: tuple[float, float]
    y: tuple[float, float]
    width: int = 380
    height: int = 230
    left: int = 46
    top: int = 24

    @property
    def right(self) -> int:
        return self.width - 12

    @property
    def bottom(self) -> int:
        return self.height - 36

    def at_x(self, value: float) -> float:
        low, high = self.x
        return self.left + (self.right - self.left) * (value - low) / (high - low)

    def at_y(self, value: float) -> float:
        low, high = self.y
        return self.bottom - (self.bottom - self.top) * (value - low) / (high - low)

    def path(self, x: Sequence[float], y: Sequence[float]) -> str:
        """The `points` of a polyline."""
        return " ".join(f"{self.at_x(a):.1f},{self.at_y(b):.1f}" for a, b in zip(x, y, strict=True))

    def bar(self, left: float, right: float, value: float, tip: str) -> Bar:
        """A bar from the bottom up to `value`."""
        x, y = self.at_x(left), self.at_y(value)
        return Bar(x, y, self.at_x(right) - x, self.bottom - y, tip)


def color(number: int) -> str:
    """The first ten from the palette, the rest spaced around the wheel by the golden angle."""
    return f"var(--c{number})" if number < COLORS else f"hsl({number * 137.508 % 360:.0f} 55% 50%)"


def tick_values(low: float, high: float, about: int = 5) -> list[float]:
    """Round numbers between `low` and `high`.

    >>> tick_values(0.0, 96.4)
    [0.0, 20.0, 40.0, 60.0, 80.0]
    """
    rough = (high - low) / about
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(m * power for m in (1, 2, 2.5, 5, 10) if m * power >= rough * 0.999)
    first = math.ceil(low / step - 1e-9)
    return [round(i * step, 10) for i in range(first, math.floor(high / step + 1e-9) + 1)]


def ticks(low: float, high: float, *, whole: bool = False) -> list[AxisTick]:
    """Round numbers, or only the whole ones, with their text."""
    values = [v for v in tick_values(low, high) if not whole or v == int(v)]
    return [(v, f"{v:g}".replace("-", "−")) for v in values]


def padded(low: float, high: float) -> tuple[float, float]:
    """The ends of an axis: some room on both sides, and never an empty range."""
    apart = high - low > 1e-9 * max(abs(low), abs(high))  # else bins would be narrower than rounding
    room = 0.04 * (high - low) if apart else max(0.05 * abs(high), 0.5)
    return low - room, high + room


def line_chart(title: str, curves: Sequence[Curve], *, limits: Sequence[float] = ()) -> Markup:
    """Curves over epochs; `limits` are upper bounds, drawn as dashed lines."""
    values = [v for curve in curves for v in curve.y if math.isfinite(v)] or [0.0]
    epochs = [x for curve in curves for x in curve.x] or [0.0, 1.0]
    frame = Frame(padded(min(epochs), max(epochs)), padded(min([*values, *limits]), max([*values, *limits])))
    return render(
        "charts/lines.svg",
        title=title,
        frame=frame,
        x_ticks=ticks(*frame.x, whole=True),
        x_label="epoch",
        y_ticks=ticks(*frame.y),
        limits=limits,
        lines=[_line(frame, curve) for curve in curves],
    )


def _line(frame: Frame, curve: Curve) -> dict[str, Any]:
    points = [(x, y) for x, y in zip(curve.x, curve.y, strict=True) if math.isfinite(y)]
    step = max(1, math.ceil(len(points) / MAX_SPOTS))
    spots = [
        (frame.at_x(x), frame.at_y(y), f"{curve.name}\nepoch {x:g}: {y:.4g}") for x, y in points[::-step]
    ]
    x, y = [x for x, _ in points], [y for _, y in points]
    markers = len(points) <= MAX_MARKERS
    line = {"run": curve.run, "color": color(curve.run), "path": frame.path(x, y)}
    return line | {"spots": spots, "markers": markers}


def log_curve(title: str, x: Sequence[float], y: Sequence[float], *, labels: tuple[str, str]) -> Markup:
    """One curve of shares in [0, 1] over a logarithmic horizontal axis; `labels` name both axes."""
    decades = max(1, math.ceil(-math.log10(min(x))))
    frame = Frame((-decades, 0.0), (0.0, 1.0))
    logs = [math.log10(a) for a in x]
    step = max(1, len(logs) // MAX_SPOTS)
    spots = [
        (frame.at_x(log), frame.at_y(b), f"{labels[0]} {a:.2g}\n{labels[1]} {b:.4g}")
        for log, a, b in list(zip(logs, x, y, strict=True))[::step]
    ]
    return render(
        "charts/log_curve.svg",
        title=title,
        frame=frame,
        x_label=labels[0],
        y_ticks=ticks(0.0, 1.0),
        decades=[(-p, f"{10.0**-p:g}") for p in range(decades + 1)],
        path=frame.path(logs, y),
        spots=spots,
    )


def histogram(
    title: str, series: Sequence[Series], *, label: str, marks: Sequence[tuple[float, str]] = ()
) -> Markup:
    """Counts of values on a linear and a logarithmic scale, one shown at a time; `marks` are named values."""
    ends = [float(f(s.values)) for s in series for f in (np.min, np.max)] + [value for value, _ in marks]
    x = padded(min(ends), max(ends))
    counts = [np.histogram(s.values, bins=BINS, range=x)[0] for s in series]
    most = max(int(c.max()) for c in counts)
    linear = [(float(v), f"{v:,}") for v in sorted({int(v) for v in tick_values(0, most)})]
    powers = [0] + [10**p for p in range(math.floor(math.log10(max(most, 1))) + 1)]
    logarithmic = [(math.log10(v + 1), f"{v:,}") for v in powers]
    frame = Frame(x, (0, most * 1.08))
    log_frame = Frame(x, (0, math.log10(most + 1) * 1.08))
    scales = [
        {
            "kind": kind,
            "frame": area,
            "ticks": at,
            "series": [
                {"color": s.color, "bars": _bars(area, s, c, log=kind == "logarithmic")}
                for s, c in zip(series, counts, strict=True)
            ],
        }
        for kind, area, at in (("linear", frame, linear), ("logarithmic", log_frame, logarithmic))
    ]
    return render(
        "charts/histogram.svg",
        title=title,
        kind="histogram",
        frame=frame,
        x_ticks=ticks(*x),
        x_label=label,
        scales=scales,
        marks=marks,
    )


def _bars(frame: Frame, series: Series, counts: np.ndarray, *, log: bool) -> list[Bar]:
    edges = np.linspace(*frame.x, BINS + 1).tolist()
    return [
        frame.bar(
            left,
            right,
            math.log10(count + 1) if log else count,
            f"{series.name}\n{left:.2f} to {right:.2f}: {count:,}",
        )
        for left, right, count in zip(edges[:-1], edges[1:], counts.tolist(), strict=True)
        if count
    ]


def counts_and_accuracy(
    title: str, names: Sequence[str], counts: Sequence[float], accuracy: Sequence[float]
) -> Markup:
    """Bars of logarithmic counts, overlaid with the accuracy of each class; NaN has no point."""
    frame, most = Frame((-0.5, len(names) - 0.5), (0.0, 105.0)), math.log10(max(counts) + 1)
    bars = [
        frame.bar(j - 0.4, j + 0.4, 100 * math.log10(count + 1) / most, f"{name}: {count:,.0f} images")
        for j, (name, count) in enumerate(zip(names, counts, strict=True))
    ]
    known = [(j, 100 * a) for j, a in enumerate(accuracy) if math.isfinite(a)]
    return render(
        "charts/class_sizes.svg",
        title=title,
        frame=frame,
        x_label="classes, largest first",
        y_ticks=[(v, f"{v} %") for v in (0, 25, 50, 75, 100)],
        bars=bars,
        path=frame.path([j for j, _ in known], [a for _, a in known]),
        spots=[(frame.at_x(j), frame.at_y(a), f"{names[j]}: {a:.2f} %") for j, a in known],
    )


def matrix(title: str, names: Sequence[str], cosines: Float[np.ndarray, "k k"]) -> Markup:
    """Cosines of all pairs as an image with a color bar: blue below zero, white at zero, red above."""
    k, side = len(names), 400
    shorts = _side_names(names) if k <= LABELED else []
    room = 12 + 6 * max(map(len, shorts), default=0)
    hundredths = np.clip(np.rint(cosines * 100) + 100, 0, 200).astype(np.uint8)
    return render(
        "charts/matrix.svg",
        title=title,
        names=list(names),
        side=side,
        room=room,
        size=room + side + 4,
        picture=_png(_diverging(cosines)),
        hundredths=base64.b64encode(hundredths.tobytes()).decode(),
        labels=[(name, (place + 0.5) * side / k) for place, name in enumerate(shorts)],
        bar=_png(_diverging(np.linspace(-1, 1, 201)[None])),
        bar_ticks=[(-1, "cosine −1, opposite"), (0, "0, at right angles"), (1, "1, the same direction")],
    )


def confusion_matrix(
    title: str,
    classes: Mapping[int, str],
    counts: Int[np.ndarray, "k k"],
    sizes: Sequence[int],
    listed: Collection[str],
) -> Markup:
    """Counts of true class (rows) and prediction (columns); mistakes red, correct ones green.

    The opacity of a cell is its share of the true class. Clicking a mistake opens its pair if it is listed.

    Args:
        title: what is drawn.
        classes: numbers and names of the classes in the matrix.
        counts: samples by true and predicted class.
        sizes: samples of each true class, with those whose prediction is not in the matrix.
        listed: pairs of class numbers that have a line to open, as "3-5".
    """
    numbers, names = list(classes), list(classes.values())
    k, side = len(names), 400
    shorts = _side_names(names)
    room = 12 + 6 * max(map(len, shorts))
    step = side / k
    shares = counts / np.maximum(np.array(sizes)[:, None], 1)
    cells = [
        {
            "x": room + b * step,
            "y": room + a * step,
            "correct": a == b,
            "key": key if (key := f"{numbers[a]}-{numbers[b]}") in listed else "",
            "strength": 0.15 + 0.85 * float(np.sqrt(shares[a, b])),
            "count": f"{counts[a, b]}" if k <= COUNTED_CELLS else "",
            "tip": f"{names[a]}, {'correct' if a == b else f'taken for {names[b]}'}: {counts[a, b]:,} of "
            f"{sizes[a]:,}",
        }
        for a, b in np.argwhere(counts).tolist()
    ]
    return render(
        "charts/confusion.svg",
        title=title,
        side=side,
        room=room,
        size=room + side + 4,
        step=step,
        labels=[(name, (place + 0.5) * step) for place, name in enumerate(shorts)],
        cells=cells,
    )


def scatter(title: str, dots: Sequence[Dot], names: Sequence[tuple[str, float, float]] = ()) -> Markup:
    """Samples and prototypes in the plane, one group per class.

    `names` are written at their places, except those that would cover an earlier one.
    """
    xs, ys = [dot.x for dot in dots], [dot.y for dot in dots]
    scale = 460 / max(max(xs) - min(xs), max(ys) - min(ys), 1e-9)

    def place(x: float, y: float) -> tuple[float, float]:
        return 240 + (x - (min(xs) + max(xs)) / 2) * scale, 10 + (max(ys) - y) * scale

    groups: dict[int, list[dict[str, Any]]] = {}
    for dot in dots:
        x, y = place(dot.x, dot.y)
        drawn = dot._asdict() | {"x": x, "y": y, "corners": _star(x, y) if dot.star else ""}
        groups.setdefault(dot.label, []).append(drawn)
    return render(
        "charts/scatter.svg",
        title=title,
        groups=[{"label": label, "color": color(label), "dots": group} for label, group in groups.items()],
        height=20 + (max(ys) - min(ys)) * scale,
        names=_apart([(short(name, 22), *place(x, y)) for name, x, y in names]),
    )


def _apart(names: Sequence[tuple[str, float, float]]) -> list[tuple[str, float, float]]:
    """Names moved into the map sideways, without those that would cover an earlier one.

    >>> _apart([("ant", 100, 50), ("bee", 110, 55), ("cow", 110, 70), ("dragonfly", 479, 50)])
    [('ant', 100, 50), ('cow', 110, 70), ('dragonfly', 446.25, 50)]
    """
    kept: list[tuple[str, float, float]] = []
    for name, x, y in names:
        half = NAME_WIDTH * len(name) / 2
        x = min(max(x, half), 480 - half)
        if all(
            abs(y - other_y) >= NAME_HEIGHT or abs(x - other_x) >= half + NAME_WIDTH * len(other) / 2
            for other, other_x, other_y in kept
        ):
            kept.append((name, x, y))
    return kept


def _star(x: float, y: float) -> str:
    """The corners of a five-pointed star."""
    rays = [(8 if i % 2 == 0 else 3.4, math.pi * i / 5) for i in range(10)]
    return " ".join(f"{x + r * math.sin(a):.1f},{y - r * math.cos(a):.1f}" for r, a in rays)


def short(name: str, length: int = 11) -> str:
    """A name that fits beside a chart.

    >>> short("Zonotrichia leucophrys")
    'Zonotrichi…'
    """
    return name if len(name) <= length else name[: length - 1] + "…"


def _side_names(names: Sequence[str]) -> list[str]:
    """Names short enough to fit beside a matrix."""
    return [short(name, 18 if len(names) <= 12 else 11) for name in names]


def _diverging(cosines: Float[np.ndarray, "h w"]) -> UInt8[np.ndarray, "h w 3"]:
    """Colors: white at 0, blue towards -1, red towards 1."""
    strength = np.sqrt(np.clip(np.abs(cosines), 0, 1))[..., None]
    ends = np.where(cosines[..., None] < 0, np.array([33, 102, 172]), np.array([178, 24, 43]))
    return np.rint(250 + (ends - 250) * strength).astype(np.uint8)


def _png(pixels: UInt8[np.ndarray, "h w 3"]) -> str:
    """A PNG file in base64."""
    from PIL import Image

    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, "PNG")
    return base64.b64encode(buffer.getvalue()).decode()
