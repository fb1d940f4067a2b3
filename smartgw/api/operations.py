"""One operation of the API: its words, who may call it, and what is done before it is (10.1, 10.3).

Owns the order: who calls, then what is asked, then the rest; and the bounds on a request: one JSON
object of a known form, of 64 KiB, with no parameter that is not known. What an operation does is
its handler's. From the same values openapi.py makes the description.
"""

import asyncio
import json
import re
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Final
from urllib.parse import quote, unquote_to_bytes

from aiohttp import web
from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from smartgw.api.answers import LEFT, REQUEST_ID, ApiError, BadBody, Handler, unauthorized
from smartgw.api.credentials import Credentials
from smartgw.api.service_rates import ServiceRates
from smartgw.api.tokens import Caller, Role
from smartgw_hosts.strict_json import parse_object

MAX_BODY: Final = 64 << 10
BODY_SECONDS: Final = 30.0
"""For a whole body to arrive, and more for one that may be large."""
_SLOWEST: Final = 256 << 10
"""Bytes a second at which a large body may come."""
_REFUSED_AFTER: Final = 0.005
"""Seconds from a request's head to its 401: longer than the longest look at a credential takes."""
_ENCODED = re.compile("(?:[^%]|%[0-9A-Fa-f]{2})*")
CALLER = web.RequestKey("caller", Caller)
"""On the request of somebody who may call."""


class Access(StrEnum):
    """Who may call."""

    OPEN = "open"
    SIGNED_IN = "signed_in"
    SERVICE = "service"


@dataclass(frozen=True, slots=True)
class Outcome:
    """One status that an operation may answer with, besides those that follow of its form."""

    status: int
    text: str
    model: type[BaseModel] | None = None


@dataclass(frozen=True, slots=True)
class Operation:
    """What the description says of an operation.

    Attributes:
        path: with `{name}` for a segment that is a parameter.
        query, body: models of what may be sent; `body` is JSON.
        outcomes: the first is that of success.
        versioned: answers carry an ETag; requests may carry If-Match or If-None-Match.
        media_type: of a success that is not JSON.
        takes: media type of a body that is not JSON but bytes, at most `most` of them.
        metered: it charges its callers itself (contract 8.5).
    """

    name: str
    method: str
    path: str
    summary: str
    text: str
    tag: str
    access: Access
    outcomes: tuple[Outcome, ...]
    query: type[BaseModel] | None = None
    body: type[BaseModel] | None = None
    versioned: bool = False
    media_type: str = "application/json"
    takes: str | None = None
    most: int = MAX_BODY
    metered: bool = False

    @property
    def parameters(self) -> tuple[str, ...]:
        """The names of the path's parameters."""
        return tuple(re.findall(r"{(\w+)}", self.path))


@dataclass(frozen=True, slots=True)
class Call:
    """One request for an operation that may be answered.

    Attributes:
        caller: None where anybody may call.
        path: the path's parameters, decoded. `query`, `body`: what the operation's models made;
            `body` is bytes where the operation takes no JSON.
    """

    request: web.Request
    caller: Caller | None
    path: Mapping[str, str]
    query: Any
    body: Any

    @property
    def request_id(self) -> str:
        return self.request[REQUEST_ID]

    @property
    def service(self) -> Caller:
        """Who calls an operation for services."""
        assert self.caller is not None
        return self.caller


@dataclass(frozen=True, slots=True)
class Reply:
    """An answer: a model or JSON value, None for no body. `etag` without quotes."""

    body: Any = None
    status: int = 200
    etag: str | None = None
    fields: Mapping[str, str] = field(default_factory=dict)


Do = Callable[[Call], Awaitable[Reply | web.Response]]
Bound = tuple[Operation, Do]


