"""Sentence embeddings: token states of a text encoder, pooled as the model's folder asks, of length one."""

import base64
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch.nn import functional
from transformers import AutoModel, AutoModelForTextEncoding, AutoTokenizer, PreTrainedConfig
from transformers.utils import logging

from inference.catalog.specs import TORCH, ModelSpec
from inference.engines.accelerate import installation as accelerate
from inference.engines.artifacts import checkpoint_checks, pipeline_loader, weights
from inference.engines.backends import agreement
from inference.engines.backends import installation as backend
from inference.engines.base import Engine
from inference.engines.inputs.task_inputs import read_string
from inference.engines.inputs.truncation import cut_unread_text
from inference.engines.runtime import parity, precision
from inference.engines.runtime.row_groups import BatchingMode
from inference.engines.sentences import folder as sentence_folder
from inference.engines.sentences import pooling
from inference.errors import EMPTY_TEXT, InferenceError, InvalidInput, ModelUnavailable, make_context_length_error

logging.disable_progress_bar()  # it would write thousands of lines to a log file

NONE: Mapping[str, Any] = {}
ENCODERS = ("t5", "mt5", "umt5")  # model types that sentence-transformers loads and saves without their decoder
CUT = "cut"  # a key beside the tokens of texts that must not be cut: True where the end was not read
CUT_AT = 8  # tokens, fewer than the longest text of a trial has


