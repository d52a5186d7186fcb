"""What `generate` does not know of a request: `seed`, `stop` and `details`, around the pipeline's own steps.

For models that do not generate by the step, and for calls of many at once.
"""

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from transformers import StoppingCriteria, StoppingCriteriaList

from inference.engines.generation.ending import Ending
from inference.engines.generation.text import first_stop


class AtStop(StoppingCriteria):
    """Ends a row at a stop string in what it generates, and knows then how many tokens that were."""

    def __init__(self, tokenizer: Any, stops: Sequence[str], prompt: int) -> None:
        self.tokenizer, self.stops, self.prompt = tokenizer, stops, prompt
        self.lengths: dict[int, int] = {}

    def __call__(self, input_ids: torch.Tensor, scores: Any, **_: Any) -> torch.Tensor:
        for row, text in enumerate(self.tokenizer.batch_decode(input_ids[:, self.prompt :], skip_special_tokens=True)):
            if row not in self.lengths and first_stop(text, self.stops) is not None:
                self.lengths[row] = input_ids.shape[1] - self.prompt
        return torch.tensor([row in self.lengths for row in range(len(input_ids))], device=input_ids.device)


class Static:
    """Over one pipeline: its `forward` and `postprocess`, in their place."""

    def __init__(self, pipe: Any) -> None:
        self.pipe = pipe
        self._forward, self._postprocess = pipe.forward, pipe.postprocess

    def forward(
        self, inputs: Any, *, stop: Sequence[str] = (), seed: int | None = None, details: bool = False, **run: Any
    ) -> Any:
        if "custom_generate" in run or not (stop or details or seed is not None):
            return self._forward(inputs, **run)
        prompts, width = inputs["attention_mask"].sum(1).tolist(), inputs["input_ids"].shape[1]
        criteria = AtStop(self.pipe.tokenizer, stop, width)
        with self._seeded(seed):
            output = self._forward(
                inputs, **run, **({"stopping_criteria": StoppingCriteriaList([criteria])} if stop else {})
            )
        output["ends"] = [
            self._ending(row[0, width:].tolist(), prompts[place], stop, criteria.lengths.get(place), told=details)
            for place, row in enumerate(output["generated_sequence"])
        ]
        return output

    def postprocess(self, output: Any, **after: Any) -> Any:
        ends = output.pop("ends", None)
        ending = ends[0] if isinstance(ends, list) else ends  # of a batch that was taken apart
        answers = self._postprocess(output, **after)
        return [ending.shown(answer) for answer in answers] if ending else answers

    def _ending(
        self, tokens: list[int], prompt: int, stops: Sequence[str], stopped: int | None, *, told: bool
    ) -> Ending:
        """`tokens`: what was generated, with what stands behind the end of a row that ended before its neighbours."""
        text, read = self._text(tokens), self._text(tokens[:stopped])
        stop = first_stop(read, stops)
        ends = self.pipe.model.generation_config.eos_token_id
        ends = ends if isinstance(ends, list) else [ends]
        ended = next((count for count, token in enumerate(tokens, 1) if token in ends), None)
        reason = "stop_sequence" if stop is not None else "length" if ended is None else "eos_token"
        return Ending(
            reason=reason, prompt=prompt, generated=min(stopped or len(tokens), ended or len(tokens)),
            surplus="" if stop is None else text[stop:], told=told,
        )  # fmt: skip

    def _text(self, tokens: list[int]) -> str:
        return str(self.pipe.tokenizer.decode(tokens, skip_special_tokens=True))

    @contextlib.contextmanager
    def _seeded(self, seed: int | None) -> Iterator[None]:
        device = self.pipe.model.device
        if seed is None:
            yield
            return
        with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
            torch.manual_seed(seed)
            yield


def install(pipe: Any) -> None:
    pipe.tokenizer.response_template = None  # with one, answers would keep special tokens, and not be what was streamed
    static = Static(pipe)
    pipe.forward, pipe.postprocess = static.forward, static.postprocess
