"""The public API on the gateway's own hostnames: health and hosts in brief (contract 3.3, 10.1).

Owns what anybody may read. It is served on a Unix socket of the gateway's own, and the data path
carries requests to it as to any app.
"""

from collections.abc import Sequence

from aiohttp import web

from smartgw.api.internal import Gateway, answer_errors, json_response


def build(gateway: Gateway) -> web.Application:
    """The application of the gateway's own hostnames."""

    async def healthz(request: web.Request) -> web.Response:
        return json_response({"status": "alive"})

    async def hosts(request: web.Request) -> web.Response:
        listed: Sequence[dict[str, object]] = [
            {"host_id": host.host_id, "state": str(host.state), "region": host.region}
            for host in gateway.hosts()
        ]
        return json_response({"hosts": listed})

    application = web.Application(middlewares=[answer_errors], client_max_size=64 << 10)
    application.router.add_get("/healthz", healthz)
    application.router.add_get("/api/v3/discovery/hosts", hosts)
    return application
