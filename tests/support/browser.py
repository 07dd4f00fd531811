"""Driver of a headless Chromium through its debugging protocol.

The protocol uses two pipes (file descriptors 3 and 4 of the browser), so that only Debian's
package is needed: messages are JSON, each terminated by a zero byte.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import select
import shutil
import subprocess
import time
from functools import cache
from pathlib import Path
from typing import Any

_COMMANDS = ("chromium", "chromium-browser", "google-chrome")
_OPTIONS = (
    "--headless=new",
    # It may run as root in a container, without a sandbox and /dev/shm.
    "--no-sandbox",
    "--disable-dev-shm-usage",
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-extensions",
    "--disable-sync",
    "--hide-scrollbars",
    "--no-first-run",
    "--remote-debugging-pipe",
)
#: Key codes by names of KeyboardEvent.
_KEYS = {"Tab": 9, "Enter": 13, "Escape": 27, " ": 32, "End": 35, "Home": 36} | {
    f"Arrow{way}": 37 + number for number, way in enumerate(("Left", "Up", "Right", "Down"))
}


@cache
def find_browser() -> str | None:
    """Return the command of a Chromium, or `None`."""
    return next((found for name in _COMMANDS if (found := shutil.which(name))), None)


def no_browser() -> str | None:
    """Return the reason why there is no browser, or `None` if there is one."""
    return None if find_browser() else "no Chromium is installed (Debian's chromium)"


class Browser:
    """A browser; its pages share only the process."""

    def __init__(self, folder: Path, timeout: float = 60.0):
        command = find_browser()
        assert command is not None
        self.timeout = timeout
        self.events: list[dict[str, Any]] = []
        self._number = 0
        self._rest = b""
        to_read, self._write = os.pipe()
        self._read, to_write = os.pipe()
        # The browser expects them as 3 and 4, which either may be here: move them to numbers that
        # no step of the exchange overwrites.
        passed = [fcntl.fcntl(end, fcntl.F_DUPFD_CLOEXEC, 10) for end in (to_read, to_write)]
        script = f'exec "$@" 3<&{passed[0]} 4>&{passed[1]}'
        self.process = subprocess.Popen(
            ["bash", "-c", script, "bash", command, *_OPTIONS, f"--user-data-dir={folder}"],
            pass_fds=passed,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        for end in (to_read, to_write, *passed):
            os.close(end)

    def call(self, method: str, session: str | None = None, **params: Any) -> dict[str, Any]:
        """Call a method of the protocol and return its result."""
        self._number += 1
        message = {"id": self._number, "method": method, "params": params}
        if session is not None:
            message["sessionId"] = session
        content = json.dumps(message).encode() + b"\0"
        while content:
            content = content[os.write(self._write, content) :]
        while True:
            answer = self._message(time.monotonic() + self.timeout)
            if answer.get("id") == self._number:
                break
            self.events.append(answer)
        if "error" in answer:
            raise RuntimeError(f"{method}: {answer['error']['message']}")
        return answer["result"]

    def wait(self, method: str, session: str) -> dict[str, Any]:
        """Return the next event of a kind, or the first that arrived already."""
        deadline = time.monotonic() + self.timeout
        while True:
            for event in self.events:
                if event.get("method") == method and event.get("sessionId") == session:
                    self.events.remove(event)
                    return event["params"]
            self.events.append(self._message(deadline))

    def page(self) -> Page:
        """Return an empty page."""
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        found = self.call("Target.attachToTarget", targetId=target, flatten=True)
        return Page(self, target, found["sessionId"])

    def close(self) -> None:
        """End the browser."""
        with contextlib.suppress(OSError, RuntimeError):
            self.call("Browser.close")
        os.close(self._write)
        try:
            self.process.wait(10)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        os.close(self._read)

    def _message(self, deadline: float) -> dict[str, Any]:
        while b"\0" not in self._rest:
            ready, _, _ = select.select([self._read], [], [], max(0.0, deadline - time.monotonic()))
            if not ready:
                raise TimeoutError(f"the browser said nothing for {self.timeout:.0f} s")
            part = os.read(self._read, 1 << 20)
            if not part:
                raise RuntimeError("the browser ended")
            self._rest += part
        message, self._rest = self._rest.split(b"\0", 1)
        return json.loads(message)


class Page:
    """A page, with its network requests and its errors."""

    def __init__(self, browser: Browser, target: str, session: str):
        self.browser = browser
        self.target = target
        self.session = session
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **params: Any) -> dict[str, Any]:
        """Call a method of the protocol on this page."""
        return self.browser.call(method, self.session, **params)

    def open(
        self,
        path: Path,
        width: int = 1200,
        height: int = 900,
        theme: str = "light",
        media: str = "",
    ) -> None:
        """Load a file and wait until it is complete, for the screen or for ``print``."""
        self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=False,
        )
        feature = {"name": "prefers-color-scheme", "value": theme}
        self.call("Emulation.setEmulatedMedia", media=media, features=[feature])
        self.call("Page.navigate", url=path.resolve().as_uri())
        self.browser.wait("Page.loadEventFired", self.session)

    def run(self, script: str) -> Any:
        """Return the value of an expression in the page; promises are awaited."""
        answer = self.call(
            "Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True
        )
        if "exceptionDetails" in answer:
            raise RuntimeError(f"{script}: {answer['exceptionDetails']}")
        return answer["result"].get("value")

    def click(self, selector: str) -> None:
        """Click with the mouse on the middle of an element, even if something covers it."""
        x, y = self.run(
            f"(e => {{ e.scrollIntoView({{block: 'center'}}); const r = e.getBoundingClientRect();"
            f"return [r.x + r.width / 2, r.y + r.height / 2]; }})"
            f"(document.querySelector({json.dumps(selector)}))"
        )
        for kind in ("mousePressed", "mouseReleased"):
            self.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", clickCount=1)

    def choose(self, selector: str, value: str) -> None:
        """Choose an option of a list with the keyboard."""
        place = f"document.querySelector({json.dumps(selector)})"
        steps = self.run(
            f"(list => {{ list.focus(); return [...list.options].findIndex("
            f"one => one.value === {json.dumps(value)}) - list.selectedIndex; }})({place})"
        )
        for _ in range(abs(steps)):
            self.press("ArrowDown" if steps > 0 else "ArrowUp")
        assert self.run(f"{place}.value") == value

    def count(self, selector: str) -> int:
        """Return the number of elements."""
        return self.run(f"document.querySelectorAll({json.dumps(selector)}).length")

    def texts(self, selector: str) -> list[str]:
        """Return the texts of visible elements."""
        return self.run(
            f"[...document.querySelectorAll({json.dumps(selector)})]"
            ".filter(e => e.checkVisibility()).map(e => e.textContent)"
        )

    def wait_for(self, condition: str) -> None:
        """Wait for an expression: addresses, dialogs and unpacked texts change a moment later."""
        deadline = time.monotonic() + self.browser.timeout
        while not self.run(f"Boolean({condition})"):
            if time.monotonic() > deadline:
                raise TimeoutError(f"{condition} did not come true")
            time.sleep(0.01)

    def write(self, text: str) -> None:
        """Type into the focused element."""
        self.call("Input.insertText", text=text)

    def press(self, key: str) -> None:
        """Press and release a key, by its name in KeyboardEvent."""
        text = {"Enter": "\r", " ": " "}.get(key)
        about: dict[str, Any] = {"key": key, "windowsVirtualKeyCode": _KEYS[key]}
        down = {"text": text} if text else {}
        self.call(
            "Input.dispatchKeyEvent", type="keyDown" if text else "rawKeyDown", **down, **about
        )
        self.call("Input.dispatchKeyEvent", type="keyUp", **about)

    def complaints(self) -> list[str]:
        """Return errors and warnings of the console, exceptions, and rejected resources."""
        self.run("new Promise(done => setTimeout(done))")
        found = []
        for event in self._own():
            params = event["params"]
            match event["method"]:
                case "Runtime.exceptionThrown":
                    details = params["exceptionDetails"]
                    found.append(details.get("exception", {}).get("description", details["text"]))
                case "Runtime.consoleAPICalled" if params["type"] in ("error", "warning", "assert"):
                    found.append(str([a.get("value") for a in params["args"]]))
                case "Log.entryAdded":
                    found.append(params["entry"]["text"])
        return found

    def requests(self) -> list[str]:
        """Return the addresses that the page loaded."""
        sent = (e for e in self._own() if e["method"] == "Network.requestWillBeSent")
        return [event["params"]["request"]["url"] for event in sent]

    def close(self) -> None:
        """Close the page and drop its events."""
        self.browser.call("Target.closeTarget", targetId=self.target)
        self.browser.events[:] = [e for e in self.browser.events if e not in self._own()]

    def _own(self) -> list[dict[str, Any]]:
        return [e for e in self.browser.events if e.get("sessionId") == self.session]
