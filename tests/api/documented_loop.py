"""The loop of docs/reference/api.md that polls for an output, on Django's test client."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from django.conf import settings
from django.test import Client

TEXT = (Path(settings.BASE_DIR) / "docs" / "reference" / "api.md").read_text()
(CODE,) = re.findall(r"```python\n(def output.*?)```", TEXT, re.DOTALL)


def output_loop(time: Any) -> Callable[..., Any]:
    """`output(session, base, job_id)`, with `time` for the module of that name."""
    names: dict[str, Any] = {"time": time}
    exec(CODE, names)
    output: Callable[..., Any] = names["output"]
    return output


class Session:
    """As much of `requests.Session` as the loop needs."""

    def __init__(self, client: Client) -> None:
        self.client, self.calls = client, 0

    def get(self, url: str, **_: float) -> SimpleNamespace:
        self.calls += 1
        answer = self.client.get(url)

        def raise_for_status() -> None:
            if answer.status_code >= 400:
                raise ValueError(answer.json()["code"])

        return SimpleNamespace(
            status_code=answer.status_code, headers=answer.headers, json=answer.json, raise_for_status=raise_for_status
        )
