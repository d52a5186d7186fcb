"""An input as Hugging Face clients send it, checked, bounded and turned into what a pipeline takes."""

from __future__ import annotations

import importlib.util
import re
import shutil
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from inference.catalog.sizes.lengths import drop_response_fields
from inference.engines.inputs import media
from inference.engines.inputs.truncation import cut_unread_text
from inference.errors import ContextLengthExceeded, InvalidInput, format_token_count, make_context_length_error

if TYPE_CHECKING:
    from transformers import Pipeline, PreTrainedTokenizerBase

MAX_STRIDES = 64
MAX_MASKS = 32  # each is answered with top_k texts
MAX_LABELS = 100
MAX_LABEL = 1000  # characters of a label
MOST_TOKENS = 16  # of one character: a tokenizer may read it as several, and each of those as its bytes
TOOLS = "parameters.tools"
MAX_TABLE = 100_000  # characters of a table and its query, or of the words of a document
MAX_QUESTION = 1000  # characters of a question about a document
MAX_PLACE = 1000  # of a box's side: boxes are in thousandths of the document

# (input, pipeline) -> what the pipeline takes; a list is taken for a chat, so several things are a tuple
Prepare = Callable[[object, "Pipeline"], Any]


def read_string(value: object) -> str:
    if not isinstance(value, str):
        raise InvalidInput(f"An input must be a text, not {type(value).__name__}.")
    return value


def truncate_text(value: object, pipe: Pipeline) -> str:
    """Return as much of a text as the model can read."""
    return cut_unread_text(pipe.tokenizer, read_string(value))


def truncate_to_token_count(most: int, value: object, pipe: Pipeline) -> str:
    """Return the first `most` tokens of a text, or its last ones if the tokenizer cuts at the left.

    A character that has several tokens is not divided. Raises `InvalidInput` for a longer text if the tokenizer, being
    one in Python, does not know where in a text its tokens are.
    """
    text = truncate_text(value, pipe)
    is_fast, from_left = pipe.tokenizer.is_fast, pipe.tokenizer.truncation_side == "left"
    found = pipe.tokenizer(text, add_special_tokens=False, return_offsets_mapping=is_fast, verbose=False)
    if len(found["input_ids"]) <= most:
        return text
    if not is_fast:
        raise InvalidInput("parameters.max_document_tokens: this model's tokenizer cannot cut a text; leave it out.")
    spans = found["offset_mapping"]
    places = range(len(spans) - most, len(spans)) if from_left else range(most, 0, -1)
    cut = next((place for place in places if spans[place][0] >= spans[place - 1][1]), None)
    if cut is None:
        return ""
    return text[spans[cut][0] :] if from_left else text[: spans[cut - 1][1]]


def read_long_text(value: object, pipe: Pipeline) -> str:
    """Return as much of a text that may be read in strides as `MAX_STRIDES` strides may hold."""
    return cut_unread_text(pipe.tokenizer, read_string(value), MAX_STRIDES * pipe.tokenizer.model_max_length)


def read_text_within_limit(value: object, pipe: Pipeline) -> str:
    """Return a text that must not be cut, as an answer to a part of it would answer something else.

    Raises `ContextLengthExceeded` if it is longer than the model reads.
    """
    tokenizer, whole = pipe.tokenizer, read_string(value)
    if tokenizer and len(begun := cut_unread_text(tokenizer, whole)) < len(whole):
        tokens = len(tokenizer(begun, add_special_tokens=False, verbose=False)["input_ids"])
        raise make_context_length_error(tokenizer.model_max_length, tokens, at_least=True)
    return whole


def require_short_input(value: Any, pipe: Pipeline) -> None:
    """Raise `ContextLengthExceeded` for a text, or a pair of texts, that would be cut."""
    parts = [value["text"], value["text_pair"]] if isinstance(value, dict) else [value]
    tokens = len(pipe.tokenizer(*(read_text_within_limit(part, pipe) for part in parts), verbose=False)["input_ids"])
    if tokens > pipe.tokenizer.model_max_length:
        raise make_context_length_error(pipe.tokenizer.model_max_length, tokens)


