"""Calls of openai, huggingface_hub, cohere, langchain-openai and pydantic-ai."""

from __future__ import annotations

import json
import time
from typing import Any, Literal

import cohere
import huggingface_hub
import openai
from harness import BASE, KEY, QUERY, TEXTS, are_vectors, call
from langchain_openai import ChatOpenAI, OpenAIEmbeddings
from pydantic import BaseModel
from pydantic_ai import Agent, NativeOutput, ToolOutput
from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
from pydantic_ai.providers.openai import OpenAIProvider

HELLO = [{"role": "user", "content": "hello"}]
COLOURS = ("red", "blue")
SCHEMA = {
    "type": "object",
    "properties": {"colour": {"enum": list(COLOURS)}},
    "required": ["colour"],
    "additionalProperties": False,
}
COLOUR = {"type": "json_schema", "json_schema": {"name": "colour", "schema": SCHEMA, "strict": True}}
PAINT = {"type": "function", "function": {"name": "paint"}}
TOOLS = [{"type": "function", "function": {"name": "paint", "description": "Paint a wall.", "parameters": SCHEMA}}]
EMBEDDINGS, CHATS = "/v1/embeddings", "/v1/chat/completions"
BODIES = {
    EMBEDDINGS: {"model": "embeddings", "input": "a text"},
    CHATS: {"model": "story", "messages": HELLO, "max_tokens": 3},
}


class Colour(BaseModel):
    colour: Literal["red", "blue"]


def is_colour(text: str) -> bool:
    return json.loads(text)["colour"] in COLOURS


def is_call_or_colour(message: Any) -> bool:
    calls = message.tool_calls or []
    return is_colour(calls[0].function.arguments if calls else message.content)


def stream_call(client: openai.OpenAI) -> str:
    """Return the arguments of a call that is required."""
    with client.chat.completions.stream(model="decoder", messages=HELLO, tools=TOOLS, tool_choice="required") as stream:
        return str(stream.get_final_completion().choices[0].message.tool_calls[0].function.arguments)


def stream_logprobs(client: openai.OpenAI) -> Any:
    requested = {"model": "decoder", "messages": HELLO, "response_format": COLOUR, "logprobs": True}
    with client.chat.completions.stream(**requested) as stream:
        return stream.get_final_completion().choices[0]


def stream_response(client: openai.OpenAI) -> str:
    with client.responses.stream(model="story", input="hello") as stream:
        return str(stream.get_final_response().output_text)


def read_background(client: openai.OpenAI) -> list[str]:
    """Return the kinds of the events behind the first one."""
    begun = client.responses.create(model="story", input="hello", background=True)
    return [event.type for event in client.responses.retrieve(begun.id, stream=True, starting_after=0)]


def write_lines(url: str = EMBEDDINGS) -> str:
    lines = [{"custom_id": each, "method": "POST", "url": url, "body": BODIES[url]} for each in "abc"]
    return "\n".join(map(json.dumps, lines))


def upload(client: openai.OpenAI, url: str = EMBEDDINGS) -> str:
    return str(client.files.create(file=("in.jsonl", write_lines(url)), purpose="batch").id)


def begin(client: openai.OpenAI, url: str = EMBEDDINGS) -> Any:
    return client.batches.create(input_file_id=upload(client, url), endpoint=url, completion_window="24h")


def run_batch(client: openai.OpenAI, url: str = EMBEDDINGS) -> str:
    """Return the ids of the lines that were answered."""
    batch = begin(client, url)
    while not batch.output_file_id and batch.status not in ("failed", "completed", "expired"):
        time.sleep(0.1)  # between two looks
        batch = client.batches.retrieve(batch.id)
    found = map(json.loads, client.files.content(batch.output_file_id).text.splitlines())
    return "".join(sorted(line["custom_id"] for line in found if line["response"]["body"]["object"]))


