"""How a generated text ended: its answer is cut at a stop string, and `details` tell of it."""

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Ending:
    reason: str  # as Hugging Face's text-generation API names them
    prompt: int  # tokens
    generated: int
    surplus: str = ""  # the stop string and what follows it
    told: bool = False  # with details

    def shown(self, answer: dict[str, Any]) -> dict[str, Any]:
        """The pipeline's answer, with this ending."""
        details = {"finish_reason": self.reason, "prompt_tokens": self.prompt, "generated_tokens": self.generated}
        more = {"details": details} if self.told else {}
        return {**answer, "generated_text": self._cut(answer["generated_text"]), **more}

    def _cut(self, text: Any) -> Any:
        if isinstance(text, str):
            return text.removesuffix(self.surplus)
        if isinstance(text, list):  # a chat: the last message is the answer
            return [*text[:-1], {**text[-1], "content": self._cut(text[-1].get("content"))}]
        return text
