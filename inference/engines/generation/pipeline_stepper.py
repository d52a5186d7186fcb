"""The stepper of a pipeline that generates: rows join and leave between its steps.

A row waits for room, in the order of arrival. Then its prompt is read, beside others that are new. Then it is a row of
the cells, which are the KV cache, and each step computes its next token. Room is counted as the cells are allocated:
each row takes as much as the longest.
"""

import sys
from collections import deque
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any

import torch

from inference.engines.generation.forwards import Forwards
from inference.engines.generation.kv_cache import KVCache
from inference.engines.generation.prefix_cache import PrefixCache
from inference.engines.generation.rows import sampling
from inference.engines.generation.rows.requests import Requests
from inference.engines.generation.rows.row import GeneratedRow
from inference.engines.inputs.feeds import make_prompt_length_error
from inference.engines.runtime import engine_calls
from inference.engines.runtime.engine_calls import isolate_failing_items
from inference.engines.runtime.exception_diagnosis import is_out_of_memory
from inference.engines.stepper import OPEN, Progress, Stepper
from inference.errors import InferenceError, OutOfMemory, TimedOut

PIECE = 256  # tokens of new prompts that a step reads, so that rows which generate do not wait for long
PIECE_ON_GPU = 2048  # tokens read in about the time of a step: 128 prompts are answered 1.4 times as fast (H100)
PREFIXES = 8  # the prefix cache holds one eighth of the tokens that the rows may have, beside those
SCORES = 2**26  # scores of all positions of prompts that a step computes: 256 MB in float32
CALM = 64  # steps after which more rows or tokens are computed at once again

Choose = Callable[[Sequence[GeneratedRow], torch.Tensor], list[Any]]


class TemporaryLimit:
    """A limit for while memory is short: it holds for `CALM` steps after it was lowered. Otherwise there is none."""

    def __init__(self) -> None:
        self.value = sys.maxsize
        self._steps_left = 0

    def lower_to(self, value: int) -> None:
        self.value, self._steps_left = max(1, value), CALM

    def count_step(self) -> None:
        self._steps_left -= 1
        if self._steps_left <= 0:
            self.value = sys.maxsize