class SentenceEmbeddings(Engine):
    """The engine that answers a text with a vector, which has length one unless `normalize` is false.

    A prompt of the model's folder is put before the text: that of `prompt_name`, or of `input_type`, or the default
    one. A text that is longer than the model reads is cut, or fails if `truncate` is false.

    With `encoding_format` "base64" the answer has the vector's numbers as float32, lowest byte first, in base64. With
    `details` the answer is {"embedding": the vector, "tokens": the number of tokens read}. With `pooling` "none" the
    answer has a vector for each token, as the encoder made it; in base64 these vectors follow one another.
    """

    prepares = True
    dimensions: frozenset[int] = frozenset()  # Vectors may be cut to these sizes.
    encode: Any = None  # the shortcut that makes tokens of texts, or None

    def load(self, device: str) -> None:
        backend.require_backend(self.spec)
        folder = weights.fetch_folder(self.spec)
        self.settings = sentence_folder.read_folder(folder)
        self.device = torch.device(device)
        self.tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
        self.tokenizer.padding_side = "right"
        if self.tokenizer.pad_token is None:
            self.tokenizer.pad_token = self.tokenizer.eos_token or self.tokenizer.unk_token
        if self.settings.max_tokens:  # replaces the tokenizer's own limit, which may be that of an older save
            self.tokenizer.model_max_length = self.settings.max_tokens
        placed = precision.make_loading_arguments(self.spec, device)
        self.model, report = _choose_model_class(folder).from_pretrained(
            folder,
            **placed,
            use_safetensors=True,
            local_files_only=True,
            trust_remote_code=False,
            output_loading_info=True,
        )
        if "device_map" not in placed:
            self.model.to(self.device)
        precision.configure_tf32(self.spec, self.model)
        self.max_tokens = pipeline_loader.find_max_tokens(self.spec, self.model, self.tokenizer)
        self.dimensions = _read_dimensions(self.spec, self.model.config)
        self.dense = [each.to(self.device) for each in self.settings.dense]
        checkpoint_checks.refuse_random_answers(
            self.spec,
            self.model,
            checkpoint_checks.find_missing_weights(self.model, report),
            lambda: self._compute_trial_states(parity.TEXTS[1:2], BatchingMode.PADDED),
            first_only=True,
        )
        compiled, note = backend.install_backend(self.spec, self.model, self._compute_trial_states, agreement.TEXTS)
        self.backend = self.spec.backend if compiled else TORCH
        self.shortcuts = compiled or accelerate.install_shortcuts(self.model, self.tokenizer, "", self._make_trial())
        self.shortcuts.add_if_equal(
            "texts at once", lambda: accelerate.make_encode_shortcut(self, self.tokenizer), self._has_same_tokens
        )
        prompt = f'"{self.settings.default_prompt}" stands before each text, as {sentence_folder.MODEL_FILE} says.'
        notes = (prompt if self.settings.default_prompt else "", note, self.shortcuts.batching_choice.note)
        self.padded, self.note = self.shortcuts.pads_batches, " ".join(filter(None, notes))
        self.facts = {"pooling": "+".join(self.settings.modes)}

    def _make_trial(self) -> parity.Trial:
        texts = parity.make_trial_texts(self.tokenizer)
        return parity.Trial(self._compute_trial_states, texts, precision.find_tolerance(self.spec, self.model))

    def _has_same_tokens(self) -> bool:
        """Return True if texts give the tokens of the tokenizer's own call, also if the texts are cut."""
        texts = ["", *parity.make_trial_texts(self.tokenizer)]
        for limit in (CUT_AT, self.max_tokens):
            found, expected = self._encode_texts(texts, limit), self._encode_plainly(texts, limit)
            if found.keys() != expected.keys():
                return False
            if not all(torch.equal(found[name], values) for name, values in expected.items()):
                return False
        return True

    def warm_up(self) -> None:
        self.embed(["warm up"])

    def predict(self, inputs: list[Any], parameters: dict[str, Any]) -> list[Any]:
        answers = self.shortcuts.guard_call(lambda: self._answer_inputs(inputs, parameters))
        self.padded = self.shortcuts.pads_batches
        return answers

    def prepare(self, inputs: list[Any], parameters: dict[str, Any]) -> Any:
        return self._tokenize_texts(inputs, parameters)

    def predict_prepared_inputs(
        self, prepared: Mapping[str, torch.Tensor], parameters: dict[str, Any]
    ) -> list[Any] | None:
        return self._answer_tokens(prepared, parameters)

    def _answer_inputs(self, inputs: list[Any], parameters: dict[str, Any]) -> list[Any]:
        try:
            tokens = self._tokenize_texts(inputs, parameters)
        except InvalidInput:  # of some of the inputs, or of the parameters
            problems = [self._find_problem(value, parameters) for value in inputs]
            texts = [value for value, problem in zip(inputs, problems, strict=True) if problem is None]
            answers = iter(self._answer_inputs(texts, parameters) if texts else ())
            return [next(answers) if problem is None else problem for problem in problems]
        return self._answer_tokens(tokens, parameters)

    def _find_problem(self, value: object, parameters: Mapping[str, Any]) -> InvalidInput | None:
        """Return the error of reading one input, or None if it can be read."""
        try:
            tokens = self._tokenize_texts([value], parameters)
        except InvalidInput as error:
            return error
        return None if tokens["attention_mask"].any() else InvalidInput(EMPTY_TEXT)

    def _answer_tokens(self, tokens: Mapping[str, torch.Tensor], parameters: dict[str, Any]) -> list[Any]:
        """Embed texts that were read, and return answers in the form that `parameters` ask for."""
        counts = tokens["attention_mask"].sum(1).tolist()
        if CUT not in tokens and all(counts):
            return self._make_answers(tokens, counts, parameters)
        limit = self.max_tokens or self.tokenizer.model_max_length
        cut = tokens[CUT].tolist() if CUT in tokens else [False] * len(counts)
        answers: list[Any] = [
            make_context_length_error(limit, count, at_least=True) if count else InvalidInput(EMPTY_TEXT)
            for count in counts
        ]
        kept = [row for row, count in enumerate(counts) if 0 < count <= limit and not cut[row]]
        if kept:
            longest = max(counts[row] for row in kept)
            part = {name: values[kept, :longest] for name, values in tokens.items() if name != CUT}
            kept_answers = self._make_answers(part, [counts[row] for row in kept], parameters)
            for row, answer in zip(kept, kept_answers, strict=True):
                answers[row] = answer
        return answers

    def _make_answers(
        self, tokens: Mapping[str, torch.Tensor], counts: Sequence[int], parameters: dict[str, Any]
    ) -> list[Any]:
        if parameters.get("pooling") == "none":
            return self._make_token_answers(tokens, counts, parameters)
        normalize = parameters.get("normalize") is not False
        left_out = 0 if self.settings.pools_prompt else self._count_prompt_tokens(self._find_prompt(parameters))
        states = self._compute_group_states(tokens, self.shortcuts.batching_choice.mode)
        vectors = self._pool_states(states, normalize=normalize, left_out=left_out)
        if (count := parameters.get("dimensions") or vectors.shape[1]) != vectors.shape[1]:
            served = {each for each in self.dimensions if each < vectors.shape[1]}
            if count not in served:
                return [_make_dimensions_error(vectors.shape[1], served)] * len(vectors)
            vectors = vectors[:, :count]
            vectors = functional.normalize(vectors, dim=1) if normalize else vectors
        embeddings = (
            _encode_base64(vectors) if parameters.get("encoding_format") == "base64" else list(vectors.tolist())
        )
        return _add_details(embeddings, counts, parameters)

    def _make_token_answers(
        self, tokens: Mapping[str, torch.Tensor], counts: Sequence[int], parameters: dict[str, Any]
    ) -> list[Any]:
        if {"dimensions", "normalize"} & parameters.keys():
            wrong = InvalidInput('parameters.pooling: "none" goes with neither dimensions nor normalize.')
            return [wrong] * len(counts)
        states = self._compute_token_states(tokens, self.shortcuts.batching_choice.mode)
        is_base64 = parameters.get("encoding_format") == "base64"
        embeddings = [_encode_base64(own.reshape(1, -1))[0] if is_base64 else own.tolist() for own in states]
        return _add_details(embeddings, counts, parameters)

    def embed(self, texts: list[str]) -> torch.Tensor:
        """Return a tensor with one row for each text, float32, on the CPU. Each row has length one.

        Texts are cut at `max_tokens`.
        """
        left_out = 0 if self.settings.pools_prompt else self._count_prompt_tokens(self.settings.default_prompt)
        states = self._compute_group_states(self._tokenize_texts(texts), self.shortcuts.batching_choice.mode)
        return self._pool_states(states, normalize=True, left_out=left_out)

    def _pool_states(
        self, groups: Iterable[tuple[list[int], torch.Tensor, torch.Tensor]], *, normalize: bool, left_out: int
    ) -> torch.Tensor:
        """Return the vectors of texts, from their token states. The first `left_out` tokens of each are not pooled."""
        parts, order = [], []
        for rows, states, mask in groups:
            own = mask
            if left_out:
                own = mask.clone()
                own[:, :left_out] = 0
            pooled = pooling.pool_states(self.settings.modes, states.float(), own)
            for module in self.dense:
                pooled = module(pooled)
            parts.append((functional.normalize(pooled, dim=1) if normalize else pooled).cpu())
            order += rows
        return torch.cat(parts)[torch.tensor(order).argsort()]

    def _find_prompt(self, parameters: Mapping[str, Any]) -> str:
        return self.settings.find_prompt(parameters.get("prompt_name"), parameters.get("input_type"))

    def _tokenize_texts(self, texts: Sequence[Any], parameters: Mapping[str, Any] = NONE) -> Any:
        """Return the tokens of texts with their prompt. Raises `InvalidInput` if one of them cannot be read.

        If texts must not be cut, one token more than the model reads is read, and `CUT` marks the texts whose end was
        not looked at.
        """
        for text in texts:
            read_string(text)
        prompt, limit, cuts = self._find_prompt(parameters), self.max_tokens, parameters.get("truncate") is not False
        limit = limit if cuts or not limit else limit + 1
        wholes = [self.settings.prepare_text(text, prompt) for text in texts]
        parts = [cut_unread_text(self.tokenizer, whole, limit) for whole in wholes]
        tokens = self._encode_texts(parts, limit)
        if not cuts:
            tokens[CUT] = torch.tensor([len(part) < len(whole) for part, whole in zip(parts, wholes, strict=True)])
        return tokens

    def _encode_texts(self, texts: list[str], limit: int | None) -> Any:
        encode = self.encode  # another thread may turn the shortcut off
        return encode(texts, limit) if encode else self._encode_plainly(texts, limit)

    def _encode_plainly(self, texts: list[str], limit: int | None) -> Any:
        return self.tokenizer(texts, padding=True, truncation=True, max_length=limit, return_tensors="pt")

    def _count_prompt_tokens(self, prompt: str) -> int:
        """Return the number of tokens of a prompt, as `encode` of sentence-transformers counts them since release 5.

        The prompt is read alone, and a special token at its end is not counted.
        """
        if not prompt:
            return 0
        ids = self._encode_plainly([self.settings.prepare_text("", prompt)], self.max_tokens)["input_ids"][0].tolist()
        return len(ids) - int(ids[-1] in self.tokenizer.all_special_ids)

    def _compute_group_states(
        self, tokens: Mapping[str, torch.Tensor], mode: BatchingMode
    ) -> Iterator[tuple[list[int], torch.Tensor, torch.Tensor]]:
        """Yield, for texts that run together, their places, their token states, and the mask of what is no padding."""
        lengths = tokens["attention_mask"].sum(1).tolist()
        if 0 in lengths:
            raise InvalidInput(EMPTY_TEXT)
        for rows in _group_texts(lengths, mode):
            longest = max(lengths[row] for row in rows)
            part = {name: values[rows, :longest].to(self.device) for name, values in tokens.items()}
            with torch.inference_mode():
                states = self.model(**part).last_hidden_state
            yield rows, states, part["attention_mask"]

    def _compute_token_states(self, tokens: Mapping[str, torch.Tensor], mode: BatchingMode) -> list[torch.Tensor]:
        """Return the states of each text's tokens: [tokens, numbers], float32, on the CPU."""
        found: dict[int, torch.Tensor] = {}
        for rows, states, mask in self._compute_group_states(tokens, mode):
            own = [values[kept.bool()].float().cpu() for values, kept in zip(states, mask, strict=True)]
            found |= dict(zip(rows, own, strict=True))
        return [found[row] for row in sorted(found)]

    def _compute_trial_states(self, texts: Sequence[str], mode: BatchingMode) -> list[parity.Answer]:
        return [[states] for states in self._compute_token_states(self._tokenize_texts(texts), mode)]


