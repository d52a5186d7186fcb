"""Grammars that an answer must follow: a JSON schema, a regular expression or a choice, by llguidance.

A grammar is compiled in the thread of the engine, once for the rows that follow it. One that may take long is compiled
in a process with limits first. The rows' copies of a compiled grammar share its states, whose number is limited: where
they are used up it is compiled anew.
"""

import hashlib
import json
import re
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any

import llguidance
import numpy as np
import torch
from transformers import LogitsProcessor

from inference.engines.generation.processors import compile_trial
from inference.engines.generation.processors.schema_numbers import refuse_inexact_numbers
from inference.engines.inputs.stops import read_special_tokens
from inference.errors import InvalidInput
from inference.values.json_schema_parts import drop_annotations

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

# It returns a compiled grammar, of which a row takes a copy. The grammar that it is given, if any, has used up its
# states, and is not the one that it returns.
FindMatcher = Callable[[llguidance.LLMatcher | None], llguidance.LLMatcher]
FIELD = "parameters.grammar"
CALLS = f"{FIELD}.calls"
KINDS = ("json", "json_schema", "regex", "choice")
MOST_BYTES = 65_536  # of a grammar
MOST_MATCHERS = 8  # grammars that are kept
MOST_RENEWALS = 2  # of the grammar of a row
USED_UP = "lexer error"  # llguidance's words where the states, or the expressions in them, are too many
MOST_SHOWN = 300  # characters of what llguidance says about a grammar
# Between two tokens of JSON llguidance allows any number of blanks, and a small model may write nothing else. This is
# what `json.dumps` writes, on one line or indented.
BLANKS = r" |\n {0,40}"
OPEN, CLOSE = "<tool_call>", "</tool_call>"  # around a call of a tool
# Each has a sign in the chat template, and the form of answers with calls then, in the language of llguidance.
CALL_FORMS = (
    (  # Qwen, Hermes, SmolLM3
        re.compile(rf'{OPEN}.*"arguments\\?"\s*:', re.DOTALL),
        f'calls: call (BLANK? call)*\ncall: "{OPEN}" BLANK? @call BLANK? "{CLOSE}"\nBLANK: /[ \\n]/',
    ),
    (re.compile(r'"name\\?"\s*:[^{}]{1,60}"parameters\\?"\s*:'), "calls: @call"),  # Llama 3
)


class Grammars:
    """The grammars of one model. They share a table of its tokens, which is made when a first grammar is compiled."""

    def __init__(self, tokenizer: "PreTrainedTokenizerBase", *, vocabulary: int, ends: Sequence[int]) -> None:
        """Take the model's tokenizer, the number of tokens that it has scores for, and those that end a text."""
        self._tokenizer, self._vocabulary, self._ends = tokenizer, vocabulary, list(ends)
        self._matchers: dict[tuple[str, str], llguidance.LLMatcher | InvalidInput] = {}

    def make_processor(self, grammar: Mapping[str, Any], *, prompt: int) -> "GrammarProcessor":
        """Return the processor of a request.

        Args:
            grammar: `{"type": …, "value": …}`, where the type is one of `KINDS`, as Hugging Face's clients send it. It
                may have `calls`, the schema of a call of a tool: an answer may consist of such calls, too.
            prompt: Tokens of the prompt, its padding included.

        Raises `InvalidInput` for what is no grammar, with the reason of llguidance.
        """
        text = _write_json(grammar).encode(errors="surrogatepass")
        key = hashlib.sha256(text).hexdigest(), self._call_form if "calls" in grammar else ""
        find_matcher = partial(self._find_matcher, key, grammar)
        numbers = [number for number in self._special_tokens.values() if number < self._vocabulary]
        return GrammarProcessor(find_matcher, prompt=prompt, ends=self._ends, special=numbers)

    def _find_matcher(
        self, key: tuple[str, str], grammar: Mapping[str, Any], previous: llguidance.LLMatcher | None
    ) -> llguidance.LLMatcher:
        """Return a compiled grammar, to be copied, other than the previous one, whose states are used up.

        Raises `InvalidInput`, without compiling it again, for one that was refused.
        """
        found = self._matchers.pop(key, None)
        if found is None or found is previous:
            found = self._compile_or_refuse(grammar, key[1])
        self._matchers[key] = found  # behind those that were used before
        if len(self._matchers) > MOST_MATCHERS:
            del self._matchers[next(iter(self._matchers))]
        if isinstance(found, InvalidInput):
            raise InvalidInput(found.message, field=found.field)
        return found

    def _compile_or_refuse(self, grammar: Mapping[str, Any], form: str) -> llguidance.LLMatcher | InvalidInput:
        try:
            return self._compile_grammar(grammar, form)
        except InvalidInput as error:
            return InvalidInput(error.message, field=error.field)  # without the frames of this one

    @cached_property
    def _special_tokens(self) -> Mapping[str, int]:
        return {token: number for token, number in read_special_tokens(self._tokenizer).items() if token}

    @cached_property
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

    @property
    def _call_form(self) -> str:
        """The form of answers with calls by the model's chat template. Raises `InvalidInput` if it is not known."""
        template = self._tokenizer.get_chat_template(tools=[]) if self._tokenizer.chat_template else ""
        found = (form for sign, form in CALL_FORMS if sign.search(template) and OPEN not in self._special_tokens)
        if form := next(found, ""):
            return form
        reason = "is not served beside tools by this model, whose chat template has no calls in a form that is known"
        raise InvalidInput(f"{FIELD}: {reason}; leave out one of them, or require a call.", field=FIELD)

    def _compile_grammar(self, grammar: Mapping[str, Any], form: str) -> llguidance.LLMatcher:
        kind, text = read_grammar_parameter(grammar)
        calls = _write_json(_read_schema(grammar["calls"], CALLS)) if "calls" in grammar else ""
        _refuse_long(text + calls)
        if special := next((token for token in self._special_tokens if token in text + calls), ""):
            raise InvalidInput(f"{FIELD}: has {special!r}, which is a special token of this model.", field=FIELD)
        source = _translate_grammar(kind, text)
        if calls:
            call = _translate_grammar("json", calls)
            self._make_matcher(call, CALLS)  # or what is wrong with it would be said of the whole
            source = _add_calls(kind, source, call, form)
        return self._make_matcher(source, FIELD)

    def _make_matcher(self, source: str, field: str) -> llguidance.LLMatcher:
        if not compile_trial.is_compiled_soon(source):
            message = (
                f"{field}: takes llguidance more than {compile_trial.MOST_CPU_S} s or"
                f" {compile_trial.MOST_BYTES // 2**30} GiB to compile; send one with smaller or fewer"
                f" {', '.join(compile_trial.KEYWORDS)}."
            )
            raise InvalidInput(message, field=field)
        matcher = llguidance.LLMatcher(self._table, source, log_level=0, limits=compile_trial.make_limits())
        _check(matcher, field)
        return matcher


