"""Small line and bar charts as SVG text: axes, a legend, and nothing else."""

import math
from collections.abc import Mapping, Sequence
from html import escape

_WIDTH, _HEIGHT = 760, 420
_LEFT, _RIGHT, _TOP, _BOTTOM = 70, 220, 40, 50
# Told apart by people who see few colours, too.
_COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000", "#7f7f7f", "#8c564b")

Line = Sequence[tuple[float, float]]


def _ticks(low: float, high: float, *, log: bool) -> list[float]:
    if log:
        return [10.0**power for power in range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)]
    step = 10 ** math.floor(math.log10(max(high - low, 1e-9)))
    for divisor in (1, 2, 5):
        if (high - low) / (step / divisor) >= 4:
            step /= divisor
            break
    return [tick * step for tick in range(math.floor(low / step), math.ceil(high / step) + 1)]


class _Axis:
    def __init__(self, values: Sequence[float], begin: float, end: float, *, log: bool, zero: bool) -> None:
        low, high = (min(values), max(values)) if values else (0.0, 1.0)
        if log:
            low, high = max(low, 1e-3), max(high, 1e-2)
        elif zero:
            low = min(low, 0.0)
        self.log = log
        self.ticks = _ticks(low, high if high > low else low + 1, log=log)
        self._low, self._high = self._scale(self.ticks[0]), self._scale(self.ticks[-1])
        self._begin, self._end = begin, end

    def _scale(self, value: float) -> float:
        return math.log10(max(value, 1e-3)) if self.log else value

    def at(self, value: float) -> float:
        """Where a value is drawn."""
        share = (self._scale(value) - self._low) / (self._high - self._low)
        return self._begin + share * (self._end - self._begin)


def _frame(title: str, x: _Axis | None, y: _Axis, x_label: str, y_label: str, names: Sequence[str]) -> list[str]:
    right, bottom = _WIDTH - _RIGHT, _HEIGHT - _BOTTOM
    middle = (_TOP + bottom) / 2
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT}" font-family="sans-serif">',
        "<style>text { font-size: 12px } .title { font-size: 15px }</style>",
        f'<rect width="{_WIDTH}" height="{_HEIGHT}" fill="white"/>',
        f'<text x="{_LEFT}" y="22" class="title">{escape(title)}</text>',
        f'<text x="{(_LEFT + right) / 2}" y="{_HEIGHT - 12}" text-anchor="middle">{escape(x_label)}</text>',
        f'<text transform="translate(18 {middle}) rotate(-90)" text-anchor="middle">{escape(y_label)}</text>',
    ]
    for tick in y.ticks:
        at = y.at(tick)
        parts.append(f'<line x1="{_LEFT}" x2="{right}" y1="{at:.1f}" y2="{at:.1f}" stroke="#dddddd"/>')
        parts.append(f'<text x="{_LEFT - 6}" y="{at + 4:.1f}" text-anchor="end">{tick:g}</text>')
    for tick in x.ticks if x else ():
        parts.append(f'<text x="{x.at(tick) if x else 0:.1f}" y="{bottom + 18}" text-anchor="middle">{tick:g}</text>')
    for number, name in enumerate(names):
        at = _TOP + 14 + 18 * number
        colour = _COLOURS[number % len(_COLOURS)]
        parts.append(f'<rect x="{right + 12}" y="{at - 9}" width="12" height="10" fill="{colour}"/>')
        parts.append(f'<text x="{right + 30}" y="{at}">{escape(name)}</text>')
    return parts


def lines(
    title: str,
    series: Mapping[str, Line],
    *,
    x_label: str,
    y_label: str,
    log_x: bool = False,
    log_y: bool = False,
) -> str:
    """A line for each series."""
    points = [point for line in series.values() for point in line]
    x = _Axis([point[0] for point in points], _LEFT, _WIDTH - _RIGHT, log=log_x, zero=not log_x)
    y = _Axis([point[1] for point in points], _HEIGHT - _BOTTOM, _TOP, log=log_y, zero=not log_y)
    parts = _frame(title, x, y, x_label, y_label, list(series))
    for number, line in enumerate(series.values()):
        path = " ".join(f"{x.at(a):.1f},{y.at(b):.1f}" for a, b in line)
        colour = _COLOURS[number % len(_COLOURS)]
        parts.append(f'<polyline fill="none" stroke="{colour}" stroke-width="1.8" points="{path}"/>')
    return "\n".join([*parts, "</svg>", ""])


def bars(title: str, series: Mapping[str, Sequence[float]], *, x_label: str, y_label: str) -> str:
    """Groups of bars: the first of every series, then the second, and so on."""
    groups = max(len(values) for values in series.values())
    y = _Axis([value for values in series.values() for value in values], _HEIGHT - _BOTTOM, _TOP, log=False, zero=True)
    parts = _frame(title, None, y, x_label, y_label, list(series))
    room = (_WIDTH - _RIGHT - _LEFT) / groups
    width = room * 0.85 / len(series)
    for number, values in enumerate(series.values()):
        colour = _COLOURS[number % len(_COLOURS)]
        for group, value in enumerate(values):
            left = _LEFT + room * group + width * number
            top = y.at(value)
            height = _HEIGHT - _BOTTOM - top
            parts.append(
                f'<rect x="{left:.1f}" y="{top:.1f}" width="{width:.1f}" height="{height:.1f}" fill="{colour}"/>'
            )
    for group in range(groups):
        at = _LEFT + room * (group + 0.42)
        parts.append(f'<text x="{at:.1f}" y="{_HEIGHT - _BOTTOM + 18}" text-anchor="middle">{group}</text>')
    return "\n".join([*parts, "</svg>", ""])
