"""How a generated text ended: its answer says it up to a stop string, and `details` tell of it."""

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Ending:
    reason: str  # as Hugging Face's text-generation API names them
    prompt: int  # tokens
    generated: int
    found: str  # the text of the tokens by themselves, which the pipeline's answer ends with
    text: str  # what the answer is to end with instead
    told: bool = False  # with details

    def shown(self, answer: dict[str, Any]) -> dict[str, Any]:
        """The pipeline's answer, with this ending."""
        details = {"finish_reason": self.reason, "prompt_tokens": self.prompt, "generated_tokens": self.generated}
        more = {"details": details} if self.told else {}
        texts = {"generated_text": self._replaced(answer["generated_text"])} if "generated_text" in answer else {}
        return {**answer, **texts, **more}

    def _replaced(self, text: Any) -> Any:
        if isinstance(text, str):
            return text.removesuffix(self.found) + self.text if text.endswith(self.found) else text
        if isinstance(text, list):  # a chat: the last message is the answer
            return [*text[:-1], {**text[-1], "content": self._replaced(text[-1].get("content"))}]
        return text
