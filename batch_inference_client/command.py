"""The client on the command line: run, map, batch, status, cancel."""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import io
import json
import logging
import os
import shutil
import sys
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Any

from batch_inference_client.client import Client
from batch_inference_client.errors import ClientError, JobError
from batch_inference_client.file_batches import BATCH_ID, BatchEnd, refuse_failed
from batch_inference_client.progress import Bar
from batch_inference_client.service import dumps

URL = "http://127.0.0.1:8000"
INTERRUPTED = 130  # the exit code of an interrupted program, as shells have it


def main(arguments: Sequence[str] | None = None) -> int:
    options = make_parser().parse_args(arguments)
    logging.basicConfig(format="%(message)s")
    try:
        try:
            return run_command(options)
        finally:
            sys.stdout.flush()
    except ClientError as error:
        print_message(f"error: {error}")
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # else the interpreter complains as it ends
    except OSError as error:
        print_message(f"error: {error}")
    except KeyboardInterrupt:
        return INTERRUPTED
    return 1


def run_command(options: argparse.Namespace) -> int:
    with Client(options.url, os.environ.get("INFERENCE_API_KEY", ""), patience_s=options.patience) as client:
        try:
            status: int = options.call(client, options)
            return status
        except (ClientError, TimeoutError) as error:
            print_message(f"error: {error}{find_advice(client, error)}")
            return 1


def make_parser() -> argparse.ArgumentParser:
    found = argparse.ArgumentParser(
        prog="python -m batch_inference_client",
        description="A client of the inference service. The key is taken from the variable INFERENCE_API_KEY.",
    )
    found.add_argument("--url", default=os.environ.get("INFERENCE_URL", URL), help=f"or INFERENCE_URL; {URL} otherwise")
    commands = found.add_subparsers(required=True, metavar="run, map, batch, status or cancel")

    one = commands.add_parser("run", help="run a model on one input, and print the output as JSON")
    one.add_argument("model")
    one.add_argument("input", help="a text; with --json any input as JSON")
    one.add_argument("--json", action="store_true", help="the input is JSON")
    one.add_argument("--stream", action="store_true", help="print the text as it is generated, instead of the output")
    one.add_argument("--timeout", type=float, help="seconds to wait; the job goes on afterwards")
    one.set_defaults(call=run_model)

    many = commands.add_parser(
        "map",
        help="run a model on every line of the standard input",
        description="Each line is a text or a list as JSON, or an object with inputs and, if need be, parameters. Each"
        ' line of the answers is {"output": …} or {"error": …}, in the same order.',
    )
    many.add_argument("model")
    many.add_argument(
        "--output", type=Path, metavar="FILE", help="where answers go; goes on after those that are there"
    )
    many.add_argument("--name", help="of this run: given again, after it was killed, nothing runs twice")
    many.add_argument("--in-flight", type=int, default=4000, metavar="N", help="lines that are read ahead")
    many.add_argument("--priority", choices=("high", "normal", "low"), default="low")
    many.set_defaults(call=map_lines)

    lines = commands.add_parser(
        "batch",
        help="answer a file whose lines are requests in OpenAI's form, within hours",
        description="The service keeps the file and goes on by itself, whatever becomes of this command.",
    )
    lines.add_argument("source", metavar="FILE", help="or the id of a batch, to go on with it")
    lines.add_argument("--endpoint", help="that the lines of the file name, such as /v1/embeddings")
    lines.add_argument("--window", default="24h", help="after which lines that did not run expire; 24h otherwise")
    lines.add_argument("--output", type=Path, metavar="FILE", help="where answers go at the end; stdout otherwise")
    lines.add_argument("--errors", type=Path, metavar="FILE", help="where lines that failed go; to stdout otherwise")
    lines.add_argument("--so-far", action="store_true", help="write what is answered now, and do not wait for the rest")
    lines.set_defaults(call=run_batch)

    state = commands.add_parser("status", help="what is served, or how far a job, a bulk or a batch is")
    state.add_argument("id", nargs="?")
    state.set_defaults(call=show_status)

    stop = commands.add_parser("cancel", help="cancel a job, or what is left of a bulk or a batch")
    stop.add_argument("id")
    stop.set_defaults(call=cancel_jobs)
    for command, patience_s in ((one, 10.0), (many, 600.0), (lines, 600.0), (state, 10.0), (stop, 10.0)):
        help_text = f"seconds to try again while the service is away or full; {patience_s:g} otherwise"
        command.add_argument("--patience", type=float, default=patience_s, metavar="S", help=help_text)
    for command in (one, many):
        command.add_argument("--parameters", type=parse_json_object, metavar="JSON", help="what the model allows")
    return found


