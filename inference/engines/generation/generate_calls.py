"""The parameters that `generate` does not take, such as `seed` and `stop`, added to the pipeline's own steps.

They are for models that do not generate step by step, and for calls of many prompts at once.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from transformers import LogitsProcessorList, Pipeline, StoppingCriteria, StoppingCriteriaList

from inference.engines.generation.processors.grammars import Grammars
from inference.engines.generation.processors.logprobs import FIELD, TokenLogprobs, is_beam_search, make_token_details
from inference.engines.generation.processors.penalties import translate_penalties
from inference.engines.generation.rows.answer_ending import Ending
from inference.engines.generation.rows.growing_text import Decoder, continues_prompt
from inference.engines.inputs.stops import Stops, find_first_stop, list_end_tokens, read_stops
from inference.errors import InvalidInput, make_field_error

if TYPE_CHECKING:
    from transformers.utils.chat_template_utils import Chat


class StopStringCriteria(StoppingCriteria):
    """A criterion that ends a row at a stop in its generated text, and records how many tokens it had then."""

    def __init__(self, decoder: Decoder, stops: Stops, contexts: Sequence[Sequence[int]], prompt: int) -> None:
        self.decoder, self.stops, self.contexts, self.prompt = decoder, stops, contexts, prompt
        self.lengths: dict[int, int] = {}

    def __call__(self, input_ids: torch.Tensor, scores: tuple[torch.Tensor, ...] | None, **_: Any) -> torch.Tensor:
        each = len(input_ids) // len(self.contexts)  # number of sequences that one prompt has
        for row, tokens in enumerate(input_ids[:, self.prompt :].tolist()):
            if row not in self.lengths and self._ends_with_stop(self.contexts[row // each], tokens):
                self.lengths[row] = len(tokens)
        return torch.tensor([row in self.lengths for row in range(len(input_ids))], device=input_ids.device)

    def _ends_with_stop(self, context: Sequence[int], tokens: Sequence[int]) -> bool:
        text = self.decoder.decode_continuation(context, tokens)
        return tokens[-1] in self.stops.tokens or find_first_stop(text, self.stops.texts) is not None


@dataclass(frozen=True, slots=True, kw_only=True)
class Generated:
    """A generated sequence, with the tokens behind its end if it ended before its neighbours."""

    tokens: list[int]
    prompt: list[int]
    stops: Stops
    stopped: int | None  # number of tokens after which a stop ended it
    has_details: bool  # True if the answer has details
    scores: TokenLogprobs | None
    seed: int | None
    row: int  # of the scores


class PipelineSteps:
    """The steps `forward` and `postprocess` that replace those of one pipeline."""

    def __init__(self, pipe: Pipeline) -> None:
        self.pipe = pipe
        self.decoder = Decoder(pipe.tokenizer)
        self.vocabulary: int = pipe.model.config.get_text_config().vocab_size
        self.ends = list_end_tokens(pipe.model.generation_config.eos_token_id)
        self.grammars = Grammars(pipe.tokenizer, vocabulary=self.vocabulary, ends=self.ends)
        self._forward, self._postprocess = pipe.forward, pipe.postprocess

    def forward(
        self,
        inputs: Mapping[str, Any],
        *,
        stop: Sequence[str] = (),
        seed: int | None = None,
        details: bool = False,
        grammar: Mapping[str, Any] | None = None,
        logprobs: int | None = None,
        prompt_logprobs: int | None = None,
        prompt_only: bool = False,
        **run: Any,
    ) -> Any:
        if "custom_generate" not in run and (prompt_only or prompt_logprobs is not None):
            raise _make_stepwise_error("prompt_only" if prompt_logprobs is None else "prompt_logprobs")
        width = inputs["input_ids"].shape[1]
        run = translate_penalties(run, prompt=width, vocabulary=self.vocabulary)
        scores = None if logprobs is None else self._make_token_scores(logprobs, width, run)
        if scores:
            run["logits_processor"] = LogitsProcessorList([*run.get("logits_processor", ()), scores])
        if grammar is not None:  # after the penalties, as what it does not allow must stay forbidden
            processors = [*run.get("logits_processor", ()), self.grammars.make_processor(grammar, prompt=width)]
            run["logits_processor"] = LogitsProcessorList(processors)
        if "custom_generate" in run:
            return self._forward(inputs, **run)
        stops = read_stops(self.pipe.tokenizer, stop)
        run = self._bound_new_tokens(run, width)
        prompts = self._list_prompt_tokens(inputs)
        criteria = self._make_stop_criteria(inputs, prompts, stops, width)
        if stop:
            run["stopping_criteria"] = StoppingCriteriaList([criteria])
        output = self._generate(inputs, run, seed)
        output["ends"] = [
            tuple(
                Generated(
                    tokens=tokens[width:],
                    prompt=prompts[place],
                    stops=stops,
                    stopped=criteria.lengths.get(place * len(row) + number),
                    has_details=details or logprobs is not None,
                    scores=scores,
                    seed=seed,
                    row=place * len(row) + number,
                )
                for number, tokens in enumerate(row.tolist())
            )
            for place, row in enumerate(output["generated_sequence"])
        ]
        return output

    def _make_stop_criteria(
        self, inputs: Mapping[str, Any], prompts: Sequence[Sequence[int]], stops: Stops, width: int
    ) -> StopStringCriteria:
        texts = inputs.get("prompt_text")
        texts = texts if isinstance(texts, list) else [texts] * len(prompts)
        contexts = [self._find_context(prompt, text, {}) for prompt, text in zip(prompts, texts, strict=True)]
        return StopStringCriteria(self.decoder, stops, contexts, width)

    def _generate(self, inputs: Mapping[str, Any], run: Mapping[str, Any], seed: int | None) -> Any:
        """Call the pipeline's own step, which draws with this seed, and leaves what others draw as it was."""
        device = self.pipe.model.device
        with torch.random.fork_rng(devices=[device] if device.type == "cuda" else [], enabled=seed is not None):
            if seed is not None:
                torch.manual_seed(seed)
            return self._forward(inputs, **run)

    def postprocess(self, output: dict[str, Any], **after: Any) -> Any:
        ends = output.pop("ends", ())
        generated = ends[0] if isinstance(ends, list) else ends  # a tuple once a batch was taken apart
        prompt = output.get("prompt_text")
        answers = self._postprocess(output, **after)
        if not generated:
            return answers
        endings = [self._make_ending(one, self._find_context(one.prompt, prompt, after)) for one in generated]
        return [ending.apply_to_answer(answer) for ending, answer in zip(endings, answers, strict=True)]

    def _make_token_scores(self, top: int, prompt: int, run: Mapping[str, Any]) -> TokenLogprobs:
        if is_beam_search(run, self.pipe.model.generation_config):
            right = "leave it out, or send num_beams: 1 if the model's parameters have that"
            raise make_field_error(FIELD, f"is not served where the request or the model searches by beams; {right}.")
        return TokenLogprobs(self.decoder, top=top, prompt=prompt)

    def _bound_new_tokens(self, run: dict[str, Any], width: int) -> dict[str, Any]:
        """Limit the answer to what its prompt leaves of the context.

        This also holds where the pipeline is called as a whole.
        """
        left = self.pipe.tokenizer.model_max_length - width
        return {**run, "max_new_tokens": left} if 0 < left < (run.get("max_new_tokens") or 0) else run

    def _list_prompt_tokens(self, inputs: Mapping[str, Any]) -> list[list[int]]:
        """Return the tokens of each prompt without its padding, also if the tokenizer makes no mask.

        Padding is on the left, and a prompt that is alone has none.
        """
        rows = inputs["input_ids"].tolist()
        if (mask := inputs.get("attention_mask")) is not None:
            masked = zip(rows, mask.tolist(), strict=True)
            return [[token for token, kept in zip(*row, strict=True) if kept] for row in masked]
        if len(rows) == 1:
            return [list(row) for row in rows]
        pad = self.pipe.tokenizer.pad_token_id
        return [list(itertools.dropwhile(lambda token: token == pad, row)) for row in rows]

    def _find_context(self, prompt: Sequence[int], text: str | Chat, after: Mapping[str, Any]) -> list[int]:
        return self.decoder.find_context(prompt) if continues_prompt(text, after) else []

    def _make_ending(self, generated: Generated, context: Sequence[int]) -> Ending:
        tokens, stops = generated.tokens, generated.stops
        ended = next((count for count, token in enumerate(tokens, 1) if token in self.ends), None)
        count = min(generated.stopped or len(tokens), ended or len(tokens))
        text = self.decoder.decode_continuation(context, tokens[:count])
        stop = find_first_stop(text, stops.texts)
        is_stopped = stop is not None or (count > 0 and tokens[count - 1] in stops.tokens)
        scores = generated.scores and generated.scores.describe_tokens(generated.row, tokens[:count], context)
        return Ending(
            reason="stop_sequence" if is_stopped else "length" if ended is None else "eos_token",
            prompt=len(generated.prompt),
            generated=count,
            found=self.decoder(tokens),
            text=text[:stop],
            has_details=generated.has_details,
            tokens={} if scores is None else make_token_details(scores, seed=generated.seed),
        )


def _make_stepwise_error(name: str) -> InvalidInput:
    message = f"parameters.{name}: is served by the step only; served.note says why this model does not generate so."
    return InvalidInput(message, field=f"parameters.{name}")


def install_steps(pipe: Pipeline) -> None:
    pipe.tokenizer.response_template = None  # with one, answers keep special tokens, which the stream does not have
    static = PipelineSteps(pipe)
    pipe.forward, pipe.postprocess = static.forward, static.postprocess
