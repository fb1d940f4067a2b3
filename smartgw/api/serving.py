"""How the API's applications are served: aiohttp, made to say of what is no request what all else
says (contract 10.3).

Owns that such an answer is JSON in the one form of an error, repeats nothing of the request, and
is no line of the log: whoever reaches the listener could fill a disk with it.
"""

import secrets
import socket

from aiohttp import web
from aiohttp.web_protocol import RequestHandler

from smartgw.api.answers import ApiError

# Above what the data path lets through, so that its bounds are the ones that hold.
_MOST_LINE = 65_536


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