def read_counted_text(value: object, pipe: Pipeline) -> str:
    """Return a text that must not be cut, if no later step counts its tokens."""
    whole = read_text_within_limit(value, pipe)
    if pipe.tokenizer:
        tokens, most = _count_tokens(whole, pipe), pipe.tokenizer.model_max_length
        if tokens > most:
            raise make_context_length_error(most, tokens)
    return whole


def _count_tokens(text: str, pipe: Pipeline) -> int:
    return len(pipe.tokenizer(text, verbose=False)["input_ids"])


def read_text_or_pair(value: object, pipe: Pipeline) -> Any:
    if isinstance(value, dict):
        return read_fields(value, pipe, text=truncate_text, text_pair=truncate_text)
    return truncate_text(value, pipe)


def _truncate_query(value: object, pipe: Pipeline) -> str:
    try:
        return truncate_text(value, pipe)
    except ContextLengthExceeded as error:
        raise ContextLengthExceeded(f"The query cannot be read: {error.message}") from None


def read_pair(value: object, pipe: Pipeline) -> Any:
    if not isinstance(value, dict) or value.keys() != {"text", "text_pair"}:
        raise InvalidInput('An input must be {"text": "the query", "text_pair": "a text"}.')
    found = read_fields(value, pipe, text=_truncate_query, text_pair=truncate_text)
    _require_room_beside(found["text"], pipe.tokenizer, whole=value["text"])
    return {name: [part] for name, part in found.items()}  # In lists, since a lone empty text is taken for no text.


def _require_room_beside(query: str, tokenizer: PreTrainedTokenizerBase, *, whole: str) -> None:
    """Raise `InvalidInput` for a query that leaves no token to its text, as no query is cut.

    `query` is the beginning of `whole`, the query of the client.
    """
    most = tokenizer.model_max_length - tokenizer.num_special_tokens_to_add(pair=True) - 1
    if MOST_TOKENS * len(query) <= most:
        return
    tokens = len(tokenizer(query, add_special_tokens=False, verbose=False)["input_ids"])
    if tokens > most:
        found = format_token_count(tokens, at_least=len(query) < len(whole))
        raise ContextLengthExceeded(f"The query has {found}, and {most} leave room for a text. Shorten the query.")


def read_masked_text(value: object, pipe: Pipeline) -> str:
    mask, found = pipe.tokenizer.mask_token, truncate_text(value, pipe)
    if not 1 <= found.count(mask) <= MAX_MASKS:
        raise InvalidInput(f"The text must contain {mask}, the place to fill, from 1 to {MAX_MASKS} times.")
    return found


def read_text_or_chat(value: object, pipe: Pipeline) -> Any:
    """Return a prompt, which is a text or a list of chat messages: tokens are read by the stepper alone."""
    if isinstance(value, dict):
        raise InvalidInput("This model takes no tokens, as it does not generate by the step: send a text.")
    if isinstance(value, list):
        if not pipe.tokenizer.chat_template:
            raise InvalidInput("This model has no template for chats: send one text, in place of messages.")
        return _require_whole_chat(read_messages(value, images=None), pipe)
    if not read_text_within_limit(value, pipe):
        raise InvalidInput("The prompt is empty: send at least one character.")
    return value


def require_tools_template(tokenizer: PreTrainedTokenizerBase, value: object, tools: list[Any]) -> None:
    """Raise `InvalidInput` if the prompt is no chat, or if the model's chat template shows it no tools."""
    if not isinstance(value, list):
        raise InvalidInput("parameters.tools: is for chats: send messages, in place of a text.", field=TOOLS)
    if tokenizer.chat_template and "tools" not in tokenizer.get_chat_template(tools=tools):
        raise InvalidInput("parameters.tools: the chat template of this model shows it no tools.", field=TOOLS)


def read_image(value: object, pipe: Pipeline) -> Any:
    return media.decode_image(value)


