"""Any transformers pipeline task. One batch is one forward of the model.

The pipeline's own steps are called one by one (preprocess, collate, forward, postprocess) instead of the pipeline as a
whole: an input that is wrong then fails alone, padding never shows in an answer, and the data loader costs nothing.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from transformers.pipelines.base import ChunkPipeline, PipelineException, pad_collate_fn

from inference.engines import encoders, generation, masked, media, pipelines, rows, tokens
from inference.engines.base import Engine
from inference.engines.faults import describe
from inference.engines.rows import Row
from inference.engines.tasks import CUT, TASKS, Read, With, labels, template
from inference.errors import InvalidInput, ModelUnavailable
from inference.lengths import CUT_TASKS
from inference.task_parameters import ALIASES

_WRONG_INPUT = (ValueError, TypeError, KeyError, IndexError, AttributeError, PipelineException)


@dataclass(frozen=True, slots=True, kw_only=True)
class Steps:
    """The parameters of each step of the pipeline in one call."""

    preprocess: dict[str, Any]
    forward: dict[str, Any]
    postprocess: dict[str, Any]
    exact: bool = False  # only rows of one length may run together
    new_tokens: int = 0  # room that must be left behind a prompt


class PipelineEngine(Engine):
    """A transformers pipeline: `task` and `model` in the catalog say which."""

    def load(self, device: str) -> None:
        self.task = ALIASES.get(self.spec.task, self.spec.task)
        if self.task not in TASKS:
            raise ModelUnavailable(
                f"{self.spec.name}: task {self.spec.task!r} is not served; served are {', '.join(sorted(TASKS))}."
                " For another, write an engine class: see docs/models.md."
            )
        self.feed = TASKS[self.task]
        self.pipe = pipelines.load(self.spec, self.task, device)
        layers = encoders.install(self.pipe.model, self.pipe.tokenizer) if self.pipe.tokenizer else None
        self.padded = layers is None
        if self.task in CUT_TASKS:
            self.max_tokens = self.pipe.tokenizer.model_max_length
        self.encode = tokens.encoder(self.pipe.tokenizer) if self.feed.read else None
        if layers and self.task in ("text-classification", "zero-shot-classification"):
            encoders.read_firsts_only(layers, self.pipe.model, self.pipe.tokenizer)
        if self.task == "fill-mask":
            masked.install(self.pipe, f"warm {self.pipe.tokenizer.mask_token}")
        if self.feed.batched:
            extractor = self.pipe.feature_extractor or self.pipe.image_processor
            self.collate = pad_collate_fn(self.pipe.tokenizer, extractor)

    def warm_up(self) -> None:
        if self.feed.example is None:
            return
        for answer in self.predict([self.feed.example(self.pipe)], self.feed.parameters):
            if isinstance(answer, BaseException):
                raise answer

    def predict(self, inputs: list[Any], parameters: dict[str, Any]) -> list[Any]:
        if not self.feed.batched:
            return [_in_place(self._alone, value, parameters) for value in inputs]
        steps = _in_place(self._steps, parameters)
        if isinstance(steps, BaseException):
            return [steps] * len(inputs)
        return self._together(inputs, steps)

    def _alone(self, value: Any, parameters: dict[str, Any]) -> Any:
        prepared = self.feed.prepare(value, self.pipe)
        if isinstance(prepared, dict):
            return _without_pictures(self.pipe(**prepared, **parameters))
        return _without_pictures(self.pipe(prepared, **parameters))

    def _together(self, inputs: list[Any], steps: Steps) -> list[Any]:
        if self.feed.read and (at_once := self._at_once(self.feed.read, inputs, steps)):
            return at_once
        answers: list[Any] = [_in_place(self._rows, index, value, steps) for index, value in enumerate(inputs)]
        ready = [row for answer in answers if isinstance(answer, list) for row in answer]
        outputs_of: dict[int, list[Any]] = defaultdict(list)
        limit = max(len(inputs), self.spec.max_batch_size)
        for group in rows.groups(ready, limit=limit, exact=steps.exact):
            outputs = rows.forward(group, self.pipe.forward, self.collate, steps.forward)
            for row, output in zip(group, outputs, strict=True):
                outputs_of[row.item].append(self._cut(output, row.tokens))
        for index, parts in outputs_of.items():
            answers[index] = _in_place(self._finish, parts, steps)
        return answers

    def _at_once(self, read: Read, texts: list[Any], steps: Steps) -> list[Any] | None:
        """Answers to texts that go through the tokenizer in one call, which costs half of one call each (40 µs a text
        less). None when one of them is not a text: going item by item then finds which."""
        if not all(isinstance(text, str) for text in texts):
            return None
        try:
            batch = self._tokens([tokens.beginning(self.pipe.tokenizer, text) for text in texts], steps.preprocess)
        except _WRONG_INPUT:
            return None
        if "attention_mask" not in batch:
            return None
        lengths = batch["attention_mask"].sum(1).tolist()
        output = self.pipe.forward(batch, **steps.forward)
        answers = _in_place(lambda: read(self.pipe, output, lengths, **steps.postprocess))
        return [answers] * len(texts) if isinstance(answers, BaseException) else answers

    def _tokens(self, texts: list[str], parameters: dict[str, Any]) -> Mapping[str, torch.Tensor]:
        if self.encode and parameters == CUT:
            return self.encode(texts)
        found: Mapping[str, torch.Tensor] = self.pipe.tokenizer(
            texts, **{**parameters, "padding": True, "return_tensors": "pt"}
        )
        return found

    def _cut(self, output: Any, own: int) -> Any:
        """Of feature extraction, the states of the text's own tokens and none of the padding."""
        return (output[0][:, :own],) if self.task == "feature-extraction" else output

    def _steps(self, parameters: dict[str, Any]) -> Steps:
        generates = self.task == "text-generation"
        if generates:
            parameters = generation.with_new_tokens(self.pipe.model, parameters)
        before, run, after = self.pipe._sanitize_parameters(**parameters)
        if "hypothesis_template" in before:
            template(before["hypothesis_template"])
        return Steps(
            preprocess={**self.pipe._preprocess_params, **self.feed.preprocess, **before},
            forward={**self.pipe._forward_params, **run},
            postprocess={**self.pipe._postprocess_params, **after},
            exact=generates and generation.sees_padding(self.pipe, run),
            new_tokens=run.get("max_new_tokens", 0),
        )

    def _rows(self, index: int, value: Any, steps: Steps) -> list[Row]:
        prepared = self.feed.prepare(value, self.pipe)
        parameters = steps.preprocess
        if isinstance(prepared, With):
            prepared, parameters = prepared.value, {**parameters, **prepared.parameters}
        if self.task == "zero-shot-classification":
            labels(parameters.get("candidate_labels"))
        features = self.pipe.preprocess(prepared, **parameters)
        found = features if isinstance(self.pipe, ChunkPipeline) else [features]
        made = [Row(item=index, features=features) for features in found]
        if self.task == "text-generation":
            self._check_room(made[0], steps.new_tokens)
        return made

    def _check_room(self, row: Row, new_tokens: int) -> None:
        longest = self.pipe.tokenizer.model_max_length
        if row.tokens + new_tokens > longest:
            raise InvalidInput(
                f"The prompt has {row.tokens} tokens and {new_tokens} more are to be generated;"
                f" together they must not be above {longest}."
            )

    def _finish(self, parts: list[Any], steps: Steps) -> Any:
        if not isinstance(self.pipe, ChunkPipeline):
            return self.pipe.postprocess(parts[0], **steps.postprocess)
        for part in parts:
            part.pop("is_last", None)
        return self.pipe.postprocess(parts, **steps.postprocess)


def _in_place(step: Callable[..., Any], *arguments: Any) -> Any:
    """What the step returns, or what it raised: a wrong input is an `InvalidInput` in its place."""
    try:
        return step(*arguments)
    except _WRONG_INPUT as error:
        return InvalidInput(describe(error))
    except Exception as error:
        return error


def _without_pictures(value: Any) -> Any:
    """Masks and depths come as PIL images: base64 of a PNG is what Hugging Face's clients read."""
    if isinstance(value, dict):
        return {key: _without_pictures(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_without_pictures(item) for item in value]
    return media.png(value) if hasattr(value, "getbands") else value