def _translate_grammar(kind: str, text: str) -> str:
    """Return a grammar in the language of llguidance."""
    try:
        match kind:
            case "json":
                return llguidance.LLMatcher.grammar_from_json_schema(text, defaults={"whitespace_pattern": BLANKS})
            case "regex":
                return llguidance.LLMatcher.grammar_from_regex(text)
        return llguidance.grammar_from("choice", text)
    except ValueError as error:  # the text is no JSON
        raise _make_error(str(error)) from None


def _add_calls(kind: str, answer: str, call: str, form: str) -> str:
    """Return the grammar of answers that follow one grammar, or have calls that follow another one."""
    parts = [{"lark_grammar": answer}] if kind == "choice" else json.loads(answer)["grammars"]
    whole = {"lark_grammar": f"start: @answer | calls\n{form}"}
    named = zip(("whole", "answer", "call"), (whole, *parts, *json.loads(call)["grammars"]), strict=True)
    return json.dumps({"grammars": [{**part, "name": name} for name, part in named]})


def read_grammar_parameter(grammar: Mapping[str, Any]) -> tuple[str, str]:
    """Return the kind of a request's grammar and its text. Raises `InvalidInput`."""
    kind, value = grammar.get("type"), grammar.get("value")
    if kind not in KINDS:
        raise InvalidInput(f"{FIELD}.type: must be one of {', '.join(KINDS)}.", field=f"{FIELD}.type")
    if kind == "json_schema":  # as Text Generation Inference names a schema in OpenAI's form
        kind, value = "json", value.get("schema") if isinstance(value, dict) else None
    if kind == "json":
        value = _read_schema(value)
    if kind == "regex" and not isinstance(value, str):
        raise InvalidInput(f"{FIELD}.value: must be a regular expression.", field=f"{FIELD}.value")
    if kind == "choice" and not (isinstance(value, list) and value and all(isinstance(each, str) for each in value)):
        raise InvalidInput(f"{FIELD}.value: must be a list of texts.", field=f"{FIELD}.value")
    text = value if isinstance(value, str) else _write_json(value)
    _refuse_long(text)
    return kind, text


def _write_json(value: object) -> str:
    return json.dumps(value, ensure_ascii=False)


def _refuse_long(text: str) -> None:
    if len(text.encode(errors="surrogatepass")) > MOST_BYTES:
        raise InvalidInput(f"{FIELD}: must have at most {MOST_BYTES} bytes.", field=FIELD)