class SentenceSimilarity(SentenceEmbeddings):
    """The engine that answers {"source_sentence", "sentences"} with the cosine of each sentence to the source."""

    prepares = False

    def make_input_from_text(self, text: str) -> Any:
        return {"source_sentence": text, "sentences": [text]}

    def _answer_inputs(self, inputs: list[Any], parameters: dict[str, Any]) -> list[Any]:
        problems = [_find_sentence_problem(value) for value in inputs]
        try:
            cosines = self._compute_cosines(inputs, problems)
        except InvalidInput:  # of some of the sentences
            problems = [bad or self._find_unread_sentence(value) for value, bad in zip(inputs, problems, strict=True)]
            cosines = self._compute_cosines(inputs, problems)
        return [problem or next(cosines) for problem in problems]

    def _compute_cosines(
        self, inputs: Sequence[Any], problems: Sequence[InferenceError | None]
    ) -> Iterator[list[float]]:
        """Return an iterator over the cosines of those inputs that have no problem."""
        texts = [
            [value["source_sentence"], *value["sentences"]]
            for value, bad in zip(inputs, problems, strict=True)
            if not bad
        ]
        rows = self._embed_in_batches([text for group in texts for text in group]).split(
            [len(group) for group in texts]
        )
        return iter([(group[1:] @ group[0]).tolist() for group in rows])

    def _find_unread_sentence(self, value: Mapping[str, Any]) -> InferenceError | None:
        """Return the error of the first sentence that cannot be read, with its place, or None."""
        for index, text in enumerate((value["source_sentence"], *value["sentences"])):
            if problem := self._find_problem(text, NONE):
                place = f"sentences[{index - 1}]" if index else "source_sentence"
                return type(problem)(f"{place}: {problem.message}")
        return None

    def _embed_in_batches(self, texts: list[str]) -> torch.Tensor:
        """Return the vectors of all texts.

        Texts of near lengths run together, at most `max_batch_size` at a time, as one input may hold many sentences.
        """
        order = sorted(range(len(texts)), key=lambda index: len(texts[index]))
        size = self.spec.max_batch_size
        parts = [
            self.embed([texts[index] for index in order[start : start + size]]) for start in range(0, len(order), size)
        ]
        if not parts:
            return torch.empty(0, 0)
        return torch.cat(parts)[torch.tensor(order).argsort()]


