"""The feed of each task's pipeline. Everything else about a task is in `inference.catalog.tasks`."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, ClassVar

from inference.catalog.sizes.lengths import NEW_TOKENS
from inference.engines.inputs import media, task_inputs
from inference.engines.inputs.stops import read_stops
from inference.engines.runtime import parity
from inference.engines.runtime.row_groups import BatchingMode, InputRow
from inference.errors import InvalidInput, make_context_length_error, make_field_error

if TYPE_CHECKING:
    from transformers import Pipeline
    from transformers.utils import ModelOutput

# Parameters of a trial: the scores of a few steps show whether a prompt's neighbours change its answer.
TRIAL = {
    "max_new_tokens": 3, "do_sample": False, "num_beams": 1, "return_dict_in_generate": True, "output_logits": True,
}  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Feed:
    """The feed of one task: how its inputs become what its pipeline takes."""

    prepare: task_inputs.Prepare
    batched: bool = False  # True if the pipeline's forward takes several items at once
    scores_texts: bool = False  # True if an answer is about a text as a whole
    reads_states: bool = False  # True if an answer is made of the first of the model's outputs
    preprocess: dict[str, Any] = field(default_factory=dict)  # parameters of the pipeline's preprocess
    example: Callable[[], Any] = lambda: parity.TEXTS[1]  # makes a valid input, or a text for `make_input_from_text`
    parameters: dict[str, Any] = field(default_factory=dict)  # parameters for the example
    compared: dict[str, Any] = field(default_factory=dict)  # more of them, to compare with the library's answers

    # Padding on the left shifts the positions of a model that counts from there, unless `generate` corrects for it.
    padding_side: ClassVar[str] = "right"
    is_cut: ClassVar[bool] = False  # True if a text is cut at the tokenizer's limit

    def fit_to_pipeline(self, pipe: Pipeline) -> Feed:
        """Return the feed of this pipeline, which may differ from that of others with the same task."""
        return self

    def make_input_from_text(self, text: object, pipe: Pipeline) -> Any:
        """Return an input that holds `text`."""
        return text

    def make_examples(self, pipe: Pipeline) -> list[Any]:
        """Return one input, or none if it is not known what the model takes."""
        return [self.make_input_from_text(self.example(), pipe)]

    def make_operator_note(self, pipe: Pipeline) -> str:
        """Return what an operator should know of this model's answers, or an empty string."""
        return ""

    def make_trial(self, pipe: Pipeline) -> tuple[list[Any], dict[str, Any]]:
        """Return inputs of several lengths, which are tried together at load, and the parameters for them."""
        return [], {}

    def check_and_complete_parameters(self, pipe: Pipeline, parameters: dict[str, Any]) -> dict[str, Any]:
        """Return a request's parameters, checked, and with those that the model must always have."""
        return parameters

    def read_input_and_parameters(
        self, value: object, pipe: Pipeline, parameters: dict[str, Any]
    ) -> tuple[Any, dict[str, Any]]:
        """Return what the pipeline takes, and the parameters with those that the input brings."""
        return self.prepare(value, pipe), parameters

    def find_batching_mode(self, pipe: Pipeline, run: dict[str, Any]) -> BatchingMode:
        """Return which rows may share a forward that has the parameters `run`."""
        return BatchingMode.PADDED

    def count_numbers_per_token(self, pipe: Pipeline) -> int:
        """Return how many numbers an answer has for each token that is read; 0 if it is not made by token."""
        return 0

    def make_row_parameters(self, row: InputRow, pipe: Pipeline, run: dict[str, Any]) -> dict[str, Any]:
        """Return the row's own parameters of the forward, which replace those of its call.

        They limit the answer to what the row's tokens leave room for. Raises `InvalidInput` for a row that the model
        must not be given.
        """
        return {}

    def remove_padding(self, output: ModelOutput | dict[str, Any], row: InputRow) -> Any:
        """Return the part of a row's output that does not belong to its padding."""
        return output

    def make_answer(self, answer: object, row: InputRow, parameters: dict[str, Any]) -> Any:
        """Return the answer to a row, made of the pipeline's answer. `parameters` are those of its preprocess."""
        return answer


class TextFeed(Feed):
    """The feed of texts, which run in batches and are cut."""

    is_cut = True

    def make_trial(self, pipe: Pipeline) -> tuple[list[Any], dict[str, Any]]:
        texts = parity.make_trial_texts(pipe.tokenizer)
        return [self.make_input_from_text(text, pipe) for text in texts], self.parameters


