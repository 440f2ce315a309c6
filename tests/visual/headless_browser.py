"""A headless Chromium for tests, spoken to in its DevTools protocol over a pipe: no driver, no network, no package."""

import base64
import json
import os
import select
import shutil
import subprocess
import time
from pathlib import Path
from typing import Any

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome", "chrome"))), None)
SOFTWARE_GL = ("--use-angle=swiftshader", "--enable-unsafe-swiftshader")
PATIENCE = 120  # seconds for an answer; a loaded machine starts a browser slowly


class Browser:
    """One page of a browser. ``errors`` gathers what the page throws or logs as an error."""

    def __init__(self, profile: Path, options: tuple[str, ...] = SOFTWARE_GL):
        to_browser, self._out = os.pipe()
        self._in, from_browser = os.pipe()
        self.errors: list[str] = []
        self._rest, self._number, self._session = b"", 0, None

        def as_3_and_4() -> None:  # the descriptors that --remote-debugging-pipe reads from and writes to
            ends = os.dup(to_browser), os.dup(from_browser)
            os.dup2(ends[0], 3)
            os.dup2(ends[1], 4)

        command = [CHROMIUM, "--headless", "--no-sandbox", "--remote-debugging-pipe", f"--user-data-dir={profile}"]
        silent = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        command += [*options, "--window-size=1000,700"]
        self._process = subprocess.Popen(command, preexec_fn=as_3_and_4, close_fds=False, **silent)
        os.close(to_browser)
        os.close(from_browser)
        page = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=page, flatten=True)["sessionId"]
        for domain in ("Runtime", "Log", "Page"):
            self.call(f"{domain}.enable")

    def __enter__(self) -> "Browser":
        return self

    def __exit__(self, *_: object) -> None:
        self._process.terminate()
        self._process.wait(timeout=PATIENCE)
        os.close(self._in)
        os.close(self._out)

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Send a command and wait for its result."""
        self._number += 1
        message: dict[str, Any] = {"id": self._number, "method": method, "params": parameters}
        if self._session is not None:
            message["sessionId"] = self._session
        os.write(self._out, json.dumps(message).encode() + b"\0")
        while (answer := self._read()).get("id") != self._number:
            self._note(answer)
        assert "error" not in answer, f"{method}: {answer['error']}"
        return answer["result"]

    def _read(self) -> dict[str, Any]:
        end = time.monotonic() + PATIENCE
        while b"\0" not in self._rest:
            ready, _, _ = select.select([self._in], [], [], max(end - time.monotonic(), 0))
            assert ready, "the browser does not answer"
            part = os.read(self._in, 1 << 20)
            assert part, f"the browser ended with status {self._process.wait(timeout=PATIENCE)}"
            self._rest += part
        message, _, self._rest = self._rest.partition(b"\0")
        return json.loads(message)

    def _note(self, event: dict[str, Any]) -> None:
        content = event.get("params", {})
        if event.get("method") == "Runtime.exceptionThrown":
            self.errors.append(json.dumps(content["exceptionDetails"]))
        elif event.get("method") == "Log.entryAdded" and content["entry"]["level"] == "error":
            self.errors.append(content["entry"]["text"])
        elif event.get("method") == "Runtime.consoleAPICalled" and content["type"] in ("error", "assert"):
            self.errors.append(json.dumps(content["args"]))

    def open(self, path: Path, fragment: str = "") -> None:
        """Load a file and wait until it is there."""
        address = path.as_uri() + fragment
        self.call("Page.navigate", url=address)
        end = time.monotonic() + PATIENCE
        while self.run("location.href") != address or self.run("document.readyState") != "complete":
            assert time.monotonic() < end, f"{path} does not load"
            time.sleep(0.05)

    def run(self, script: str) -> Any:
        """The value of an expression in the page; of a promise what it comes to."""
        options = {"returnByValue": True, "awaitPromise": True}
        answer = self.call("Runtime.evaluate", expression=script, **options)
        assert "exceptionDetails" not in answer, f"{script}: {answer['exceptionDetails']}"
        return answer["result"].get("value")

    def mouse(self, kind: str, x: float, y: float, **more: Any) -> None:
        """``mousePressed``, ``mouseMoved``, ``mouseReleased`` or ``mouseWheel`` at a place in pixels."""
        self.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, **more)

    def screenshot(self, path: Path) -> Path:
        """The page as PNG."""
        path.write_bytes(base64.b64decode(self.call("Page.captureScreenshot", format="png")["data"]))
        return path