def parse_json_object(text: str) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise argparse.ArgumentTypeError(f"""not JSON: {error}. Write it as '{{"top_k": 3}}'""") from None
    if not isinstance(value, dict):
        raise argparse.ArgumentTypeError(f"""must be an object, such as '{{"top_k": 3}}', not {text}""")
    return value


def run_model(client: Client, options: argparse.Namespace) -> int:
    inputs = options.input
    if options.json:
        try:
            inputs = json.loads(options.input)
        except (ValueError, RecursionError) as error:
            raise ClientError(
                f"The input is not JSON: {error}. Leave --json out for a text.", code="invalid_json"
            ) from None
    if options.stream:
        return print_stream(client, options, inputs)
    output = client.run(options.model, inputs, parameters=options.parameters, timeout=options.timeout)
    print_line(output)
    return 0


def print_stream(client: Client, options: argparse.Namespace, inputs: object) -> int:
    for event in client.stream(options.model, inputs, parameters=options.parameters):
        if event.kind == "restart":
            print_message("\nThe text begins again: another attempt generates another one.")
        sys.stdout.write(event.text)
        sys.stdout.flush()
    sys.stdout.write("\n")
    return 0


def map_lines(client: Client, options: argparse.Namespace) -> int:
    name = options.name or str(uuid.uuid4())
    source = sys.stdin.buffer
    failed = 0
    with open_answers_file(options) as (target, written):
        batches = client.map_encoded(
            encode_lines(source, options.parameters),
            {"model": options.model, "priority": options.priority},
            name=name,
            in_flight=options.in_flight,
            skip=written,
        )
        try:
            with Bar(count_lines(source), shown=True, done=written) as bar:
                for batch in batches:
                    target.write(b"".join(encode_answer(answer) for _, answer in batch))
                    target.flush()
                    bar.add(batch)
                    failed += sum(isinstance(answer, JobError) for _, answer in batch)
        except (KeyboardInterrupt, ClientError, OSError):
            print_message(f"\nTo go on: the same command with --name {name}")
            raise
    if failed:
        print_message(f"{failed} {'line has' if failed == 1 else 'lines have'} an error in place of an output.")
    return 1 if failed else 0


@contextlib.contextmanager
def open_answers_file(options: argparse.Namespace) -> Iterator[tuple[IO[bytes], int]]:
    """Yield the file to which answers are written, and the number of answers that are in it.

    A last line that was cut off is removed. Raises `ClientError` if the answers are of a run without a name, or if
    another program writes to the file.
    """
    if options.output is None:
        yield sys.stdout.buffer, 0
        return
    with options.output.open("a+b") as file:
        lock_file(file, options.output)
        file.seek(0)
        written, end = 0, 0
        for line in file:
            if line.endswith(b"\n"):
                written, end = written + 1, end + len(line)
        if written and not options.name:
            raise ClientError(
                f"{options.output} has {written} answers. Give the --name of the run that wrote them, or another file.",
                code="bad_request",
            )
        file.truncate(end)
        yield file, written


def lock_file(file: IO[bytes], path: Path) -> None:
    """Lock the file until it is closed.

    Raises `ClientError` if another program has locked it, as two programs that append would mix their answers.
    """
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise ClientError(
            f"Another program writes its answers to {path} now. Wait for it, or end it.", code="bad_request"
        ) from None


def encode_lines(lines: Iterable[bytes], parameters: Mapping[str, Any] | None) -> Iterator[bytes | JobError]:
    """Yield each line as the bulk interface takes it, or in its place the `JobError` of a line that is not valid."""
    shared = b',"parameters":' + dumps(parameters) if parameters else b""
    for line in map(bytes.strip, lines):
        if not line:
            continue
        try:
            document = json.loads(line.decode())
            if not isinstance(document, dict):
                yield b'{"inputs":' + line + shared + b"}"
            else:
                yield add_parameters(document, parameters) if parameters else line
        except (ValueError, RecursionError, ClientError) as error:
            yield JobError(f"The line is not valid JSON: {error}.", code="invalid_json")


def add_parameters(document: dict[str, Any], parameters: Mapping[str, Any]) -> bytes:
    """Return the document of a line as JSON with these parameters. Parameters of the line itself take precedence."""
    own = document.get("parameters", {})
    return dumps({**document, "parameters": {**parameters, **own}} if isinstance(own, dict) else document)


def encode_answer(answer: object) -> bytes:
    if isinstance(answer, JobError):
        error = {"code": answer.code, "detail": answer.detail, "retryable": answer.retryable, "job": answer.job_id}
        return dumps({"error": error}) + b"\n"
    return dumps({"output": answer}) + b"\n"


