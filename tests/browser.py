"""A headless Chromium, spoken to over a pipe: pages as people see them, and what they complain of."""

from __future__ import annotations

import json
import os
import select
import shutil
import subprocess
import tempfile
from typing import Any

from tests.conditions import PATIENCE_S, eventually

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
WIDE, PHONE = (1360, 900), (390, 844)


class Browser:
    """One tab. `complaints` are console errors, exceptions and violations of a page's policy; `requests` all addresses
    that were asked for. Closes with its `with` block."""

    def __init__(self) -> None:
        self.complaints: list[str] = []
        self.requests: list[str] = []
        self._number = 0
        self._read = b""
        self._session = ""

    def __enter__(self) -> Browser:
        self._profile = tempfile.mkdtemp(prefix="chromium-")
        theirs_in, self._to = os.pipe()
        self._from, theirs_out = os.pipe()
        command = [
            str(CHROMIUM), "--headless=new", "--no-sandbox", "--disable-gpu", "--remote-debugging-pipe",
            "--disable-dev-shm-usage", "--disable-background-networking", "--hide-scrollbars",
            f"--user-data-dir={self._profile}",
        ]  # fmt: skip
        self._process = subprocess.Popen(
            ["bash", "-c", f'exec "$@" 3<&{theirs_in} 4>&{theirs_out}', "browser", *command],
            pass_fds=(theirs_in, theirs_out),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(theirs_in)
        os.close(theirs_out)
        target = self._call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self._call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self._call(f"{domain}.enable")
        self.show(WIDE)
        return self

    def __exit__(self, *error: object) -> None:
        self._process.kill()
        self._process.wait()
        os.close(self._to)
        os.close(self._from)
        shutil.rmtree(self._profile, ignore_errors=True)

    def log_in(self, url: str, cookie: str) -> None:
        """With the value of a session's cookie."""
        self._call("Network.setCookie", name="sessionid", value=cookie, url=url)

    def show(self, size: tuple[int, int], scheme: str = "light") -> None:
        width, height = size
        self._call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=size == PHONE,
        )
        self._call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])

    def move_to(self, zone: str) -> None:
        """Its clock shows the time of this zone."""
        self._call("Emulation.setTimezoneOverride", timezoneId=zone)

    def open(self, url: str) -> None:
        """Returns once all of the page is loaded."""
        self._expect_load(lambda: self._call("Page.navigate", url=url))

    def log_out(self) -> None:
        """By forgetting all cookies."""
        self._call("Network.clearBrowserCookies")

    def click(self, selector: str, text: str = "") -> None:
        """The first that has this text. It is to load another page."""
        found = f"Array.from(document.querySelectorAll({json.dumps(selector)}))"
        script = f"{found}.find((element) => element.innerText.includes({json.dumps(text)})).click()"
        self._expect_load(lambda: self.evaluate(script))

    def fill(self, **values: str) -> None:
        """The form's fields, by their names."""
        for name, value in values.items():
            self.evaluate(f"document.querySelector('[name={name}]').value = {json.dumps(value)}")

    def evaluate(self, script: str) -> Any:
        answer = self._call("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in answer:
            raise AssertionError(answer["exceptionDetails"])
        return answer["result"].get("value")

    def wait_for(self, script: str) -> None:
        """Until the script's value is true."""
        eventually(lambda: self.evaluate(script), script)

    def key(self, name: str) -> None:
        code = {"Tab": 9, "Enter": 13, "Escape": 27}[name]
        text = {"text": "\r"} if name == "Enter" else {}
        for kind in ("keyDown", "keyUp"):
            self._call("Input.dispatchKeyEvent", type=kind, key=name, code=name, windowsVirtualKeyCode=code, **text)

    def _expect_load(self, act: Any) -> None:
        """Until another document is there as a whole: that this one has loaded may be told of only now."""
        self.evaluate("window.isLeft = true")
        act()
        eventually(self._has_come, "the page is loaded")

    def _has_come(self) -> bool:
        try:
            return bool(self.evaluate("!window.isLeft && document.readyState === 'complete'"))
        except AssertionError:  # between two documents
            return False

    def _call(self, method: str, **params: Any) -> Any:
        self._number += 1
        number = self._number
        message: dict[str, Any] = {"id": number, "method": method, "params": params}
        if self._session:
            message["sessionId"] = self._session
        data = json.dumps(message).encode() + b"\0"
        while data:
            data = data[os.write(self._to, data) :]
        while True:
            for answer in self._listen():
                if answer.get("id") == number:
                    assert "error" not in answer, answer
                    return answer["result"]

    def _listen(self) -> list[dict[str, Any]]:
        """Wait for the next messages. Events are noted."""
        while b"\0" not in self._read:
            has_come, _, _ = select.select([self._from], [], [], PATIENCE_S)
            part = os.read(self._from, 1 << 20) if has_come else b""
            assert part, "the browser says no more"
            self._read += part
        *whole, self._read = self._read.split(b"\0")
        messages = [json.loads(message) for message in whole]
        for message in messages:
            self._note(message.get("method", ""), message.get("params", {}))
        return messages

    def _note(self, event: str, params: dict[str, Any]) -> None:
        match event:
            case "Network.requestWillBeSent":
                self.requests.append(params["request"]["url"])
            case "Log.entryAdded" if params["entry"]["level"] in ("error", "warning"):
                self.complaints.append(f"{params['entry']['text']} {params['entry'].get('url', '')}")
            case "Runtime.exceptionThrown":
                self.complaints.append(json.dumps(params["exceptionDetails"])[:500])
            case "Runtime.consoleAPICalled" if params["type"] in ("error", "assert"):
                self.complaints.append(json.dumps(params["args"])[:500])