def _choose_model_class(folder: Path) -> Any:
    """Return the class that loads the model; for `ENCODERS` it loads no decoder."""
    kind = weights.read_json(folder / "config.json").get("model_type")
    return AutoModelForTextEncoding if kind in ENCODERS else AutoModel


def _group_texts(lengths: Sequence[int], mode: BatchingMode) -> list[list[int]]:
    """Return the places of the texts, in groups that run together."""
    if mode is BatchingMode.PADDED:
        return [list(range(len(lengths)))]
    groups: dict[int, list[int]] = {}
    for place, length in enumerate(lengths):
        groups.setdefault(length if mode is BatchingMode.EQUAL else place, []).append(place)
    return list(groups.values())


def _read_dimensions(spec: ModelSpec, config: PreTrainedConfig) -> frozenset[int]:
    """Return the sizes to which vectors may be cut.

    They are those of `matryoshka_dimensions` in the model's table, or else in its config.json, where vLLM reads them.
    Raises `ModelUnavailable` if the value in the table is not a list of sizes.
    """
    sizes = spec.options.get("matryoshka_dimensions")
    found = getattr(config, "matryoshka_dimensions", None) if sizes is None else sizes
    if isinstance(found, list | tuple) and all(type(count) is int and count > 0 for count in found):
        return frozenset(found)
    if sizes is not None:
        raise ModelUnavailable(f"matryoshka_dimensions must be a list of numbers such as [64, 128], not {sizes!r}.")
    return frozenset()


