"""Any transformers pipeline task. One batch is one forward of the model.

The pipeline's own steps are called one by one (preprocess, collate, forward, postprocess) instead of the pipeline as a
whole: an input that is wrong then fails alone, padding never shows in an answer, and the data loader costs nothing.
Where it would show, the trial at load finds it, and the inputs run in batches of one length, or one by one.
"""

from __future__ import annotations

import functools
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from transformers.pipelines.base import ChunkPipeline, PipelineException, pad_collate_fn

from inference.catalog.lengths import CUT_TASKS
from inference.catalog.task_parameters import ALIASES
from inference.engines import media, parity, stacks
from inference.engines.accelerate import install as accelerate
from inference.engines.base import Engine
from inference.engines.faults import describe
from inference.engines.pipeline import generation, loader
from inference.engines.pipeline.feeds import TASKS, With, labels, template
from inference.engines.stacks import Row, Together
from inference.errors import UNREADABLE, EngineError, InvalidInput, ModelUnavailable

_WRONG_INPUT = (ValueError, TypeError, KeyError, IndexError, AttributeError, PipelineException)


@dataclass(frozen=True, slots=True, kw_only=True)
class Steps:
    """The parameters of each step of the pipeline in one call."""

    preprocess: dict[str, Any]
    forward: dict[str, Any]
    postprocess: dict[str, Any]
    together: Together = Together.PADDED
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
        self.pipe = loader.load(self.spec, self.task, device)
        for step in () if self.feed.batched else ("forward", "postprocess"):  # which the pipeline calls by itself
            setattr(self.pipe, step, _of_the_model(getattr(self.pipe, step)))
        if self.task in CUT_TASKS:
            self.max_tokens = self.pipe.tokenizer.model_max_length
        self.shortcuts = accelerate.Shortcuts(self.task, parity.Verdict(together=Together.PADDED))
        self.at_once: Any = None
        if self.feed.batched:
            extractor = self.pipe.feature_extractor or self.pipe.image_processor
            self.collate = pad_collate_fn(self.pipe.tokenizer, extractor)
        if self.feed.trial:
            self._try_out(self.feed.trial(self.pipe))

    def _try_out(self, inputs: list[Any]) -> None:
        """Find out how inputs may run together, and what may be computed in a cheaper way."""
        trial = parity.Trial(self._values, inputs)
        self.shortcuts = accelerate.install(self.pipe.model, self.pipe.tokenizer, self.task, trial)
        self.shortcuts.add(
            "texts at once",
            lambda: accelerate.at_once(self.pipe, self.task, lambda at_once: setattr(self, "at_once", at_once)),
            lambda: self._same_at_once(inputs[:1]) and self._same_at_once(inputs),
        )
        self.padded, self.note = self.shortcuts.padded, self.shortcuts.verdict.note

    def _values(self, inputs: Sequence[Any], together: Together) -> list[parity.Answer]:
        """What the model computes for inputs, before the pipeline makes answers of it."""
        generates = self.task == "text-generation"
        steps = replace(self._steps(generation.TRIAL if generates else self.feed.parameters), together=together)
        ready = [row for index, value in enumerate(inputs) for row in self._rows(index, value, steps)]
        return [parity.read(output, row, self.pipe) for row, output in self._outputs(ready, steps, limit=len(ready))]

    def _same_at_once(self, inputs: list[Any]) -> bool:
        steps = self._steps(self.feed.parameters)
        return parity.alike(self._together(inputs, steps), self._item_by_item(inputs, steps))

    def warm_up(self) -> None:
        if self.feed.example is None:
            return
        for answer in self.predict([self.feed.example(self.pipe)], self.feed.parameters):
            if isinstance(answer, BaseException):
                raise answer

    def predict(self, inputs: list[Any], parameters: dict[str, Any]) -> list[Any]:
        if not self.feed.batched:
            return [_in_place(self._alone, value, parameters) for value in inputs]
        steps = _in_place(_read, self._steps, parameters)
        if isinstance(steps, BaseException):
            return [steps] * len(inputs)
        answers = self.shortcuts.guard(lambda: self._together(inputs, steps))
        self.padded = self.shortcuts.padded
        return answers

    def _alone(self, value: Any, parameters: dict[str, Any]) -> Any:
        prepared = _read(self.feed.prepare, value, self.pipe)
        arguments, named = ((), prepared) if isinstance(prepared, dict) else ((prepared,), {})
        return _without_pictures(_read(functools.partial(self.pipe, *arguments, **named, **parameters)))

    def _together(self, inputs: list[Any], steps: Steps) -> list[Any]:
        if self._fit_at_once(inputs, steps):
            found = self.at_once.answers(inputs, steps.preprocess, steps.forward, steps.postprocess)
            if found:
                return list(found)
        return self._item_by_item(inputs, steps)

    def _fit_at_once(self, inputs: list[Any], steps: Steps) -> bool:
        padded = len(inputs) == 1 or max(steps.together, self.shortcuts.verdict.together) is Together.PADDED
        return self.at_once is not None and padded and all(isinstance(value, str) for value in inputs)

    def _item_by_item(self, inputs: list[Any], steps: Steps) -> list[Any]:
        answers: list[Any] = [_in_place(_read, self._rows, index, value, steps) for index, value in enumerate(inputs)]
        ready = [row for answer in answers if isinstance(answer, list) for row in answer]
        steps = replace(steps, together=max(steps.together, self.shortcuts.verdict.together))
        outputs_of: dict[int, list[Any]] = defaultdict(list)
        for row, output in self._outputs(ready, steps, limit=max(len(inputs), self.spec.max_batch_size)):
            outputs_of[row.item].append(self._cut(output, row.tokens))
        for index, parts in outputs_of.items():
            answers[index] = _in_place(self._finish, parts, steps)
        return answers

    def _outputs(self, ready: list[Row], steps: Steps, *, limit: int) -> list[tuple[Row, Any]]:
        """Rows in their order, each with the model's output to it."""
        outputs: dict[int, Any] = {}
        for group in stacks.groups(ready, limit=limit, together=steps.together):
            found = stacks.forward(group, self.pipe.forward, self.collate, steps.forward)
            outputs |= {id(row): output for row, output in zip(group, found, strict=True)}
        return [(row, outputs[id(row)]) for row in ready]

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
            together=Together.EQUAL if generates and generation.sees_padding(self.pipe, run) else Together.PADDED,
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
        if any("input_ids" in row.features and not row.tokens for row in made):
            raise InvalidInput("The text is empty for this model's tokenizer: send at least one word.")
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
    """What the step returns, or what it raised."""
    try:
        return step(*arguments)
    except Exception as error:
        return error


def _read(step: Callable[..., Any], *arguments: Any) -> Any:
    """What a step before the model returns: what it raises is the fault of the input, an `InvalidInput`."""
    try:
        return step(*arguments)
    except _WRONG_INPUT as error:
        raise InvalidInput(f"{UNREADABLE} {describe(error)}") from None


def _of_the_model(step: Callable[..., Any]) -> Callable[..., Any]:
    """The step, with what it raises told apart from what reading the input raises."""

    def run(*arguments: Any, **named: Any) -> Any:
        try:
            return step(*arguments, **named)
        except _WRONG_INPUT as error:
            raise EngineError(describe(error)) from None

    return run


def _without_pictures(value: Any) -> Any:
    """Masks and depths come as PIL images: base64 of a PNG is what Hugging Face's clients read."""
    if isinstance(value, dict):
        return {key: _without_pictures(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_without_pictures(item) for item in value]
    return media.png(value) if hasattr(value, "getbands") else value
