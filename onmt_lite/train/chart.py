"""Line charts as SVG, and the parts of which other charts are made.

Sizes are in pixels.  Text stays text, which can be searched and copied.  The background and all
colours are given, so that a chart looks the same on a dark page.
"""

import html
import math
import re
from collections.abc import Container, Mapping, Sequence

COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#56b4e9", "#e69f00")  # Okabe and Ito 2008
DARK, LIGHT = "#222222", "#dddddd"
FONT = 13
LETTER = 0.56 * FONT  # mean width of a letter
DIGIT = 0.64 * FONT  # width of a digit in the widest of the usual fonts
WIDTH = 720
HUGE, TINY = 1e300, 1e-100  # magnitudes between which differences can be computed
# Characters that XML 1.0 cannot hold
UNWRITABLE = re.compile("[^\t\n\r\u0020-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")

Points = Sequence[tuple[float, float]]


def line_chart(
    title: str,
    x_label: str,
    panels: Mapping[str, Mapping[str, Points]],
    from_zero: Container[str] = (),
) -> str:
    """Draw panels below each other, with the same x axis, which has 0, and a scale of their own.

    `panels` has the label of each y axis and its lines, by name; the axes in `from_zero` include 0.
    Points are joined in order; those that are not finite, or too large to compute with, are left
    out.
    """
    kept = {
        label: {name: [p for p in points if is_drawable(p)] for name, points in lines}
        for label, lines in ((label, lines.items()) for label, lines in panels.items())
    }
    x_ticks = ticks([0.0, *(x for lines in kept.values() for ps in lines.values() for x, _ in ps)])
    scales = [
        ticks([*[0.0] * (label in from_zero), *(y for ps in lines.values() for _, y in ps)])
        for label, lines in kept.items()
    ]
    left = 38 + max([26.0, *map(label_width, scales)])
    right = max(20.0, 4 + label_width(x_ticks) / 2)
    top, height, gap = 48, 200, 44
    inside = WIDTH - left - right
    each = math.ceil((label_width(x_ticks) + 8) * (len(x_ticks) - 1) / inside)
    total = top + len(kept) * (height + gap) + 16
    parts = [draw_text(WIDTH / 2, 24, shortened(title), "middle", bold=True)]
    for i, ((label, lines), y_ticks) in enumerate(zip(kept.items(), scales)):
        bottom = top + i * (height + gap) + height
        for y in y_ticks:
            place = bottom - share(y, y_ticks) * height
            parts.append(draw_line(left, place, WIDTH - right, place, LIGHT))
            parts.append(draw_text(left - 8, place + 4, number(y, y_ticks), "end"))
        for n, x in enumerate(x_ticks):
            place = left + share(x, x_ticks) * inside
            parts.append(draw_line(place, bottom, place, bottom + 5, DARK))
            if n % each == 0:
                parts.append(draw_text(place, bottom + 19, number(x, x_ticks), "middle"))
        parts.append(draw_line(left, bottom, WIDTH - right, bottom, DARK))
        parts.append(draw_line(left, bottom - height, left, bottom, DARK))
        parts.append(draw_text(16, bottom - height / 2, label, "middle", upright=True))
        for (_, points), colour in zip(lines.items(), colours(len(lines))):
            places = [
                (left + share(x, x_ticks) * inside, bottom - share(y, y_ticks) * height)
                for x, y in points
            ]
            parts.append(draw_points(places, colour))
        if len(lines) > 1:
            parts.append(draw_legend(list(lines), WIDTH - right, bottom - height - 8))
    parts.append(draw_text(left + inside / 2, total - 14, x_label, "middle"))
    return svg_page(title, total, parts)


def is_drawable(point: tuple[float, float]) -> bool:
    return all(abs(value) < HUGE for value in point)  # false for NaN