for base in ("/v1", "/openai/v1"):
    client = openai.OpenAI(base_url=f"{BASE}{base}", api_key=KEY, max_retries=0)
    name = f"openai at {base}"
    call(name, "models.list", lambda c=client: list(c.models.list()))
    call(name, "chat.completions.create", lambda c=client: c.chat.completions.create(model="story", messages=HELLO))
    call(
        name,
        "the same, streamed",
        lambda c=client: list(c.chat.completions.create(model="story", messages=HELLO, stream=True)),
    )
    call(name, "completions.create", lambda c=client: c.completions.create(model="story", prompt="once"))
    call(
        name,
        "embeddings.create",
        lambda c=client: c.embeddings.create(model="embeddings", input=TEXTS),
        lambda answer: are_vectors([each.embedding for each in answer.data]),
    )
    call(
        name,
        "embeddings.create(dimensions=64)",
        lambda c=client: c.embeddings.create(model="embeddings", input="a", dimensions=64),
    )
    call(
        name,
        "moderations.create",
        lambda c=client: c.moderations.create(input=TEXTS).results,
        lambda found: [each.flagged for each in found] == [each.to_dict()["categories"]["negative"] for each in found],
    )
    call(name, "embeddings.create of tokens", lambda c=client: c.embeddings.create(model="embeddings", input=[1, 2]))
    call(
        name,
        "chat.completions.create(tools)",
        lambda c=client: c.chat.completions.create(model="decoder", messages=HELLO, tools=TOOLS, tool_choice=PAINT),
        lambda answer: is_colour(answer.choices[0].message.tool_calls[0].function.arguments),
    )
    call(name, "chat.completions.stream(tools)", lambda c=client: stream_call(c), is_colour)
    call(
        name,
        "chat.completions.create(tools, response_format)",
        lambda c=client: c.chat.completions.create(
            model="decoder", messages=HELLO, tools=TOOLS, response_format=COLOUR, max_tokens=500
        ),
        lambda answer: is_call_or_colour(answer.choices[0].message),
    )
    call(
        name,
        "chat.completions.stream(logprobs)",
        lambda c=client: stream_logprobs(c),
        lambda choice: "".join(token.token for token in choice.logprobs.content) == choice.message.content,
    )
    call(
        name,
        "chat.completions.create(response_format)",
        lambda c=client: c.chat.completions.create(model="decoder", messages=HELLO, response_format=COLOUR),
        lambda answer: is_colour(answer.choices[0].message.content),
    )
    call(
        name,
        "chat.completions.parse",
        lambda c=client: c.chat.completions.parse(model="decoder", messages=HELLO, response_format=Colour),
        lambda answer: answer.choices[0].message.parsed.colour in COLOURS,
    )
    call(name, "responses.create", lambda c=client: c.responses.create(model="story", input="hello").output_text)
    call(
        name,
        "responses.create(metadata), retrieve",
        lambda c=client: c.responses.retrieve(
            c.responses.create(model="story", input="hello", metadata={"order": "4711"}).id
        ),
        lambda answer: answer.metadata == {"order": "4711"},
    )
    call(name, "responses.stream", lambda c=client: stream_response(c))
    call(
        name,
        "responses.create(background), retrieve(starting_after)",
        lambda c=client: read_background(c),
        lambda kinds: kinds[-1] == "response.completed",
    )
    call(
        name,
        "responses.delete",
        lambda c=client: c.responses.delete(c.responses.create(model="story", input="a").id),
        lambda answer: answer is None,
    )
    call(
        name,
        "chat.completions.delete",
        lambda c=client: c.chat.completions.delete(c.chat.completions.create(model="story", messages=HELLO).id).deleted,
    )
    call(
        name,
        "responses.parse",
        lambda c=client: c.responses.parse(model="decoder", input="hello", text_format=Colour),
        lambda answer: answer.output_parsed.colour in COLOURS,
    )
    call(
        name,
        "files.create(expires_after)",
        lambda c=client: c.files.create(
            file=("in.jsonl", write_lines()), purpose="batch", expires_after={"anchor": "created_at", "seconds": 3600}
        ),
    )
    call(name, "files.wait_for_processing", lambda c=client: c.files.wait_for_processing(upload(c)))
    call(name, "files.list", lambda c=client: len([each.id for each in c.files.list(limit=1)]) > 1)
    call(name, "files.content", lambda c=client: c.files.content(upload(c)).text, lambda text: text == write_lines())
    call(name, "files.delete", lambda c=client: c.files.delete(upload(c)).deleted)
    call(name, "batches.create, retrieve, files.content", lambda c=client: run_batch(c), lambda found: found == "abc")
    call(name, "batches.create(chat)", lambda c=client: run_batch(c, CHATS), lambda found: found == "abc")
    call(name, "batches.cancel", lambda c=client: c.batches.cancel(begin(c).id).status.startswith("cancel"))
    call(name, "batches.list", lambda c=client: len([each.id for each in c.batches.list(limit=1)]) > 1)