def read_audio(value: object, pipe: Pipeline) -> Any:
    return media.decode_audio(value, pipe.feature_extractor.sampling_rate)


def read_labels(value: object, pipe: Pipeline | None = None) -> Any:
    if isinstance(value, str):
        value = [label.strip() for label in value.split(",")]
    if (
        not isinstance(value, list)
        or not 1 <= len(value) <= MAX_LABELS
        or not all(isinstance(label, str) and 1 <= len(label) <= MAX_LABEL for label in value)
    ):
        raise InvalidInput(
            f"candidate_labels must be a list of 1 to {MAX_LABELS} texts of 1 to {MAX_LABEL} characters.",
            field="parameters.candidate_labels",
        )
    return value


def require_short_labels(labels: list[str], pipe: Pipeline, template: str = "{}") -> None:
    """Raise `InvalidInput` for a label that has more tokens than the model reads, with the template around it.

    No pipeline cuts a label, and a token beyond the last position ends the process of a GPU.
    """
    most = pipe.tokenizer.model_max_length
    for label in labels:
        if (tokens := _count_tokens(template.replace("{}", label), pipe)) > most:
            raise InvalidInput(
                f"A label must have at most {most} tokens, with the template around it, not {tokens}.",
                field="parameters.candidate_labels",
            )


def read_template(value: object, pipe: Pipeline | None = None) -> str:
    """Return a hypothesis template, which has one {}.

    The pipeline formats with it, so that anything else that a format can do (reach attributes, pad to a gigabyte) is
    refused.
    """
    if not isinstance(value, str) or value.count("{}") != 1 or re.search(r"[{}]", value.replace("{}", "")):
        raise InvalidInput("hypothesis_template must be a text with one {}.", field="parameters.hypothesis_template")
    return value


def read_image_and_labels(value: object, pipe: Pipeline) -> Any:
    if not isinstance(value, dict) or value.keys() != {"image", "candidate_labels"}:
        raise InvalidInput('An input must be {"image": base64, "candidate_labels": ["…"]}.')
    labels = read_labels(value["candidate_labels"])
    require_short_labels(labels, pipe)
    return {"image": media.decode_image(value["image"]), "candidate_labels": labels}


def read_document(value: object, pipe: Pipeline) -> Any:
    fields = {"image", "question"}
    if not isinstance(value, dict) or not fields <= value.keys() <= fields | {"word_boxes"}:
        raise InvalidInput('An input must be {"image": base64, "question": "…"}, and may have "word_boxes".')
    if len(question := read_string(value["question"])) > MAX_QUESTION:
        raise InvalidInput(f"The question must have at most {MAX_QUESTION} characters.", field="inputs.question")
    found = {"image": media.decode_image(value["image"]), "question": question}
    if value.get("word_boxes") is not None:
        return {**found, "word_boxes": _read_word_boxes(value["word_boxes"])}
    if problem := describe_missing_ocr(pipe):
        raise InvalidInput(problem)
    return found


def describe_missing_ocr(pipe: Pipeline) -> str:
    """Return why the words of a document must come with it; empty if the model or this host reads them."""
    if pipe.model_type == "vision_encoder_decoder" or (
        importlib.util.find_spec("pytesseract") and shutil.which("tesseract")
    ):
        return ""
    return "Inputs need word_boxes: this host lacks pytesseract or Tesseract, which would read the words of an image."


def _read_word_boxes(value: object) -> list[Any]:
    """Return words with their boxes. A box that the model's tables do not have ends the process of a GPU."""
    if not isinstance(value, list) or not all(map(_is_word_box, value)):
        raise InvalidInput(
            'word_boxes must be a list of ["word", [left, top, right, bottom]], in whole numbers from 0 to'
            f" {MAX_PLACE}: thousandths of the image's width and length.",
            field="inputs.word_boxes",
        )
    if sum(len(word) + 1 for word, _ in value) > MAX_TABLE:
        raise InvalidInput(f"The words of a document must have at most {MAX_TABLE} characters, a word one more.")
    return value


