"""The end of a generated text: its answer has the text up to a stop string, and `details` has why it ended."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Ending:
    reason: str  # as Hugging Face's text-generation API names it
    prompt: int  # number of tokens of the prompt
    generated: int  # number of tokens generated
    found: str  # the text of the generated tokens by themselves, with which the pipeline's answer ends
    text: str  # the text with which the answer is to end instead
    has_details: bool = False  # True if the answer has details
    tokens: Mapping[str, Any] = field(default_factory=dict)  # more details, for a request that asks for its tokens

    def apply_to_answer(self, answer: dict[str, Any]) -> dict[str, Any]:
        """Return the pipeline's answer with this ending."""
        details = {"finish_reason": self.reason, "prompt_tokens": self.prompt, "generated_tokens": self.generated}
        more = {"details": {**details, **self.tokens}} if self.has_details else {}
        texts = {"generated_text": self._replace_text(answer["generated_text"])} if "generated_text" in answer else {}
        return {**answer, **texts, **more}

    def _replace_text(self, text: object) -> Any:
        if isinstance(text, str):
            return text.removesuffix(self.found) + self.text if text.endswith(self.found) else text
        if isinstance(text, list):  # a chat: the last message is the answer
            return [*text[:-1], {**text[-1], "content": self._replace_text(text[-1].get("content"))}]
        return text
