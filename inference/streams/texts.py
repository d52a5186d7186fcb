"""The text that a job generated, out of its output: that is what a stream tells, also of a model that told nothing
while it ran."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

from inference.models import Job

_DIGEST = 16  # bytes


@dataclass(frozen=True, slots=True)
class Prompt:
    """What stands before the generated text in an answer with the full text, as it is known again there. Prompts may
    have megabytes, and hundreds of streams wait: it is not kept."""

    length: int
    digest: bytes

    @classmethod
    def of(cls, inputs: Any, parameters: Mapping[str, Any]) -> Self:
        """Of a chat it is what its last message begins with, where the model goes on with that."""
        text = inputs
        if isinstance(inputs, list) and inputs:
            last = inputs[-1]
            text = last["content"] if isinstance(last, dict) and last.get("role") == "assistant" else ""
            text = "" if parameters.get("continue_final_message") is False else text
        if not isinstance(text, str) or parameters.get("return_full_text") is False:
            text = ""
        return cls(len(text), _digest(text))

    def taken_off(self, text: str) -> str:
        return text[self.length :] if _digest(text[: self.length]) == self.digest else text


def generated(job: Job, prompt: Prompt) -> str | None:
    """Return the text that the job generated, without its prompt. It is None where the output holds no text."""
    text = full_text(job.output)
    if text is None or job.prompt_length is None:  # of a worker of an earlier version, which did not say
        return None if text is None else prompt.taken_off(text)
    return text[job.prompt_length :]


def full_text(output: Any) -> str | None:
    """Return the text in an output, perhaps with its prompt. It is None where there is none."""
    text = answer_of(output).get("generated_text")
    if isinstance(text, list) and text and isinstance(text[-1], dict):  # a chat with its answer
        text = text[-1].get("content")
    return text if isinstance(text, str) else None


def answer_of(output: Any) -> Mapping[str, Any]:
    """The answer to the one input of a job; an empty one where it has another shape."""
    answer = output[0] if isinstance(output, list) and len(output) == 1 else output
    return answer if isinstance(answer, dict) else {}


def _digest(text: str) -> bytes:
    return hashlib.blake2b(text.encode(errors="surrogatepass"), digest_size=_DIGEST).digest()
