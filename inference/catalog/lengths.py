"""How many rows a model runs for an input, and how long they are: what batching needs, with no tokenizer and no torch.

Lengths are tokens, estimated; for images and sound they are what models make of them: patches and frames. A batch costs
its longest item times their number, so near lengths run together, and an error of some percent costs some percent.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Any

from inference.catalog.specs import ModelSpec
from inference.catalog.task_parameters import ALIASES

# Encoders, which cut what they cannot read.
CUT_TASKS = frozenset({
    "feature-extraction", "fill-mask", "sentence-similarity", "text-classification", "token-classification",
    "zero-shot-classification",
})  # fmt: skip
CHAT_TASKS = frozenset({"text-generation", "image-text-to-text"})
IMAGE_TASKS = frozenset({
    "depth-estimation", "image-classification", "image-feature-extraction", "image-segmentation", "mask-generation",
    "object-detection", "zero-shot-image-classification",
})  # fmt: skip
AUDIO_TASKS = frozenset({"audio-classification", "automatic-speech-recognition", "zero-shot-audio-classification"})

# Least squares over English paragraphs against the WordPiece tokenizer of BERT and MiniLM: median error 9 %, and 22 %
# for nine of ten texts. Other scripts are cut into their letters there; the last weight is for them.
PER_TEXT, PER_WORD, PER_CHARACTER, PER_MARK, PER_EXTRA_BYTE = 2.0, 0.39, 0.12, 1.34, 0.55
MARKS = b".,:;-'\"()!?/_"
SAMPLE = 50_000  # characters of a text, or items of a list, that are looked at; the rest is taken to be like them

NEW_TOKENS = (
    256  # of a generated text, when neither the request nor the model says how many: the pipeline's own default
)
NONE: Mapping[str, Any] = MappingProxyType({})

IMAGE_BYTES_PER_PATCH = 64  # a JPEG has about a quarter of a byte a pixel, a patch 16 x 16 pixels
MAX_PATCHES = 1024  # models scale images down
FRAMES_PER_S = 50  # of Whisper and wav2vec2
SOUND_BYTES_PER_S = 16_000  # of compressed sound at 128 kbit/s
WAV_HEADER = 48  # base64 characters that hold the 32 bytes up to a WAV's bytes per second


def is_list(spec: ModelSpec, inputs: Any) -> bool:
    """Whether `inputs` is a list of items. A list of chat messages is one item, and so is an empty list."""
    return isinstance(inputs, list) and bool(inputs) and not (spec.task in CHAT_TASKS and _is_chat(inputs))


def items(spec: ModelSpec, inputs: Any) -> list[Any]:
    return list(inputs) if is_list(spec, inputs) else [inputs]


def measure(spec: ModelSpec, inputs: Any, parameters: Mapping[str, Any] = NONE) -> tuple[int, int]:
    """(rows, tokens of each), each at least 1: a text is a row, and so is each of its labels, or of the sentences that
    it is compared with. Tokens are those of the longest, with what is generated and without what `max_length` cuts off;
    on average where an input has many texts."""
    shapes = [_shape(spec, item, parameters) for item in items(spec, inputs)]
    return sum(rows for rows, _ in shapes), max(1, *(tokens for _, tokens in shapes))


def tokens(text: str) -> int:
    """An estimate, in a few microseconds; never in more than some hundred."""
    if len(text) > SAMPLE:
        return tokens(text[:SAMPLE]) * len(text) // SAMPLE
    size = len(text)
    encoded = text.encode("utf-8", "surrogatepass")
    extra = len(encoded) - size
    marks = len(encoded) - len(encoded.translate(None, MARKS))
    words = text.count(" ") + 1
    return int(PER_TEXT + PER_WORD * words + PER_CHARACTER * size + PER_MARK * marks + PER_EXTRA_BYTE * extra)


def length(spec: ModelSpec, item: Any) -> int:
    """Tokens of one input, whole."""
    if isinstance(item, str):
        if spec.task in IMAGE_TASKS:
            return min(MAX_PATCHES, _bytes(item) // IMAGE_BYTES_PER_PATCH)
        return int(FRAMES_PER_S * _seconds(item)) if spec.task in AUDIO_TASKS else tokens(item)
    if isinstance(item, dict):
        return _total(spec, list(item.values()))
    return _total(spec, item) if isinstance(item, list) else 1


def _total(spec: ModelSpec, parts: list[Any]) -> int:
    total = sum(length(spec, part) for part in parts[:SAMPLE])
    return total if len(parts) <= SAMPLE else total * len(parts) // SAMPLE


def _shape(spec: ModelSpec, item: Any, parameters: Mapping[str, Any]) -> tuple[int, int]:
    task = ALIASES.get(spec.task, spec.task)
    if task == "sentence-similarity" and isinstance(item, dict):
        each = [_cut(spec, length(spec, text)) for text in _texts(item.values())]
        return max(1, len(each)), -(-sum(each) // max(1, len(each)))
    if task == "zero-shot-classification":
        labels = parameters.get("candidate_labels")
        return len(labels) if isinstance(labels, list) and labels else 1, _cut(spec, length(spec, item))
    if task == "text-generation":
        new_tokens = parameters.get("max_new_tokens", 0 if "max_length" in parameters else NEW_TOKENS)
        return 1, max(length(spec, item) + new_tokens, parameters.get("max_length", 0))
    return 1, _cut(spec, length(spec, item))


def _texts(values: Iterable[Any]) -> list[Any]:
    return [text for value in values for text in (value if isinstance(value, list) else [value])]


def _cut(spec: ModelSpec, tokens: int) -> int:
    return min(tokens, spec.max_length) if spec.max_length and spec.task not in CHAT_TASKS else tokens


def _is_chat(inputs: list[Any]) -> bool:
    return isinstance(inputs[0], dict) and "role" in inputs[0]


def _bytes(encoded: str) -> int:
    """Of what a base64 string holds."""
    return len(encoded) * 3 // 4


def _seconds(encoded: str) -> float:
    return _bytes(encoded) / (_wav_bytes_per_s(encoded) or SOUND_BYTES_PER_S)


def _wav_bytes_per_s(encoded: str) -> int:
    """From a WAV's header; 0 for other formats."""
    try:
        header = base64.b64decode(encoded[:WAV_HEADER])
    except (binascii.Error, ValueError):
        return 0
    return int.from_bytes(header[28:32], "little") if header.startswith(b"RIFF") else 0
