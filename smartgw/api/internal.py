"""The API of the internal listener: health, and control by services (contract 10.2, 11.3).

Owns what is served there, and that no web page can use it through a browser on this machine.
"""

import re
from collections.abc import Sequence
from ipaddress import ip_address

from aiohttp import web
from aiohttp.typedefs import Middleware

from smartgw.api.answers import ApiError, Handler, answer_errors
from smartgw.api.metering import Metering
from smartgw.api.operations import MAX_BODY, Bound, Guard, mount, refuse_methods


def build(
    bounds: Sequence[Bound], guard: Guard, metering: Metering, *, host: str = "localhost"
) -> web.Application:
    """The application of the internal listener; `host` is what it is called, if it has a name."""
    meter = metering.middleware(internal=True)
    application = web.Application(
        middlewares=[answer_errors, _no_web_page(host), meter, refuse_methods(bounds, guard)],
        client_max_size=MAX_BODY,
    )
    mount(application, bounds, guard)
    return application


def _no_web_page(host: str) -> Middleware:
    """Refuse what a page of another site has a browser send here (CSRF, DNS rebinding).

    Only browsers send `Origin`. A page whose site's name was turned to our address sends that name
    in `Host`; no site can be called by an IP address or localhost.
    """
    names = {"localhost", host.lower()}

    @web.middleware
    async def no_web_page(request: web.Request, handler: Handler) -> web.StreamResponse:
        if "Origin" in request.headers:
            raise ApiError(403, "foreign_origin", "the internal listener is not for web pages")
        for value in request.headers.getall("Host", ()):
            name = _hostname(value)
            if name not in names and not _is_ip(name):
                raise ApiError(
                    403, "foreign_host", "name the internal listener by its IP address or localhost"
                )
        return await handler(request)

    return no_web_page


def _hostname(host: str) -> str:
    bracketed = re.fullmatch(r"\[([^\]]*)\](?::[0-9]*)?", host)
    return bracketed[1] if bracketed else host.partition(":")[0].lower()


def _is_ip(text: str) -> bool:
    try:
        ip_address(text)
    except ValueError:
        return False
    return True