def ticks(values: Sequence[float]) -> list[float]:
    """Return three to nine round numbers at equal distances that span the values; without values,
    those from 0 to 1."""
    low, high = (min(values), max(values)) if values else (0.0, 1.0)
    if high - low <= 1e-9 * max(abs(low), abs(high), TINY):  # one value: some room around it
        low, high = low - abs(low) / 2, high + abs(high) / 2
    if high - low < TINY:
        low, high = 0.0, 1.0
    rough = (high - low) / 7
    power = 10.0 ** math.floor(math.log10(rough))
    distance = next(n * power for n in (1, 2, 5, 10) if n * power >= rough * (1 - 1e-9))
    first, last = math.floor(low / distance + 1e-9), math.ceil(high / distance - 1e-9)
    return [n * distance for n in range(first, last + 1)]


def share(value: float, scale: list[float]) -> float:
    """Return the position of a value on a scale: 0 at the first tick, 1 at the last."""
    return (value - scale[0]) / (scale[-1] - scale[0])


def number(value: float, scale: list[float]) -> str:
    """Format a tick with as many decimals as the distance between ticks has; with an exponent if
    it would be long."""
    last = math.floor(math.log10(scale[1] - scale[0]) + 1e-9)  # place of the last digit
    largest = max(abs(scale[0]), abs(scale[-1]))
    if value and (largest >= 1e7 or last < -6):
        first = math.floor(math.log10(abs(value)))
        return f"{value:.{max(0, first - last)}e}"
    return f"{value + 0.0:,.{max(0, -last)}f}"


def label_width(scale: list[float]) -> float:
    """Return the width of the longest tick label."""
    return DIGIT * max(len(number(value, scale)) for value in scale)


def shortened(title: str) -> str:
    """Leave out the middle of a title that is wider than the chart."""
    room = int((WIDTH - 20) / (1.15 * LETTER))  # bold letters are wider
    return title if len(title) <= room else f"{title[: room // 3]}…{title[1 + room // 3 - room :]}"


def colours(n: int) -> list[str]:
    return [COLOURS[i % len(COLOURS)] for i in range(n)]


def draw_text(
    x: float, y: float, text: str, anchor: str = "start", bold: bool = False, upright: bool = False
) -> str:
    turned = f' transform="rotate(-90 {x:.1f} {y:.1f})"' if upright else ""
    weight = ' font-weight="bold"' if bold else ""
    at = f'x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"'
    return f"<text {at}{weight}{turned}>{escape(text)}</text>"


def draw_line(x1: float, y1: float, x2: float, y2: float, colour: str) -> str:
    ends = f'x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}"'
    return f'<line {ends} stroke="{colour}"/>'


def draw_points(places: list[tuple[float, float]], colour: str) -> str:
    """Draw a line through all places, with dots if they are few, so that a single one is seen."""
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
    line = f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"/>'
    few = places if len(places) <= 50 else []
    dots = [f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="{colour}"/>' for x, y in few]
    return "".join([line, *dots])


def draw_legend(names: list[str], right: float, y: float) -> str:
    """Draw names after squares of their colours, in a row that ends at `right`."""
    widths = [26 + LETTER * len(name) for name in names]
    x, parts = right - sum(widths), []
    for name, width, colour in zip(names, widths, colours(len(names))):
        parts.append(f'<rect x="{x:.1f}" y="{y - 9:.1f}" width="10" height="10" fill="{colour}"/>')
        parts.append(draw_text(x + 14, y, name))
        x += width
    return "".join(parts)


def svg_page(title: str, height: float, parts: list[str]) -> str:
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{height:.0f}" '
        f'viewBox="0 0 {WIDTH} {height:.0f}" font-family="sans-serif" font-size="{FONT}" '
        f'fill="{DARK}" role="img">\n<title>{escape(title)}</title>\n'
        f'<rect width="{WIDTH}" height="{height:.0f}" fill="white"/>\n'
    )
    return head + "\n".join(parts) + "\n</svg>\n"


def escape(text: str) -> str:
    return html.escape(UNWRITABLE.sub("\ufffd", text))
