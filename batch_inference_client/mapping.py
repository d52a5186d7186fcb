"""The map over many inputs: it submits them as bulks of bounded size, and yields their answers as they come.

At most `in_flight` inputs are read whose answers were not yielded yet, so that memory stays flat. Each bulk has an
idempotency key made of the map's name and the place of its first input. Submitted again, also by another program, it is
the same bulk. With other inputs it is refused.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from batch_inference_client.errors import ClientError, JobError
from batch_inference_client.service import MOST_IDS, WAITING, Document, JobStatus, Pauses, Service, dumps

BULK = 1000  # inputs of a bulk at most
BULK_BYTES = 4 * 1024 * 1024
WAIT_S = 20.0
LONGEST_GATHERING_S = 0.5  # between two requests: a map that has run for long asks seldom, for many answers at once
TOO_LARGE = ("body_too_large", "invalid_input")  # codes of a refused bulk that may be accepted in parts

Answer = Any  # an output, or the `JobError` in its place


@dataclass(frozen=True, slots=True)
class Lines:
    """Inputs that follow each other: each as JSON, or as the `JobError` that says why it is no JSON."""

    start: int
    encoded: list[bytes | JobError]

    def split_in_halves(self) -> tuple[Lines, Lines]:
        middle = (len(self.encoded) + 1) // 2
        return Lines(self.start, self.encoded[:middle]), Lines(self.start + middle, self.encoded[middle:])


def encode_inputs(inputs: object, parameters: Mapping[str, Any] | None) -> bytes | JobError:
    try:
        return dumps({"inputs": inputs, **({"parameters": parameters} if parameters else {})})
    except ClientError as error:
        return JobError(error.detail, code=error.code)


def group_into_bulks(encoded: Iterable[bytes | JobError], most: int) -> Iterator[Lines]:
    """Yield the inputs in bulks.

    The bounds of the bulks depend on nothing but `most` and the inputs, or else a map could not be resumed.
    """
    start, lines, size = 0, list[bytes | JobError](), 0
    for line in encoded:
        length = len(line) if isinstance(line, bytes) else 0
        if lines and (len(lines) == most or size + length > BULK_BYTES):
            yield Lines(start, lines)
            start, lines, size = start + len(lines), [], 0
        lines.append(line)
        size += length
    if lines:
        yield Lines(start, lines)


@dataclass(slots=True)
class Map:
    """One run of a map.

    The answers to the first `skip` inputs are known already: these inputs are only compared with the earlier run's.
    """

    service: Service
    encoded: Iterable[bytes | JobError]
    terms: Mapping[str, Any]  # of all bulks, such as the model and the priority
    name: str
    in_flight: int
    ordered: bool
    patience_s: float
    skip: int = 0
    _sources: list[Iterator[Lines]] = field(init=False)
    _pending: dict[str, int] = field(init=False, default_factory=dict)  # id of a job to the place of its input
    _found: dict[int, Answer] = field(init=False, default_factory=dict)  # answers not yielded yet, by place
    _given: int = field(init=False, default=0)  # answers that were yielded or skipped
    _read: int = field(init=False, default=0)  # inputs that were read and submitted
    _waiting: Lines | None = field(init=False, default=None)  # inputs that were read and not accepted yet
    _try_at: float = field(init=False, default=0.0)  # monotonic seconds
    _failing_since: float | None = field(init=False, default=None)  # monotonic seconds of the first failure in a row
    _pauses: Pauses = field(init=False, default_factory=Pauses)

    def batches(self) -> Iterator[list[tuple[int, Answer]]]:
        """Yield answers with the places of their inputs, one or more at a time. Raises `ClientError`."""
        began_at = time.monotonic()
        source = group_into_bulks(self.encoded, max(1, min(BULK, self.in_flight // 4)))
        self._sources = [source]
        while True:
            is_all_read = self._submit_more()
            if batch := self._take_answers():
                yield batch
            elif self._pending:
                if self._collect_answers() < MOST_IDS // 4 and self._pending:
                    time.sleep(min(LONGEST_GATHERING_S, (time.monotonic() - began_at) / 20))
            elif is_all_read:
                if self._read < self.skip:
                    raise _make_not_answered_error(self.name, self._read)
                return
            else:
                time.sleep(max(0.0, self._try_at - time.monotonic()))

    def _submit_more(self) -> bool:
        """Submit as many inputs as may be in flight. Return True if no inputs are left."""
        while time.monotonic() >= self._try_at:
            lines = self._waiting = self._waiting or self._take_next_lines()
            if lines is None:
                return True
            if self._read + len(lines.encoded) - self._given > self.in_flight:
                break
            if not self._try(lambda: self._submit(lines)):  # noqa: B023 - called here
                break
        return False

    def _take_next_lines(self) -> Lines | None:
        while self._sources:
            if lines := next(self._sources[0], None):
                return lines
            self._sources.pop(0)
        return None

    def _submit(self, lines: Lines) -> None:
        sent = [(place, line) for place, line in enumerate(lines.encoded, lines.start) if isinstance(line, bytes)]
        try:
            bulk = self._submit_bulk([line for _, line in sent], lines.start) if sent else {}
        except ClientError as error:
            if error.code not in TOO_LARGE:
                raise
            if len(sent) > 1:
                self._sources.insert(0, iter(lines.split_in_halves()))
                self._waiting = None
                return
            bulk = {"refused": [{"index": 0, "code": error.code, "detail": error.detail}]}
        self._waiting = None
        self._read = lines.start + len(lines.encoded)
        if sum(bulk.get("counts", {}).get(status, 0) for status in WAITING) > max(0, self._read - self.skip):
            raise _make_not_answered_error(self.name, lines.start)
        self._note(lines, [place for place, _ in sent], bulk)

    def _submit_bulk(self, lines: list[bytes], start: int) -> Document:
        key = f"map:{self.name}:{start}"
        try:
            return self.service.submit_bulk(lines, terms=self.terms, key=key)
        except ClientError as error:
            if error.code == "idempotency_mismatch":
                raise _make_other_inputs_error(self.name, start, len(lines)) from None
            if refused := error.problem.get("refused"):
                return {"refused": refused}
            raise

    def _note(self, lines: Lines, places: list[int], bulk: Document) -> None:
        """Record what became of each line: a job, a refusal, or a job of an earlier run that is not kept any more."""
        found: dict[int, Answer] = dict.fromkeys(
            range(lines.start, self._read),
            JobError("The job of an earlier run was removed after the time that jobs are kept.", code="job_gone"),
        )
        places_of_lines = enumerate(lines.encoded, lines.start)
        found.update((place, line) for place, line in places_of_lines if isinstance(line, JobError))
        for refused in bulk.get("refused", ()):
            found[places[refused["index"]]] = JobError(refused["detail"], code=refused["code"])
        for job in bulk.get("jobs", ()):
            place = places[job["index"]]
            del found[place]
            if place >= self.skip:
                self._pending[job["id"]] = place
        self._found.update((place, answer) for place, answer in found.items() if place >= self.skip)
        self._given += sum(lines.start <= place < self.skip for place in range(lines.start, self._read))

    def _collect_answers(self) -> int:
        """Wait for the jobs that were submitted first, and return how many of them have finished."""
        answers: list[Document] = []
        ids = list(itertools.islice(self._pending, MOST_IDS))
        if not self._try(lambda: answers.append(self.service.wait(ids, wait_s=WAIT_S))):
            time.sleep(max(0.0, self._try_at - time.monotonic()))
            return 0
        (answer,) = answers
        for job in answer["items"]:
            is_good = job["status"] == JobStatus.SUCCEEDED
            self._found[self._pending.pop(job["id"])] = job["output"] if is_good else JobError.of(job)
        for missing in answer["missing"]:
            self._found[self._pending.pop(missing["id"])] = JobError.missing(missing["id"], missing["code"])
        time.sleep(answer.get("pause_s", 0.0))
        found = len(answer["items"]) + len(answer["missing"])
        if not found and not self.ordered:
            self._pending.update({job_id: self._pending.pop(job_id) for job_id in ids})  # try other jobs the next time
        return found

    def _try(self, call: Callable[[], object]) -> bool:
        """Make a call to the service. Return True if it succeeded, and False if it is to be tried again later.

        Raises `ClientError` if the call can never succeed, or if calls have failed for `patience_s`. That time begins
        with the first failure: time that the inputs, the consumer of the answers, or an answer that never came took
        before is not counted.
        """
        try:
            call()
        except ClientError as error:
            self._failing_since = time.monotonic() if self._failing_since is None else self._failing_since
            self._try_at = time.monotonic() + self._pauses.after_s(error, self._failing_since + self.patience_s)
            return False
        self._pauses.reset()
        self._failing_since = None
        return True

    def _take_answers(self) -> list[tuple[int, Answer]]:
        taken: list[tuple[int, Answer]] = []
        if self.ordered:
            while (place := self._given + len(taken)) in self._found:
                taken.append((place, self._found.pop(place)))
        else:
            taken = sorted(self._found.items())
            self._found.clear()
        self._given += len(taken)
        return taken


def _make_other_inputs_error(name: str, start: int, count: int) -> ClientError:
    return ClientError(
        f"The inputs from number {start} on ({count} of them), their parameters or terms, are not those of the earlier"
        f" run named {name!r}: its answers would be mixed with theirs. Give the same inputs, or this run another name.",
        code="other_inputs",
    )


def _make_not_answered_error(name: str, start: int) -> ClientError:
    return ClientError(
        f"The answers that are there are not of the run named {name!r}: it did not answer the inputs from number"
        f" {start} on. Give the inputs and the name of the run that wrote them, or another file.",
        code="other_inputs",
    )
