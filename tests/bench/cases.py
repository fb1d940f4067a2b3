"""What is measured: the cases of the benchmark, their names (contract 12.7) and their requests.

Owns which requests are sent, how many at once and at which sizes. Does not send them (load.py)
and knows no proxy.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase

BASE_DOMAIN = "bench.test"
APP = "app"
HOSTNAME = f"{APP}.{BASE_DOMAIN}"
ECHO_APP = "ws"
ECHO_HOSTNAME = f"{ECHO_APP}.{BASE_DOMAIN}"

SIZES = {"/1k": 1 << 10, "/64k": 64 << 10, "/1m": 1 << 20}
"""What the upstream answers, by path; a POST to /post is read whole and answered with two bytes."""
POST_BYTES = 16 << 10
MESSAGE_BYTES = 125
"""Payload of a WebSocket message: the largest whose frame has the shortest head."""

_PLAIN = ("User-Agent: wrk", "Accept: */*")
_BROWSER = (
    'sec-ch-ua: "Chromium";v="130", "Google Chrome";v="130", "Not?A_Brand";v="99"',
    "sec-ch-ua-mobile: ?0",
    'sec-ch-ua-platform: "Linux"',
    "Upgrade-Insecure-Requests: 1",
    "User-Agent: Mozilla/5.0 (X11; Linux x86_64) AppleWebKit/537.36 (KHTML, like Gecko) "
    "Chrome/130.0.0.0 Safari/537.36",
    "Accept: text/html,application/xhtml+xml,application/xml;q=0.9,image/avif,image/webp,"
    "image/apng,*/*;q=0.8,application/signed-exchange;v=b3;q=0.7",
    "Sec-Fetch-Site: same-origin",
    "Sec-Fetch-Mode: navigate",
    "Sec-Fetch-User: ?1",
    "Sec-Fetch-Dest: document",
    f"Referer: http://{HOSTNAME}/dashboard",
    "Accept-Encoding: gzip, deflate, br, zstd",
    "Accept-Language: en-US,en;q=0.9",
    "Cookie: session=0123456789abcdef0123456789abcdef; theme=dark",
    "Cache-Control: max-age=0",
)


@dataclass(frozen=True, slots=True)
class Case:
    """One case: `connections` clients, each of which sends its next request when answered.

    `fields` are header lines, `body` is the size of a POST's. With `websocket` a request is one
    message and its echo.
    """

    name: str
    what: str
    connections: int
    path: str = "/1k"
    fields: tuple[str, ...] = _PLAIN
    body: int = 0
    websocket: bool = False


CASES = (
    Case("get-1k-c1", "GET 1 KiB, 1 connection", 1),
    Case("get-1k-c32", "GET 1 KiB, 32 connections", 32),
    Case("get-1k-c256", "GET 1 KiB, 256 connections", 256),
    Case("get-1k-browser-c32", "GET 1 KiB, a browser's header fields", 32, fields=_BROWSER),
    Case("get-64k-c32", "GET 64 KiB, 32 connections", 32, "/64k"),
    Case("get-1m-c8", "GET 1 MiB, 8 connections", 8, "/1m"),
    Case("post-16k-c32", "POST 16 KiB, 32 connections", 32, "/post", body=POST_BYTES),
    Case(
        "new-connections",
        "GET 1 KiB, each on a connection of its own, 32 at once",
        32,
        fields=(*_PLAIN, "Connection: close"),
    ),
    Case(
        "websocket-messages",
        f"a WebSocket message of {MESSAGE_BYTES} bytes and its echo, 32 connections",
        32,
        "/ws",
        websocket=True,
    ),
)

FORWARDED = ("get-1k-c1", "get-1k-c32", "get-64k-c32", "post-16k-c32")
"""The cases in which forwards to another cluster are measured."""

IDLE = "idle-keepalive"
IDLE_WHAT = "memory of an idle keep-alive connection"

HOT_HOSTS = 10
MOST_APPS = 1000  # of one announcement


@dataclass(frozen=True, slots=True)
class Crowd:
    """A case in which a proxy knows many hostnames, asked with GET 1 KiB at 32 connections.

    `routes` hostnames lead to `hosts` hosts. Requests go in turn to the `asked` hostnames of
    `HOT_HOSTS` of them, so that the connections to hosts are as many in each of these cases.
    """

    name: str
    what: str
    routes: int
    hosts: int

    @property
    def apps(self) -> tuple[tuple[str, ...], ...]:
        """The app ids of each host; the hot hosts come first and have the most."""
        hot = min(MOST_APPS, self.routes // HOT_HOSTS)
        counts = [hot] * HOT_HOSTS
        cold = self.hosts - HOT_HOSTS
        left = self.routes - hot * HOT_HOSTS
        if cold:
            counts += [left // cold + (number < left % cold) for number in range(cold)]
        ids = (f"app-{number}" for number in range(self.routes))
        return tuple(tuple(next(ids) for _ in range(count)) for count in counts)

    @property
    def hostnames(self) -> list[str]:
        """Every hostname that is known."""
        return [f"app-{number}.{BASE_DOMAIN}" for number in range(self.routes)]

    @property
    def asked(self) -> list[str]:
        """The hostnames that requests go to."""
        return [f"{app}.{BASE_DOMAIN}" for apps in self.apps[:HOT_HOSTS] for app in apps]


FEW = Crowd("many-routes-10", "10 routes to 10 hosts", 10, 10)
MANY = Crowd("many-routes-100000", "100,000 routes to 1,000 hosts", 100_000, 1_000)
MANY_HOSTS = Crowd("many-hosts-100000", "100,000 routes to 90,010 hosts", 100_000, 90_010)
CROWDS = (FEW, MANY, MANY_HOSTS)
NAMES = (*(case.name for case in CASES), IDLE, *(crowd.name for crowd in CROWDS))


def chosen(words: Sequence[str], names: Sequence[str]) -> tuple[str, ...]:
    """Those of `names` that one of `words` names, as it stands or as a pattern with `*`."""
    return tuple(name for name in names if any(fnmatchcase(name, word) for word in words))