class Guard:
    """Lets the right callers in at one listener. `internal`: the operator of the machine, too."""

    def __init__(self, credentials: Credentials, rates: ServiceRates, *, internal: bool) -> None:
        self._credentials = credentials
        self._rates = rates
        self._internal = internal

    async def admit(
        self, request: web.Request, access: Access, *, metered: bool = False
    ) -> Caller | None:
        """Return who calls. Raises ApiError, the same for everybody who may not.

        `metered`: whoever it is is charged later.
        """
        if access is Access.OPEN:
            self.notice(request)
            return None
        loop = asyncio.get_running_loop()
        begun = loop.time()
        fields = request.headers.getall("Authorization", ())
        if access is Access.SERVICE:
            caller = await self._credentials.service(fields, internal=self._internal)
        elif self._internal and self._credentials.operator.holds(fields):
            caller = self._credentials.operator.caller
        else:
            caller = await self._credentials.caller(fields)
        if caller is None:
            # What was wrong is looked for in different places; all are told at the same time.
            await asyncio.sleep(begun + _REFUSED_AFTER - loop.time())
            raise unauthorized(self._challenge(), sessions=access is Access.SIGNED_IN)
        request[CALLER] = caller
        if caller.role is Role.SERVICE and not metered:
            request[LEFT], refused = self._rates.charge(caller)
            if refused is not None:
                raise refused
        return caller

    def notice(self, request: web.Request) -> None:
        """Charge a service to its own window where anybody is answered, and refuse nobody.

        Without this a service would be refused for what others at its address ask (6.2). One
        whose own window is full is anybody. Internally no address has a window.
        """
        fields = request.headers.getall("Authorization", ())
        if self._internal or not fields:
            return
        caller = self._credentials.known(fields)
        if caller is not None and caller.role is Role.SERVICE:
            left, refused = self._rates.charge(caller)
            if refused is None:
                request[LEFT] = left

    def _challenge(self) -> str:
        path = self._credentials.operator.path
        if not self._internal or path is None:
            return 'Bearer realm="smartgw"'
        # Where a command of this machine finds its token.
        return f'Bearer realm="smartgw", operator="{quote(str(path))}"'


def mount(application: web.Application, bounds: Sequence[Bound], guard: Guard) -> None:
    """Add operations to an application, which must have `refuse_methods` among its middlewares."""
    for operation, do in bounds:
        handler = _handler(operation, do, guard)
        for method in (
            (operation.method, "HEAD") if operation.method == "GET" else (operation.method,)
        ):
            application.router.add_route(method, operation.path, handler)


def refuse_methods(bounds: Sequence[Bound], guard: Guard) -> Any:
    """Who may not call a path is not told either by which methods it can be called.

    What is nowhere is nowhere for everybody, but a service is charged as one.
    """
    paths = [
        (re.compile(re.sub(r"{\w+}", "[^/]+", operation.path)), operation)
        for operation, _ in bounds
    ]

    @web.middleware
    async def known_methods(request: web.Request, handler: Handler) -> web.StreamResponse:
        try:
            return await handler(request)
        except web.HTTPNotFound:
            guard.notice(request)
            raise
        except web.HTTPMethodNotAllowed:
            for path, operation in paths:
                if path.fullmatch(request.rel_url.raw_path):
                    await guard.admit(request, operation.access, metered=operation.metered)
                    break
            raise

    return known_methods


def _handler(operation: Operation, do: Do, guard: Guard) -> Handler:
    async def handle(request: web.Request) -> web.StreamResponse:
        caller = await guard.admit(request, operation.access, metered=operation.metered)
        query = None if operation.query is None else _query(operation.query, request)
        if operation.query is None:
            for name, _ in _parameters(request):
                raise _no_parameter(name)
        path = _path(operation, request)
        body: object = None
        if operation.takes is not None:
            body = await _bytes(operation.takes, operation.most, request)
        elif operation.body is not None:
            body = await _body(operation.body, request)
        reply = await do(Call(request, caller, path, query, body))
        return reply if isinstance(reply, web.Response) else _response(reply)

    return handle


def _response(reply: Reply) -> web.Response:
    body = reply.body
    if body is None:
        response = web.Response(status=reply.status)
    else:
        text = body.model_dump_json() if isinstance(body, BaseModel) else _compact(body)
        response = web.Response(
            status=reply.status, body=text.encode() + b"\n", content_type="application/json"
        )
    response.headers.update(reply.fields)
    if reply.etag is not None:
        response.headers["ETag"] = f'"{reply.etag}"'
    return response


def _compact(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False)


def _path(operation: Operation, request: web.Request) -> dict[str, str]:
    """Return the path's parameters, decoded once and strictly."""
    found: dict[str, str] = {}
    segments = request.rel_url.raw_path.split("/")
    for pattern, segment in zip(operation.path.split("/"), segments, strict=True):
        if pattern.startswith("{"):
            found[pattern[1:-1]] = _decoded(segment, pattern[1:-1])
    return found


