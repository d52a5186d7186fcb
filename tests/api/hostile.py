"""Requests within the body's limit that are made to cost as much as they can, by what they do."""

from __future__ import annotations

import functools
import itertools
import json
from collections.abc import Iterator
from dataclasses import dataclass, field

MODELS = """
[echo]
engine = "tests.echo:EchoEngine"
max_batch_size = 4
max_queued = 100000
[echo.parameters]
top_k = { type = "integer", min = 1, max = 10 }
mode = { type = "string", choices = ["plain", "loud"] }
labels = { type = "array", items = "string" }
anything = { type = "object" }

[texts]
engine = "tests.echo:EchoEngine"
task = "zero-shot-classification"

[prompts]
engine = "tests.echo:EchoEngine"
task = "text-generation"

[vectors]
engine = "tests.echo:EchoEngine"
task = "feature-extraction"

[pictures]
engine = "tests.echo:EchoEngine"
task = "image-classification"
"""
MOST = 10 * 1024 * 1024  # bytes of a body
JSON, LINES = "application/json", "application/x-ndjson"
LONG = b"n" * (MOST - 200)
UNITS = {  # JSON values, to be sent as many as fit
    "texts": b'"a"', "wide texts": '"Ā"'.encode(), "empty texts": b'""', "numbers": b"257", "objects": b"{}",
    "members": b'{"":0}', "nested objects": b'{"":{"":{"":0}}}', "nested arrays": b"[" * 50 + b"]" * 50,
    "nulls": b"null", "escapes": b'"\\u0001"', "marks": b'".,:"',
}  # fmt: skip
EVERYWHERE = ("texts", "objects", "nested objects", "marks")  # the others are read like these, each in one place

