"""The properties of each task, except its pipeline's feed, which is in `inference.engines.inputs.feeds`.

A new pipeline task needs an entry of `TASKS`, and a feed there.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from inference.catalog import input_checks, neutral_values
from inference.catalog.neutral_values import Neutral
from inference.catalog.parameters import ParameterSpec
from inference.catalog.sizes import length_estimates

# Takes an input and its parameters; returns the texts that the model runs, and how often it runs each.
Rows = Callable[[Any, Mapping[str, Any]], tuple[list[Any], int]]


# Takes parameters in the words of other servers; returns those of the task.
Translate = Callable[[Mapping[str, Any]], dict[str, Any]]


class AnswerShape(enum.Enum):
    """The shape of an answer that Hugging Face clients expect."""

    AS_IT_IS = enum.auto()
    LISTS = enum.auto()  # a list of labels for every text, in an outer list also for one text
    SEGMENTS = enum.auto()  # [{"label", "score", "mask"}], where a pipeline's score may be null
    SOUND = enum.auto()  # a WAV file, where the pipeline answers {"audio", "sampling_rate"}
    PAIRS = enum.auto()  # [{"label", "score"}], where the pipeline answers {"labels", "scores"}


def list_single_input(item: object, parameters: Mapping[str, Any]) -> tuple[list[Any], int]:
    return [item], 1


def repeat_input_per_label(item: object, parameters: Mapping[str, Any]) -> tuple[list[Any], int]:
    labels = parameters.get("candidate_labels")
    return [item], len(labels) if isinstance(labels, list) and labels else 1


def list_sentences(item: object, parameters: Mapping[str, Any]) -> tuple[list[Any], int]:
    if not isinstance(item, dict):
        return [item], 1
    return [text for value in item.values() for text in (value if isinstance(value, list) else [value])], 1


def split_labels(given: Mapping[str, Any]) -> dict[str, Any]:
    """Split labels that are one string at its commas, as the pipelines do."""
    labels = given.get("candidate_labels")
    if not isinstance(labels, str):
        return dict(given)
    return {**given, "candidate_labels": [label.strip() for label in labels.split(",") if label.strip()]}


def translate_sampling_values(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return settings of sampling as `generate` takes them.

    A temperature or a top_p next to 0 means greedy decoding, a top_k of -1 means no limit, and a seed is taken modulo
    2**63.
    """
    numbers = {name: value for name, value in given.items() if _is_number(value)}
    near = [name for name in ("temperature", "top_p") if 0 <= numbers.get(name, 1) < NEAR_ZERO]
    named = {name: value for name, value in given.items() if name not in near}
    if near:
        named["do_sample"] = False
    if numbers.get("top_k") == -1:
        named["top_k"] = 0
    if isinstance(seed := numbers.get("seed"), int):
        named["seed"] = seed % SEEDS
    return named


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """The properties of one task; their defaults hold for an engine of the user's own, of which nothing is known."""

    name: str = ""
    aliases: tuple[str, ...] = ()
    is_pipeline: bool = True  # False: only engine classes have the task
    pipeline: str = ""  # the name of the pipeline in transformers, if it is another one
    classifies: bool = False  # scores a text, or a pair of texts, by each of its labels
    ranks: bool = False  # scores how well a text answers a query, by one number
    transcribes: bool = False  # its answers write down what is said
    check: input_checks.Check = input_checks.accept_anything
    # The unit measures strings of an input; with any other unit they are files in base64.
    unit: length_estimates.Unit = length_estimates.estimate_tokens
    rows: Rows = list_single_input
    takes_chats: bool = False  # a list of messages is one input, and no input is cut
    compiles: bool = False  # one call of the model answers a batch, so that another backend than torch may compute it
    generates: bool = False  # text from a prompt, which must leave room: generated tokens count
    parameters: Mapping[str, ParameterSpec] = field(default_factory=dict)  # bounded, as is the cost of a request
    neutral: Neutral = field(default_factory=dict)  # values of parameters that ask for nothing
    translate: Translate = dict  # a copy: no words are others
    parameters_at_root: bool = False  # clients put parameters beside "inputs"
    shape: AnswerShape = AnswerShape.AS_IT_IS
    example: Mapping[str, Any] | None = None  # the body of a request; None if an input is a file
    measured_with: Mapping[str, Any] = field(default_factory=dict)  # parameters with which `manage.py tune` measures
    model_classes: tuple[str, ...] = ("AutoModel",)  # of transformers: one of them loads a model with all its weights
    package: str = ""  # a package that is in no requirements file, and that every model of the task needs

    @property
    def takes_files(self) -> bool:
        return self.unit is not length_estimates.estimate_tokens


