"""Calls of text-generation, the client of Text Generation Inference, which caps huggingface_hub below 1."""

from __future__ import annotations

import text_generation
from harness import BASE, KEY, call

decoder = text_generation.Client(f"{BASE}/v1/models/decoder", {"Authorization": f"Bearer {KEY}"})
HELLO = [text_generation.types.Message(role="user", content="hello")]
call("text-generation", "generate", lambda: decoder.generate("once", max_new_tokens=5).details.tokens)
call(
    "text-generation",
    "generate(decoder_input_details)",
    lambda: decoder.generate("once", max_new_tokens=5, decoder_input_details=True).details.prefill,
    lambda prefill: "".join(token.text for token in prefill) == "once",
)
call(
    "text-generation",
    "generate_stream",
    lambda: list(decoder.generate_stream("once", max_new_tokens=5)),
    lambda found: len(found) == 5 and found[-1].generated_text,
)
call("text-generation", "generate(best_of)", lambda: decoder.generate("once", do_sample=True, best_of=2))
call("text-generation", "generate(top_n_tokens)", lambda: decoder.generate("once", top_n_tokens=2))
call(
    "text-generation",
    "generate(grammar)",
    lambda: (
        decoder.generate("once", grammar=text_generation.types.Grammar(type="regex", value="[ab]{3}")).generated_text
    ),
    lambda text: len(text) == 3,
)
call("text-generation", "chat", lambda: decoder.chat(HELLO).choices[0].message.content)
call("text-generation", "chat(stream)", lambda: list(decoder.chat(HELLO, stream=True)))
call("text-generation", "chat(n)", lambda: decoder.chat(HELLO, n=2))
