"""A browser to look at pages with: headless Chromium over a pipe, spoken to in the DevTools protocol."""

import base64
import json
import os
import select
import shutil
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any

NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome", "chromium-headless-shell")


def find() -> str | None:
    """The path of a Chromium, if there is one."""
    return next((path for name in NAMES if (path := shutil.which(name))), None)


class Browser:
    """One page of a headless browser; a context manager. The protocol's messages end with a zero byte."""

    def __init__(self, executable: str, timeout: float = 30.0):
        self.executable, self.timeout = executable, timeout
        self.messages: list[dict[str, Any]] = []  # events that have come so far
        self._buffer, self._number, self._session = b"", 0, None

    def __enter__(self) -> "Browser":
        self._profile = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
        read_commands, self._write = os.pipe()
        self._read, write_answers = os.pipe()

        def as_three_and_four() -> None:  # where the browser looks for its pipe
            commands, answers = os.dup(read_commands), os.dup(write_answers)
            os.dup2(commands, 3)
            os.dup2(answers, 4)

        flags = ["--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run"]
        flags += ["--disable-background-networking", "--disable-component-update", "--remote-debugging-pipe"]
        self._process = subprocess.Popen(
            [self.executable, *flags, f"--user-data-dir={self._profile.name}", "about:blank"],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            close_fds=False,
            preexec_fn=as_three_and_four,
        )
        os.close(read_commands)
        os.close(write_answers)
        pages = [t for t in self.call("Target.getTargets")["targetInfos"] if t["type"] == "page"]
        target = pages[0]["targetId"] if pages else self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")
        return self

    def __exit__(self, *_: object) -> None:
        self._process.terminate()
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        os.close(self._write)
        os.close(self._read)
        self._profile.cleanup()

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """The result of a command."""
        self._number += 1
        message: dict[str, Any] = {"id": self._number, "method": method, "params": parameters}
        if self._session is not None:
            message["sessionId"] = self._session
        os.write(self._write, json.dumps(message).encode() + b"\0")
        number = self._number
        answer = self._wait(lambda m: m.get("id") == number, method)
        if "error" in answer:
            raise RuntimeError(f"{method}: {answer['error']}")
        return answer["result"]

    def open(self, path: Path, width: int, height: int = 900, scheme: str = "light") -> None:
        """Show a file in a window of this size, in a light or dark scheme, and wait until it is loaded."""
        self.call(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=width < 500
        )
        features = [{"name": "prefers-color-scheme", "value": scheme}]
        self.call("Emulation.setEmulatedMedia", features=features)
        self.messages.clear()
        self.call("Page.navigate", url=path.resolve().as_uri())
        self._wait(lambda m: m.get("method") == "Page.loadEventFired", "load")

    def evaluate(self, expression: str) -> Any:
        """The value of a JavaScript expression on the page, which needs no scripts of its own for that."""
        result = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in result:
            raise RuntimeError(f"{expression}: {result['exceptionDetails']}")
        return result["result"].get("value")

    def complaints(self) -> list[str]:
        """What the console holds, and what scripts threw, since the page was opened."""
        self.evaluate("new Promise(done => setTimeout(done, 50))")  # for what comes late
        kinds = ("Log.entryAdded", "Runtime.consoleAPICalled", "Runtime.exceptionThrown")
        return [json.dumps(m["params"]) for m in self.messages if m.get("method") in kinds]

    def requests(self) -> list[str]:
        """The addresses that were asked for since the page was opened, but for data inside the page."""
        sent = [m["params"]["request"]["url"] for m in self.messages if m.get("method") == "Network.requestWillBeSent"]
        return [url for url in sent if not url.startswith("data:")]

    def screenshot(self, path: Path) -> None:
        """The whole page as a PNG."""
        size = self.call("Page.getLayoutMetrics")["cssContentSize"]
        clip = {"x": 0, "y": 0, "width": size["width"], "height": size["height"], "scale": 1}
        picture = self.call("Page.captureScreenshot", captureBeyondViewport=True, clip=clip)["data"]
        path.write_bytes(base64.b64decode(picture))

    def _wait(self, wanted: Any, what: str) -> dict[str, Any]:
        seen, end = len(self.messages), time.monotonic() + self.timeout
        while True:
            for message in self.messages[seen:]:
                seen += 1
                if wanted(message):
                    return message
            if not select.select([self._read], [], [], max(0.0, end - time.monotonic()))[0]:
                raise TimeoutError(f"the browser did not answer {what} within {self.timeout} s.")
            received = os.read(self._read, 1 << 20)
            if not received:
                raise RuntimeError(
                    f"the browser ended before it answered {what}; its exit code: {self._process.poll()}."
                )
            *whole, self._buffer = (self._buffer + received).split(b"\0")
            self.messages += [json.loads(part) for part in whole]
