"""Charts as SVG text: small enough for a phone, drawn before any script runs."""

import base64
import io
import json
import math
from collections.abc import Sequence
from html import escape
from typing import NamedTuple

import numpy as np
from jaxtyping import Float, UInt8

WIDTH, HEIGHT = 380, 230
LEFT, RIGHT, TOP, BOTTOM = 46, 12, 24, 36
COLOURS = 10
BINS = 40
TIPS = 60
"""A curve answers to the pointer at so many places at the most."""


class Curve(NamedTuple):
    """The numbers of one run; `run` decides its colour."""

    name: str
    run: int
    x: Sequence[float]
    y: Sequence[float]


class Series(NamedTuple):
    """Values to be counted; `colour` is a CSS variable."""

    name: str
    colour: str
    values: Float[np.ndarray, " n"]


class Dot(NamedTuple):
    """A sample on a map, given a wrong class or not; or a prototype, drawn as a star."""

    x: float
    y: float
    label: int
    tip: str
    wrong: bool = False
    star: bool = False


def colour(number: int) -> str:
    """The first ten from the palette, others around the wheel by the golden angle."""
    return f"var(--c{number})" if number < COLOURS else f"hsl({number * 137.508 % 360:.0f} 55% 50%)"


class Frame(NamedTuple):
    """The area of a chart in data coordinates."""

    x: tuple[float, float]
    y: tuple[float, float]

    def at_x(self, value: float) -> float:
        low, high = self.x
        return LEFT + (WIDTH - LEFT - RIGHT) * (value - low) / (high - low)

    def at_y(self, value: float) -> float:
        low, high = self.y
        return HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * (value - low) / (high - low)

    def columns(self, label: str, *, whole: bool = False) -> str:
        """The horizontal axis, with all round numbers or the `whole` ones."""
        base = HEIGHT - BOTTOM
        values = [v for v in ticks(*self.x) if not whole or v == int(v)]
        marks = "".join(_text(self.at_x(v), base + 15, _short(v), "middle") for v in values)
        line = f'<path class="axis" d="M{LEFT} {base}H{WIDTH - RIGHT}"/>'
        return line + marks + _text((LEFT + WIDTH - RIGHT) / 2, HEIGHT - 4, label, "middle")

    def rows(self, values: Sequence[float], texts: Sequence[str]) -> str:
        """Lines across, each with its text."""
        return "".join(
            f'<path class="grid" d="M{LEFT} {self.at_y(v):.1f}H{WIDTH - RIGHT}"/>'
            + _text(LEFT - 6, self.at_y(v) + 4, text, "end")
            for v, text in zip(values, texts, strict=True)
        )


def ticks(low: float, high: float, about: int = 5) -> list[float]:
    """Round numbers between `low` and `high`.

    >>> ticks(0.0, 96.4)
    [0.0, 20.0, 40.0, 60.0, 80.0]
    """
    rough = (high - low) / about
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(m * power for m in (1, 2, 2.5, 5, 10) if m * power >= rough * 0.999)
    first = math.ceil(low / step - 1e-9)
    return [round(i * step, 10) for i in range(first, math.floor(high / step + 1e-9) + 1)]


def line_chart(title: str, curves: Sequence[Curve], *, limits: Sequence[float] = ()) -> str:
    """Curves over epochs; `limits` are dashed lines at what cannot be exceeded."""
    every = [v for curve in curves for v in curve.y if math.isfinite(v)] or [0.0]
    low, high = spread(min([*every, *limits]), max([*every, *limits]))
    ends = spread(min((min(c.x) for c in curves), default=0.0), max((max(c.x) for c in curves), default=1.0))
    frame = Frame(ends, (low, high))
    values = ticks(low, high)
    parts = [frame.rows(values, [_short(v) for v in values]), frame.columns("epoch", whole=True)]
    parts += [_across(frame, limit, above=place == len(limits) - 1) for place, limit in enumerate(limits)]
    parts += [_curve(frame, curve) for curve in curves]
    return _svg(title, "".join(parts))


