"""Inputs and outputs as people read them: by their shape, whatever the model.

All that a client or a model wrote is escaped, and as much of it is shown as fits in a page.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from itertools import islice
from typing import Any, TypeGuard

from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString, mark_safe

from inference.admin.rendering import job_media, svg
from inference.admin.rendering.display import LONGEST_TEXT, escape_text, format_json, render_block

FOLDED = 600  # characters of a text; longer ones are folded
MOST_ITEMS = 20  # items of a list that are shown
MOST_BARS = 30
MOST_SPANS = 500
SHORTEST_VECTOR = 8
NAMES = ("label", "token_str", "answer", "entity_group", "entity")  # the keys that may name an entry with a score

Link = Callable[[job_media.Path], str]  # returns the address of the medium at a path


def render_pairs(
    inputs: object, output: object, link: Link
) -> Iterator[tuple[int | None, SafeString, SafeString | None]]:
    """Yield pairs of an input and its output: the number of the item, the input, and the output if there is one.

    A list of inputs makes a pair of each item. If the output is no list of as many items, it follows as one pair
    without a number or an input. Other inputs make one pair with all output, without a number.
    """
    if isinstance(inputs, list) and inputs and not _is_chat(inputs):
        outputs = output if isinstance(output, list) and len(output) == len(inputs) else []
        for place, value in enumerate(islice(inputs, MOST_ITEMS)):
            answer = render_value(outputs[place], link, ("output", place), of=value) if outputs else None
            yield place, render_value(value, link, ("inputs", place)), answer
        if output is not None and not outputs:
            yield None, mark_safe(""), render_value(output, link, ("output",))
    else:
        answer = None if output is None else render_value(output, link, ("output",), of=inputs)
        yield None, render_value(inputs, link, ("inputs",)), answer


def count_omitted_inputs(inputs: object) -> int:
    """Return how many inputs `render_pairs` leaves out."""
    return max(0, len(inputs) - MOST_ITEMS) if isinstance(inputs, list) and not _is_chat(inputs) else 0


def render_value(value: object, link: Link, path: job_media.Path, of: object = None) -> SafeString:
    """Return a value as HTML; `of` is the input that it is the answer to."""
    if isinstance(value, str):
        return _render_medium(value, link, path) or render_text(value)
    if _is_vector(value):
        return _render_vector(value)
    if isinstance(value, list) and value:
        return _render_list(value, link, path, of)
    if isinstance(value, dict):
        return _render_dict(value, link, path)
    return format_json(value)


def render_text(value: str) -> SafeString:
    if len(value) <= FOLDED:
        return SafeString(render_block(value) or mark_safe('<span class="help">empty</span>'))
    return format_html(
        '<details class="fold"><summary><span class="beginning">{}…</span> <span class="help">{} characters</span>'
        "</summary>{}{}</details>",
        escape_text(value[:FOLDED]),
        f"{len(value):,}",
        render_block(value),
        _render_more(len(value) - LONGEST_TEXT, "characters"),
    )


def _render_more(count: int, what: str) -> SafeString | str:
    return format_html('<p class="help">{} more {}</p>', f"{count:,}", what) if count > 0 else ""


def _render_medium(value: str, link: Link, path: job_media.Path) -> SafeString | None:
    kind = job_media.detect_media_type(value)
    if kind.startswith("image/"):
        return format_html('<img class="shown" src="{}" alt="the image" loading="lazy">', link(path))
    if kind.startswith("audio/"):
        return format_html('<audio controls preload="none" src="{}"></audio>', link(path))
    return None


def _render_list(value: list[Any], link: Link, path: job_media.Path, of: object) -> SafeString:
    if _is_chat(value):
        return _render_chat(value)
    if isinstance(of, str) and all(_is_span(entry, of) for entry in value[:MOST_SPANS]):
        return _render_marked_text(of, value[:MOST_SPANS])
    if all(_find_scored_name(entry) is not None for entry in value[:MOST_BARS]):
        return format_html(
            "{}{}", _render_score_bars(value[:MOST_BARS]), _render_more(len(value) - MOST_BARS, "entries")
        )
    if len(value) == 1 and isinstance(value[0], list | dict):
        return render_value(value[0], link, (*path, 0), of)
    if all(_is_vector(entry) for entry in value[:MOST_ITEMS]):
        drawn = format_html_join("", "<li>{}</li>", ((_render_vector(entry),) for entry in value[:MOST_ITEMS]))
        return format_html('<ol class="rows" start="0">{}</ol>{}', drawn, _render_more(len(value) - MOST_ITEMS, "rows"))
    if any(job_media.detect_media_type(entry) for entry in value[:MOST_ITEMS]):
        items = ((render_value(entry, link, (*path, place)),) for place, entry in enumerate(value[:MOST_ITEMS]))
        return format_html('<ol class="rows" start="0">{}</ol>', format_html_join("", "<li>{}</li>", items))
    return format_json(value)


def _render_dict(value: Mapping[str, Any], link: Link, path: job_media.Path) -> SafeString:
    """Return long texts, vectors, chats and media each by itself, and the rest as JSON."""
    apart = {
        name: entry
        for name, entry in islice(value.items(), MOST_ITEMS)
        if (
            isinstance(entry, str)
            and (len(entry) > FOLDED or name == "generated_text" or job_media.detect_media_type(entry))
        )
        or _is_vector(entry)
        or (isinstance(entry, list) and _is_chat(entry))
    }
    rest = {name: entry for name, entry in value.items() if name not in apart}
    rows = ((escape_text(name[:200]), render_value(entry, link, (*path, name))) for name, entry in apart.items())
    parts = format_html_join("", "<dt>{}</dt><dd>{}</dd>", rows)
    return (
        format_html('<dl class="parts">{}</dl>{}', parts, format_json(rest) if rest else "")
        if apart
        else format_json(rest)
    )


def _is_vector(value: object) -> TypeGuard[list[float]]:
    """Return True for a list of numbers that are not all whole, as tokens are."""
    if not isinstance(value, list) or len(value) < SHORTEST_VECTOR or not all(map(_is_number, value)):
        return False
    return any(isinstance(number, float) for number in value)


def _is_number(value: object) -> bool:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    return abs(value) < 1e300  # False for NaN, too


def _render_vector(value: list[float]) -> SafeString:
    head = ", ".join(f"{number:.6g}" for number in value[:SHORTEST_VECTOR])
    low, high, norm = (f"{number:.4g}" for number in (min(value), max(value), math.hypot(*value)))
    what = f"{len(value):,} numbers from {low} to {high}, norm {norm}: {head}, …"
    return format_html('{}<p class="help">{}</p>', svg.draw_vector(value), what)


def _is_chat(value: list[Any]) -> bool:
    return bool(value) and all(
        isinstance(entry, dict) and {"role", "content"} <= entry.keys() for entry in value[:MOST_ITEMS]
    )


def _render_chat(messages: list[Any]) -> SafeString:
    rows = ((escape_text(str(each["role"])[:40]), _render_message_content(each)) for each in messages[-MOST_ITEMS:])
    before = _render_more(len(messages) - MOST_ITEMS, "messages before these")
    return format_html('{}<dl class="parts chat">{}</dl>', before, format_html_join("", "<dt>{}</dt><dd>{}</dd>", rows))


def _render_message_content(message: Mapping[str, Any]) -> SafeString:
    said, calls = message["content"], message.get("tool_calls")
    content = render_text(said) if isinstance(said, str) else format_json(said)
    return format_html("{}{}", content if said or not calls else "", format_json(calls) if calls else "")


def _find_scored_name(entry: object) -> str | None:
    """Return the name of an entry that has a score, or None for other entries."""
    if not isinstance(entry, dict) or not _is_number(entry.get("score")):
        return None
    return next((entry[name] for name in NAMES if isinstance(entry.get(name), str)), None)


def _render_score_bars(entries: list[Any]) -> SafeString:
    rows = (
        (
            escape_text(str(_find_scored_name(entry))[:200]),
            min(max(entry["score"], 0.0), 1.0),
            f"{entry['score']:.4g}",
            format_html("<code>{}</code>", escape_text(str(entry["box"])[:200])) if "box" in entry else "",
        )
        for entry in entries
    )
    row = '<tr><th>{}</th><td><meter max="1" value="{}"></meter></td><td class="number">{}</td><td>{}</td></tr>'
    return format_html('<table class="scores"><tbody>{}</tbody></table>', format_html_join("", row, rows))


def _is_span(entry: object, of: str) -> bool:
    if not isinstance(entry, dict):
        return False
    start, end = entry.get("start"), entry.get("end")
    return type(start) is int and type(end) is int and 0 <= start < end <= len(of) and _find_span_kind(entry) != ""


def _find_span_kind(entry: Mapping[str, Any]) -> str:
    return next((str(entry[name]) for name in ("entity_group", "entity", "label", "answer") if entry.get(name)), "")


def _render_marked_text(of: str, spans: list[Any]) -> SafeString:
    """Return the text with what was found in it marked; of spans that overlap the first is marked."""
    pieces, at = [], 0
    for span in sorted(spans, key=lambda span: (span["start"], -span["end"])):
        if span["start"] >= at and span["end"] <= LONGEST_TEXT:
            score = f" {span['score']:.4g}" if _is_number(span.get("score")) else ""
            name = escape_text(_find_span_kind(span)[:100])
            pieces.append(
                (
                    escape_text(of[at : span["start"]]),
                    f"{name}{score}",
                    escape_text(of[span["start"] : span["end"]]),
                    name,
                )
            )
            at = span["end"]
    marked = format_html_join("", '{}<mark title="{}">{}<small>{}</small></mark>', pieces)
    rest = of[at:LONGEST_TEXT]
    return format_html(
        '<p class="marked">{}{}</p>{}', marked, escape_text(rest), _render_more(len(of) - LONGEST_TEXT, "characters")
    )