def count_lines(source: IO[bytes]) -> int | None:
    """Return the number of lines that are not empty, for the progress bar.

    It is None if stderr is no terminal, or if the lines cannot be read twice.
    """
    if not sys.stderr.isatty() or not source.seekable():
        return None
    here = source.tell()
    count = sum(1 for line in source if line.strip())
    source.seek(here)
    return count


def run_batch(client: Client, options: argparse.Namespace) -> int:
    if options.output and options.errors and options.output.resolve() == options.errors.resolve():
        raise ClientError(
            "--output and --errors name one file, and the errors would replace the answers: name two.",
            code="bad_request",
        )
    for path in filter(None, (options.output, options.errors)):
        path.open("ab").close()  # now, and not when the batch has ended: perhaps it cannot be written
    is_begun = BATCH_ID.fullmatch(options.source)
    batch_id = client.batch(options.source)["id"] if is_begun else begin_batch(client, options)
    try:
        print_message(f"The batch is {batch_id}.")
        if options.so_far:
            write_answers(client.open_output(batch_id), options.output)
            return 0
        batch = client.wait_for_batch(batch_id, progress=True)
        if batch["status"] != BatchEnd.FAILED:
            write_answers(open_lines(client, batch["output_file_id"]), options.output)
            write_lines(open_lines(client, batch["error_file_id"]), options.errors)
    except (KeyboardInterrupt, ClientError, OSError):
        print_message(
            f"\nThe batch {batch_id} goes on without this command. For its answers: the same command with {batch_id} in"
            f" place of the file. To end it: cancel {batch_id}"
        )
        raise
    refuse_failed(batch)
    counts = batch["request_counts"]
    if batch["status"] == BatchEnd.COMPLETED and not counts["failed"]:
        return 0
    print_message(f"It is {batch['status']}: {counts['completed']} of {counts['total']} lines have an answer.")
    return 1


def begin_batch(client: Client, options: argparse.Namespace) -> str:
    if not options.endpoint:
        raise ClientError("Name the --endpoint of the file's lines, such as /v1/embeddings.", code="bad_request")
    return str(client.create_batch(Path(options.source), options.endpoint, window=options.window)["id"])


def open_lines(client: Client, file_id: str | None) -> IO[bytes]:
    return client.open_file(file_id) if file_id else io.BytesIO()


def write_answers(answers: IO[bytes], path: Path | None) -> None:
    """Write answers over the file at a path, or to stdout. The file stays as it is if there are none."""
    with answers:
        if answers.read(1):
            answers.seek(0)
            write_lines(answers, path)


def write_lines(lines: IO[bytes], path: Path | None) -> None:
    """Write lines of the service over the file at a path, or to stdout."""
    with lines, path.open("wb") if path else contextlib.nullcontext(sys.stdout.buffer) as target:
        shutil.copyfileobj(lines, target)


def show_status(client: Client, options: argparse.Namespace) -> int:
    if options.id:
        print_line(client.look(options.id), indent=2)
        return 0
    ready = client.ready()
    rows: list[tuple[str, ...]] = [("model", "task", "workers", "queued", "items/s")]
    for model in client.models():
        served = model["served"]
        speed = served["items_per_s"]
        cells = (model["name"], model["task"], served["workers"], served["queued"], f"{speed:.1f}" if speed else "")
        rows.append(tuple(map(str, cells)))
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        sys.stdout.write("  ".join(map(str.ljust, row, widths)).rstrip() + "\n")
    for reason in ready["reasons"]:
        print_message(f"not ready: {reason}")
    return 0 if ready["ready"] else 1


def cancel_jobs(client: Client, options: argparse.Namespace) -> int:
    found = client.cancel(options.id)
    sys.stdout.write(f"{found['status'] if 'status' in found else found['counts']}\n")
    return 0


def print_line(value: object, indent: int | None = None) -> None:
    sys.stdout.buffer.write(json.dumps(value, ensure_ascii=False, indent=indent).encode() + b"\n")


def print_message(text: str) -> None:
    sys.stderr.write(f"{text}\n")


def find_advice(client: Client, error: Exception) -> str:
    """Return advice that the service cannot give, or an empty text."""
    code = getattr(error, "code", "")
    if code == "unauthorized":
        return "\nPut a key into the variable INFERENCE_API_KEY."
    if code in ("unreachable", "redirected", "no_answer"):
        return "\nName the service with --url or INFERENCE_URL."
    if code == "unknown_model":
        with contextlib.suppress(ClientError):
            return f"\nModels: {', '.join(model['name'] for model in client.models())}."
    return ""
