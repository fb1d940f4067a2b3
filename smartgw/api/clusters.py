"""What anybody may know of the clusters: the list in force, and who owns an app (4.3, 10.1).

Owns what is answered when there is no list. Hosts and other gateways read the very same answer,
so it says with Age how long ago the list was confirmed at its origin.
"""

import math
from collections.abc import Mapping

from aiohttp import web

from smartgw.api import models
from smartgw.api.answers import ApiError
from smartgw.api.gateway import Gateway
from smartgw.api.operations import Access, Bound, Call, Operation, Outcome, Reply
from smartgw.peers.directory import Mode
from smartgw_hosts.clusters import PATH, ClusterList
from smartgw_hosts.ids import check_app_id

CLUSTERS = Operation(
    "discover_clusters",
    "GET",
    PATH,
    "Clusters",
    "The list of clusters that is in force, and how old it is, in Age.",
    "discovery",
    Access.OPEN,
    (
        Outcome(200, "The list.", models.Clusters),
        Outcome(404, "This gateway has no directory of clusters.", models.Error),
        Outcome(503, "No list is in force: owners are unknown.", models.Error),
    ),
)
OWNER = Operation(
    "discover_owner",
    "GET",
    "/api/v3/discovery/owner",
    "The owner of an app",
    "The cluster that answers for an app when it can; any other passes requests on to it.",
    "discovery",
    Access.OPEN,
    (Outcome(200, "The owner, null when it is unknown.", models.Owner),),
    query=models.OwnerOf,
)


class Clusters:
    """`bounds` are the operations with what they do."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway
        self._made: tuple[ClusterList, bytes] | None = None
        self.bounds: tuple[Bound, ...] = ((CLUSTERS, self._clusters), (OWNER, self._owner))

    async def _clusters(self, call: Call) -> web.Response:
        directory = self._gateway.directory
        if directory is None or directory.view.mode is Mode.NONE:
            message = "this gateway has no directory of clusters; it serves one alone"
            raise ApiError(404, "no_directory", message)
        clusters, age = directory.view.clusters, directory.confirmed_ago
        if clusters is None or age is None:
            message = "no list of clusters is in force, so owners are unknown; ask again"
            raise ApiError(503, "directory_unknown", message, fields={"Retry-After": "5"})
        if self._made is None or self._made[0] is not clusters:
            self._made = clusters, clusters.text() + b"\n"
        fields: Mapping[str, str] = {"Age": str(math.ceil(age))}
        return web.Response(body=self._made[1], content_type="application/json", headers=fields)

    async def _owner(self, call: Call) -> Reply:
        query: models.OwnerOf = call.query
        try:
            app_id = check_app_id(query.app)
        except ValueError as error:
            raise ApiError(400, "bad_parameter", str(error), parameter="app") from None
        directory = self._gateway.directory
        view = None if directory is None else directory.view
        return Reply(
            models.Owner(
                app_id=app_id,
                owner=None if view is None else view.owner(app_id),
                epoch=None if view is None else view.epoch,
                mode="none" if view is None else view.mode.value,
            )
        )
