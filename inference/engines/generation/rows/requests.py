"""Rows made of requests: the prompt in tokens, and the settings that `generate` would run the request with alone."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch

from inference.catalog.input_checks import TOKENS
from inference.catalog.sizes import lengths
from inference.engines.generation.processors.logprobs import (
    PromptLogprobs,
    convert_offsets_to_starts,
    count_numbers_per_token,
)
from inference.engines.generation.rows.growing_text import Decoder, GrowingText, continues_prompt
from inference.engines.generation.rows.row import GeneratedRow
from inference.engines.inputs import step_errors, task_inputs
from inference.engines.inputs.feeds import Feed
from inference.engines.inputs.pipeline_calls import Parameters, PipelineCalls
from inference.engines.inputs.stops import list_end_tokens, read_stops
from inference.engines.runtime.row_groups import InputRow
from inference.errors import InvalidInput, make_field_error

if TYPE_CHECKING:
    from transformers import GenerationConfig, LogitsProcessorList, Pipeline, PreTrainedModel

MODES = ("greedy_search", "sample")


class NotStepwise(Exception):
    """The error of settings with which `generate` would not choose one token after the other."""


class Requests:
    """The requests to one pipeline."""

    def __init__(self, pipe: Pipeline, feed: Feed, steps: PipelineCalls) -> None:
        self.pipe, self.feed, self.steps = pipe, feed, steps
        self.decoder = Decoder(pipe.tokenizer)
        self.context: int = pipe.tokenizer.model_max_length  # tokens that a prompt and its answer may have

    def make_row(self, key: Hashable, value: object, parameters: Mapping[str, Any], *, seed: int) -> GeneratedRow:
        """Return the row of a request. Raises `InvalidInput` if reading the request fails."""
        return step_errors.run_input_step(self._read_row, key, value, dict(parameters), seed)  # type: ignore[no-any-return]  # it returns what it calls returns

    def _read_row(self, key: Hashable, value: object, given: dict[str, Any], seed: int) -> GeneratedRow:
        seed, stops = given.pop("seed", seed), given.pop("stop", ())
        details = given.pop("details", False) or not given.keys().isdisjoint(("logprobs", "prompt_logprobs"))
        top, only_prompt = given.pop("prompt_logprobs", None), given.get("prompt_only", False)
        if top is not None and getattr(self.pipe.tokenizer, "is_fast", False):
            given["tokenizer_encode_kwargs"] = {"return_offsets_mapping": True}  # of a text, not of a chat
        parameters = self.steps.split_parameters(self.feed.check_and_complete_parameters(self.pipe, given))
        found = self._read_prompt(value, parameters)
        tokens = found.features["input_ids"][0].tolist()
        config, processors = self._capture_settings(found.features, {**parameters.forward, **found.own})
        parsed_stops = read_stops(self.pipe.tokenizer, stops)
        before = tokens if continues_prompt(found.features["prompt_text"], parameters.postprocess) else ()
        return GeneratedRow(
            key=key,
            features=found.features,
            after=parameters.postprocess,
            details=details,
            tokens=tokens,
            prompt=len(tokens),
            longest=len(tokens) if only_prompt else min(config.max_length, self.context),
            ends=frozenset(list_end_tokens(config.eos_token_id)),
            stops=parsed_stops.tokens,
            processors=processors,
            samples=config.do_sample,
            generator=torch.Generator(self.pipe.model.device).manual_seed(seed),
            text=GrowingText(self.decoder, parsed_stops.texts, self.decoder.find_context(before)),
            prompt_logprobs=None if top is None else self._make_prompt_logprobs(found.features, tokens, top),
        )

    def _read_prompt(self, value: object, parameters: Parameters) -> InputRow:
        if not isinstance(value, dict):
            [found] = self.steps.make_rows(0, value, parameters)
            return found
        tokens, known = value[TOKENS], self.pipe.model.config.get_text_config().vocab_size
        if (largest := max(tokens)) >= known:
            raise InvalidInput(f"The prompt has the token {largest}; those of this model end at {known - 1}.")
        if tools := parameters.preprocess.get("tools"):
            task_inputs.require_tools_template(self.pipe.tokenizer, value, tools)
        ids = torch.tensor([tokens])
        text = self.decoder(tokens)
        row = InputRow(item=0, features={"input_ids": ids, "attention_mask": torch.ones_like(ids), "prompt_text": text})
        return replace(row, own=self.feed.make_row_parameters(row, self.pipe, parameters.forward))

    def _make_prompt_logprobs(self, features: Mapping[str, Any], tokens: list[int], top: int) -> PromptLogprobs:
        """Return the log probabilities to be read of a prompt. Raises `InvalidInput` if an answer cannot hold them."""
        if len(tokens) > (most := lengths.MOST_ANSWERED // count_numbers_per_token(top)):
            reason = f"at most {most} tokens of a prompt are scored with {top} others beside each, not {len(tokens)}"
            raise make_field_error("parameters.prompt_logprobs", f"{reason}: send less, or ask for fewer others.")
        starts = list[int]()
        if "offset_mapping" in features:
            prefix = self.steps.defaults[0].get("prefix", "")  # the model's own, which stands before the prompt
            offsets = features["offset_mapping"][0].tolist()
            found = convert_offsets_to_starts(f"{prefix}{features['prompt_text']}", offsets)
            starts = [max(0, start - len(prefix)) for start in found]
        elif isinstance(features["prompt_text"], str):
            starts = self.decoder.find_token_starts(tokens)
        return PromptLogprobs(self.decoder, top=top, prompt=tokens, starts=starts)

    def _capture_settings(self, features: Mapping[str, Any], run: dict[str, Any]) -> tuple[Any, Any]:
        """Return the generation config and the logits processors that `generate` makes for the request.

        `generate` makes them ready, and then calls the function that it is given as `custom_generate`.
        """
        made: dict[str, Any] = {}

        def keep(
            model: PreTrainedModel,
            input_ids: torch.Tensor,
            logits_processor: LogitsProcessorList,
            generation_config: GenerationConfig,
            **_: Any,
        ) -> Any:
            made.update(config=generation_config, processors=logits_processor, rows=len(input_ids))
            return input_ids

        self.pipe.forward(dict(features), **run, custom_generate=keep)
        mode = made["config"].get_generation_mode().value
        if mode not in MODES or made["rows"] != 1:
            raise NotStepwise(f"it generates by {mode}, {made['rows']} at once")
        return made["config"], made["processors"]

    def make_answer(self, row: GeneratedRow) -> Any:
        """Return the answer to a row that has ended, as the pipeline would give it."""
        output = {
            "generated_sequence": torch.tensor([[row.tokens]]),
            "input_ids": row.features["input_ids"],
            "prompt_text": row.features["prompt_text"],
        }
        [answer] = self.pipe.postprocess(output, **row.after)
        return [row.ending.apply_to_answer(answer)] if row.ending else [answer]
