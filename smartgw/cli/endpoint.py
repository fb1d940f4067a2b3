"""How a command asks a running gateway: by the internal API of its internal listener.

Owns which one is asked when none is named, how long, and what is said when nothing answers. What
an answer means is the command's.
"""

import http.client
import json
from collections.abc import Mapping
from typing import Any

DEFAULT_ENDPOINT = "127.0.0.1:9080"
ENDPOINT_VARIABLE = "SMARTGW_ENDPOINT"
TIMEOUT = 5.0


class Unreachable(Exception):
    """The internal listener did not answer, or not as one; the text has a remedy."""


def ask(
    endpoint: str, path: str, body: Mapping[str, object] | None = None
) -> tuple[int, dict[str, Any]]:
    """GET `path` at `endpoint`, or POST `body` to it; return the status and the JSON object.

    Raises Unreachable when nothing there answers as a gateway does.
    """
    method, data, fields = "GET", None, {}
    if body is not None:
        method, data = "POST", json.dumps(body)
        fields = {"Content-Type": "application/json"}
    connection = None
    try:
        connection = http.client.HTTPConnection(endpoint, timeout=TIMEOUT)
        connection.request(method, path, data, fields)
        response = connection.getresponse()
        answer = json.loads(response.read())
    except (OSError, ValueError, http.client.HTTPException) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else error
        raise Unreachable(
            f"no gateway answers at {endpoint} ({reason}); "
            "start one, or name its internal listener with --endpoint HOST:PORT"
        ) from None
    finally:
        if connection is not None:
            connection.close()
    if not isinstance(answer, dict):
        raise Unreachable(
            f"{endpoint} answered {path} with {response.status}; "
            "name the internal listener of a gateway with --endpoint HOST:PORT"
        )
    return response.status, answer
