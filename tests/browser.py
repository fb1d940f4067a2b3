"""A real headless Chromium, driven by the DevTools protocol over its own WebSocket.

Decides how the browser is started and asked; what a page must show is the test's. Needs nothing
but aiohttp and an installed Chromium (`SMARTGW_CHROMIUM` names another than the one in PATH).
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import signal
import time
from collections.abc import AsyncIterator
from typing import Any

from aiohttp import ClientSession, ClientWebSocketResponse

from tests.servers import Server, find_binary

FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-dev-shm-usage",
    "--remote-debugging-port=0",
)


class Chromium(Server):
    """One browser with an empty profile. Raises FileNotFoundError when none is installed."""

    def __init__(self) -> None:
        super().__init__()
        self.binary = find_binary("chromium", "SMARTGW_CHROMIUM")

    def command(self) -> list[str]:
        return [self.binary, *FLAGS, f"--user-data-dir={self.folder / 'profile'}", "about:blank"]

    def ready(self) -> bool:
        with contextlib.suppress(FileNotFoundError, ValueError):
            lines = (self.folder / "profile" / "DevToolsActivePort").read_text().splitlines()
            self.port = int(lines[0])
            return len(lines) > 1
        return False

    def kill(self) -> None:
        """End the browser with all its processes, which are a group of their own."""
        if self.running:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.pid, signal.SIGKILL)
        super().kill()

    @contextlib.asynccontextmanager
    async def page(self, url: str) -> AsyncIterator[Page]:
        """Open a page in a tab of its own."""
        async with ClientSession() as session:
            tabs = f"http://127.0.0.1:{self.port}/json"
            async with session.put(f"{tabs}/new?{url}") as response:
                tab = await response.json()
            async with session.ws_connect(tab["webSocketDebuggerUrl"], max_msg_size=0) as link:
                yield Page(link)


class Page:
    """One tab. Expressions run in the page itself."""

    def __init__(self, link: ClientWebSocketResponse) -> None:
        self._link = link
        self._numbers = itertools.count(1)

    async def command(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Send one DevTools command; its result. Raises RuntimeError for an error."""
        number = next(self._numbers)
        await self._link.send_json({"id": number, "method": method, "params": parameters})
        while True:
            message = await self._link.receive_json(timeout=10)
            if message.get("id") != number:
                continue  # an event
            if "error" in message:
                raise RuntimeError(f"{method}: {message['error']}")
            result: dict[str, Any] = message["result"]
            return result

    async def evaluate(self, expression: str) -> Any:
        """The value of a JavaScript expression. Raises RuntimeError when it throws."""
        result = await self.command(
            "Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True
        )
        if "exceptionDetails" in result:
            raise RuntimeError(f"{expression}: {result['exceptionDetails']}")
        return result["result"].get("value")

    async def until(self, expression: str, within: float = 10.0) -> Any:
        """The value of an expression once it is true. Raises TimeoutError with the page's text."""
        end = time.monotonic() + within
        while True:
            with contextlib.suppress(RuntimeError):
                if value := await self.evaluate(expression):
                    return value
            if time.monotonic() > end:
                text = await self.evaluate("document.documentElement.innerText")
                raise TimeoutError(f"never true: {expression}\n{text}")
            await asyncio.sleep(0.05)
