"""Models to write pages about, and a headless Chromium to look at them with.

The browser is spoken to over its debugging pipe, which takes no package beyond the standard library.
"""

import base64
import dataclasses
import fcntl
import json
import os
import select
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tammes.report import Subject, inspect

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
FLAGS = ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run")


START = "import os, sys; i, o, *w = sys.argv[1:]; os.dup2(int(i), 3); os.dup2(int(o), 4); os.execv(w[0], w)"
"""The browser reads commands from file descriptor 3 and answers on 4."""


def pipe() -> tuple[int, int]:
    """Both ends, at numbers that are not in the way of 3 and 4."""
    ends = os.pipe()
    read_end, write_end = (fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, 10) for fd in ends)
    for fd in ends:
        os.close(fd)
    return read_end, write_end


def installed() -> str | None:
    """The path of a browser, None where there is none."""
    return next(filter(None, map(shutil.which, NAMES)), None)


class Browser:
    """One page in a browser; what it writes to the console and what it asks of the network is kept."""

    def __init__(self, program: str, profile: Path) -> None:
        self.complaints: list[str] = []
        self.requests: list[str] = []
        self.count, self.session, self.buffer = 0, "", b""
        theirs_in, self.write_end = pipe()
        self.read_end, theirs_out = pipe()
        words = [program, *FLAGS, f"--user-data-dir={profile}", "--remote-debugging-pipe", "about:blank"]
        self.process = subprocess.Popen(
            [sys.executable, "-c", START, str(theirs_in), str(theirs_out), *words],
            pass_fds=(theirs_in, theirs_out),
            stderr=subprocess.DEVNULL,
        )
        os.close(theirs_in)
        os.close(theirs_out)
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self.session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """What the browser answers to a command of its protocol."""
        self.count += 1
        message: dict[str, Any] = {"id": self.count, "method": method, "params": parameters}
        if self.session:
            message["sessionId"] = self.session
        os.write(self.write_end, json.dumps(message).encode() + b"\0")
        while True:
            answer = self.receive()
            if answer.get("id") == self.count:
                assert "error" not in answer, answer
                return answer["result"]

    def receive(self, timeout: float = 60.0) -> dict[str, Any]:
        """The next message, an event or an answer."""
        deadline = time.monotonic() + timeout
        while b"\0" not in self.buffer:
            ready, _, _ = select.select([self.read_end], [], [], max(0.0, deadline - time.monotonic()))
            assert ready, f"the browser has said nothing for {timeout} s"
            part = os.read(self.read_end, 1 << 20)
            assert part, "the browser has gone"
            self.buffer += part
        text, _, self.buffer = self.buffer.partition(b"\0")
        message = json.loads(text)
        self._note(message)
        return message

    def _note(self, message: dict[str, Any]) -> None:
        method, values = message.get("method"), message.get("params", {})
        if method == "Runtime.exceptionThrown":
            self.complaints.append(json.dumps(values["exceptionDetails"]))
        elif method == "Runtime.consoleAPICalled" and values["type"] in ("error", "warning", "assert"):
            self.complaints.append(json.dumps(values["args"]))
        elif method == "Log.entryAdded":
            self.complaints.append(values["entry"]["text"])
        elif method == "Network.requestWillBeSent":
            self.requests.append(values["request"]["url"])

    def open(self, path: Path, *, width: int, height: int = 900, phone: bool = False) -> None:
        """Load a file at a size of the window."""
        self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=phone,
        )
        self.call("Page.navigate", url=path.resolve().as_uri())
        while self.receive().get("method") != "Page.loadEventFired":
            pass

    def run(self, expression: str) -> Any:
        """The value of a JavaScript expression, of a promise when it is kept."""
        answer = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in answer, answer
        return answer["result"].get("value")

    def point_at(self, selector: str) -> None:
        """Move the mouse to the middle of the first element that matches."""
        left, top, width, height = self.bring(selector)
        self.move(left + width / 2, top + height / 2)

    def bring(self, selector: str) -> list[float]:
        """Scroll the first element that matches into the window; its left, top, width and height there."""
        return self.run(
            f"(async () => {{ const e = document.querySelector({json.dumps(selector)}); e.scrollIntoView("
            "{block: 'center'}); for (const _ of [1, 2]) await new Promise(requestAnimationFrame); "
            "const b = e.getBoundingClientRect(); return [b.left, b.top, b.width, b.height]; })()"
        )

    def move(self, x: float, y: float) -> None:
        """Move the mouse to a place of the window."""
        self.call("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)

    def screenshot(self, path: Path) -> None:
        """The whole page as a PNG file."""
        found = self.call("Page.captureScreenshot", format="png", captureBeyondViewport=True)
        path.write_bytes(base64.b64decode(found["data"]))

    def pdf(self) -> bytes:
        """The page as it prints."""
        return base64.b64decode(self.call("Page.printToPDF")["data"])

    def close(self) -> None:
        os.close(self.write_end)  # the browser ends when its pipe does
        try:
            self.process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            self.process.kill()
        os.close(self.read_end)


@pytest.fixture(scope="session")
def browser(tmp_path_factory):
    program = installed()
    if program is None:
        pytest.skip(f"there is no browser here: none of {', '.join(NAMES)}")
    browser = Browser(program, tmp_path_factory.mktemp("profile"))
    yield browser
    browser.close()


@pytest.fixture
def flat(monkeypatch):
    """A map without t-SNE, which takes seconds."""
    monkeypatch.setattr("tammes.report.sample_map.project", lambda points: points[:, :2])


def clusters(k: int, d: int, n: int, *, noise: float = 0.4, seed: int = 0) -> tuple[np.ndarray, ...]:
    """Embeddings around k random prototypes, their labels, and the prototypes."""
    rng = np.random.default_rng(seed)
    prototypes = rng.normal(size=(k, d)) / np.sqrt(d)
    labels = np.arange(n) % k
    return prototypes[labels] + rng.normal(0, noise / np.sqrt(d), (n, d)), labels, prototypes


@pytest.fixture
def make():
    """Arrays of a model: `make(k, d, n)`."""
    return clusters


@pytest.fixture
def trained():
    """Two models with a history and a record, as runs have them."""
    return [_trained("runs/a", 0.9, 1), _trained("runs/b", 0.5, 2)]


def _trained(name: str, noise: float, seed: int) -> Subject:
    embeddings, labels, prototypes = clusters(6, 8, 120, noise=noise, seed=seed)
    found = inspect(embeddings, labels, prototypes, classes=[f"kind {j}" for j in range(6)], name=name)
    epochs = [dict(found.numbers) | {"epoch": e, "loss": 1 / (e + 1)} for e in range(5)]
    config = {"objective": "NormFace(s=10)", "seed": seed}
    record = {"config": config, "date": "2024-05-01", "seconds": 3.5, "machine": {"device": "cpu"}}
    return dataclasses.replace(found, data="stripes", epochs=epochs, record=record)
