"""The text of what a row generates, as it grows: tokens in, and out what of their text is final."""

import re
from collections.abc import Mapping, Sequence
from typing import Any

from inference.engines.inputs.stops import first_stop, special_tokens

UNFINISHED = "\ufffd"  # what bytes decode to of which a character's last are still to come
BYTE = re.compile(r"<0x[0-9A-F]{2}>")


CONTEXT = 16  # tokens of a prompt, on which blanks and characters behind it depend


class Decoder:
    """A tokenizer, as `pipeline` uses it for answers. One serves all rows."""

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        known = tokenizer.get_vocab()
        self.bytes = frozenset(token for name, token in known.items() if BYTE.fullmatch(name))
        self._hidden = frozenset(special_tokens(tokenizer).values())
        # Such a tokenizer takes back blanks before what comes later: its text is final at its end only.
        self.takes_back = bool(tokenizer.clean_up_tokenization_spaces) and not self._is_bpe()

    def _is_bpe(self) -> bool:
        core = getattr(self._tokenizer, "backend_tokenizer", None)
        return type(getattr(core, "model", None)).__name__ == "BPE"

    def __call__(self, tokens: Sequence[int]) -> str:
        return str(self._tokenizer.decode(tokens, skip_special_tokens=True))

    def context(self, prompt: Sequence[int]) -> list[int]:
        """Take the last tokens of a prompt that show in its text, up to bytes at its end: those are read with the bytes
        behind them, and what is no character then is one sign for each of both."""
        shown = [token for token in prompt if token not in self._hidden]
        while shown and shown[-1] in self.bytes:
            shown.pop()
        return shown[-CONTEXT:]

    def continuation(self, context: Sequence[int], tokens: Sequence[int]) -> str:
        """Return the text of tokens that follow others: by itself a first word may lose the blank before it."""
        return self([*context, *tokens])[len(self(context)) :]

    def may_change(self, token: int, text: str) -> bool:
        """Whether the end of a text may be another with the next token. Bytes are read with their neighbours."""
        return self.takes_back or text.endswith(UNFINISHED) or token in self.bytes


class GrowingText:
    """Of one row. A few tokens before a new one are decoded with it, as blanks and characters depend on them.

    `context`: the last tokens of what the text goes on from.
    """

    def __init__(self, decoder: Decoder, stops: Sequence[str] = (), context: Sequence[int] = ()) -> None:
        self.value = ""  # that can be no other any more, but for a stop string
        self.stop: int | None = None  # the place of the first stop string, where the text ends
        self._decoder, self._stops = decoder, stops
        self._window = list(context)
        self._read = len(context)  # tokens of the window that are in the value, or before it
        self._before = decoder(context) if context else ""  # their text
        self._found = self._before  # that of the window
        self._told = 0

    def add(self, token: int) -> None:
        self._window.append(token)
        found, self._found = self._found, self._decoder(self._window)
        if found != self._found and not self._decoder.may_change(token, self._found):
            self._take()
            self._window = self._window[self._read :]
            self._read = len(self._window)
            self._before = self._found = self._decoder(self._window)

    def end(self) -> None:
        """No token follows: what was held back as unfinished stays as it is."""
        self._take()
        self._before = self._found

    def news(self, *, last: bool = False) -> str:
        """What is final and was not told before; of a text that has ended, all that was not."""
        until = self.stop
        if until is None:
            until = len(self.value) if last else len(self.value) - self._begun()
        told, self._told = self._told, max(self._told, until)
        return self.value[told : self._told]

    @property
    def final(self) -> str:
        """The text up to the stop string."""
        return self.value[: self.stop]

    def alone(self, tokens: Sequence[int]) -> str:
        """Return the text of the row's tokens by themselves, as the pipeline reads them."""
        return self._decoder(tokens)

    def _take(self) -> None:
        start = len(self.value)
        self.value += self._found[len(self._before) :]
        if self.stop is None and self._stops:
            self.stop = first_stop(self.value, self._stops, start)

    def _begun(self) -> int:
        """Characters at the end that a stop string may begin with."""
        longest = max(map(len, self._stops), default=1) - 1
        return next(
            (
                size
                for size in range(min(longest, len(self.value)), 0, -1)
                if any(stop.startswith(self.value[-size:]) for stop in self._stops)
            ),
            0,
        )


def goes_on(prompt: Any, after: Mapping[str, Any]) -> bool:
    """Tell whether an answer continues its prompt, as `pipeline` decides: else it is a message of its own.

    `prompt` is a text or a chat of transformers, `after` the parameters of the pipeline's last step.
    """
    if isinstance(prompt, str):
        return True
    asked = after.get("continue_final_message")
    return prompt.messages[-1]["role"] == "assistant" if asked is None else bool(asked)