def _across(frame: Frame, value: float, *, above: bool) -> str:
    """A dashed line with its value; that of the highest stands above it, those of others below."""
    y = frame.at_y(value)
    text = _text(WIDTH - RIGHT, y - 4 if above else y + 12, f"at most {value:.4g}", "end")
    return f'<path class="mark" d="M{LEFT} {y:.1f}H{WIDTH - RIGHT}"/>{text}'


def _curve(frame: Frame, curve: Curve) -> str:
    points = [(x, y) for x, y in zip(curve.x, curve.y, strict=True) if math.isfinite(y)]
    drawn = [(frame.at_x(x), frame.at_y(y)) for x, y in points]
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y in drawn)
    step = max(1, math.ceil(len(points) / TIPS))
    spots = "".join(
        f'<circle class="touch" cx="{a:.1f}" cy="{b:.1f}" r="6" data-tip="{escape(curve.name)}\n'
        f'epoch {x:g}: {y:.4g}"/>'
        for (a, b), (x, y) in list(zip(drawn, points, strict=True))[::-step]
    )
    shade = colour(curve.run)
    return (
        f'<g class="run-{curve.run}" color="{shade}">'
        f'<polyline class="curve" stroke="{shade}" points="{path}"/>{spots}</g>'
    )


def log_curve(title: str, x: Sequence[float], y: Sequence[float], *, labels: tuple[str, str]) -> str:
    """One curve of shares, from 0 to 1 upwards, over others by powers of ten; the labels of both axes."""
    decades = max(1, math.ceil(-math.log10(min(x))))
    frame = Frame((-decades, 0.0), (0.0, 1.0))
    base, shares = HEIGHT - BOTTOM, [0.0, 0.25, 0.5, 0.75, 1.0]
    marks = "".join(
        f'<path class="grid" d="M{frame.at_x(-p):.1f} {TOP}V{base}"/>'
        + _text(frame.at_x(-p), base + 15, f"{10.0**-p:g}", "middle")
        for p in range(decades + 1)
    )
    drawn = [(frame.at_x(math.log10(a)), frame.at_y(b)) for a, b in zip(x, y, strict=True)]
    path = " ".join(f"{a:.1f},{b:.1f}" for a, b in drawn)
    tips = "".join(
        f'<circle class="touch" cx="{a:.1f}" cy="{b:.1f}" r="6" data-tip="{labels[0]} {far:.2g}\n'
        f'{labels[1]} {tar:.4g}"/>'
        for (a, b), far, tar in list(zip(drawn, x, y, strict=True))[:: max(1, len(drawn) // TIPS)]
    )
    line = f'<g color="var(--c0)"><polyline class="curve" stroke="var(--c0)" points="{path}"/>{tips}</g>'
    foot = _text((LEFT + WIDTH - RIGHT) / 2, HEIGHT - 4, labels[0], "middle")
    return _svg(title, frame.rows(shares, [f"{v:g}" for v in shares]) + marks + line + foot)


def histogram(
    title: str, series: Sequence[Series], *, label: str, marks: Sequence[tuple[float, str]] = ()
) -> str:
    """Counts of values, plain and logarithmic, one of which is shown; `marks` are values with a name."""
    ends = [float(f(s.values)) for s in series for f in (np.min, np.max)] + [value for value, _ in marks]
    low, high = spread(min(ends), max(ends))
    counts = [np.histogram(s.values, bins=BINS, range=(low, high))[0] for s in series]
    most = max(int(c.max()) for c in counts)
    lines = [(Frame((low, high), (0, most * 1.08)), _plain_ticks(most), "linear")]
    lines.append((Frame((low, high), (0, math.log10(most + 1) * 1.08)), _powers(most), "logarithmic"))
    parts = []
    for frame, at, kind in lines:
        texts = [f"{v:,}" for v in at]
        heights = at if kind == "linear" else [math.log10(v + 1) for v in at]
        bars = [_bars(frame, s, c, kind) for s, c in zip(series, counts, strict=True)]
        parts.append(f'<g class="{kind}">{frame.rows(heights, texts)}{"".join(bars)}</g>')
    frame = lines[0][0]
    parts += [_upright(frame, value, text, place) for place, (value, text) in enumerate(marks)]
    return _svg(title, "".join(parts) + frame.columns(label), kind="histogram")


def _plain_ticks(most: int) -> list[int]:
    return sorted({int(v) for v in ticks(0, most)})


def _powers(most: int) -> list[int]:
    return [0] + [10**p for p in range(math.floor(math.log10(max(most, 1))) + 1)]


def _bars(frame: Frame, series: Series, counts: np.ndarray, kind: str) -> str:
    low, high = frame.x
    edges, base = np.linspace(low, high, BINS + 1), frame.at_y(0)
    parts = []
    for left, right, count in zip(edges[:-1], edges[1:], counts.tolist(), strict=True):
        if not count:
            continue
        top = frame.at_y(count if kind == "linear" else math.log10(count + 1))
        x, width = frame.at_x(left), frame.at_x(right) - frame.at_x(left)
        parts.append(
            f'<rect x="{x:.1f}" y="{top:.1f}" width="{width:.1f}" height="{base - top:.1f}" '
            f'data-tip="{escape(series.name)}\n{left:.2f} to {right:.2f}: {count:,}"/>'
        )
    return f'<g fill="{series.colour}" fill-opacity="0.72">{"".join(parts)}</g>'


def _upright(frame: Frame, value: float, text: str, place: int) -> str:
    x = frame.at_x(value)
    anchor = "end" if x > WIDTH / 2 else "start"
    words = _text(x + (-4 if anchor == "end" else 4), TOP + 8 + 13 * place, text, anchor)
    return f'<path class="mark" d="M{x:.1f} {TOP}V{HEIGHT - BOTTOM}"/>{words}'


def counts_and_accuracy(
    title: str, names: Sequence[str], counts: Sequence[float], accuracy: Sequence[float]
) -> str:
    """Bars of logarithmic counts with the accuracy of each class over them, in per cent; NaN has no point."""
    frame = Frame((-0.5, len(names) - 0.5), (0.0, 105.0))
    values = [0, 25, 50, 75, 100]
    parts = [frame.rows(values, [f"{v} %" for v in values])]
    width, base, most = 0.8 * (frame.at_x(1) - frame.at_x(0)), frame.at_y(0), math.log10(max(counts) + 1)
    for place, (name, count) in enumerate(zip(names, counts, strict=True)):
        top = frame.at_y(100 * math.log10(count + 1) / most)
        parts.append(
            f'<rect x="{frame.at_x(place) - width / 2:.1f}" y="{top:.1f}" width="{width:.1f}" '
            f'height="{base - top:.1f}" fill="var(--line)" data-tip="{escape(name)}: {count:,.0f} images"/>'
        )
    known = [(j, 100 * a) for j, a in enumerate(accuracy) if math.isfinite(a)]
    points = " ".join(f"{frame.at_x(j):.1f},{frame.at_y(a):.1f}" for j, a in known)
    parts.append(f'<polyline class="curve" stroke="var(--c0)" points="{points}"/>')
    parts += [
        f'<circle cx="{frame.at_x(j):.1f}" cy="{frame.at_y(a):.1f}" r="3" fill="var(--c0)" '
        f'data-tip="{escape(names[j])}: {a:.2f} %"/>'
        for j, a in known
    ]
    parts.append(_text((LEFT + WIDTH - RIGHT) / 2, HEIGHT - 4, "classes, the largest first", "middle"))
    return _svg(title, "".join(parts))


def matrix(title: str, names: Sequence[str], cosines: Float[np.ndarray, "k k"]) -> str:
    """Cosines of all pairs as one picture: blue below zero, white at it, red above; names at the sides."""
    k, side = len(names), 400
    shorts = [name if len(name) <= 11 else name[:10] + "…" for name in names] if k <= 40 else []
    room = 12 + 6 * max(map(len, shorts), default=0)
    hundredths = np.clip(np.rint(cosines * 100) + 100, 0, 200).astype(np.uint8)
    numbers = base64.b64encode(hundredths.tobytes()).decode()
    picture = base64.b64encode(_png(_diverging(cosines))).decode()
    step = side / k
    texts = []
    for place, short in enumerate(shorts):
        middle = (place + 0.5) * step
        texts.append(_text(room - 6, room + middle + 4, short, "end"))
        at = f"{room + middle + 4:.1f} {room - 6}"
        texts.append(f'<text transform="translate({at}) rotate(-90)">{escape(short)}</text>')
    image = (
        f'<image x="{room}" y="{room}" width="{side}" height="{side}" preserveAspectRatio="none" '
        f'href="data:image/png;base64,{picture}" data-hundredths="{numbers}" '
        f'data-names="{escape(json.dumps(list(names)))}"/>'
    )
    size = room + side + 4
    return (
        f'<svg viewBox="0 0 {size} {size}" role="img" aria-label="{escape(title)}">'
        f"{image}{''.join(texts)}</svg>"
    )


def scatter(title: str, dots: Sequence[Dot]) -> str:
    """Samples and prototypes in two dimensions, a group for each class."""
    left, bottom = min(dot.x for dot in dots), min(dot.y for dot in dots)
    extent = max(max(dot.x for dot in dots) - left, max(dot.y for dot in dots) - bottom, 1e-9)
    scale = 460 / extent
    groups: dict[int, list[str]] = {}
    for dot in dots:
        x, y = 10 + (dot.x - left) * scale, 470 - (dot.y - bottom) * scale
        groups.setdefault(dot.label, []).append(_star(dot, x, y) if dot.star else _dot(dot, x, y))
    parts = [
        f'<g data-class="{label}" fill="{colour(label)}">{"".join(marks)}</g>'
        for label, marks in groups.items()
    ]
    return f'<svg viewBox="0 0 480 480" role="img" aria-label="{escape(title)}">{"".join(parts)}</svg>'


def _dot(dot: Dot, x: float, y: float) -> str:
    kind = ' class="wrong"' if dot.wrong else ""
    return f'<circle{kind} cx="{x:.1f}" cy="{y:.1f}" r="3.2" data-tip="{escape(dot.tip)}"/>'


def _star(dot: Dot, x: float, y: float) -> str:
    rays = [(8 if i % 2 == 0 else 3.4, math.pi * i / 5) for i in range(10)]
    corners = " ".join(f"{x + r * math.sin(a):.1f},{y - r * math.cos(a):.1f}" for r, a in rays)
    return f'<polygon class="prototype" points="{corners}" data-tip="{escape(dot.tip)}"/>'


def spread(low: float, high: float) -> tuple[float, float]:
    """The ends of an axis: a little room on both sides, and never nothing."""
    room = 0.04 * (high - low) or max(0.05 * abs(high), 0.5)
    return low - room, high + room


def _svg(title: str, inner: str, kind: str = "") -> str:
    attribute = f' class="{kind}"' if kind else ""
    head = f'<text class="title" x="{LEFT}" y="12">{escape(title)}</text>'
    box = f'viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{escape(title)}"'
    return f"<svg{attribute} {box}>{head}{inner}</svg>"


def _short(value: float) -> str:
    return f"{value:g}".replace("-", "−")


def _text(x: float, y: float, text: str, anchor: str) -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(text)}</text>'


def _diverging(cosines: Float[np.ndarray, "k k"]) -> UInt8[np.ndarray, "k k 3"]:
    """Colours: white at 0, towards blue at -1, towards red at 1."""
    strength = np.sqrt(np.clip(np.abs(cosines), 0, 1))[..., None]
    ends = np.where(cosines[..., None] < 0, np.array([33, 102, 172]), np.array([178, 24, 43]))
    return np.rint(250 + (ends - 250) * strength).astype(np.uint8)


def _png(pixels: UInt8[np.ndarray, "h w 3"]) -> bytes:
    from PIL import Image

    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, "PNG")
    return buffer.getvalue()
