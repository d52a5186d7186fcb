"""The engine for any transformers pipeline task. One batch is one forward of the model.

The pipeline's own steps (preprocess, collate, forward, postprocess) are called one by one instead of the pipeline as a
whole. A wrong input then fails alone, padding never shows in an answer, and the data loader costs nothing. If padding
would show, the trial at load finds it, and the inputs run in batches of one length, or one by one.
"""

import copy
import functools
import importlib.util
import logging
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from transformers.pipelines import Pipeline

from inference.catalog import tasks
from inference.catalog.specs import TORCH
from inference.catalog.tasks import Task
from inference.engines.accelerate import installation as accelerate
from inference.engines.accelerate.shortcut import Override
from inference.engines.artifacts import checkpoint_checks, pipeline_loader
from inference.engines.backends import agreement
from inference.engines.backends import installation as backend
from inference.engines.base import Engine
from inference.engines.generation import generate_calls
from inference.engines.inputs import media, step_errors
from inference.engines.inputs.feeds import FEEDS
from inference.engines.inputs.pipeline_calls import Parameters, PipelineCalls
from inference.engines.pipeline.reference_answers import Reference
from inference.engines.runtime import parity, precision
from inference.engines.runtime.engine_calls import raise_if_device_failed
from inference.engines.runtime.exception_diagnosis import describe_exception, is_device_failure
from inference.engines.runtime.row_groups import BatchingMode, InputRow
from inference.engines.sentences.folder import require_no_default_prompt
from inference.errors import ModelUnavailable

logger = logging.getLogger(__name__)


MOST_LABELS = 100  # that a worker's row names: it is written with each heartbeat


@dataclass(frozen=True, slots=True)
class Prepared:
    """Inputs that were read: all as tokens, or each as its rows or as the error that reading it raised."""

    parameters: Parameters
    tokens: Any = None
    read: list[Any] = field(default_factory=list)