class ScoredTexts(TextFeed):
    """The feed of texts and pairs that are scored. With `truncate` of false what is too long is refused."""

    def read_input_and_parameters(
        self, value: object, pipe: Pipeline, parameters: dict[str, Any]
    ) -> tuple[Any, dict[str, Any]]:
        own = ("details", "truncate", "max_document_tokens")
        known = {name: setting for name, setting in parameters.items() if name not in own}
        prepared = self.prepare(value, pipe)
        if parameters.get("truncate") is False:
            task_inputs.require_short_input(value, pipe)
        return prepared, known  # The library passes others to the tokenizer.


class Pairs(ScoredTexts):
    """The feed of pairs: a query, and a text that may answer it.

    With `details` the answer has the number of tokens that were read. With `max_document_tokens` no more of the text
    is read.
    """

    def read_input_and_parameters(
        self, value: object, pipe: Pipeline, parameters: dict[str, Any]
    ) -> tuple[Any, dict[str, Any]]:
        if isinstance(value, dict) and (most := parameters.get("max_document_tokens")):
            value = {**value, "text_pair": task_inputs.truncate_to_token_count(most, value.get("text_pair"), pipe)}
        return super().read_input_and_parameters(value, pipe, parameters)

    def make_input_from_text(self, text: object, pipe: Pipeline) -> Any:
        return {"text": parity.TEXTS[1], "text_pair": text}

    def make_answer(self, answer: Any, row: InputRow, parameters: dict[str, Any]) -> Any:
        return {**answer, "tokens": row.token_count} if parameters.get("details") else answer


class States(TextFeed):
    """The feed of texts whose answers are the states of their own tokens."""

    def count_numbers_per_token(self, pipe: Pipeline) -> int:
        return getattr(pipe.model.config.get_text_config(), "hidden_size", 0)

    def remove_padding(self, output: ModelOutput, row: InputRow) -> Any:
        return (output[0][:, : row.token_count],)


class MaskedTextFeed(TextFeed):
    def make_input_from_text(self, text: object, pipe: Pipeline) -> Any:
        return f"{pipe.tokenizer.mask_token} {text}"


class ZeroShotTextFeed(TextFeed):
    """The feed of a text, or of {"sequences", "candidate_labels"}: a text with labels of its own."""

    def make_operator_note(self, pipe: Pipeline) -> str:
        if pipe.entailment_id != UNKNOWN_LABEL:
            return ""
        names = ", ".join(list(pipe.model.config.label2id)[:MOST_NAMED])
        return (
            f'None of its labels ({names}) begins with "entail": the last is taken for it, and scores may be wrong.'
            " Name them in id2label and label2id of config.json."
        )

    def check_and_complete_parameters(self, pipe: Pipeline, parameters: dict[str, Any]) -> dict[str, Any]:
        if "hypothesis_template" in parameters:
            task_inputs.read_template(parameters["hypothesis_template"])
        return parameters

    def read_input_and_parameters(
        self, value: object, pipe: Pipeline, parameters: dict[str, Any]
    ) -> tuple[Any, dict[str, Any]]:
        own = value if isinstance(value, dict) else {"sequences": value}
        own = task_inputs.read_fields(
            own,
            pipe,
            sequences=self.prepare,
            candidate_labels=task_inputs.read_labels,
            hypothesis_template=task_inputs.read_template,
        )
        prepared, parameters = own.pop("sequences"), {**parameters, **own}
        task_inputs.read_labels(parameters.get("candidate_labels"))
        return prepared, parameters


class LabelledFiles(Feed):
    """The feed of images or sound, whose labels are in the parameters."""

    def check_and_complete_parameters(self, pipe: Pipeline, parameters: dict[str, Any]) -> dict[str, Any]:
        known = inspect.signature(pipe.preprocess).parameters["hypothesis_template"].default
        template = task_inputs.read_template(parameters.get("hypothesis_template", known))
        task_inputs.require_short_labels(task_inputs.read_labels(parameters.get("candidate_labels")), pipe, template)
        return parameters


class Documents(Feed):
    """The feed of pictures of documents, each with a question."""

    def make_operator_note(self, pipe: Pipeline) -> str:
        return task_inputs.describe_missing_ocr(pipe)


