"""Calls of langchain-huggingface, infinity-client, instructor, outlines, openai-agents and tritonclient."""

from __future__ import annotations

import json
from typing import Literal

import agents
import instructor
import openai
import outlines
import tritonclient.http
from harness import BASE, KEY, QUERY, TEXTS, are_vectors, call
from infinity_client import Client
from infinity_client.api.default import classify, embeddings, models, rerank
from infinity_client.models import ClassifyInput, OpenAIEmbeddingInputText, RerankInput
from langchain_huggingface import ChatHuggingFace, HuggingFaceEndpoint, HuggingFaceEndpointEmbeddings
from pydantic import BaseModel

BEARER = {"Authorization": f"Bearer {KEY}"}
STORY = f"{BASE}/v1/models/story"
HELLO = [{"role": "user", "content": "hello"}]


class Colour(BaseModel):
    colour: Literal["red", "blue"]


def infinity(api, body=None):
    """Raise the words of an answer that this client has parsed to no result."""
    given = {} if body is None else {"body": body}
    answer = api.sync_detailed(client=Client(BASE, headers=BEARER), **given)
    if answer.status_code != 200:
        raise ValueError(json.loads(answer.content)["error"])
    return answer.parsed


endpoint = HuggingFaceEndpoint(endpoint_url=STORY, max_new_tokens=5, server_kwargs={"headers": BEARER})
chat = ChatHuggingFace(llm=endpoint, model_id="story")
call("langchain-huggingface", "HuggingFaceEndpoint.invoke", lambda: endpoint.invoke("once"))
call("langchain-huggingface", "HuggingFaceEndpoint.stream", lambda: list(endpoint.stream("once")))
call("langchain-huggingface", "ChatHuggingFace.invoke", lambda: chat.invoke("hello").content)
call("langchain-huggingface", "ChatHuggingFace.stream", lambda: list(chat.stream("hello")))
call(
    "langchain-huggingface",
    "HuggingFaceEndpointEmbeddings",
    lambda: HuggingFaceEndpointEmbeddings(model=f"{BASE}/v1/models/embeddings").embed_documents(TEXTS),
    are_vectors,
)

call("infinity-client", "models", lambda: infinity(models).data)
call(
    "infinity-client",
    "embeddings",
    lambda: infinity(embeddings, OpenAIEmbeddingInputText(input_=TEXTS, model="embeddings")).data,
    lambda found: are_vectors([each.embedding for each in found]),
)
for returned in (False, True):
    call(
        "infinity-client",
        f"rerank(return_documents={returned})",
        lambda r=returned: (
            infinity(
                rerank, RerankInput(query=QUERY, documents=TEXTS, model="ranker", return_documents=r, top_n=2)
            ).results
        ),
        lambda found: len(found) == 2,
    )
call("infinity-client", "classify", lambda: infinity(classify, ClassifyInput(input_=TEXTS, model="labels")))

client = openai.OpenAI(base_url=f"{BASE}/v1", api_key=KEY, max_retries=0)
for mode in ("TOOLS", "JSON", "JSON_SCHEMA"):
    call(
        "instructor",
        f"create by {mode}",
        lambda m=mode: instructor.from_openai(client, mode=instructor.Mode[m]).create(
            model="decoder", messages=HELLO, response_model=Colour, max_retries=0
        ),
    )
call(
    "instructor",
    "create of text",
    lambda: instructor.from_openai(client).create(model="story", messages=HELLO, response_model=None),
)

writer = outlines.from_openai(client, "story")
call("outlines", "from_openai of text", lambda: writer("hello"))
for maker in (outlines.from_openai, outlines.from_vllm):
    call("outlines", f"{maker.__name__} of a type", lambda m=maker: m(client, "decoder")("hello", Colour))

agents.set_tracing_disabled(disabled=True)


def run(kind, model="story", **options):
    """Run an agent, whose client belongs to one event loop."""
    apart = openai.AsyncOpenAI(base_url=f"{BASE}/v1", api_key=KEY, max_retries=0)
    return agents.Runner.run_sync(agents.Agent("teller", model=kind(model, apart), **options), "hello").final_output


def paint(kind, behaviour):
    """Return what the tool of an agent was called with."""
    painted = []

    @agents.function_tool
    def paint_wall(colour: Literal["red", "blue"]) -> str:
        painted.append(colour)
        return "done"

    settings = agents.ModelSettings(tool_choice="required")
    run(kind, "decoder", tools=[paint_wall], model_settings=settings, tool_use_behavior=behaviour)
    return painted[0]


call("openai-agents", "OpenAIChatCompletionsModel", lambda: run(agents.OpenAIChatCompletionsModel))
call("openai-agents", "OpenAIResponsesModel", lambda: run(agents.OpenAIResponsesModel))
# The result of a call goes back to the model, whose answer of random words has no end: which an agent over responses
# takes for a mistake.
for kind, behaviour in (
    (agents.OpenAIChatCompletionsModel, "run_llm_again"),
    (agents.OpenAIResponsesModel, "stop_on_first_tool"),
):
    call(
        "openai-agents",
        f"{kind.__name__} with a tool that is required",
        lambda k=kind, b=behaviour: paint(k, b),
        lambda painted: painted in ("red", "blue"),
    )
call("openai-agents", "output_type", lambda: run(agents.OpenAIChatCompletionsModel, "decoder", output_type=Colour))


def triton():
    """Return a client, which belongs to one thread."""
    return tritonclient.http.InferenceServerClient(BASE.removeprefix("http://"))


call("tritonclient", "is_server_live", lambda: triton().is_server_live(headers=BEARER))
call("tritonclient", "get_server_metadata", lambda: triton().get_server_metadata(headers=BEARER))
call("tritonclient", "infer", lambda: triton().infer("embeddings", [], headers=BEARER))
