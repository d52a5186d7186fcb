"""Values that ask for nothing: a request that has one means the same as a request without the field.

Clients send every field that they have. A null counts as not given. The other neutral values are listed here by field,
for tasks (`Task.neutral`), for this project's engines (`BuiltInEngine.neutral`) and for fields of OpenAI's interface.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

Neutral = Mapping[str, tuple[Any, ...]]

# Texts that are too long for a model are cut at their right end: a request that allows this asks for nothing.
CUT: Neutral = {"truncate": (True,), "truncation": (True,), "truncation_direction": ("right", "Right")}

# Fields that clients of Text Generation Inference, vLLM and OpenAI send to a model that generates. Fields that the
# generation settings of a checkpoint may have, such as num_beams, are left out: a client that sends 1 may want to
# overrule them.
GENERATION: Neutral = {
    "best_of": (1,), "decoder_input_details": (False,), "frequency_penalty": (0,), "ignore_eos": (False,),
    "include_stop_str_in_output": (False,), "logit_bias": ({}, []), "logprobs": (False,), "min_tokens": (0,),
    "n": (1,), "presence_penalty": (0,), "skip_special_tokens": (True,), "stop": ([], "", [""]),
    "stop_sequences": ([],), "stop_token_ids": ([],), "tools": ([],), "top_logprobs": (0,), "top_n_tokens": (0,),
    "use_beam_search": (False,), "watermark": (False,),
}  # fmt: skip

# Fields of OpenAI's interface that are not served, in addition to those above: other values of them are refused.
OPENAI: Neutral = {
    **GENERATION,
    "add_generation_prompt": (True,), "audio": (), "chat_template_kwargs": ({},), "continue_final_message": (False,),
    "echo": (False,), "function_call": ("auto", "none"), "functions": ([],), "guided_choice": ([],),
    "guided_grammar": (), "guided_json": (), "guided_regex": (), "min_p": (0,), "modalities": (["text"],),
    "modality": ("text",), "moderation": (), "prompt_logprobs": (), "reasoning_effort": ("none",),
    "return_full_text": (False,), "suffix": ("",), "tool_choice": ("auto", "none"),
    "stream": (False,), "verbosity": ("medium",), "web_search_options": (),
}  # fmt: skip

# Fields of OpenAI's interface that change no answer, whatever they hold.
OPENAI_IGNORED = frozenset({
    "details", "max_retries", "metadata", "parallel_tool_calls", "prediction", "prompt_cache_key",
    "prompt_cache_options", "prompt_cache_retention", "safety_identifier", "store", "user",
})  # fmt: skip


def is_neutral(table: Neutral, name: str, value: object) -> bool:
    """Return True if the field `name` with this value asks for nothing; true is not 1, and false is not 0."""
    if value is None:
        return True
    return any(value == each and isinstance(value, bool) == isinstance(each, bool) for each in table.get(name, ()))


def describe_refusal(table: Neutral, name: str) -> str:
    """Return the end of a sentence which says that a field of the table is not served."""
    right = f", or send {' or '.join(map(json.dumps, table[name]))}" if table[name] else ""
    return f"is not served here; leave it out{right}."
