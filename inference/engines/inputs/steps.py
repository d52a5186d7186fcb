"""A pipeline's steps, called one by one, so that an input that is wrong fails alone and one forward answers many.

The only module that knows what `transformers.Pipeline` keeps to itself, which another release may rename: the pipeline
is then called as a whole.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from inference.engines.inputs.feeds import Feed
from inference.engines.runtime import stacks
from inference.engines.runtime.stacks import Row, Together
from inference.errors import InvalidInput


@dataclass(frozen=True, slots=True, kw_only=True)
class Parameters:
    """Of each step in one call."""

    preprocess: dict[str, Any]
    forward: dict[str, Any]
    postprocess: dict[str, Any]
    together: Together


class Steps:
    """Of one pipeline."""

    def __init__(self, pipe: Any, feed: Feed) -> None:
        from transformers.pipelines.base import ChunkPipeline, pad_collate_fn
        from transformers.utils.chat_template_utils import Chat

        self.pipe, self.feed = pipe, feed
        self.chat = Chat
        self.in_chunks = isinstance(pipe, ChunkPipeline)
        self.collate = pad_collate_fn(pipe.tokenizer, pipe.feature_extractor or pipe.image_processor)

    def parameters(self, given: dict[str, Any]) -> Parameters:
        pipe = self.pipe
        before, run, after = pipe._sanitize_parameters(**given)
        return Parameters(
            preprocess={**pipe._preprocess_params, **self.feed.preprocess, **before},
            forward={**pipe._forward_params, **run},
            postprocess={**pipe._postprocess_params, **after},
            together=self.feed.together(pipe, run),
        )

    def rows(self, index: int, value: Any, parameters: Parameters) -> list[Row]:
        prepared, before = self.feed.read(value, self.pipe, parameters.preprocess)
        features = self.pipe.preprocess(self.chat(prepared) if isinstance(prepared, list) else prepared, **before)
        rows = [Row(item=index, features=found) for found in (features if self.in_chunks else [features])]
        for row in rows:
            if "input_ids" in row.features and not row.tokens:
                raise InvalidInput("The text is empty for this model's tokenizer: send at least one word.")
        return [replace(row, own=self.feed.bounded(row, self.pipe, parameters.forward)) for row in rows]

    def outputs(self, rows: Sequence[Row], parameters: Parameters, *, limit: int) -> list[tuple[Row, Any]]:
        """Rows in their order, each with the model's output to it."""
        outputs: dict[int, Any] = {}
        for group in stacks.groups(rows, limit=limit, together=parameters.together):
            found = stacks.forward(group, self.pipe.forward, self.collate, parameters.forward)
            outputs |= {id(row): output for row, output in zip(group, found, strict=True)}
        return [(row, outputs[id(row)]) for row in rows]

    def answer(self, outputs: Sequence[tuple[Row, Any]], parameters: Parameters) -> Any:
        """To one input."""
        parts = [self.feed.own(output, row) for row, output in outputs]
        if not self.in_chunks:
            answer = self.pipe.postprocess(parts[0], **parameters.postprocess)
            return self.feed.answer(answer, outputs[0][0], parameters.preprocess)
        for part in parts:
            part.pop("is_last", None)
        return self.pipe.postprocess(parts, **parameters.postprocess)
