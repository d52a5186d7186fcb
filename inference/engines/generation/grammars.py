"""Grammars that an answer must follow: a JSON schema, a regular expression or a choice, by llguidance.

A grammar is compiled in the thread of the engine. llguidance bounds the size of what it compiles, but not the time that
it takes for an intersection of many expressions, which the model's time limit ends.
"""

import functools
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import llguidance
import numpy as np
import torch
from transformers import LogitsProcessor

from inference.errors import InvalidInput

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

FIELD = "parameters.grammar"
KINDS = ("json", "json_schema", "regex", "choice")
MOST_BYTES = 65_536  # of a grammar
MOST_SHOWN = 300  # characters of what llguidance says about a grammar
MOST_COMPILED = 32  # grammars that a model keeps: clients send the same one again and again
# Between two tokens of JSON llguidance allows any number of blanks, and a small model may write nothing else. This is
# what `json.dumps` writes, on one line or indented.
BLANKS = r" |\n {0,40}"


class Grammars:
    """The grammars of one model. They share a table of its tokens, which is made when a first grammar is compiled."""

    def __init__(self, tokenizer: "PreTrainedTokenizerBase", *, vocabulary: int, ends: Sequence[int]) -> None:
        """Take the model's tokenizer, the number of tokens that it has scores for, and those that end a text."""
        self._tokenizer, self._vocabulary, self._ends = tokenizer, vocabulary, list(ends)
        self._compile = functools.lru_cache(MOST_COMPILED)(self._compile_grammar)

    def make_processor(self, grammar: Mapping[str, Any], *, prompt: int) -> "GrammarProcessor":
        """Return the processor of a request.

        Args:
            grammar: `{"type": …, "value": …}`, where the type is one of `KINDS`, as Hugging Face's clients send it.
            prompt: Tokens of the prompt, its padding included.

        Raises `InvalidInput` for what is no grammar, with the reason of llguidance.
        """
        kind, text = read_grammar(grammar)
        return GrammarProcessor(self._compile(kind, text), prompt=prompt, ends=self._ends)

    @functools.cached_property
    def _table(self) -> llguidance.LLTokenizer:
        from llguidance import hf

        if not self._ends:
            raise InvalidInput(
                f"{FIELD}: is not served by this model, which has no token that ends a text.", field=FIELD
            )
        try:
            return hf.from_tokenizer(self._tokenizer, n_vocab=self._vocabulary, eos_token=self._ends)
        except ValueError as error:
            message = f"{FIELD}: is not served by this model, as llguidance does not know its tokenizer: {error}."
            raise InvalidInput(message, field=FIELD) from None

    def _compile_grammar(self, kind: str, text: str) -> llguidance.LLMatcher:
        try:
            source = _translate_grammar(kind, text)
        except ValueError as error:  # the text is no JSON
            raise _make_error(str(error)) from None
        limits = llguidance.LLParserLimits(verbose_errors=False)
        matcher = llguidance.LLMatcher(self._table, source, log_level=0, limits=limits)
        _check(matcher)
        return matcher


def _translate_grammar(kind: str, text: str) -> str:
    """Return a grammar in the language of llguidance."""
    match kind:
        case "json":
            return llguidance.LLMatcher.grammar_from_json_schema(text, defaults={"whitespace_pattern": BLANKS})
        case "regex":
            return llguidance.LLMatcher.grammar_from_regex(text)
    return llguidance.grammar_from("choice", text)


def read_grammar(grammar: Mapping[str, Any]) -> tuple[str, str]:
    """Return the kind of a request's grammar and its text. Raises `InvalidInput`."""
    kind, value = grammar.get("type"), grammar.get("value")
    if kind not in KINDS:
        raise InvalidInput(f"{FIELD}.type: must be one of {', '.join(KINDS)}.", field=f"{FIELD}.type")
    if kind == "json_schema":  # as Text Generation Inference names a schema in OpenAI's form
        kind, value = "json", value.get("schema") if isinstance(value, dict) else None
    if kind == "regex" and not isinstance(value, str):
        raise InvalidInput(f"{FIELD}.value: must be a regular expression.", field=f"{FIELD}.value")
    if kind == "json" and not isinstance(value, dict | str):
        raise InvalidInput(f"{FIELD}.value: must be a JSON schema.", field=f"{FIELD}.value")
    if kind == "choice" and not (isinstance(value, list) and value and all(isinstance(each, str) for each in value)):
        raise InvalidInput(f"{FIELD}.value: must be a list of texts.", field=f"{FIELD}.value")
    text = value if isinstance(value, str) else json.dumps(value)
    if len(text.encode()) > MOST_BYTES:
        raise InvalidInput(f"{FIELD}: must have at most {MOST_BYTES} bytes.", field=FIELD)
    return kind, text


@dataclass(slots=True)
class _Row:
    """The state of one row: its grammar behind the tokens that it has read."""

    matcher: llguidance.LLMatcher
    tokens: list[int] = field(default_factory=list)

    def read_tokens(self, tokens: list[int]) -> None:
        """Read the row's tokens up to now. A search by beams may have given it those of another row."""
        if tokens[: len(self.tokens)] != self.tokens:
            self.matcher.reset()
            self.tokens = []
        self.matcher.consume_tokens(tokens[len(self.tokens) :])
        self.tokens = tokens


class GrammarProcessor(LogitsProcessor):
    """A processor that lets through the tokens with which a row still follows its grammar."""

    def __init__(self, compiled: llguidance.LLMatcher, *, prompt: int, ends: Sequence[int]) -> None:
        self._compiled, self._prompt, self._ends = compiled, prompt, frozenset(ends)
        self._rows: dict[int, _Row] = {}

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        """Return the scores, which are [rows, vocabulary], with minus infinity for what the grammar does not allow."""
        answers = input_ids[:, self._prompt :].tolist()
        allowed = [self._find_allowed(place, tokens, scores.shape[-1]) for place, tokens in enumerate(answers)]
        found = scores.masked_fill(~torch.from_numpy(np.stack(allowed)).to(scores.device), -torch.inf)
        if found.max(-1).values.isneginf().any():
            message = (
                f"{FIELD}: the other parameters leave no token that it allows; leave out those that forbid tokens."
            )
            raise InvalidInput(message, field=FIELD)
        return found

    def _find_allowed(self, place: int, tokens: list[int], vocabulary: int) -> np.ndarray:
        """Return which tokens may follow those of a row, [vocabulary]. After the end of its text any may."""
        if not self._ends.isdisjoint(tokens):
            return np.ones(vocabulary, dtype=bool)
        row = self._rows.get(place)
        if row is None:
            row = self._rows[place] = _Row(self._compiled.deep_copy())
        row.read_tokens(tokens)
        allowed = row.matcher.compute_bitmask()
        _check(row.matcher)
        return np.unpackbits(np.frombuffer(allowed, np.uint8), bitorder="little", count=vocabulary).view(bool)


def _check(matcher: llguidance.LLMatcher) -> None:
    """Raise `InvalidInput` if a matcher has failed."""
    if matcher.is_error():
        reason = matcher.get_error()
        raise _make_error("no text follows it" if reason.startswith("NoExtension") else reason)


def _make_error(reason: str) -> InvalidInput:
    shown = " ".join(reason.replace("<non-verbose/>", "").split())[:MOST_SHOWN]
    return InvalidInput(f"{FIELD}: is refused by llguidance: {shown.rstrip('.')}.", field=FIELD)