RANKING = "text-ranking"
NEAR_ZERO = 0.01  # the smallest temperature: scores divided by a smaller one are infinite
SEEDS = 2**63
_TEXT = "Django records the job, Celery runs the batch."
_LABELS = ParameterSpec(type="array", items="string", min_items=1, max_items=100, max_length=1000, required=True)
_HYPOTHESIS = ParameterSpec(type="string", max_length=1000)
_SCORING = ParameterSpec(type="string", choices=("sigmoid", "softmax", "none"))
_FLAG = ParameterSpec(type="boolean")
_EMPTY_SETTINGS: Neutral = {"generation_parameters": ({},), "generate_kwargs": ({},)}
_ZERO_SHOT = {"candidate_labels": _LABELS, "hypothesis_template": _HYPOTHESIS}


def _make_top_k(limit: int, default: int | None = None) -> ParameterSpec:
    return ParameterSpec(type="integer", min=1, max=limit, default=default)


_CLASSIFICATION = {"top_k": _make_top_k(1000, 5), "function_to_apply": _SCORING}
_TRUNCATE = {"truncate": _FLAG}  # false: what is longer than the model reads is refused, and not cut


@dataclass(frozen=True, slots=True, kw_only=True)
class BuiltInEngine:
    """The properties of an engine class of this project, beside those of its model's task."""

    task: str = ""  # of a model whose table names no task
    parameters: Mapping[str, ParameterSpec] = field(default_factory=dict)
    neutral: Neutral = field(default_factory=dict)
    parameters_by_task: Mapping[str, Mapping[str, ParameterSpec]] = field(default_factory=dict)

    def list_parameters(self, task: str) -> dict[str, ParameterSpec]:
        """Return the parameters that requests to a model of this task may have, beside those of the task."""
        return {**self.parameters, **self.parameters_by_task.get(task, {})}


BUILT_IN: Mapping[str, BuiltInEngine] = {
    "inference.engines.pipeline.engine:PipelineEngine": BuiltInEngine(
        neutral={"normalize": (False,)},  # no pipeline does it
        parameters_by_task={
            # {"type": "json", "regex" or "choice", "value": …}, which an engine of the user's own might overlook
            "text-generation": {
                "grammar": ParameterSpec(type="object"),
                "logprobs": ParameterSpec(type="integer", min=0, max=20),
                "prompt_logprobs": ParameterSpec(type="integer", min=0, max=20),
                "prompt_only": _FLAG,  # nothing is generated
                "tools": ParameterSpec(type="array", items="object", min_items=1, max_items=128),
            },
            "automatic-speech-recognition": {"language": ParameterSpec(type="string", min_length=1, max_length=20)},
        },
    ),
    "inference.engines.embeddings:SentenceEmbeddings": BuiltInEngine(
        task="feature-extraction",
        parameters={
            "details": _FLAG,
            "dimensions": ParameterSpec(type="integer", min=1, max=100_000),
            "encoding_format": ParameterSpec(type="string", choices=("float", "base64")),
            "input_type": ParameterSpec(type="string", choices=("query", "document", "classification", "clustering")),
            "normalize": _FLAG,
            "pooling": ParameterSpec(type="string", choices=("none",)),
            "prompt_name": ParameterSpec(type="string", max_length=100),
            "truncate": _FLAG,
        },
        neutral={"details": (False,), "encoding_format": ("float",), "normalize": (True,), "truncate": (True,)},
    ),
    "inference.engines.embeddings:SentenceSimilarity": BuiltInEngine(task="sentence-similarity"),
}

EMBEDDINGS = ("feature-extraction", "sentence-similarity")  # tasks that traces call embeddings

