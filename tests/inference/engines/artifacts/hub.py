"""A model hub on the loopback: what `huggingface_hub` asks one repository for, and what it was asked."""

import hashlib
import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

COMMIT = "0123456789abcdef0123456789abcdef01234567"


class Hub:
    """Serves `files` as org/tiny; `with Hub(files) as hub` starts and stops it."""

    def __init__(self, files: dict[str, bytes]) -> None:
        self.files = files
        self.paths: list[str] = []
        self.server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self.url = f"http://127.0.0.1:{self.server.server_port}"

    def __enter__(self) -> "Hub":
        self.thread = threading.Thread(target=self.server.serve_forever, args=(0.05,))
        self.thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.server.shutdown()
        self.thread.join()
        self.server.server_close()

    def answer(self, path: str) -> tuple[int, bytes]:
        if path.startswith(f"/api/models/org/tiny/tree/{COMMIT}"):
            tree = [{"type": "file", "path": name, "size": len(body), "oid": name} for name, body in self.files.items()]
            return 200, json.dumps(tree).encode()
        if path.startswith(f"/api/models/org/tiny/revision/{COMMIT[:7]}"):
            siblings = [{"rfilename": name} for name in self.files]
            return 200, json.dumps({"id": "org/tiny", "sha": COMMIT, "siblings": siblings}).encode()
        name = path.removeprefix(f"/org/tiny/resolve/{COMMIT}/")
        return (200, self.files[name]) if name in self.files else (404, b"{}")

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        hub = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                path = self.path.partition("?")[0]
                hub.paths.append(path)
                status, body = hub.answer(path)
                self.send_response(status)
                self.send_header("Content-Length", str(len(body)))
                self.send_header("ETag", f'"{hashlib.sha1(body).hexdigest()}"')
                self.send_header("X-Repo-Commit", COMMIT)
                if status == 404:
                    self.send_header("X-Error-Code", "RepoNotFound" if "/api/" in path else "EntryNotFound")
                self.end_headers()
                if self.command == "GET":
                    self.wfile.write(body)

            do_HEAD = do_GET

            def log_message(self, format: str, *args: object) -> None:
                pass

        return Handler
