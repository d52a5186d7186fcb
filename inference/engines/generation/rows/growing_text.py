"""The text that a row generates, as it grows: it takes tokens, and returns the part of their text that is final."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from os.path import commonprefix  # of any strings
from typing import TYPE_CHECKING, Any

from inference.engines.inputs.stops import find_first_stop, read_special_tokens

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase
    from transformers.utils.chat_template_utils import Chat

UNFINISHED = "\ufffd"  # what the first bytes of a character decode to while its last are still to come
BYTE = re.compile(r"<0x[0-9A-F]{2}>")


CONTEXT = 16  # tokens at the end of a prompt, on which blanks and characters behind it depend
MOST_UNFINISHED = 128  # tokens that are decoded together while no character ends with the last


class Decoder:
    """A tokenizer as `pipeline` uses it for answers. One decoder serves all rows."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase) -> None:
        self._tokenizer = tokenizer
        known = tokenizer.get_vocab()
        self.bytes = frozenset(token for name, token in known.items() if BYTE.fullmatch(name))
        self._hidden = frozenset(read_special_tokens(tokenizer).values())
        # Such a tokenizer removes blanks when it reads what follows them: its text is final only when it has ended.
        self.takes_back = bool(tokenizer.clean_up_tokenization_spaces) and not self._is_bpe()

    def _is_bpe(self) -> bool:
        core = getattr(self._tokenizer, "backend_tokenizer", None)
        return type(getattr(core, "model", None)).__name__ == "BPE"

    def __call__(self, tokens: Sequence[int]) -> str:
        return str(self._tokenizer.decode(tokens, skip_special_tokens=True))

    def find_context(self, prompt: Sequence[int]) -> list[int]:
        """Return the last tokens of a prompt that show in its text, without any bytes at its end.

        Such bytes are decoded together with the bytes behind them. If all of these are no valid characters, each byte
        of both becomes one replacement sign.
        """
        shown = [token for token in prompt if token not in self._hidden]
        while shown and shown[-1] in self.bytes:
            shown.pop()
        return shown[-CONTEXT:]

    def decode_continuation(self, context: Sequence[int], tokens: Sequence[int]) -> str:
        """Return the text of `tokens`, which follow `context`.

        If they were decoded by themselves, the first word might lose the blank before it.
        """
        return self([*context, *tokens])[len(self(context)) :]

    def describe_token(self, token: int, before: Sequence[int]) -> dict[str, Any]:
        """Return a token with its text behind the tokens `before`. One that shows in no text has its name.

        U+0000, which cannot be stored, is shown as an unfinished character: a token may have it and not be chosen.
        """
        text = self.decode_continuation(before, [token]) or str(self._tokenizer.decode([token]))
        return {"id": token, "text": text.replace("\0", UNFINISHED), "special": token in self._hidden}

    def find_token_starts(self, tokens: Sequence[int]) -> list[int]:
        """Return where tokens start in their text.

        A part of a character starts at the place of that character, and a token that does not show where the next does.
        """
        starts = dict[int, int]()  # by the places of tokens that show
        gone, start, window, found = 0, 0, list[int](), ""  # `gone` is the text before that of the window
        for place, token in enumerate(tokens):
            if token in self._hidden:
                continue
            window.append(token)
            before, found = found, self(window)
            if before.endswith(UNFINISHED) and found == before and token not in self.bytes:
                start = gone + len(before) - 1
            elif not before.endswith(UNFINISHED) or token not in self.bytes:
                same = before if token in self.bytes else commonprefix([before, found])  # noqa: RUF071 - of characters
                start = gone + len(same)
            starts[place] = start
            most = MOST_UNFINISHED if found.endswith(UNFINISHED) else CONTEXT
            if len(window) > most or (found != before and not self.may_change(token, found)):
                window, end = self.find_context(window)[-1:], gone + len(found)
                found = self(window)
                gone = end - len(found)
        start = gone + len(found)
        for place in reversed(range(len(tokens))):
            start = starts.setdefault(place, start)
        return [starts[place] for place in range(len(tokens))]

    def may_change(self, token: int, text: str) -> bool:
        """Return True if the end of a text may change with the next token.

        Bytes are decoded with their neighbours.
        """
        return self.takes_back or text.endswith(UNFINISHED) or token in self.bytes


class GrowingText:
    """The text of one row as it grows.

    A few tokens before a new one are decoded with it, as blanks and characters depend on them. `context` are the last
    tokens of the text that this one continues.
    """

    def __init__(self, decoder: Decoder, stops: Sequence[str] = (), context: Sequence[int] = ()) -> None:
        self.value = ""  # text that no later token changes; a stop string may still cut it
        self.last_tokens = list(context[-1:])  # the last token that it has, or continues
        self.stop: int | None = None  # index of the first stop string in the value, where the text ends
        self._decoder, self._stops = decoder, stops
        self._window = list(context)
        self._read = len(context)  # tokens of the window whose text is in the value, or before it
        self._before = decoder(context) if context else ""  # text of those tokens
        self._found = self._before  # text of the whole window
        self.returned_length = 0  # characters that `take_new_text` has returned

    def add_token(self, token: int) -> None:
        self._window.append(token)
        self.last_tokens = [token]
        found, self._found = self._found, self._decoder(self._window)
        if found != self._found and not self._decoder.may_change(token, self._found):
            self._extend_value()
            self._window = self._window[self._read :]
            self._read = len(self._window)
            self._before = self._found = self._decoder(self._window)

    def end_text(self) -> None:
        """End the text, as no token follows: what was held back as unfinished stays as it is."""
        self._extend_value()
        self._before = self._found

    def take_new_text(self, *, last: bool = False) -> str:
        """Return the text that is final and was not returned before.

        `last` is for a text that has ended: all the text that was not returned before.
        """
        until = self.stop
        if until is None:
            until = len(self.value) if last else len(self.value) - self._count_held_back()
        start, self.returned_length = self.returned_length, max(self.returned_length, until)
        return self.value[start : self.returned_length]

    @property
    def final_text(self) -> str:
        """The text up to the stop string."""
        return self.value[: self.stop]

    def decode_alone(self, tokens: Sequence[int]) -> str:
        """Return the text of the row's tokens by themselves, as the pipeline decodes them."""
        return self._decoder(tokens)

    def _extend_value(self) -> None:
        start = len(self.value)
        self.value += self._found[len(self._before) :]
        if self.stop is None and self._stops:
            self.stop = find_first_stop(self.value, self._stops, start)

    def _count_held_back(self) -> int:
        """Return how many characters at the end of the value may be the beginning of a stop string."""
        longest = max(map(len, self._stops), default=1) - 1
        return next(
            (
                size
                for size in range(min(longest, len(self.value)), 0, -1)
                if any(stop.startswith(self.value[-size:]) for stop in self._stops)
            ),
            0,
        )


def continues_prompt(prompt: str | Chat, after: Mapping[str, Any]) -> bool:
    """Return True if an answer continues its prompt, as `pipeline` decides. Else it is a message of its own.

    `prompt` is a text or a chat of transformers, and `after` has the parameters of the pipeline's postprocess.
    """
    if isinstance(prompt, str):
        return True
    flag = after.get("continue_final_message")
    return prompt.messages[-1]["role"] == "assistant" if flag is None else bool(flag)
