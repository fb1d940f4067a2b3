"""How the API's applications are served: aiohttp, made to say of what is no request what all else
says (contract 10.3).

Owns that such an answer is JSON in the one form of an error, repeats nothing of the request, and
is no line of the log: whoever reaches the listener could fill a disk with it. A request of a method
that nobody knows is one all the same, and is refused as any other (10.1).
"""

import re
import secrets
import socket
from typing import Final

from aiohttp import web
from aiohttp.base_protocol import BaseProtocol
from aiohttp.http_exceptions import BadHttpMethod, HttpProcessingError
from aiohttp.http_parser import HttpRequestParser, RawRequestMessage
from aiohttp.streams import EMPTY_PAYLOAD
from aiohttp.web_protocol import RequestHandler

from smartgw.api.answers import ApiError

# Above what the data path lets through, so that its bounds are the ones that hold.
_MOST_LINE = 65_536
# RFC 9110 5.6.2, 9.1; longer ones are no method but an attempt.
_METHOD: Final = re.compile(rb"([!#$%&'*+.^_`|~0-9A-Za-z-]{1,32}) /")
_OF_OPERATIONS: Final = frozenset(("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"))
_STAND_IN: Final = b"SEARCH"
"""A method that the parser knows and no operation has."""


class Runner(web.AppRunner):
    """An application that can be served at sockets; `cleanup()` ends it."""

    def __init__(self, application: web.Application) -> None:
        super().__init__(
            application,
            access_log=None,
            shutdown_timeout=1.0,
            max_line_size=_MOST_LINE,
            max_field_size=_MOST_LINE,
            # No operation takes a body with an encoding, and what is no such body is no fault.
            auto_decompress=False,
        )

    async def _make_server(self) -> web.Server:
        server = await super()._make_server()
        server.__class__ = _Server
        return server


async def serve_on(application: web.Application, sock: socket.socket) -> Runner:
    """Listen on a socket that is bound, which stays the caller's; `cleanup()` ends it."""
    runner = Runner(application)
    await runner.setup()
    await web.SockSite(runner, sock.dup()).start()
    return runner


class _Server(web.Server):
    def __call__(self) -> RequestHandler:
        return _Connection(self, loop=self._loop, **self._kwargs)


class _Connection(RequestHandler):
    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self._messages and isinstance(
            getattr(self._messages[-1][0], "exc", None), BadHttpMethod
        ):
            found = self._of_another_method(data)
            if found is not None:
                self._messages[-1] = (found, EMPTY_PAYLOAD)

    def _of_another_method(self, data: bytes) -> RawRequestMessage | None:
        """Return the request, if it is one but for its method. It is the connection's last, and
        there is nothing that it can do: no operation has that method.
        """
        method, end = _METHOD.match(data), data.find(b"\r\n\r\n")
        if method is None or end < 0 or method[1].decode() in _OF_OPERATIONS:
            return None
        parser = HttpRequestParser(
            BaseProtocol(self._loop),
            self._loop,
            _MOST_LINE,
            max_line_size=_MOST_LINE,
            max_field_size=_MOST_LINE,
            max_headers=self.max_headers,
        )
        try:
            messages, _, _ = parser.feed_data(_STAND_IN + data[method.end(1) : end + 4])
        except HttpProcessingError:
            return None
        if not messages:
            return None
        message: RawRequestMessage = messages[0][0]
        return message._replace(method=method[1].decode(), should_close=True)

    def handle_error(
        self,
        request: web.BaseRequest,
        status: int = 500,
        exc: BaseException | None = None,
        message: str | None = None,
    ) -> web.StreamResponse:
        if status >= 500:
            # A fault of ours: told in the log, as middlewares tell theirs.
            return super().handle_error(request, status, exc, message)
        error = ApiError(status, "bad_request", "what was sent is no HTTP request that is taken")
        request_id = secrets.token_hex(16)
        response = error.response(request_id)
        response.headers.update(
            {"X-Request-Id": request_id, "Cache-Control": "no-store", "Server": "smartgw"}
        )
        response.force_close()
        return response
