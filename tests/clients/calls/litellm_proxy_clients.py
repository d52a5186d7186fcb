"""Calls of openai through the proxy of litellm, which passes them on to the service."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path
from typing import Any

import openai
from harness import BASE, KEY, PATIENCE_S, QUERY, TEXTS, are_vectors, call

CLIENT = "openai through litellm's proxy"
HOST, PROXY_KEY = "127.0.0.1", "sk-proxy"
HELLO = [{"role": "user", "content": "hello"}]
COLOURS = ["red", "blue"]
SCHEMA = {
    "type": "object",
    "properties": {"colour": {"enum": COLOURS}},
    "required": ["colour"],
    "additionalProperties": False,
}
COLOUR = {"type": "json_schema", "json_schema": {"name": "colour", "schema": SCHEMA, "strict": True}}
PAINT = {"type": "function", "function": {"name": "paint", "description": "Paint a wall.", "parameters": SCHEMA}}
SERVICE = {"api_base": f"{BASE}/v1", "api_key": KEY}
MODELS = {"story": "openai", "decoder": "openai", "labels": "openai", "embeddings": "openai", "ranker": "hosted_vllm"}
CONFIG = {
    "model_list": [
        {"model_name": name, "litellm_params": {"model": f"{provider}/{name}", **SERVICE}}
        for name, provider in MODELS.items()
    ],
    "files_settings": [{"custom_llm_provider": "openai", **SERVICE}],
    "general_settings": {"master_key": PROXY_KEY},
}


def find_free_port() -> int:
    with socket.create_server((HOST, 0)) as server:
        return int(server.getsockname()[1])


def wait_until_ready(url: str, proxy: subprocess.Popen[bytes]) -> None:
    until = time.monotonic() + PATIENCE_S
    while proxy.poll() is None and time.monotonic() < until:
        try:
            with urllib.request.urlopen(f"{url}/health/liveliness") as answer:
                answer.read()
            return
        except OSError:
            time.sleep(0.2)  # between two looks
    raise RuntimeError("The proxy of litellm did not start.")


def rank(url: str) -> list[dict[str, Any]]:
    body = json.dumps({"model": "ranker", "query": QUERY, "documents": TEXTS, "top_n": 2}).encode()
    headers = {"Authorization": f"Bearer {PROXY_KEY}", "Content-Type": "application/json"}
    with urllib.request.urlopen(urllib.request.Request(f"{url}/v1/rerank", body, headers)) as answer:
        return list(json.load(answer)["results"])


def run_batch(client: openai.OpenAI) -> str:
    """Return the ids of the lines that were answered."""
    body = {"model": "embeddings", "input": "a text"}
    lines = [{"custom_id": each, "method": "POST", "url": "/v1/embeddings", "body": body} for each in "abc"]
    content = "\n".join(map(json.dumps, lines)).encode()
    file = client.files.create(file=("in.jsonl", content), purpose="batch")
    batch = client.batches.create(input_file_id=file.id, endpoint="/v1/embeddings", completion_window="24h")
    while not batch.output_file_id and batch.status not in ("failed", "completed", "expired"):
        time.sleep(0.1)  # between two looks
        batch = client.batches.retrieve(batch.id)
    found = map(json.loads, client.files.content(batch.output_file_id).text.splitlines())
    return "".join(sorted(line["custom_id"] for line in found if line["response"]["status_code"] == 200))


def make_calls(url: str, client: openai.OpenAI) -> None:
    chats, decoder = client.chat.completions, {"model": "decoder", "messages": HELLO}
    call(CLIENT, "models.list", lambda: {each.id for each in client.models.list()}, lambda ids: ids == set(MODELS))
    call(CLIENT, "chat.completions.create", lambda: chats.create(model="story", messages=HELLO))
    call(CLIENT, "the same, streamed", lambda: list(chats.create(model="story", messages=HELLO, stream=True)))
    call(
        CLIENT,
        "chat.completions.create(response_format)",
        lambda: chats.create(**decoder, response_format=COLOUR).choices[0].message.content,
        lambda text: json.loads(text)["colour"] in COLOURS,
    )
    call(
        CLIENT,
        "chat.completions.create(tools)",
        lambda: chats.create(**decoder, tools=[PAINT], tool_choice="required").choices[0].message.tool_calls,
        lambda calls: json.loads(calls[0].function.arguments)["colour"] in COLOURS,
    )
    call(CLIENT, "completions.create", lambda: client.completions.create(model="story", prompt="once").choices[0].text)
    call(
        CLIENT, "responses.create", lambda: client.responses.create(model="story", input="hello"),
        lambda answer: answer.output_text,
    )  # fmt: skip
    call(
        CLIENT,
        "the same response, streamed",
        lambda: list(client.responses.create(model="story", input="hello", stream=True)),
        lambda events: events[-1].type == "response.completed",
    )
    call(
        CLIENT,
        "embeddings.create",
        lambda: client.embeddings.create(model="embeddings", input=TEXTS),
        lambda answer: are_vectors([each.embedding for each in answer.data]),
    )
    call(
        CLIENT, "moderations.create", lambda: client.moderations.create(model="labels", input="a text"),
        lambda answer: answer.results,
    )  # fmt: skip
    call(CLIENT, "POST /v1/rerank", lambda: rank(url), lambda results: len(results) == 2)
    call(CLIENT, "files.create, batches.create, retrieve, files.content", lambda: run_batch(client), "abc".__eq__)


with tempfile.TemporaryDirectory() as folder:
    port = find_free_port()
    config, log = Path(folder, "config.yaml"), Path(folder, "log")
    config.write_text(json.dumps(CONFIG))  # which is YAML
    address = f"http://{HOST}:{port}"
    environment = {**os.environ, "OPENAI_BASE_URL": SERVICE["api_base"], "OPENAI_API_KEY": KEY}
    command = ["litellm", "--config", str(config), "--host", HOST, "--port", str(port)]
    with log.open("wb") as file, subprocess.Popen(command, env=environment, stdout=file, stderr=file) as proxy:
        try:
            wait_until_ready(address, proxy)
            make_calls(address, openai.OpenAI(base_url=f"{address}/v1", api_key=PROXY_KEY, max_retries=0))
        except RuntimeError:
            sys.stderr.write(log.read_text())
            raise
        finally:
            proxy.terminate()
