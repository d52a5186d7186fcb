"""The text that a job generated, taken from its output.

A stream sends this text, also if the model published none while it ran.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

from inference.models import Job

_DIGEST = 16  # bytes


@dataclass(frozen=True, slots=True)
class Prompt:
    """The length and digest of the prompt that may precede the generated text in an answer.

    They show if an answer begins with the prompt. The text of the prompt is not kept, as prompts may have megabytes and
    hundreds of streams wait.
    """

    length: int
    digest: bytes

    @classmethod
    def from_inputs(cls, inputs: object, parameters: Mapping[str, Any]) -> Self:
        """Return the prompt that an answer to these inputs begins with; it may be empty.

        In a chat it is the text of the assistant's message at its end, if the model continues that message.
        """
        text = inputs
        if isinstance(inputs, list) and inputs:
            last = inputs[-1]
            text = last["content"] if isinstance(last, dict) and last.get("role") == "assistant" else ""
            text = "" if parameters.get("continue_final_message") is False else text
        if not isinstance(text, str) or parameters.get("return_full_text") is False:
            text = ""
        return cls(len(text), _digest_text(text))

    def remove_from(self, text: str) -> str:
        return text[self.length :] if _digest_text(text[: self.length]) == self.digest else text


def extract_generated_text(job: Job, prompt: Prompt) -> str | None:
    """Return the text that the job generated, without its prompt. It is None if the output holds no text."""
    text = extract_text(job.output)
    if text is None or job.prompt_length is None:  # a worker of an earlier version did not record the length
        return None if text is None else prompt.remove_from(text)
    return text[job.prompt_length :]


def extract_text(output: object) -> str | None:
    """Return the text in an output, perhaps with its prompt. It is None if there is none."""
    text = extract_single_answer(output).get("generated_text")
    if isinstance(text, list) and text and isinstance(text[-1], dict):  # a chat with its answer
        text = text[-1].get("content")
    return text if isinstance(text, str) else None


def extract_single_answer(output: object) -> Mapping[str, Any]:
    """Return the answer to the one input of a job. It is empty if the output has another shape."""
    answer = output[0] if isinstance(output, list) and len(output) == 1 else output
    return answer if isinstance(answer, dict) else {}


def _digest_text(text: str) -> bytes:
    return hashlib.blake2b(text.encode(errors="surrogatepass"), digest_size=_DIGEST).digest()