_text = partial(Task, check=input_checks.check_text, neutral=neutral_values.CUT, example={"inputs": _TEXT})
_image = partial(Task, check=input_checks.check_media, unit=length_estimates.estimate_patches)
_sound = partial(Task, check=input_checks.check_media, unit=length_estimates.estimate_frames)


def index_tasks(tasks: Iterable[Task]) -> dict[str, Task]:
    """Return the tasks by name and alias."""
    return {name: task for task in tasks for name in (task.name, *task.aliases)}


TASKS = index_tasks((
    _text(
        name="text-classification",
        model_classes=("AutoModelForSequenceClassification",),
        classifies=True,
        compiles=True,
        aliases=("sentiment-analysis",),
        check=input_checks.check_text_or_pair,
        parameters={**_CLASSIFICATION, **_TRUNCATE},
        shape=AnswerShape.LISTS,
    ),
    _text(
        name=RANKING,
        model_classes=("AutoModelForSequenceClassification",),
        pipeline="text-classification",
        ranks=True,
        compiles=True,
        check=input_checks.check_pair,
        parameters={
            "details": _FLAG,
            "function_to_apply": _SCORING,
            "max_document_tokens": ParameterSpec(type="integer", min=1),
            **_TRUNCATE,
        },
        neutral={**neutral_values.CUT, "details": (False,)},
        example={"inputs": {"text": "What records the job?", "text_pair": _TEXT}},
    ),
    _text(name="feature-extraction", compiles=True, parameters_at_root=True),
    _text(
        name="fill-mask",
        model_classes=("AutoModelForMaskedLM",),
        compiles=True,
        parameters={
            "top_k": _make_top_k(100),
            "targets": ParameterSpec(type="array", items="string", min_items=1, max_items=100),
        },
        example={"inputs": "Paris is the [MASK] of France."},
    ),
    _text(
        name="token-classification",
        model_classes=("AutoModelForTokenClassification",),
        compiles=True,
        aliases=("ner",),
        parameters={
            "aggregation_strategy": ParameterSpec(
                type="string", choices=("none", "simple", "first", "average", "max"), default="simple"
            ),
            "ignore_labels": ParameterSpec(type="array", items="string", max_items=100),
        },
        example={"inputs": "Ada Lovelace lived in London."},
    ),
    _text(
        name="zero-shot-classification",
        model_classes=("AutoModelForSequenceClassification",),
        compiles=True,
        rows=repeat_input_per_label,
        parameters={**_ZERO_SHOT, "multi_label": _FLAG},
        translate=split_labels,
        shape=AnswerShape.PAIRS,
        example={"inputs": _TEXT, "parameters": {"candidate_labels": ["software", "cooking"]}},
        measured_with={"candidate_labels": ["politics", "sports"]},
    ),
    _text(
        name="text-generation",
        model_classes=("AutoModelForCausalLM",),
        check=input_checks.check_prompt,
        takes_chats=True,
        generates=True,
        neutral=neutral_values.GENERATION,
        translate=translate_sampling_values,
        parameters={
            "max_new_tokens": ParameterSpec(type="integer", min=1),  # the rest of the context bounds it
            "min_new_tokens": ParameterSpec(type="integer", min=0),
            "do_sample": _FLAG,
            "temperature": ParameterSpec(type="number", min=NEAR_ZERO, max=100),
            "top_k": ParameterSpec(type="integer", min=0, max=1000),  # 0: no limit
            "top_p": ParameterSpec(type="number", min=NEAR_ZERO, max=1),
            "min_p": ParameterSpec(type="number", min=0, max=1),
            "typical_p": ParameterSpec(type="number", min=0.01, max=1),
            "repetition_penalty": ParameterSpec(type="number", min=0.1, max=10),
            "frequency_penalty": ParameterSpec(type="number", min=-2, max=2),
            "presence_penalty": ParameterSpec(type="number", min=-2, max=2),
            "logit_bias": ParameterSpec(type="object"),  # by a token's number
            "stop": ParameterSpec(
                type="array", items="string", min_items=1, max_items=8, min_length=1, max_length=100
            ),
            "seed": ParameterSpec(type="integer", min=0, max=SEEDS - 1),
            "return_full_text": _FLAG,
            "continue_final_message": _FLAG,  # for a chat; without it the pipeline's own rule holds
            "details": _FLAG,
        },
        example={"inputs": "The capital of France is"},
        measured_with={"max_new_tokens": 16, "do_sample": False},
    ),
    _image(
        name="image-classification",
        model_classes=("AutoModelForImageClassification",),
        compiles=True,
        parameters=_CLASSIFICATION,
    ),
    _sound(
        name="audio-classification",
        model_classes=("AutoModelForAudioClassification",),
        compiles=True,
        parameters=_CLASSIFICATION,
    ),
    _sound(
        name="automatic-speech-recognition",
        model_classes=("AutoModelForCTC", "AutoModelForTDT", "AutoModelForSpeechSeq2Seq"),
        transcribes=True,
        parameters={"return_timestamps": _FLAG},
        neutral={**_EMPTY_SETTINGS, "return_timestamps": (False,)},  # models whose tokens are letters refuse it
    ),
    _image(name="image-feature-extraction"),
    _image(
        name="image-segmentation",
        model_classes=("AutoModelForImageSegmentation", "AutoModelForSemanticSegmentation"),
        shape=AnswerShape.SEGMENTS,
    ),
    _image(
        name="object-detection",
        model_classes=("AutoModelForObjectDetection",),
        parameters={"threshold": ParameterSpec(type="number", min=0, max=1)},
    ),
    _image(name="depth-estimation", model_classes=("AutoModelForDepthEstimation",)),
    _image(
        name="zero-shot-image-classification",
        model_classes=("AutoModelForZeroShotImageClassification",),
        parameters=_ZERO_SHOT,
        translate=split_labels,
        measured_with={"candidate_labels": ["a town", "a river"]},
    ),
    _sound(
        name="zero-shot-audio-classification",
        parameters=_ZERO_SHOT,
        translate=split_labels,
        measured_with={"candidate_labels": ["speech", "music"]},
    ),
    Task(name="zero-shot-object-detection", model_classes=("AutoModelForZeroShotObjectDetection",)),
    Task(name="document-question-answering", model_classes=("AutoModelForDocumentQuestionAnswering",)),
    Task(
        name="image-text-to-text",
        model_classes=("AutoModelForImageTextToText",),
        takes_chats=True,
        neutral=neutral_values.GENERATION,
    ),
    Task(name="table-question-answering", model_classes=("AutoModelForTableQuestionAnswering",), package="pandas"),
    _text(
        name="text-to-audio",
        model_classes=("AutoModelForTextToWaveform", "AutoModelForTextToSpectrogram"),
        aliases=("text-to-speech",),
        neutral=_EMPTY_SETTINGS,
        shape=AnswerShape.SOUND,
        example=None,
    ),
    Task(
        name="sentence-similarity",
        is_pipeline=False,
        check=input_checks.check_sentences,
        rows=list_sentences,
        neutral=neutral_values.CUT,
        example={"inputs": {"source_sentence": _TEXT, "sentences": ["A queue of jobs.", "I like tea."]}},
    ),
    Task(is_pipeline=False, example={"inputs": _TEXT}),
))  # fmt: skip
_UNKNOWN = Task(is_pipeline=False)
_OWN = BuiltInEngine()


def find_engine_properties(engine: str) -> BuiltInEngine:
    """Return the properties of an engine by its name in models.toml; the defaults for an engine of the user's own."""
    return BUILT_IN.get(engine, _OWN)


def find_task(name: str) -> Task:
    """Return a task by its name or an alias; one with the defaults for the name of an engine of the user's own.

    Such an engine may have made up the name.
    """
    return TASKS.get(name, _UNKNOWN)


def list_pipeline_tasks() -> list[str]:
    """Return the names of the tasks that a pipeline serves, aliases last."""
    return sorted(
        (name for name, task in TASKS.items() if task.is_pipeline), key=lambda name: name != find_task(name).name
    )


def list_backend_tasks() -> list[str]:
    """Return the names of the tasks that another backend than torch computes, too, aliases last."""
    return [name for name in list_pipeline_tasks() if find_task(name).compiles]
