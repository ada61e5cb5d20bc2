"""A real Chromium without a window, spoken to over a pipe (Chrome DevTools Protocol): no driver and no socket.

Its profile is a temporary directory. Network is switched off for every page.
"""

from __future__ import annotations

import base64
import fcntl
import itertools
import json
import os
import select
import shutil
import signal
import tempfile
import time
from pathlib import Path
from typing import Any

import pytest

from waiting import HANG

COMMAND = shutil.which("chromium")
"""The browser, as CI has it; None where there is none."""
needs_chromium = pytest.mark.skipif(COMMAND is None, reason="needs chromium: apt install chromium")
_ALARMS = ("Runtime.exceptionThrown", "Log.entryAdded", "Audits.issueAdded", "Page.javascriptDialogOpening")
_KEYS = {"Enter": "\r", " ": " "}


class Chromium:
    """A browser with one page.

    Attributes:
        events: every event of the protocol since the page was opened.
    """

    def __init__(self) -> None:
        assert COMMAND, "there is no chromium"
        self._profile = tempfile.TemporaryDirectory(prefix="opscope-chromium-", ignore_cleanup_errors=True)
        answers, its_output = _high(os.pipe())
        its_input, commands = _high(os.pipe())
        arguments = [
            COMMAND,
            "--headless=new",
            "--remote-debugging-pipe",
            f"--user-data-dir={self._profile.name}",
            *"--no-sandbox --disable-gpu --hide-scrollbars --no-first-run --disable-extensions".split(),
            *"--disable-background-networking --disable-component-update --disable-sync about:blank".split(),
        ]
        ends = [(os.POSIX_SPAWN_DUP2, its_input, 3), (os.POSIX_SPAWN_DUP2, its_output, 4)]
        quiet = [(os.POSIX_SPAWN_OPEN, end, os.devnull, os.O_WRONLY, 0) for end in (1, 2)]
        self._process = os.posix_spawn(COMMAND, arguments, dict(os.environ), file_actions=ends + quiet)
        os.close(its_input)
        os.close(its_output)
        self._commands, self._answers, self._rest = commands, answers, b""
        self._numbers = itertools.count(1)
        self._session: str | None = None
        self.events: list[dict[str, Any]] = []
        self._attach()

    def _attach(self) -> None:
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network", "Audits"):
            self.call(f"{domain}.enable")
        self._leave_network()
        self.call("Page.setLifecycleEventsEnabled", enabled=True)

    def _leave_network(self) -> None:
        conditions = {"latency": 0, "downloadThroughput": -1, "uploadThroughput": -1}
        self.call("Network.emulateNetworkConditions", offline=True, **conditions)

    def call(self, method: str, **parameters: object) -> dict[str, Any]:
        """Answer of one command; events that come before it are kept."""
        number = next(self._numbers)
        message = {"id": number, "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
        _write(self._commands, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._next()
            if answer.get("id") == number:
                assert "error" not in answer, f"{method}: {answer['error']}"
                return answer["result"]
            self._keep(answer)

    def open(self, path: Path, *, scripts: bool = True) -> None:
        """Load a file and wait until it is loaded and drawn."""
        self.call("Emulation.setScriptExecutionDisabled", value=not scripts)
        self.events.clear()
        self.call("Page.navigate", url=path.resolve().as_uri())
        self._wait("Page.loadEventFired")
        self._leave_network()  # a page in a process of its own does not know of it

    def alarms(self) -> list[dict[str, Any]]:
        """Errors on the console, violations of a policy, dialogs: what a sound page never causes."""
        self.value("0")  # all events before the answer have come
        loud = [event for event in self.events if event["method"] in _ALARMS]
        console = [event for event in self.events if event["method"] == "Runtime.consoleAPICalled"]
        return loud + console

    def requests(self) -> list[str]:
        """Addresses that the page asked for, its own among them."""
        sent = [event for event in self.events if event["method"] == "Network.requestWillBeSent"]
        return [event["params"]["request"]["url"] for event in sent]

    def value(self, expression: str) -> Any:
        """Value of an expression in the page; it works where the page's own scripts may not run."""
        answer = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    def click(self, selector: str) -> None:
        """Click in the middle of the first element of a selector, with the mouse."""
        place = self.value(
            f"(() => {{ const e = document.querySelector({json.dumps(selector)});"
            " e.scrollIntoView({block: 'center'});"
            " const r = e.getBoundingClientRect(); return [r.x + r.width / 2, r.y + r.height / 2]; })()"
        )
        for kind in ("mousePressed", "mouseReleased"):
            self.call("Input.dispatchMouseEvent", type=kind, x=place[0], y=place[1], button="left", clickCount=1)

    def focus(self, selector: str) -> None:
        """Give the keyboard to the first element of a selector."""
        self.value(f"document.querySelector({json.dumps(selector)}).focus()")

    def press(self, key: str) -> None:
        """Press and release a key by its name: ``Enter``, ``Tab``, ``ArrowRight``."""
        codes = {"Enter": 13, "Tab": 9, "Escape": 27, " ": 32, "ArrowLeft": 37, "ArrowUp": 38, "ArrowRight": 39}
        code = codes.get(key, 40 if key == "ArrowDown" else 0)
        text = {"text": _KEYS[key]} if key in _KEYS else {}
        self.call("Input.dispatchKeyEvent", type="keyDown", key=key, code=key, windowsVirtualKeyCode=code, **text)
        self.call("Input.dispatchKeyEvent", type="keyUp", key=key, code=key, windowsVirtualKeyCode=code)

    def type(self, text: str) -> None:
        """Type into what has the keyboard."""
        self.call("Input.insertText", text=text)

    def view(self, width: int, height: int, scheme: str = "light", media: str = "screen") -> None:
        """Size of the window, colour scheme, and ``screen`` or ``print``."""
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)
        features = [{"name": "prefers-color-scheme", "value": scheme}]
        self.call("Emulation.setEmulatedMedia", media=media, features=features)

    def picture(self, path: Path, *, whole: bool = False) -> None:
        """Write what is shown, or the whole page, as PNG."""
        if whole:  # parts outside of the window are else not drawn
            self.value("document.querySelectorAll('.part').forEach((p) => { p.style.contentVisibility = 'visible' })")
        answer = self.call("Page.captureScreenshot", captureBeyondViewport=whole)
        path.write_bytes(base64.b64decode(answer["data"]))

    def pdf(self) -> bytes:
        """The page as it is printed."""
        self.call("Emulation.setEmulatedMedia", media="", features=[])
        return base64.b64decode(self.call("Page.printToPDF", preferCSSPageSize=True, printBackground=False)["data"])

    def close(self) -> None:
        """End the browser and remove its profile."""
        self._session = None
        self.call("Browser.close")
        deadline = time.monotonic() + HANG
        while os.waitpid(self._process, os.WNOHANG) == (0, 0):
            if time.monotonic() > deadline:
                os.kill(self._process, signal.SIGKILL)
            time.sleep(0.02)
        os.close(self._commands)
        os.close(self._answers)
        self._profile.cleanup()

    def _wait(self, method: str) -> None:
        while all(event["method"] != method for event in self.events):
            self._keep(self._next())

    def _keep(self, message: dict[str, Any]) -> None:
        if "method" in message:
            self.events.append(message)

    def _next(self) -> dict[str, Any]:
        while b"\0" not in self._rest:
            ready, _, _ = select.select([self._answers], [], [], HANG)
            assert ready, f"chromium has said nothing for {HANG} s"
            more = os.read(self._answers, 1 << 20)
            assert more, "chromium has ended"
            self._rest += more
        text, _, self._rest = self._rest.partition(b"\0")
        return json.loads(text)


def _high(ends: tuple[int, int]) -> tuple[int, int]:
    """Both ends of a pipe as descriptors that cannot be 3 or 4, which are the browser's."""
    high = tuple(fcntl.fcntl(end, fcntl.F_DUPFD_CLOEXEC, 10) for end in ends)
    for end in ends:
        os.close(end)
    return high[0], high[1]


def _write(end: int, data: bytes) -> None:
    while data:
        data = data[os.write(end, data) :]