PLACES = (
    ("one job", "/v1/jobs", b'{"model":"echo","inputs":[[', b"]]}"),
    ("bulk", "/v1/jobs/bulk", b'{"model":"echo","inputs":[', b"]}"),
    ("a prompt", "/v1/models/prompts", b'{"inputs":[', b"]}"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    name: str
    path: str
    body: bytes
    type: str = JSON
    headers: dict[str, str] = field(default_factory=dict)


def filled(unit: bytes, before: bytes, after: bytes, *, most: int = MOST) -> bytes:
    count = min((MOST - len(before) - len(after)) // (len(unit) + 1), most)
    return before + ((unit + b",") * count)[:-1] + after


def keys(before: bytes, after: bytes, *, most: int = MOST) -> bytes:
    """An object with as many different members as fit."""
    room = MOST - len(before) - len(after)
    return before + _members()[: 13 * min(room // 13, most) - 1] + after


@functools.cache
def _members() -> bytes:
    """Return as many members as fit, of 13 bytes each with the comma behind it."""
    return b"".join(b'"k%07d":0,' % number for number in range(MOST // 13))


def requests(*, part: int = 1) -> Iterator[Request]:
    """Make requests with as many values and lines as are read to their end, or a `part`-th of them."""
    heads = {
        "/v1/jobs": b'{"model":"echo","inputs":"x",', "/v1/models/echo": b'{"inputs":"x",',
        "/v1/models/vectors": b'{"inputs":"x",', "/v1/jobs/bulk": b'{"model":"echo","inputs":["x"],',
        "/v1/models/prompts/v1/completions": b'{"prompt":"x",',
    }  # fmt: skip
    for path, head in heads.items():
        yield Request(name="unknown fields", path=path, body=keys(head, b"}", most=250_000 // part))
        yield Request(name="too many fields", path=path, body=keys(head, b"}"))
        yield Request(name="a long name", path=path, body=head + b'"' + LONG + b'":1}')
        yield Request(name="parameters", path=path, body=keys(head + b'"parameters":{', b"}}", most=250_000 // part))
        yield Request(name="a long parameter", path=path, body=head + b'"parameters":{"' + LONG + b'":1}}')
    yield from wrong_values("/v1/jobs", heads["/v1/jobs"], part)
    places = itertools.cycle(PLACES)  # what is too much is refused before anybody looks where it is
    for name, unit in UNITS.items():
        most = 299_000 // part // max(1, unit.count(b"[") + unit.count(b"{") + 1)
        for where, path, before, after in PLACES if name in EVERYWHERE else [next(places)]:
            yield Request(name=f"{most} {name} in {where}", path=path, body=filled(unit, before, after, most=most))
        _, path, before, after = next(places)
        yield Request(name=f"too many {name}", path=path, body=filled(unit, before, after))
    yield from long_texts()
    yield from bulks(part)
    yield Request(name="brackets", path="/v1/jobs", body=b"[" * MOST)
    yield Request(name="quotes", path="/v1/jobs", body=b'"' * MOST)
    yield Request(name="backslashes", path="/v1/jobs", body=b'"' + b"\\" * (MOST - 1))
    yield Request(name="commas", path="/v1/jobs", body=b"," * MOST)
    yield Request(name="an open text", path="/v1/jobs", body=b'["' + b'\\"[' * (MOST // 3 - 1))
    yield Request(name="bytes", path="/v1/jobs", body=b"\xff" * MOST)
    yield Request(name="a picture", path="/v1/models/pictures", body=b"\xff" * MOST, type="image/png")
    yield Request(name="no base64", path="/v1/models/pictures", body=b'{"inputs":"' + b"!" * (MOST - 20) + b'"}')
    for name in ("Idempotency-Key", "Prefer", "Authorization", "User-Agent", "X-Request-Id"):
        for text in ("n" * 8000, ", wait =" * 1000, ", " * 4000):
            yield Request(
                name=f"{name} {text[:9]}", path="/v1/jobs", body=b'{"model":"nope","inputs":"x"}', headers={name: text}
            )
    for query in ("n" * 8000, "&".join(["n=1"] * 2000), "expires_in=" + "9" * 8000, "model=" + "n" * 8000):
        yield Request(name="a query", path=f"/v1/jobs/bulk?{query}", body=b'{"inputs":"x"}', type=LINES)
    yield Request(name="a model", path="/v1/models/" + "n" * 8000, body=b'{"inputs":"x"}')


def wrong_values(path: str, head: bytes, part: int) -> Iterator[Request]:
    for name in ("parameters", "priority", "model", "webhook", "expires_in"):
        start = head + b'"%s":' % name.encode()
        yield Request(name=f"a long {name}", path=path, body=start + b'"' + LONG + b'"}')
        yield Request(
            name=f"{name} of numbers", path=path, body=filled(b"7", start + b"[", b"]}", most=250_000 // part)
        )
    for name in ("top_k", "mode", "labels", "anything", "mod"):
        start = head + b'"parameters":{"%s":' % name.encode()
        yield Request(name=f"a long {name}", path=path, body=start + b'"' + LONG[:-99] + b'"}}')
        yield Request(
            name=f"{name} of arrays", path=path, body=filled(b"[7]", start + b"[", b"]}}", most=140_000 // part)
        )


def long_texts() -> Iterator[Request]:
    for name, text in (("words", b"a, " * (MOST // 3 - 50)), ("wide", "Ā".encode() * (MOST // 2 - 50)),
                       ("escaped", b"\\n" * (MOST // 2 - 50)), ("marks", b".,:;" * (MOST // 4 - 50))):  # fmt: skip
        for model in ("echo", "texts", "prompts", "pictures"):
            body = b'{"model":"%s","inputs":"' % model.encode() + text + b'"}'
            yield Request(
                name=f"{name} for {model}", path="/v1/jobs", body=body, headers={"Idempotency-Key": name + model}
            )


def bulks(part: int) -> Iterator[Request]:
    at = "/v1/jobs/bulk?model=echo"
    shortest = b'{"inputs":""}'
    for name, line in (("{}", b"{}"), ("no JSON", b"x"), ("blank", b""), ("unknown", b'{"' + b"n" * 900 + b'":1}'),
                       ("parameters", b'{"inputs":"x","parameters":{"' + b"n" * 900 + b'":1}}'), ("good", shortest),
                       ("full", b'{"inputs":"' + b"x" * 1000 + b'"}'),
                       ("many unknown", json.dumps({f"k{n}": 0 for n in range(90)}).encode())):  # fmt: skip
        lines = [line] * min(10_000 // part, MOST // (len(line) + 1))
        yield Request(name=f"lines of {name}", path=at, body=b"\n".join(lines), type=LINES)
        yield Request(
            name=f"too many lines of {name}", path=at, body=(line + b"\n") * (MOST // (len(line) + 1)), type=LINES
        )
    labels = b",".join([b'"%s"' % (b"n" * 9000)] * 900)
    for inputs in (10_000 // part, 1000):
        head = b'{"model":"echo","inputs":[' + b",".join([b'""'] * inputs)
        key = {"Idempotency-Key": str(inputs)}
        yield Request(
            name=f"{inputs} inputs with parameters of 8 MB each",
            path="/v1/jobs/bulk",
            headers=key,
            body=head + b'],"parameters":{"labels":[' + labels + b"]}}",
        )
        small = b",".join([b'""'] * (MOST // inputs // 3 - 20))
        yield Request(
            name=f"{inputs} inputs with parameters",
            path="/v1/jobs/bulk",
            headers={"Idempotency-Key": "b"},
            body=head + b'],"parameters":{"labels":[' + small + b"]}}",
        )
    good = [
        b'{"inputs":"%s","parameters":{"anything":{"n":%d}}}' % (b"x" * 950, number) for number in range(10_000 // part)
    ]
    key = {"Idempotency-Key": "good"}
    yield Request(name="many good lines", path=at, headers=key, body=b"\n".join(good), type=LINES)
    body = b",".join(b'"%d%s"' % (number, b"x" * 1000) for number in range(10_000 // part))
    body = b'{"model":"echo","inputs":[' + body + b"]}"
    for name, path in (("bulk", "/v1/jobs/bulk"), ("one job", "/v1/jobs")):
        headers = {"Idempotency-Key": name}
        yield Request(name=f"many good inputs in {name}", path=path, headers=headers, body=body)