class PipelineStepper(Stepper):
    """The stepper of one pipeline. The caller bounds the number of rows that join."""

    def __init__(self, capacity: int, requests: Requests, *, choose: Choose = sampling.choose_tokens) -> None:
        self.capacity = capacity
        self.context = min(capacity, requests.context)
        self._requests, self._choose = requests, choose
        self._forwards = Forwards(requests.pipe.model)
        self._scored_piece = max(1, SCORES // requests.pipe.model.config.get_text_config().vocab_size)
        self._is_cpu = requests.pipe.model.device.type == "cpu"
        self._waiting: deque[GeneratedRow] = deque()
        self._new: deque[GeneratedRow] = deque()  # rows whose prompts are being read
        self.rows: list[GeneratedRow] = []  # in the order of the cells
        self.cells = KVCache()
        self.prefixes = PrefixCache(capacity // PREFIXES)
        self._rows_at_most, self._rows_a_forward = TemporaryLimit(), TemporaryLimit()
        self._piece_at_most = TemporaryLimit()

    def join(self, key: Hashable, value: object, parameters: Mapping[str, Any], *, seed: int) -> None:
        try:
            row = self._requests.make_row(key, value, parameters, seed=seed)
        except Exception as error:
            raise engine_calls.make_job_error(error) from None
        most = self.capacity + (row.longest == row.prompt)  # a prompt alone needs no room for a token
        if row.prompt >= most:
            raise make_prompt_length_error(row.prompt, most)
        row.longest = min(row.longest, self.capacity)
        self._waiting.append(row)

    def leave(self, key: Hashable) -> None:
        for queue in (self._waiting, self._new):
            for row in [row for row in queue if row.key == key]:
                queue.remove(row)
        with torch.inference_mode():
            self._drop_rows([row for row in self.rows if row.key == key])

    def finish(self, key: Hashable) -> Progress:
        found = next((row for row in [*self.rows, *self._new, *self._waiting] if row.key == key), None)
        self.leave(key)
        if found is None:
            return Progress(key=key)
        if found.needs_prompt_logprobs:
            return Progress(key=key, answer=TimedOut("Its time was over before its prompt was read."))
        found.end_row("length")
        answer = self._requests.make_answer(found)
        text = found.text.take_new_text(last=True)
        return Progress(key=key, text=text, scores=found.take_new_scores(), answer=answer)

    def step(self) -> list[Progress]:
        for ceiling in (self._rows_at_most, self._rows_a_forward, self._piece_at_most):
            ceiling.count_step()
        self._admit_rows()
        with torch.inference_mode():
            return [*self._compute_next_tokens(), *self._read_new_prompts()]

    def __len__(self) -> int:
        return len(self._waiting) + len(self._new) + len(self.rows)

    @property
    def room(self) -> int:
        if len(self) >= self._rows_at_most.value:
            return 0
        return max(0, self.capacity - len(self) * self.tokens_per_row)

    @property
    def tokens_per_row(self) -> int:
        return max((row.longest for row in [*self.rows, *self._new, *self._waiting]), default=0)

    @property
    def _piece(self) -> int:
        return min(PIECE if self._is_cpu else PIECE_ON_GPU, self._piece_at_most.value)

    def _get_piece(self, row: GeneratedRow) -> int:
        """Return how many tokens of new prompts a step reads that reads this row's."""
        return min(self._piece, self._scored_piece) if row.needs_prompt_logprobs else self._piece

    # Joining and leaving the cells

    def _admit_rows(self) -> None:
        while self._waiting:
            rows = [*self.rows, *self._new, self._waiting[0]]
            longest = max(row.longest for row in rows)
            if len(rows) > self._rows_at_most.value or len(rows) * longest > self.capacity:
                break
            self._new.append(self._waiting.popleft())

    def _drop_rows(self, rows: Sequence[GeneratedRow]) -> None:
        """Remove rows from the cells: the last row takes the place of each."""
        for row in rows:
            place = self.rows.index(row)
            self.cells.remove_row(place)
            self.rows[place] = self.rows[-1]
            self.rows.pop()
        if rows and self.rows:
            self.cells.keep_last_columns(max(row.column_count for row in self.rows))

    def _put_rows_aside(self, rows: Sequence[GeneratedRow]) -> None:
        """Let rows wait at the head of the queue until others have ended.

        Their tokens so far are read again then, as a prompt.
        """
        if not rows:
            return
        self.prefixes.drop_all()
        self._waiting.extendleft(reversed(rows))
        self._rows_at_most.lower_to(len(self.rows) + len(self._new))

    # The tokens of one step

    def _compute_next_tokens(self) -> list[Progress]:
        """Compute the next token of each row in the cells, and return their progress."""
        failed = self._make_room_for_next_tokens()
        rows = list(self.rows)
        if not rows:
            return failed
        chosen: list[Any] = []
        size = min(len(rows), self._rows_a_forward.value)
        for first in range(0, len(rows), size):
            chosen += isolate_failing_items(self._choose_next_tokens, range(first, min(first + size, len(rows))))
        self.cells.add_column()
        found = list(zip(rows, chosen, strict=True))
        short = [row for row, token in found if _is_memory_short(token) and _may_wait(row, is_alone=len(rows) == 1)]
        progress = [self._take_token(row, token) for row, token in found if row not in short]
        ended = {row_progress.key for row_progress in progress if row_progress.answer is not OPEN}
        self._drop_rows([row for row in rows if row.key in ended or row in short])
        self._put_rows_aside(short)
        return failed + progress

    def _choose_next_tokens(self, places: Sequence[int]) -> list[Any]:
        """Return the next token, or the error, of each row; the rows lie beside each other in the cells."""
        rows = [self.rows[place] for place in places]
        try:
            return self._choose(rows, self._forwards.decode_rows(rows, self.cells, places[0]))
        except Exception as error:
            if is_out_of_memory(error):
                self._rows_a_forward.lower_to(len(rows) // 2)
            raise

    def _read_new_prompts(self) -> list[Progress]:
        """Read on in new prompts, and return the progress of rows whose prompts have been read to their end."""
        if not self._new:
            return []
        oldest = self._new[0]
        is_long = self._is_cpu or 2 * _count_unread_tokens(oldest) > self._piece
        if oldest.cache is None and is_long and not oldest.needs_prompt_logprobs:  # the prefix cache has no scores
            # Such a row is read alone, not beside others.
            oldest.cache = self.prefixes.find_prefix(oldest.tokens)
        if _count_unread_tokens(oldest) > self._get_piece(oldest):
            group = [oldest]
            found = isolate_failing_items(self._read_next_piece, group)
        else:
            group = self._select_alike_rows()
            found = isolate_failing_items(self._choose_first_tokens, group)
        for row in group:
            self._new.remove(row)
        return self._take_prefill_results(group, found)

    def _select_alike_rows(self) -> list[GeneratedRow]:
        """Return the oldest new row, with others of nearly its length.

        A row that was begun in pieces is read to its end alone.
        """
        oldest = self._new[0]
        if oldest.cache is not None:
            return [oldest]
        length = len(oldest.tokens)
        others = [row for row in self._new if row is not oldest and row.cache is None]
        others = [row for row in others if row.needs_prompt_logprobs == oldest.needs_prompt_logprobs]
        group, longest = [oldest], length
        for row in sorted(others, key=lambda row: abs(len(row.tokens) - length)):
            longest = max(longest, len(row.tokens))
            if longest * (len(group) + 1) > self._get_piece(oldest):
                break
            group.append(row)
        return group

    def _read_next_piece(self, rows: Sequence[GeneratedRow]) -> list[Any]:
        [row] = rows
        self._forwards.prefill_piece(row, self._get_piece(row))
        self.prefixes.keep_prefix(row.tokens[: row.own_cache_length], row.cache.layers, 0)
        return [None]

    def _choose_first_tokens(self, rows: Sequence[GeneratedRow]) -> list[Any]:
        """Return for each row its first token, and the cache and the place in it of its prompt's keys and values.

        A row that fails has its error instead.
        """
        cache = rows[0].cache
        if cache is not None:
            scores = self._forwards.prefill_piece(rows[0], self._get_piece(rows[0]))
        else:
            scores, cache = self._forwards.prefill_prompts(rows)
        chosen = self._choose(rows, scores)
        return [
            token if isinstance(token, InferenceError) else (token, cache, place) for place, token in enumerate(chosen)
        ]

    def _take_prefill_results(self, group: Sequence[GeneratedRow], found: Sequence[Any]) -> list[Progress]:
        progress, short, staying = [], [], []
        for row, what in zip(group, found, strict=True):
            if what is None:
                self._new.append(row)  # is read on after the other new rows had their turn
            elif isinstance(what, InferenceError):
                self.prefixes.drop_all()  # the row may have begun with a prefix that is wrong
                row.cache = None
                if _is_memory_short(what):
                    self._piece_at_most.lower_to(PIECE)
                if _is_memory_short(what) and _may_wait(row, is_alone=not self.rows and len(group) == 1):
                    short.append(row)
                else:
                    progress.append(self._take_token(row, what))
            else:
                token, row.cache, place = what
                self.prefixes.keep_prefix(row.tokens[:], row.cache.layers, place)
                row_progress = self._take_token(row, token)
                progress.append(row_progress)
                if row_progress.answer is OPEN:
                    staying.append((row, place))
        self._put_rows_aside([*short, *self._move_into_cells(staying)])
        return progress

    def _move_into_cells(self, staying: Sequence[tuple[GeneratedRow, int]]) -> list[GeneratedRow]:
        """Move new rows into the cells. Return the rows that do not fit, which are all of them or none."""
        rows = [row for row, _ in staying]
        try:
            if rows:
                columns = max(self.cells.columns, *(row.column_count for row in rows))
                self.cells.ensure_capacity(len(self.rows) + len(rows), columns, like=rows[0].cache.layers)
        except Exception as error:
            if not _is_memory_short(engine_calls.make_job_error(error)):
                raise
            for row in rows:
                row.cache = None
            return rows
        for row, place in staying:
            self.cells.add_row(row.cache.layers, place, row.column_count)
            self.rows.append(row)
            row.cache = None
        return []

    def _make_room_for_next_tokens(self) -> list[Progress]:
        """Make room for one more column of the cells.

        Where memory is short, the half of the rows that has generated least, as it came last, waits for the others. A
        lone row is tried once more, and then fails. Returns the progress of the row that failed, if there is one.
        """
        while self.rows:
            try:
                self.cells.ensure_capacity(len(self.rows), self.cells.columns)
            except Exception as error:
                failure = engine_calls.make_job_error(error)
                if not _is_memory_short(failure):
                    raise
            else:
                break
            rows = sorted(self.rows, key=lambda row: len(row.tokens) - row.prompt, reverse=True)
            last = rows[len(rows) // 2 :]
            self._drop_rows(last)
            if not _may_wait(last[0], is_alone=len(rows) == 1):
                return [self._take_token(last[0], failure)]
            self._put_rows_aside(last)
        return []

    def _take_token(self, row: GeneratedRow, token: int | InferenceError) -> Progress:
        if isinstance(token, InferenceError):
            return Progress(key=row.key, answer=token)
        count = len(row.tokens)
        try:
            row.add_token(token)
            answer = self._requests.make_answer(row) if row.ending else OPEN
        except Exception as error:
            return Progress(key=row.key, answer=engine_calls.make_job_error(error))
        text = row.text.take_new_text(last=row.ending is not None)
        count = len(row.tokens) - count
        return Progress(key=row.key, text=text, tokens=count, scores=row.take_new_scores(), answer=answer)


def _may_wait(row: GeneratedRow, *, is_alone: bool) -> bool:
    """Return True if a row for which memory was short may wait until others have ended.

    A row that is alone may wait once, as the prefix cache is emptied then.
    """
    is_again, row.was_short = row.was_short, row.was_short or is_alone
    return not (is_alone and is_again)


def _count_unread_tokens(row: GeneratedRow) -> int:
    return len(row.tokens) - row.own_cache_length


def _is_memory_short(outcome: object) -> bool:
    return isinstance(outcome, OutOfMemory)