class PipelineEngine(Engine):
    """The engine of a transformers pipeline, which `task` and `model` in the catalog name."""

    full_text = True
    steps: PipelineCalls | None = None  # None if the pipeline is called as a whole
    at_once: Any = None

    def load(self, device: str) -> None:
        backend.require_backend(self.spec)
        task = tasks.find_task(self.spec.task)
        self.task = task.name
        if self.task not in FEEDS:
            raise ModelUnavailable(
                f"task {self.spec.task!r} is not served; served are {', '.join(sorted(FEEDS))}."
                " For another, write an engine class: see docs/guide/models.md."
            )
        self.feed = FEEDS[self.task]
        _require_package(task)
        self.pipe, missing = pipeline_loader.load_pipeline(self.spec, task.pipeline or task.name, device)
        self.feed = self.feed.fit_to_pipeline(self.pipe)
        if task.classifies or task.ranks:
            self._check_labels(is_ranker=task.ranks)
        reference = Reference(self.pipe, self.feed) if self.feed.batched else None
        if task.generates:
            generate_calls.install_steps(self.pipe)
        if self.pipe.tokenizer is not None:
            pipeline_loader.set_up_padding(
                self.spec, self.pipe, padding_side=self.feed.padding_side, scores_texts=self.feed.scores_texts
            )
        if self.feed.is_cut or task.generates:
            self.max_tokens = self.pipe.tokenizer.model_max_length
        checkpoint_checks.refuse_random_answers(
            self.spec,
            self.pipe.model,
            missing,
            self.warm_up if self.feed.make_examples(self.pipe) else None,
            first_only=self.feed.reads_states and "pool" not in self.spec.parameters,
        )
        self.shortcuts = accelerate.Shortcuts(self.task, parity.BatchingChoice(mode=BatchingMode.PADDED))
        if reference:
            self._install_shortcuts(reference)
        self.note = f"{self.note} {self.feed.make_operator_note(self.pipe)}".strip()
        if self.steps is None:  # the pipeline calls these steps by itself
            for step in ("forward", "postprocess"):
                setattr(self.pipe, step, step_errors.wrap_model_step(getattr(self.pipe, step)))

    def _install_shortcuts(self, reference: Reference) -> None:
        """Find out how inputs may run together, and which shortcuts may be used."""
        accelerate.Shortcuts(self.task, self.shortcuts.plain).add_if_equal(
            "step by step",
            lambda: Override(self, "steps", PipelineCalls(self.pipe, self.feed)),
            lambda: not reference.describe_difference(self.predict),
        )
        if self.steps is None:
            if difference := reference.describe_difference(self._answer_by_pipeline):
                raise ModelUnavailable(
                    f"it cannot be served with the answers that transformers' own pipeline gives: {difference}."
                    " Report it with the name of the model; an engine class of your own can serve it, see"
                    " docs/guide/models.md."
                )
            self.padded, self.note = False, "This transformers is not known well enough: each input runs alone."
            return
        self.prepares = True
        self.numbers_a_token = self.feed.count_numbers_per_token(self.pipe)
        values = functools.partial(self._compute_values, self.steps, self.feed.parameters)
        compiled, note = backend.install_backend(self.spec, self.pipe.model, values, self._make_backend_trial_inputs())
        self.shortcuts, self.note = compiled or self.shortcuts, note
        self.backend = self.spec.backend if compiled else TORCH
        inputs, parameters = self.feed.make_trial(self.pipe)
        if not inputs:
            return
        trial = parity.Trial(
            functools.partial(self._compute_values, self.steps, parameters),
            inputs,
            precision.find_tolerance(self.spec, self.pipe.model),
        )
        if not compiled:
            self.shortcuts = accelerate.install_shortcuts(self.pipe.model, self.pipe.tokenizer, self.task, trial)
        self.shortcuts.add_if_equal(
            "texts at once",
            lambda: accelerate.make_batch_answers_shortcut(self, self.pipe, self.task),
            lambda: self._has_same_answers(inputs[:1]) and self._has_same_answers([*inputs, *reference.inputs]),
        )
        self.padded, self.note = self.shortcuts.pads_batches, f"{self.shortcuts.batching_choice.note} {note}".strip()
        if tasks.find_task(self.task).generates:
            self._install_stepper(self.steps, trial)

    def _install_stepper(self, steps: PipelineCalls, trial: parity.Trial) -> None:
        """Let the model generate by the step if its answers are those of `generate` then, or note why it does not.

        The modules are imported here: another release of transformers may lack what they need, and the model is then
        served without them.
        """
        try:
            from inference.engines.generation import stepper_trial
            from inference.engines.generation.pipeline_stepper import PipelineStepper
            from inference.engines.generation.rows.requests import Requests

            requests = Requests(self.pipe, self.feed, steps)
            problem = stepper_trial.find_problem(self.spec, requests, trial)
            if not problem:
                self.stepper = PipelineStepper(self.spec.max_batch_tokens, requests)
        except Exception as error:
            if is_device_failure(error):
                raise
            logger.warning("model=%s is not stepped: %s", self.spec.name, describe_exception(error), exc_info=True)
            problem = "generating by the step raises an exception, which the worker's log has"
        if problem:
            self.note = f"{self.note} Answers wait for the longest of their batch: {problem}.".lstrip()

    def _check_labels(self, *, is_ranker: bool) -> None:
        """Raise `ModelUnavailable` if the labels of a model that scores texts are not what its table needs."""
        if is_ranker:
            checkpoint_checks.require_one_label(self.spec, self.pipe.model)
            require_no_default_prompt(Path(self.pipe.model.name_or_path))
        else:
            checkpoint_checks.check_harmless_labels_option(self.spec, self.pipe.model)
        labels = self.pipe.model.config.id2label
        if len(labels) <= MOST_LABELS:
            self.facts = {"id2label": {str(key): name for key, name in labels.items()}}

    def _make_backend_trial_inputs(self) -> list[Any]:
        """Return inputs that show how far the answers of another backend are from those of torch."""
        if self.feed.is_cut:
            return [self.feed.make_input_from_text(text, self.pipe) for text in agreement.TEXTS]
        return 2 * self.feed.make_examples(self.pipe)

    def _compute_values(
        self, steps: PipelineCalls, given: dict[str, Any], inputs: Sequence[Any], mode: BatchingMode
    ) -> list[parity.Answer]:
        """Return what the model computes for inputs, before the pipeline makes answers of it."""
        parameters = replace(
            steps.split_parameters(self.feed.check_and_complete_parameters(self.pipe, given)), mode=mode
        )
        ready = [row for index, value in enumerate(inputs) for row in steps.make_rows(index, value, parameters)]
        return [
            parity.extract_row_tensors(output, row, self.pipe)
            for row, output in steps.compute_outputs(ready, parameters, limit=len(ready))
        ]

    def _has_same_answers(self, inputs: list[Any]) -> bool:
        if self.steps is None:
            return False
        parameters = self.steps.split_parameters(self.feed.parameters)
        return parity.are_alike(
            self._answer_together(self.steps, inputs, parameters),
            self._answer_item_by_item(self.steps, inputs, parameters),
        )

    def warm_up(self) -> None:
        for answer in self.predict(self.feed.make_examples(self.pipe), self.feed.parameters):
            if isinstance(answer, BaseException):
                raise answer

    def try_example(self) -> bool:
        if not self.feed.make_examples(self.pipe):
            return False
        try:
            self.warm_up()
        except Exception as error:
            raise_if_device_failed(error)
            return False
        return True

    def make_input_from_text(self, text: str) -> Any:
        return self.feed.make_input_from_text(text, self.pipe)

    def count_tokens(self, inputs: list[Any], parameters: dict[str, Any]) -> list[int]:
        if self.steps is None:
            return [0] * len(inputs)
        read = _read_inputs(
            self.steps,
            inputs,
            self.steps.split_parameters(self.feed.check_and_complete_parameters(self.pipe, parameters)),
        )
        return [sum(row.token_count for row in rows) if isinstance(rows, list) else 0 for rows in read]

    def predict(self, inputs: list[Any], parameters: dict[str, Any]) -> list[Any]:
        steps = self.steps
        try:
            given = step_errors.run_input_step(self.feed.check_and_complete_parameters, self.pipe, parameters)
            ready: Any = step_errors.run_input_step(steps.split_parameters, given) if steps else None
        except Exception as error:  # of parameters that are wrong
            return [error] * len(inputs)
        if steps is None:
            return self._answer_by_pipeline(inputs, given)
        answers = self.shortcuts.guard_call(lambda: self._answer_together(steps, inputs, ready))
        self.padded = self.shortcuts.pads_batches
        return answers

    def prepare(self, inputs: list[Any], parameters: dict[str, Any]) -> Any:
        if (steps := self.steps) is None:
            return None
        ready = steps.split_parameters(self.feed.check_and_complete_parameters(self.pipe, parameters))
        tokens = self.at_once.encode_texts(inputs, ready.preprocess) if self._can_run_at_once(inputs, ready) else None
        if tokens:
            return Prepared(ready, tokens=tokens)
        return Prepared(ready, read=_read_inputs(steps, inputs, ready))

    def predict_prepared_inputs(self, prepared: Prepared, parameters: dict[str, Any]) -> list[Any] | None:
        """Answer inputs that `prepare` has read. A shortcut that fails is found out by `predict`."""
        if prepared.tokens is None:
            return self._answer_rows(self.steps, prepared.read, prepared.parameters) if self.steps else None
        if self.at_once is None:
            return None
        found = self.at_once.answer_texts(prepared.tokens, prepared.parameters.forward, prepared.parameters.postprocess)
        return list(found) if found else None

    def _answer_by_pipeline(self, inputs: list[Any], parameters: dict[str, Any]) -> list[Any]:
        return [_run_or_return_error(self._call_pipeline, value, parameters) for value in inputs]

    def _call_pipeline(self, value: object, parameters: dict[str, Any]) -> Any:
        parameters = copy.deepcopy({**self.feed.preprocess, **parameters})  # a pipeline may change what it is given
        prepared, parameters = step_errors.run_input_step(
            self.feed.read_input_and_parameters, value, self.pipe, parameters
        )
        if self.feed.batched:  # without the changes that a task's own `__call__` makes to one answer
            call = functools.partial(Pipeline.__call__, self.pipe, prepared)
        elif isinstance(prepared, dict):
            call = functools.partial(self.pipe, **prepared)
        else:
            call = functools.partial(self.pipe, prepared)
        return _encode_pictures(step_errors.run_input_step(functools.partial(call, **parameters)))

    def _answer_together(self, steps: PipelineCalls, inputs: list[Any], parameters: Parameters) -> list[Any]:
        if self._can_run_at_once(inputs, parameters):
            tokens = self.at_once.encode_texts(inputs, parameters.preprocess)
            found = tokens and self.at_once.answer_texts(tokens, parameters.forward, parameters.postprocess)
            if found:
                return list(found)
        return self._answer_item_by_item(steps, inputs, parameters)

    def _can_run_at_once(self, inputs: list[Any], parameters: Parameters) -> bool:
        padded = len(inputs) == 1 or max(parameters.mode, self.shortcuts.batching_choice.mode) is BatchingMode.PADDED
        return self.at_once is not None and padded and all(isinstance(value, str) for value in inputs)

    def _answer_item_by_item(self, steps: PipelineCalls, inputs: list[Any], parameters: Parameters) -> list[Any]:
        return self._answer_rows(steps, _read_inputs(steps, inputs, parameters), parameters)

    def _answer_rows(self, steps: PipelineCalls, answers: list[Any], parameters: Parameters) -> list[Any]:
        """Answer inputs, each of which is given as its rows or as the error that reading it raised.

        The answers replace the rows in the list that is given, which is returned.
        """
        ready = [row for answer in answers if isinstance(answer, list) for row in answer]
        parameters = replace(parameters, mode=max(parameters.mode, self.shortcuts.batching_choice.mode))
        outputs_of: dict[int, list[tuple[InputRow, Any]]] = defaultdict(list)
        for row, output in steps.compute_outputs(ready, parameters, limit=max(len(answers), self.spec.max_batch_size)):
            outputs_of[row.item].append((row, output))
        for index, outputs in outputs_of.items():
            answers[index] = _run_or_return_error(steps.make_answer, outputs, parameters)
        return answers


def _require_package(task: Task) -> None:
    if task.package and importlib.util.find_spec(task.package) is None:
        raise ModelUnavailable(
            f"task {task.name!r} needs the package {task.package}, which is not installed:"
            f" .venv/bin/python -m pip install {task.package}"
        )


def _read_inputs(steps: PipelineCalls, inputs: Sequence[Any], parameters: Parameters) -> list[Any]:
    return [
        _run_or_return_error(step_errors.run_input_step, steps.make_rows, index, value, parameters)
        for index, value in enumerate(inputs)
    ]


def _run_or_return_error(step: Callable[..., Any], *arguments: Any) -> Any:
    try:
        return step(*arguments)
    except Exception as error:
        return error


def _encode_pictures(value: Any) -> Any:
    """Replace PIL images in an answer by base64 of a PNG, which Hugging Face's clients read.

    Masks and depths come as PIL images. The images of a chat, which an answer repeats, are left out.
    """
    if isinstance(value, dict):
        repeated = "image" if value.get("type") == "image" else ""
        return {key: _encode_pictures(item) for key, item in value.items() if key != repeated}
    if isinstance(value, list):
        return [_encode_pictures(item) for item in value]
    return media.encode_png(value) if hasattr(value, "getbands") else value