class ImageTexts(Feed):
    """The feed of images with a text. Only a model for chats has an example: prompts of others are all different."""

    def make_examples(self, pipe: Pipeline) -> list[Any]:
        if not getattr(pipe.processor, "chat_template", None):
            return []
        content = [
            {"type": "image", "image": media.make_example_png()},
            {"type": "text", "text": parity.TEXTS[1]},
        ]
        return [[{"role": "user", "content": content}]]


class Prompts(TextFeed):
    """The feed of prompts, which are continued and never cut."""

    padding_side = "left"
    is_cut = False

    def make_trial(self, pipe: Pipeline) -> tuple[list[Any], dict[str, Any]]:
        return parity.make_trial_texts(pipe.tokenizer), TRIAL

    def check_and_complete_parameters(self, pipe: Pipeline, parameters: dict[str, Any]) -> dict[str, Any]:
        """Add a number of new tokens, unless the request has one, or it or the model asks for a total length."""
        own = pipe.model.generation_config
        if parameters.keys() & {"max_new_tokens", "max_length"} or (own.max_length and not own.max_new_tokens):
            return parameters
        return {"max_new_tokens": own.max_new_tokens or NEW_TOKENS, **parameters}

    def read_input_and_parameters(
        self, value: object, pipe: Pipeline, parameters: dict[str, Any]
    ) -> tuple[Any, dict[str, Any]]:
        if tools := parameters.get("tools"):
            task_inputs.require_tools_template(pipe.tokenizer, value, tools)
        return self.prepare(value, pipe), parameters

    def find_batching_mode(self, pipe: Pipeline, run: dict[str, Any]) -> BatchingMode:
        """Return `ALONE` if there is a seed, `EQUAL` if answers would depend on padding, and else `PADDED`.

        A total length counts the padding, so that an answer would depend on how far its prompt is padded. A penalty on
        repetition takes padding for text, which does harm if the padding token is one that ends a text.
        """
        if "seed" in run:
            return BatchingMode.ALONE
        if "max_new_tokens" not in run or run.get("min_length"):
            return BatchingMode.EQUAL
        ends = pipe.model.generation_config.eos_token_id
        if pipe.tokenizer.pad_token_id not in (ends if isinstance(ends, list) else [ends]):
            return BatchingMode.PADDED
        active = {**pipe.model.generation_config.to_diff_dict(), **run}
        penalized = active.get("repetition_penalty", 1.0) != 1.0 or active.get("no_repeat_ngram_size", 0) > 0
        return BatchingMode.EQUAL if penalized else BatchingMode.PADDED

    def make_row_parameters(self, row: InputRow, pipe: Pipeline, run: dict[str, Any]) -> dict[str, Any]:
        """Limit the answer to what the prompt leaves of the model's context, or of a total length."""
        read_stops(pipe.tokenizer, run.get("stop", ()))
        longest = pipe.tokenizer.model_max_length
        if not run.get("max_new_tokens"):
            longest = min(longest, run.get("max_length") or pipe.model.generation_config.max_length or longest)
        longest += bool(run.get("prompt_only"))  # the one token that it asks for is not added
        if row.token_count >= longest:
            raise make_prompt_length_error(row.token_count, longest)
        left = {"max_new_tokens": longest - row.token_count, "max_length": longest}
        return {name: most for name, most in left.items() if (run.get(name) or 0) > most}


class Speech(Feed):
    """The feed of speech.

    Whisper reads sound that is longer than its window one window after the other, and must then write timestamps. A
    text without timestamps is made from what it writes.
    """

    def fit_to_pipeline(self, pipe: Pipeline) -> Feed:
        """Limit the example's answer if the model writes token by token.

        Such a model finds hundreds of tokens in the silence of the example, and is asked for a few.
        """
        return replace(self, parameters={"max_new_tokens": 8}) if pipe.type in ("seq2seq", "seq2seq_whisper") else self

    def check_and_complete_parameters(self, pipe: Pipeline, parameters: dict[str, Any]) -> dict[str, Any]:
        """Return the parameters as they are.

        Raises `InvalidInput` for a language that the model does not know, and for times that it cannot tell.
        """
        settings = getattr(pipe.model, "generation_config", None)  # none of a model that does not write token by token
        tells_times = pipe.type == "seq2seq_whisper" and hasattr(settings, "no_timestamps_token_id")
        if parameters.get("return_timestamps") and not tells_times:
            raise make_field_error("parameters.return_timestamps", "leave it out, as this model tells no times.")
        if language := parameters.get("language"):
            known = getattr(settings, "lang_to_id", None) or {}
            if f"<|{language}|>" not in known:
                listed = ", ".join(sorted(name.strip("<|>") for name in known)) or "none, so leave it out"
                message = f"parameters.language: must be a language that this model knows: {listed}."
                raise InvalidInput(message, field="parameters.language")
        return parameters

    def make_row_parameters(self, row: InputRow, pipe: Pipeline, run: dict[str, Any]) -> dict[str, Any]:
        if pipe.type != "seq2seq_whisper" or run.get("return_timestamps"):
            return {}
        is_long = row.features["input_features"].shape[-1] > pipe.feature_extractor.nb_max_frames
        return {"return_timestamps": True} if is_long else {}