def _make_dimensions_error(size: int, dimensions: set[int]) -> InferenceError:
    if dimensions:
        right = f"send {', '.join(map(str, sorted(dimensions)))}, or leave it out"
    else:
        right = "leave it out; a model that was trained for it says so as matryoshka_dimensions in its config.json"
    message = f"parameters.dimensions: vectors of this model have {size} numbers: {right}."
    return InvalidInput(message, field="parameters.dimensions")


def _add_details(embeddings: list[Any], counts: Sequence[int], parameters: dict[str, Any]) -> list[Any]:
    if not parameters.get("details"):
        return embeddings
    return [{"embedding": vector, "tokens": count} for vector, count in zip(embeddings, counts, strict=True)]


def _encode_base64(vectors: torch.Tensor) -> list[Any]:
    """Return the numbers of each vector as float32, lowest byte first, in base64.

    A vector that is not finite stays a list of numbers, and fails as an answer.
    """
    finite = vectors.isfinite().all(1).tolist()
    return [
        base64.b64encode(vector.numpy().astype("<f4").tobytes()).decode() if is_finite else vector.tolist()
        for vector, is_finite in zip(vectors, finite, strict=True)
    ]


def _find_sentence_problem(value: object) -> InferenceError | None:
    if not isinstance(value, dict) or not isinstance(value.get("source_sentence"), str):
        return InvalidInput('An input must be {"source_sentence": "a text", "sentences": ["another", …]}.')
    sentences = value.get("sentences")
    if not isinstance(sentences, list) or not sentences or not all(isinstance(text, str) for text in sentences):
        return InvalidInput("sentences must be a list of one or more texts.", field="inputs.sentences")
    return None