def _is_word_box(value: object) -> bool:
    match value:
        case [str(), [int(left), int(top), int(right), int(bottom)]]:
            return 0 <= left <= right <= MAX_PLACE and 0 <= top <= bottom <= MAX_PLACE
    return False


def read_image_and_text(value: object, pipe: Pipeline) -> Any:
    """Read chat messages with images in them, or {"images": [base64, …], "text": …}."""
    opened = media.Images()
    if isinstance(value, list):
        chat = read_messages(value, images=opened)
        read_counted_text(_join_strings(chat), pipe)
        return {"text": chat}
    if not isinstance(value, dict) or "images" not in value:
        raise InvalidInput('An input must be {"images": [base64, …], "text": "…"} or a list of chat messages.')
    images = value["images"] if isinstance(value["images"], list) else [value["images"]]
    if not images:
        raise InvalidInput("images is empty: send at least one, or a chat.")
    return {"images": [opened.open_image(item) for item in images], "text": read_counted_text(value.get("text"), pipe)}


def read_table(value: object, pipe: Pipeline) -> Any:
    if not isinstance(value, dict) or value.keys() != {"table", "query"} or not isinstance(value["table"], dict):
        raise InvalidInput('An input must be {"table": {"column": ["cell", …]}, "query": "…"}.')
    content = {"table": value["table"], "query": read_string(value["query"])}
    columns = list(value["table"].values())
    if not all(isinstance(column, list) and all(isinstance(cell, str) for cell in column) for column in columns):
        raise InvalidInput("Each column of a table must be a list of texts.")
    if len({len(column) for column in columns}) != 1 or not columns[0] or not content["query"]:
        raise InvalidInput("A table must have columns of one length, at least 1, and its query at least a character.")
    if sum(len(part) + 1 for part in _list_strings(content)) > MAX_TABLE:
        raise InvalidInput(f"A table and its query must have at most {MAX_TABLE} characters, a cell one more.")
    return content


def read_messages(value: list[Any], *, images: media.Images | None) -> list[dict[str, Any]]:
    for message in value:
        if not isinstance(message, dict) or not isinstance(message.get("role"), str) or "content" not in message:
            raise InvalidInput('A chat must be a list of {"role": "user", "content": "…"}.')
    seen = map(drop_response_fields, value)
    return [{**message, "content": _read_content(message, images)} for message in seen]


def _read_content(message: dict[str, Any], images: media.Images | None) -> Any:
    content = message["content"]
    if content is None and message["role"] == "assistant":
        return ""
    if isinstance(content, list):
        return [_read_part(part, images) for part in content]
    return read_string(content)


def _require_whole_chat(chat: list[dict[str, Any]], pipe: Pipeline) -> list[dict[str, Any]]:
    read_text_within_limit(_join_strings(chat), pipe)
    return chat


def _join_strings(chat: list[dict[str, Any]]) -> str:
    return "\n".join(_list_strings(chat))


def _list_strings(value: object) -> Iterator[str]:
    """Yield everything in a value that a template or a tokenizer may read, each as a string."""
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, list):
        for item in value:
            yield from _list_strings(item)
    elif not hasattr(value, "getbands"):
        yield str(value)


def _read_part(part: Any, images: media.Images | None) -> dict[str, Any]:
    kind = part.get("type") if isinstance(part, dict) else None
    if kind == "text":
        return {"type": "text", "text": read_string(part.get("text"))}
    if kind in ("image", "image_url") and images:
        source = part.get(kind)
        return {"type": "image", "image": images.open_image(source.get("url") if isinstance(source, dict) else source)}
    raise InvalidInput(
        'A part of a message must be {"type": "text", "text": "…"}' + (" or an image." if images else ".")
    )


def read_fields(value: dict[str, Any], pipe: Pipeline, **known: Prepare) -> dict[str, Any]:
    first = next(iter(known))
    if first not in value or not value.keys() <= known.keys():
        raise InvalidInput(f"An input must be a text or have {first}, and besides only {', '.join(known)}.")
    return {key: known[key](item, pipe) for key, item in value.items()}
