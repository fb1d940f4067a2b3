"""A service that speaks to real gateways through their own hostname, for black-box tests."""

from __future__ import annotations

import json
from typing import Any
from urllib.parse import urlencode

from tests.gateway import Gateway
from tests.raw_http import Answer
from tests.smartgw.api import issuing


class Service:
    """Calls the API of a gateway, on the public listener unless told otherwise."""

    def __init__(self, gateway: Gateway) -> None:
        self.gateway = gateway
        self.token = issuing.token(exp=1 << 34)

    def call(self, method: str, path: str, body: object = None, *fields: str) -> Answer:
        """The answer to one call."""
        sent = [f"Authorization: Bearer {self.token}", *fields]
        data = b""
        if body is not None:
            data = json.dumps(body).encode()
            sent.append("Content-Type: application/json")
        return self.gateway.ask(issuing.API, path, method, *sent, body=data)

    def put(self, app_id: str, **members: Any) -> dict[str, Any]:
        """Register an app, or replace what was decided about it."""
        answer = self.call("PUT", f"/api/v3/apps/{app_id}", members)
        assert answer.status in (200, 201), answer.body
        app: dict[str, Any] = json.loads(answer.body)
        return app

    def explain(self, host: str, **asked: str) -> dict[str, Any]:
        """What the gateway would do."""
        answer = self.call("GET", f"/api/v3/explain?{urlencode({'host': host, **asked})}")
        assert answer.status == 200, answer.body
        found: dict[str, Any] = json.loads(answer.body)
        return found


def reason(answer: Answer) -> str | None:
    """The reason of an error of ours; None of any other answer."""
    try:
        return str(json.loads(answer.body)["error"]["reason"])
    except (ValueError, LookupError, TypeError):
        return None
