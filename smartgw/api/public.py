"""The API on the gateway's own hostnames (contract 3.3, 10.2).

Owns nothing but that it is served on a Unix socket of the gateway's own, to which the data path
carries requests as to any app: so its bounds, deadlines and log are those of traffic.
"""

from collections.abc import Sequence

from aiohttp import web

from smartgw.api.answers import answer_errors
from smartgw.api.metering import Metering
from smartgw.api.operations import MAX_BODY, Bound, Guard, mount, refuse_methods


def build(bounds: Sequence[Bound], guard: Guard, metering: Metering) -> web.Application:
    """The application of the gateway's own hostnames."""
    meter = metering.middleware(internal=False)
    application = web.Application(
        middlewares=[answer_errors, meter, refuse_methods(bounds, guard)],
        client_max_size=MAX_BODY,
    )
    mount(application, bounds, guard)
    return application
