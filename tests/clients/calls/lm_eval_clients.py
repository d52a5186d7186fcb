"""Calls of lm-evaluation-harness, which sends prompts as the tokens of the model's own tokenizer."""

from __future__ import annotations

import os

from harness import BASE, DECODER, KEY, QUERY, call
from lm_eval.api.instance import Instance
from lm_eval.models.openai_completions import LocalCompletionsAPI

os.environ["OPENAI_API_KEY"] = KEY
model = LocalCompletionsAPI(base_url=f"{BASE}/v1/completions", model="decoder", tokenizer=DECODER, batch_size=2)


def make_instances(kind: str, *arguments: tuple[object, ...]) -> list[Instance]:
    return [Instance(kind, {}, each, index) for index, each in enumerate(arguments)]


call(
    "lm-eval",
    "loglikelihood",
    lambda: model.loglikelihood(make_instances("loglikelihood", (QUERY, " a cat"), (QUERY, " a stock"))),
    lambda found: len(found) == 2 and all(score < 0 for score, _ in found),
)
call(
    "lm-eval",
    "loglikelihood_rolling",
    lambda: model.loglikelihood_rolling(make_instances("loglikelihood_rolling", (QUERY,))),
    lambda found: found[0] < 0,
)
call(
    "lm-eval",
    "generate_until",
    lambda: model.generate_until(make_instances("generate_until", (QUERY, {"until": ["."], "max_gen_toks": 5}))),
    lambda found: isinstance(found[0], str),
)