def _read_schema(value: object, where: str = f"{FIELD}.value") -> dict[str, Any]:
    """Return a JSON schema, which may be given as a text. Raises `InvalidInput`."""
    try:
        _refuse_long(value if isinstance(value, str) else _write_json(value))  # the checks take long for long ones
        schema = json.loads(value) if isinstance(value, str) else value
        if schema is True:
            return {}  # llguidance takes objects only, and both mean any value
        if not isinstance(schema, dict):
            raise InvalidInput(f"{where}: must be a JSON schema.", field=where)
        refuse_inexact_numbers(schema, where)
        return drop_annotations(schema)  # which may have the names of special tokens
    except ValueError as error:
        raise InvalidInput(f"{where}: is no JSON: {error}.", field=where) from None
    except RecursionError:
        raise InvalidInput(f"{where}: is nested too deeply.", field=where) from None


class _Row:
    """The state of one row: its grammar behind the tokens that it has read."""

    def __init__(self, find_matcher: FindMatcher) -> None:
        self._find_matcher, self._renewals = find_matcher, 0
        self._start(find_matcher(None))

    def _start(self, original: llguidance.LLMatcher) -> None:
        self._original, self.matcher, self._tokens = original, original.deep_copy(), list[int]()

    def find_allowed(self, tokens: list[int]) -> bytes:
        """Return a bit for each token that may follow these tokens of the row; none if they do not follow the grammar.

        They do not in a row that a stop string has ended, behind which padding stands, and in a beam that was given up.
        Raises `InvalidInput` if the grammar fails.
        """
        found = self._read_and_find(tokens)
        if USED_UP in self.matcher.get_error() and self._renewals < MOST_RENEWALS:
            self._renewals += 1
            self._start(self._find_matcher(self._original))
            found = self._read_and_find(tokens)
        _check(self.matcher)
        return found

    def _read_and_find(self, tokens: list[int]) -> bytes:
        if tokens[: len(self._tokens)] != self._tokens:  # a search by beams may have given it those of another row
            self.matcher.reset()
            self._tokens = []
        new = tokens[len(self._tokens) :]
        count = self.matcher.validate_tokens(new)
        self.matcher.consume_tokens(new[:count])
        self._tokens = tokens[: len(self._tokens) + count]
        found = self.matcher.compute_bitmask()  # it fails where tokens do not follow only for want of states
        return found if count == len(new) else b""


class GrammarProcessor(LogitsProcessor):
    """A processor that lets through the tokens with which a row still follows its grammar."""

    def __init__(self, find_matcher: FindMatcher, *, prompt: int, ends: Sequence[int], special: Sequence[int]) -> None:
        """Take what finds the compiled grammar, which it may compile now or raise an error for."""
        self._find_matcher, self._prompt = find_matcher, prompt
        self._ends, self._special = list(ends), list(special)
        self._rows = {0: _Row(find_matcher)}

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        """Return the scores, which are [rows, vocabulary], with minus infinity for what the grammar does not allow."""
        answers = input_ids[:, self._prompt :].tolist()
        allowed = [self._find_allowed(place, tokens, scores.shape[-1]) for place, tokens in enumerate(answers)]
        found = scores.masked_fill(~torch.from_numpy(np.stack(allowed)).to(scores.device), -torch.inf)
        if (found.isneginf().all(-1) & ~scores.isneginf().all(-1)).any():
            message = (
                f"{FIELD}: the other parameters leave no token that it allows; leave out those that forbid tokens."
            )
            raise InvalidInput(message, field=FIELD)
        return found

    def _find_allowed(self, place: int, tokens: list[int], vocabulary: int) -> np.ndarray:
        """Return which tokens may follow those of a row, [vocabulary]. After the end of its text any may.

        Where a text is certain, llguidance allows only the tokens that a tokenizer makes of it, and these may be
        special: no text shows them. Raises `InvalidInput` if nothing else is allowed, or if the grammar has failed.
        """
        row = self._rows.get(place)
        if row is None:
            row = self._rows[place] = _Row(self._find_matcher)
        bits = row.find_allowed(tokens) if frozenset(self._ends).isdisjoint(tokens) else b""
        if not bits:
            return np.ones(vocabulary, dtype=bool)
        allowed = np.unpackbits(np.frombuffer(bits, np.uint8), bitorder="little", count=vocabulary).view(bool)
        ends = allowed[self._ends] & row.matcher.is_accepting()
        allowed[self._special] = False
        allowed[self._ends] = ends
        if not allowed.any():
            message = f"{FIELD}: asks for a special token of this model as text, which no answer shows; leave it out."
            raise InvalidInput(message, field=FIELD)
        return allowed


def _check(matcher: llguidance.LLMatcher, field: str = FIELD) -> None:
    """Raise `InvalidInput` if a matcher has failed."""
    if matcher.is_error():
        reason = matcher.get_error()
        raise _make_error("no text follows it" if reason.startswith("NoExtension") else reason, field)


def _make_error(reason: str, field: str = FIELD) -> InvalidInput:
    reason = reason.partition("<backtrace>")[0].replace("<non-verbose/>", "")
    shown = " ".join(reason.split())[:MOST_SHOWN]
    return InvalidInput(f"{field}: is refused by llguidance: {shown.rstrip('.')}.", field=field)