def make_prompt_length_error(tokens: int, longest: int) -> InvalidInput:
    """Return the error of a prompt of `tokens` tokens, if it and its answer may have `longest` together."""
    return make_context_length_error(longest - 1, tokens)  # an answer has at least one token


UNKNOWN_LABEL = -1  # the pipeline's `entailment_id` if no label is named so: it reads the scores of the last
MOST_NAMED = 4
CUT = {"truncation": True}  # cuts a text to what the model can take
SECOND_CUT = {"truncation": "only_second"}
ONE_LABEL = {"candidate_labels": ["one"]}
DOCUMENT = {"question": "which word?", "word_boxes": [["one", [0, 0, 1000, 1000]]]}
TABLE = {"table": {"city": ["Paris", "Rome"]}, "query": "which city?"}

_image = functools.partial(Feed, prepare=task_inputs.read_image, example=media.make_example_png)
_audio = functools.partial(Feed, prepare=task_inputs.read_audio, example=media.make_example_wav)

FEEDS: dict[str, Feed] = {
    "text-classification": ScoredTexts(
        prepare=task_inputs.read_text_or_pair, batched=True, scores_texts=True, preprocess=CUT
    ),
    "text-ranking": Pairs(prepare=task_inputs.read_pair, batched=True, scores_texts=True, preprocess=SECOND_CUT),
    "feature-extraction": States(prepare=task_inputs.truncate_text, batched=True, reads_states=True, preprocess=CUT),
    "fill-mask": MaskedTextFeed(
        prepare=task_inputs.read_masked_text, batched=True, preprocess={"tokenizer_kwargs": CUT}
    ),
    "token-classification": TextFeed(prepare=task_inputs.read_long_text, batched=True),
    "zero-shot-classification": ZeroShotTextFeed(
        prepare=task_inputs.truncate_text,
        batched=True,
        scores_texts=True,
        parameters={"candidate_labels": ["one", "other"]},
    ),
    "text-generation": Prompts(
        prepare=task_inputs.read_text_or_chat,
        batched=True,
        parameters={"max_new_tokens": 1, "do_sample": False},
        compared={"return_tensors": True},  # the library removes the blank before the first word of its text
    ),
    "image-classification": _image(batched=True),
    "audio-classification": _audio(batched=True),
    "automatic-speech-recognition": Speech(
        prepare=task_inputs.read_audio, example=media.make_example_wav, batched=True
    ),
    "image-feature-extraction": _image(reads_states=True),
    "image-segmentation": _image(),
    "object-detection": _image(),
    "depth-estimation": _image(),
    "zero-shot-image-classification": LabelledFiles(
        prepare=task_inputs.read_image, example=media.make_example_png, parameters=ONE_LABEL
    ),
    "zero-shot-audio-classification": LabelledFiles(
        prepare=task_inputs.read_audio, example=media.make_example_wav, parameters=ONE_LABEL
    ),
    "zero-shot-object-detection": Feed(
        prepare=task_inputs.read_image_and_labels, example=lambda: {"image": media.make_example_png(), **ONE_LABEL}
    ),
    "document-question-answering": Documents(
        prepare=task_inputs.read_document, example=lambda: {"image": media.make_example_png(), **DOCUMENT}
    ),
    "image-text-to-text": ImageTexts(
        prepare=task_inputs.read_image_and_text,
        parameters={"generate_kwargs": {"max_new_tokens": 1, "do_sample": False}},
    ),
    "table-question-answering": Feed(prepare=task_inputs.read_table, example=lambda: TABLE),
    "text-to-audio": Feed(prepare=task_inputs.read_counted_text),
}