embeds, story, labels, decoder = (
    huggingface_hub.InferenceClient(f"{BASE}/v1/models/{name}", token=KEY)
    for name in ("embeddings", "story", "labels", "decoder")
)
call(
    "huggingface_hub",
    "feature_extraction",
    lambda: embeds.feature_extraction(TEXTS[0]),
    lambda vector: len(vector) == 384,
)
call(
    "huggingface_hub",
    "feature_extraction(normalize, truncate)",
    lambda: embeds.feature_extraction("a", normalize=False, truncate=False),
    lambda vector: len(vector) == 384,
)
call("huggingface_hub", "feature_extraction(prompt_name)", lambda: embeds.feature_extraction("a", prompt_name="query"))
call(
    "huggingface_hub",
    "sentence_similarity",
    lambda: embeds.sentence_similarity(QUERY, other_sentences=TEXTS),
    lambda found: len(found) == 3,
)
call("huggingface_hub", "text_classification", lambda: labels.text_classification(TEXTS[0]))
call("huggingface_hub", "text_generation", lambda: story.text_generation("once", max_new_tokens=5))
call("huggingface_hub", "chat_completion", lambda: story.chat_completion(HELLO))
call(
    "huggingface_hub",
    "chat_completion(response_format)",
    lambda: decoder.chat_completion(HELLO, response_format=COLOUR),
    lambda answer: is_colour(answer.choices[0].message.content),
)
call(
    "huggingface_hub",
    "text_generation(grammar)",
    lambda: decoder.text_generation("once", grammar={"type": "regex", "value": "[ab]{3}"}, return_full_text=False),
    lambda text: len(text) == 3,
)

first, second = cohere.Client(KEY, base_url=BASE), cohere.ClientV2(KEY, base_url=BASE)
call(
    "cohere",
    "Client.rerank",
    lambda: first.rerank(model="ranker", query=QUERY, documents=TEXTS, return_documents=True),
    lambda answer: len(answer.results) == 3,
)
call(
    "cohere",
    "ClientV2.rerank",
    lambda: second.rerank(model="ranker", query=QUERY, documents=TEXTS, top_n=2),
    lambda answer: len(answer.results) == 2,
)
call(
    "cohere",
    "Client.embed",
    lambda: first.embed(texts=TEXTS, model="embeddings", input_type="search_document"),
    lambda answer: are_vectors(answer.embeddings),
)
call(
    "cohere",
    "ClientV2.embed",
    lambda: second.embed(texts=TEXTS, model="embeddings", input_type="search_query", embedding_types=["float"]),
    lambda answer: are_vectors(answer.embeddings.float_),
)
call(
    "cohere",
    "ClientV2.embed of int8",
    lambda: second.embed(texts=TEXTS, model="embeddings", input_type="search_query", embedding_types=["int8"]),
)

chat = ChatOpenAI(model="story", base_url=f"{BASE}/v1", api_key=KEY, max_retries=0)
vectors = OpenAIEmbeddings(
    model="embeddings", base_url=f"{BASE}/v1", api_key=KEY, check_embedding_ctx_length=False, max_retries=0
)
call(
    "langchain-openai",
    "ChatOpenAI(use_responses_api).invoke",
    lambda: chat.model_copy(update={"use_responses_api": True}).invoke("hello").text,
)
call("langchain-openai", "ChatOpenAI.invoke", lambda: chat.invoke("hello").content)
call("langchain-openai", "ChatOpenAI.batch", lambda: chat.batch(["hello", "once"]), lambda found: len(found) == 2)
for method in ("json_schema", "function_calling"):
    call(
        "langchain-openai",
        f"ChatOpenAI.with_structured_output by {method}",
        lambda m=method: (
            chat.model_copy(update={"model_name": "decoder"}).with_structured_output(Colour, method=m).invoke("hello")
        ),
        lambda answer: answer.colour in COLOURS,
    )
call("langchain-openai", "OpenAIEmbeddings.embed_documents", lambda: vectors.embed_documents(TEXTS), are_vectors)
call(
    "langchain-openai",
    "OpenAIEmbeddings.embed_query",
    lambda: vectors.embed_query("a"),
    lambda vector: len(vector) == 384,
)

model = OpenAIChatModel("story", provider=OpenAIProvider(base_url=f"{BASE}/v1", api_key=KEY))
newest = OpenAIResponsesModel("story", provider=OpenAIProvider(base_url=f"{BASE}/v1", api_key=KEY))
call("pydantic-ai", "OpenAIResponsesModel", lambda: Agent(newest).run_sync("hello").output)
call("pydantic-ai", "Agent.run_sync", lambda: Agent(model).run_sync("hello").output)
shaped = OpenAIChatModel("decoder", provider=OpenAIProvider(base_url=f"{BASE}/v1", api_key=KEY))
for output in (NativeOutput, ToolOutput):
    call(
        "pydantic-ai",
        f"Agent.run_sync({output.__name__})",
        lambda o=output: Agent(shaped, output_type=o(Colour)).run_sync("hello").output,
        lambda answer: answer.colour in COLOURS,
    )
