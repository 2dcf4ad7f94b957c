"""A real browser for the tests of pages: Chromium, driven over a pipe by its DevTools protocol."""

from __future__ import annotations

import base64
import json
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

NAMES = ("chromium", "chromium-browser", "google-chrome")
PATH = next((found for name in NAMES if (found := shutil.which(name))), None)
FLAGS = (
    "--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--no-first-run",
    "--disable-extensions", "--disable-background-networking", "--disable-dev-shm-usage",
    "--remote-debugging-pipe",
)  # fmt: skip


class Node(NamedTuple):
    """One thing on a page, as a screen reader has it."""

    role: str
    name: str
    properties: dict[str, Any]


class Browser:
    """One page in one browser."""

    def __init__(self, read: int, write: int) -> None:
        self._read, self._write, self._last = os.fdopen(read, "rb"), os.fdopen(write, "wb"), 0
        self.problems: list[str] = []  # errors, warnings and exceptions of the console
        self.requests: list[str] = []  # what the page asked the network for
        target = self._send("Target.createTarget", {"url": "about:blank"})["targetId"]
        given = {"targetId": target, "flatten": True}
        self._session = self._send("Target.attachToTarget", given)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network", "Accessibility"):
            self.call(f"{domain}.enable")

    def _send(self, method: str, given: dict[str, Any], session: str | None = None) -> Any:
        self._last += 1
        message = {"id": self._last, "method": method, "params": given}
        message |= {"sessionId": session} if session else {}
        self._write.write(json.dumps(message).encode() + b"\0")
        self._write.flush()
        while True:
            answer = self._receive()
            if answer.get("id") == self._last:
                assert "error" not in answer, answer
                return answer["result"]

    def _receive(self) -> Any:
        data = bytearray()
        while (byte := self._read.read(1)) != b"\0":
            assert byte, "the browser ended"
            data += byte
        message = json.loads(data)
        self._note(message.get("method", ""), message.get("params", {}))
        return message

    def _note(self, method: str, given: Any) -> None:
        if method == "Runtime.exceptionThrown":
            self.problems.append(str(given["exceptionDetails"]))
        elif method == "Runtime.consoleAPICalled" and given["type"] in ("error", "warning"):
            self.problems.append(str(given["args"]))
        elif method == "Log.entryAdded" and given["entry"]["level"] in ("error", "warning"):
            self.problems.append(given["entry"]["text"])
        elif method == "Network.requestWillBeSent":
            self.requests.append(given["request"]["url"])
        elif method == "Page.loadEventFired":
            self.loaded = True

    def call(self, method: str, **given: Any) -> Any:
        """The answer to one command of the protocol."""
        return self._send(method, given, self._session)

    def open(self, page: Path, *, width: int, dark: bool) -> None:
        """Opens a page in a window of this width."""
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=900,
                  deviceScaleFactor=1, mobile=width < 600)  # fmt: skip
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", features=[scheme])
        self.loaded = False
        self.call("Page.navigate", url=page.as_uri())
        while not self.loaded:
            self._receive()

    def evaluate(self, script: str) -> Any:
        """The value of a JavaScript expression in the page."""
        found = self.call("Runtime.evaluate", expression=script, returnByValue=True)
        assert "exceptionDetails" not in found, found
        return found["result"].get("value")

    def spoken(self) -> list[Node]:
        """What a screen reader finds, in its order: the nodes of the accessibility tree."""
        return [
            Node(
                node["role"]["value"], node.get("name", {}).get("value", "").strip(),
                {one["name"]: one["value"].get("value") for one in node.get("properties", ())},
            )
            for node in self.call("Accessibility.getFullAXTree")["nodes"] if not node["ignored"]
        ]  # fmt: skip

    def press(self, key: str) -> None:
        """A key, where the focus is."""
        code = {"windowsVirtualKeyCode": 9} if key == "Tab" else {}  # which the browser acts on
        for kind in ("rawKeyDown", "keyUp"):
            self.call("Input.dispatchKeyEvent", type=kind, key=key, **code)

    def screenshot(self, path: Path) -> None:
        """Writes the whole page as a picture."""
        found = self.call("Page.captureScreenshot", captureBeyondViewport=True)
        path.write_bytes(base64.b64decode(found["data"]))


@contextmanager
def browser() -> Iterator[Browser]:
    """A browser that ends with the block."""
    assert PATH is not None
    (their_read, our_write), (our_read, their_write) = os.pipe(), os.pipe()

    # The browser reads from 3 and writes to 4.
    script = f'exec "$0" "$@" 3<&{their_read} 4>&{their_write}'
    with tempfile.TemporaryDirectory() as profile:
        process = subprocess.Popen(
            ["bash", "-c", script, PATH, *FLAGS, f"--user-data-dir={profile}"],
            pass_fds=(their_read, their_write), stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )  # fmt: skip
        os.close(their_read)
        os.close(their_write)
        try:
            yield Browser(our_read, our_write)
        finally:
            process.kill()
            process.wait()