def _decoded(text: str, name: str) -> str:
    """Return what was percent-encoded (RFC 3986 2.1), so that no value has two spellings but for
    characters that need no encoding. Raises ApiError, which names the parameter.
    """
    try:
        if not _ENCODED.fullmatch(text):
            raise ValueError("a % that begins nothing")
        return unquote_to_bytes(text).decode("utf-8")
    except ValueError:
        message = f"{name} is not UTF-8, percent-encoded; %25 is a %"
        raise ApiError(400, "bad_parameter", message, parameter=name) from None


def _parameters(request: web.Request) -> Iterator[tuple[str, str]]:
    """Return name and value of each parameter of the query, in the form of a web form."""
    for part in request.rel_url.raw_query_string.split("&"):
        if part:
            name, _, value = part.replace("+", " ").partition("=")
            shown = ascii(name[:60])[1:-1]
            yield _decoded(name, shown), _decoded(value, shown)


def _query(model: type[BaseModel], request: web.Request) -> BaseModel:
    values: dict[str, str] = {}
    for name, value in _parameters(request):
        if name not in model.model_fields:
            raise _no_parameter(name)
        if name in values:
            message = f"{name} stands there twice; write it once"
            raise ApiError(400, "bad_parameter", message, parameter=name)
        values[name] = value
    try:
        return model.model_validate(values)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        name = str(first["loc"][0]) if first["loc"] else ""
        message = f"{name}: {_sentence(first)}"
        raise ApiError(400, "bad_parameter", message, parameter=name) from None


def _no_parameter(name: str) -> ApiError:
    shown = ascii(name if len(name) <= 60 else f"{name[:56]}...")
    return ApiError(400, "bad_parameter", f"{shown} is no parameter here", parameter=name[:60])


async def _body(model: type[BaseModel], request: web.Request) -> BaseModel:
    if request.content_type != "application/json" or request.charset not in (None, "utf-8"):
        # A form of any web page can send all that a browser does not ask us about first.
        raise ApiError(415, "bad_content_type", "send Content-Type: application/json")
    if "Content-Encoding" in request.headers:
        raise ApiError(415, "bad_content_type", "send the body without Content-Encoding")
    data = await _read(request, MAX_BODY)
    try:
        parse_object(data)
        return model.model_validate_json(data, strict=True)
    except ValidationError as error:
        found = error.errors(include_url=False)
        raise BadBody(*((_pointer(fault["loc"]), _sentence(fault)) for fault in found)) from None
    except ValueError as error:
        raise ApiError(
            400, "bad_body", f"the body is no JSON object: {error}", pointer=""
        ) from None


async def _bytes(media_type: str, most: int, request: web.Request) -> bytes:
    if request.content_type != media_type:
        raise ApiError(415, "bad_content_type", f"send Content-Type: {media_type}")
    if "Content-Encoding" in request.headers:
        raise ApiError(415, "bad_content_type", "send the body without Content-Encoding")
    return await _read(request, most)


async def _read(request: web.Request, most: int) -> bytes:
    """Return the whole body. Raises ApiError, also where the rest of it never comes."""
    data = bytearray()
    seconds = BODY_SECONDS + most // _SLOWEST
    try:
        async with asyncio.timeout(seconds):
            async for some in request.content.iter_any():
                data += some
                if len(data) > most:
                    raise ApiError(413, "body_too_large", f"send at most {most} bytes")
    except (ConnectionError, TimeoutError, web.RequestPayloadError):
        message = f"the body did not come whole within {seconds:g} s"
        raise ApiError(400, "bad_body", message, pointer="") from None
    return bytes(data)


def _pointer(location: Sequence[int | str]) -> str:
    """Return a JSON pointer (RFC 6901)."""
    if len(location) > 2 and location[-1] == "[key]":
        # The name of a member is wrong, and that is where it stands.
        location = location[:-1]
    parts = (str(part).replace("~", "~0").replace("/", "~1") for part in location)
    return "".join(f"/{part[:80]}" for part in parts)


def _sentence(fault: ErrorDetails) -> str:
    text = fault["msg"].removeprefix("Value error, ")
    return f"{text[:1].lower()}{text[1:]}"
