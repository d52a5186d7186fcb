"""A pipeline's steps, called one by one, so that a wrong input fails alone and one forward answers many inputs.

transformers documents the steps, and `_sanitize_parameters`, for pipelines of one's own. Another release may change
them. The pipeline is then called as a whole.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from inference.catalog import tasks
from inference.engines.inputs.feeds import Feed
from inference.engines.runtime import row_groups
from inference.engines.runtime.row_groups import BatchingMode, InputRow
from inference.errors import EMPTY_TEXT, InvalidInput

if TYPE_CHECKING:
    from transformers import Pipeline


@dataclass(frozen=True, slots=True, kw_only=True)
class Parameters:
    """The parameters of each step in one call."""

    preprocess: dict[str, Any]
    forward: dict[str, Any]
    postprocess: dict[str, Any]
    mode: BatchingMode


class PipelineCalls:
    """The steps of one pipeline."""

    def __init__(self, pipe: Pipeline, feed: Feed) -> None:
        from transformers.pipelines.base import ChunkPipeline, pad_collate_fn
        from transformers.utils.chat_template_utils import Chat

        self.pipe, self.feed = pipe, feed
        self.chat = Chat
        self.in_chunks = isinstance(pipe, ChunkPipeline)
        self.collate = pad_collate_fn(pipe.tokenizer, pipe.feature_extractor or pipe.image_processor)
        # A pipeline that generates text takes the prefix of its model's config for a default of its own.
        prefix = {"prefix": pipe.prefix} if tasks.find_task(pipe.task).generates and pipe.prefix else {}
        self.defaults: tuple[dict[str, Any], ...] = pipe._sanitize_parameters(**prefix)

    def split_parameters(self, given: dict[str, Any]) -> Parameters:
        before, run, after = self.pipe._sanitize_parameters(**given)
        preprocess, forward, postprocess = self.defaults
        return Parameters(
            preprocess={**preprocess, **self.feed.preprocess, **before},
            forward={**forward, **run},
            postprocess={**postprocess, **after},
            mode=self.feed.find_batching_mode(self.pipe, run),
        )

    def make_rows(self, index: int, value: object, parameters: Parameters) -> list[InputRow]:
        prepared, before = self.feed.read_input_and_parameters(value, self.pipe, parameters.preprocess)
        features = self.pipe.preprocess(self.chat(prepared) if isinstance(prepared, list) else prepared, **before)
        rows = [InputRow(item=index, features=found) for found in (features if self.in_chunks else [features])]
        for row in rows:
            if "input_ids" in row.features and not row.token_count:
                raise InvalidInput(EMPTY_TEXT)
        return [replace(row, own=self.feed.make_row_parameters(row, self.pipe, parameters.forward)) for row in rows]

    def compute_outputs(
        self, rows: Sequence[InputRow], parameters: Parameters, *, limit: int
    ) -> list[tuple[InputRow, Any]]:
        """Return the rows in their order, each with the model's output for it."""
        outputs: dict[int, Any] = {}
        for group in row_groups.group_stackable_rows(rows, limit=limit, mode=parameters.mode):
            found = row_groups.run_group(group, self.pipe.forward, self.collate, parameters.forward)
            outputs |= {id(row): output for row, output in zip(group, found, strict=True)}
        return [(row, outputs[id(row)]) for row in rows]

    def make_answer(self, outputs: Sequence[tuple[InputRow, Any]], parameters: Parameters) -> Any:
        """Return the answer to one input, made of the outputs for its rows."""
        parts = [self.feed.remove_padding(output, row) for row, output in outputs]
        if not self.in_chunks:
            answer = self.pipe.postprocess(parts[0], **parameters.postprocess)
            return self.feed.make_answer(answer, outputs[0][0], parameters.preprocess)
        for part in parts:
            part.pop("is_last", None)
        return self.pipe.postprocess(parts, **parameters.postprocess)
