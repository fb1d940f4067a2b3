"""What every answer of the API has in common: JSON, and one form of an error (contract 10.3).

Owns that form, the fields that each answer carries, and that a refusal of credentials is the same
to the byte whatever was wrong with them (10.1). Knows no route.
"""

import json
import logging
import re
import secrets
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from aiohttp import web

from smartgw.api.models import MAX_FAULTS
from smartgw.proxy.headers import is_request_id

_log = logging.getLogger(__name__)

MAX_PAGE = 1000
DEFAULT_PAGE = 100

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
REQUEST_ID = web.RequestKey("request_id", str)
"""Where a request's id is, for whoever writes a log."""


@dataclass(frozen=True, slots=True)
class Left:
    """What an answer tells of windows that the API has charged itself (contract 6.2, 8.5).

    `caller`: for the data path, which gives the unit of a `service` back. `fields`: of the answer.
    """

    caller: str
    fields: Mapping[str, str]


LEFT = web.RequestKey("left", Left)
"""On a request that the API has charged to windows of its own."""


class ApiError(Exception):
    """An answer that is an error: its status, a reason of a closed set and a sentence.

    `pointer` is the JSON pointer (RFC 6901) of the member of the body that is wrong, `parameter`
    the part of the address or the header field; `more` is added to the error, `fields` to the
    answer's header.
    """

    def __init__(
        self,
        status: int,
        reason: str,
        message: str,
        *,
        pointer: str | None = None,
        parameter: str | None = None,
        more: Mapping[str, object] | None = None,
        fields: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.reason = reason
        self.message = message
        self.fields = dict(fields or {})
        self.members: dict[str, object] = {"status": status, "reason": reason, "message": message}
        if pointer is not None:
            self.members["pointer"] = pointer
        if parameter is not None:
            self.members["parameter"] = parameter
        self.members.update(more or {})

    def saying(self, message: str) -> "ApiError":
        """The same in other words."""
        self.message = self.members["message"] = message
        return self

    def response(self, request_id: str) -> web.Response:
        """The answer; its body names the request, but for a 401, which is the same for all."""
        named = {} if self.status == 401 else {"request_id": request_id}
        answer = json_response({"error": {**self.members, **named}}, status=self.status)
        answer.headers.update(self.fields)
        return answer


Fault = tuple[str, str]
"""What is wrong with a body: JSON pointer (RFC 6901) of the member, "" for the whole, and why."""


class BadBody(ApiError):
    """The refusal of a body for all these faults, one at least; `MAX_FAULTS` of them are told."""

    def __init__(self, *faults: Fault) -> None:
        pointer, sentence = faults[0]
        told = [{"pointer": where, "message": why} for where, why in faults[:MAX_FAULTS]]
        super().__init__(
            *(400, "bad_body", f"{pointer or 'the body'}: {sentence}"),
            pointer=pointer,
            more={"faults": told} if len(told) > 1 else None,
        )
        self.faults = faults


class Faults:
    """Gathers what is wrong with a body, so that whoever wrote it hears of all at once.

    `with` it for each part that is read by itself, then `tell`.
    """

    def __init__(self) -> None:
        self._found: list[Fault] = []

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: object, trace: object) -> bool:
        if isinstance(error, BadBody):
            self._found += error.faults
        return isinstance(error, BadBody)

    def tell(self) -> None:
        """Raise BadBody, if anything is wrong."""
        if self._found:
            raise BadBody(*self._found)


def unauthorized(challenge: str, *, sessions: bool = False) -> ApiError:
    """The refusal of whoever is not known, or may not: 401 with one body; RFC 6750 3.

    `sessions`: those of signed-in people would do, too.
    """
    message = f"this needs the credential of a {'session or a ' if sessions else ''}service"
    return ApiError(401, "unauthorized", message, fields={"WWW-Authenticate": challenge})


@web.middleware
async def answer_errors(request: web.Request, handler: Handler) -> web.StreamResponse:
    given = request.headers.get("X-Request-Id", "")
    request_id = (
        given if is_request_id(given.encode(errors="surrogateescape")) else secrets.token_hex(16)
    )
    request[REQUEST_ID] = request_id
    response: web.StreamResponse
    try:
        response = await handler(request)
    except ApiError as error:
        response = error.response(request_id)
    except web.HTTPMethodNotAllowed as error:
        allowed = error.headers["Allow"]
        message = f"{request.path} is for {allowed}"
        refusal = ApiError(405, "method_not_allowed", message, fields={"Allow": allowed})
        response = refusal.response(request_id)
    except web.HTTPException as error:
        reason = "not_found" if error.status == 404 else "bad_request"
        message = f"nothing at {request.path}"
        response = ApiError(error.status, reason, message).response(request_id)
    except Exception:
        _log.exception("API: %s %s failed", request.method, request.path)
        message = "the gateway failed to answer; its log says why"
        response = ApiError(500, "internal_error", message).response(request_id)
    response.headers["X-Request-Id"] = request_id
    if LEFT in request:
        left = request[LEFT]
        # For the data path, which charges callers of our hostnames, and drops the field.
        response.headers["X-Smartgw-Caller"] = left.caller
        response.headers.update(left.fields)
    response.headers.setdefault("Cache-Control", "no-store")
    response.headers["X-Content-Type-Options"] = "nosniff"
    response.headers["Server"] = "smartgw"
    return response


def page_limit(text: str | None) -> int:
    """How many a page has, by the query's `limit`. Raises ApiError."""
    if text is None:
        return DEFAULT_PAGE
    if re.fullmatch(r"[0-9]{1,4}", text) and 1 <= int(text) <= MAX_PAGE:
        return int(text)
    message = f"limit must be a number from 1 to {MAX_PAGE}"
    raise ApiError(400, "bad_parameter", message, parameter="limit")


def json_response(value: Any, *, status: int = 200) -> web.Response:
    return json_body(json.dumps(value, separators=(",", ":")) + "\n", status=status)


def json_body(text: str, *, status: int = 200) -> web.Response:
    """An answer of JSON that is made already, in ASCII."""
    return web.Response(status=status, body=text.encode("ascii"), content_type="application/json")


def rfc3339(unix: float) -> str:
    """Unix seconds as the API writes them: UTC, milliseconds."""
    text = datetime.fromtimestamp(unix, UTC).isoformat(timespec="milliseconds")
    return text.removesuffix("+00:00") + "Z"
