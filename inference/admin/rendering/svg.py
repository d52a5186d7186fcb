"""Small drawings, as SVG without styles: the style sheet gives them their colours."""

from __future__ import annotations

import math
from collections.abc import Sequence

from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString, mark_safe

COLUMNS = 128
WIDTH, HEIGHT = 384, 48


def draw_vector(numbers: Sequence[float]) -> SafeString:
    """Draw numbers as columns up and down from the middle.

    If there are more than `COLUMNS` numbers, each column shows the largest of its numbers, whatever its sign.
    """
    step = max(1, -(-len(numbers) // COLUMNS))
    columns = [max(numbers[start : start + step], key=abs) for start in range(0, len(numbers), step)]
    tallest = max(map(abs, columns), default=0.0) or 1.0
    wide, middle = WIDTH / len(columns), HEIGHT / 2
    strokes = "".join(
        f"M{place * wide:.1f} {middle:g}h{wide * 0.8:.2f}v{-number / tallest * middle:.1f}h{-wide * 0.8:.2f}z"
        for place, number in enumerate(columns)
    )
    return _render_svg("vector", f"chart of {len(numbers)} numbers", mark_safe(f'<path d="{strokes}"/>'))  # noqa: S308 - numbers


def draw_shares(parts: Sequence[tuple[str, float]]) -> SafeString:
    """Draw one bar that is cut into named parts."""
    whole = sum(size for _, size in parts) or 1.0
    drawn, before = [], 0.0
    for name, size in parts:
        drawn.append(
            format_html(
                '<rect class="{}" x="{}" width="{}" height="48"><title>{}</title></rect>',
                f"part-{name}",
                f"{before / whole * WIDTH:.2f}",
                f"{max(size / whole * WIDTH, 0.5):.2f}",
                name,
            )
        )
        before += size
    return _render_svg("shares", ", ".join(name for name, _ in parts), mark_safe("".join(drawn)))  # noqa: S308 - escaped above


def draw_columns(values: Sequence[int], *, to: int | None = None) -> SafeString:
    """Draw a column for each length; `to` is the length that the shorter ones are padded to."""
    longest = max([*values, to or 1, 1])
    wide = WIDTH / max(len(values), 1)
    strokes = "".join(
        f"M{place * wide:.1f} {HEIGHT}h{wide * 0.85:.2f}v{-value / longest * HEIGHT:.1f}h{-wide * 0.85:.2f}z"
        for place, value in enumerate(values)
    )
    padded = (
        f'<rect class="padding" y="{HEIGHT - to / longest * HEIGHT:.1f}" width="{WIDTH}" height="48"/>' if to else ""
    )
    return _render_svg("lengths", "lengths", mark_safe(f'{padded}<path d="{strokes}"/>'))  # noqa: S308 - numbers


def draw_scatter_plot(points: Sequence[tuple[float, float, str]]) -> SafeString:
    """Draw pairs of seconds as points, the second upwards against the first, both by their order of magnitude.

    On the line both are equal. Each point has a title.
    """
    values = [value for point in points for value in point[:2] if value > 0]
    low, high = math.log10(min(values)) - 0.1, math.log10(max(values)) + 0.1
    side = 300

    def format_coordinate(value: float) -> str:
        return f"{(math.log10(max(value, 1e-9)) - low) / (high - low) * side:.1f}"

    circles = format_html_join(
        "",
        '<circle cx="{}" cy="{}" r="4"><title>{}</title></circle>',
        (
            (format_coordinate(learnt), f"{side - float(format_coordinate(took)):.1f}", title)
            for learnt, took, title in points
        ),
    )
    return format_html(
        '<svg class="against" viewBox="0 0 {} {}" role="img" aria-label="measured against expected time">'
        '<path class="equal" d="M0 {}L{} 0"/>{}</svg>',
        side,
        side,
        side,
        side,
        circles,
    )


def _render_svg(name: str, label: str, inside: SafeString) -> SafeString:
    return format_html(
        '<svg class="drawing {}" viewBox="0 0 {} {}" preserveAspectRatio="none" role="img" aria-label="{}">{}</svg>',
        name,
        WIDTH,
        HEIGHT,
        label,
        inside,
    )
