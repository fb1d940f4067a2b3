"""What a person sees: the demo page in a real browser, served through the gateway."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator

import pytest

from tests.browser import Chromium
from tests.gateway import BROWSER_DOMAIN, TABLE_SECONDS, Cluster, Gateway, seed_file
from tests.servers import Server


class DemoHost(Server):
    """One host of the demo: its app with the SDK in it."""

    def __init__(self, cluster: Cluster, host_id: str, app: str, gateway: Gateway) -> None:
        super().__init__()
        self.cluster, self.host_id, self.app, self.gateway = cluster, host_id, app, gateway
        self.key = seed_file(self.folder / "host.seed", host_id)

    def command(self) -> list[str]:
        return [
            *(sys.executable, "-m", "smartgw.demo.app", "--cluster", self.cluster.cluster_id),
            *("--host-id", self.host_id, "--key", str(self.key), "--app", self.app),
            *("--bus", self.cluster.nats.url, "--state", str(self.folder)),
        ]

    def ready(self) -> bool:
        return self.gateway.state(self.host_id) == "healthy"


@pytest.fixture
def demo_host(cluster: Cluster, gateway: Gateway) -> Iterator[DemoHost]:
    """A verified host of the demo app."""
    with DemoHost(cluster, cluster.new_host_id(), cluster.new_app("shop"), gateway) as host:
        time.sleep(TABLE_SECONDS)
        yield host


@pytest.fixture
def chromium() -> Iterator[Chromium]:
    """A browser; the test is skipped where none is installed."""
    try:
        browser = Chromium()
    except FileNotFoundError as error:
        pytest.skip(str(error))
    with browser:
        yield browser


async def test_demo_page_in_a_browser(
    gateway: Gateway, demo_host: DemoHost, chromium: Chromium
) -> None:
    """12.3: page, counter, server-sent events and WebSocket work in a browser, served by a verified
    host.
    """
    url = f"http://{demo_host.app}.{BROWSER_DOMAIN}:{gateway.port}/"
    async with chromium.page(url) as page:
        facts = await page.until("document.querySelector('dl')?.innerText")
        assert demo_host.host_id in facts
        assert "127.0.0.1" in facts
        assert await page.until("document.getElementById('sse-state').textContent == 'connected'")
        assert await page.until("document.querySelectorAll('#sse li').length >= 2")
        assert await page.until("document.getElementById('ws-state').textContent == 'connected'")
        await page.evaluate("document.getElementById('text').value = 'grüße'")
        await page.evaluate("document.getElementById('say').requestSubmit()")
        assert await page.until("document.querySelector('#ws li')?.textContent == 'echo: grüße'")
        await page.evaluate("document.getElementById('add').requestSubmit()")
        assert await page.until("document.getElementById('count').textContent == '1'")
        # chunked streaming up and down, and that nothing failed on the way
        fetched = "fetch('/bytes/3000000').then(r => r.arrayBuffer()).then(b => b.byteLength)"
        assert await page.evaluate(fetched) == 3_000_000


async def test_our_error_in_a_browser(gateway: Gateway, chromium: Chromium) -> None:
    """3.10: a browser gets a small page that names the reason and the request id."""
    url = f"http://nobody.{BROWSER_DOMAIN}:{gateway.port}/"
    async with chromium.page(url) as page:
        text = await page.until("document.body?.innerText")
        assert "unknown_host" in text
        assert await page.evaluate("document.contentType") == "text/html"
