"""What would be done with a request, and why, without doing it (contract 10.4).

Owns the walk: the path's own parser, steps, limits, breakers and budget are asked, and nothing is
charged, counted, logged or sent. It answers in JSON values, since it may be asked from another
process.
"""

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, cast

from smartgw.errors import ANSWERS, REFUSED_MESSAGE, Reason
from smartgw.proxy.exchange import SAFE_METHODS, Exchange
from smartgw.proxy.path import UNLIMITED
from smartgw.routing import cors
from smartgw.routing.failover import Course, Outcome, Place, Then, owner_elsewhere
from smartgw_hosts.http1 import Bounds, MessageRefused, RequestHead, parse_request

if TYPE_CHECKING:
    from smartgw.proxy.exchange import Downstream
    from smartgw.proxy.path import Path
    from smartgw.routing.forwarding import Mark
    from smartgw.routing.snapshot import Route

MAX_HOSTS: Final = 50
"""Of the hosts that may serve it, so many are named."""


@dataclass(frozen=True, slots=True)
class Question:
    """A request that nobody has sent. `origin` is empty when no page sends it; an OPTIONS with one
    is a preflight.
    """

    host: str
    method: str
    client: str
    target: str
    origin: str


class _Nobody:
    """The downstream of a request that nobody has sent."""

    deadline = 0.0
    scheme = b"http"

    def __init__(self, client: str) -> None:
        self.peer = client

    def forwarding(self, request: RequestHead) -> tuple[str, bytes]:
        return self.peer, b""

    def mark(self, request: RequestHead, sent: bytes) -> "Mark | None":
        return None


class Explanation:
    """One answer while it is made."""

    def __init__(self, path: "Path", bounds: Bounds, question: Question, now: float) -> None:
        self._path = path
        self._bounds = bounds
        self._question = question
        self._now = now
        self._steps: list[dict[str, str]] = []
        self._found: dict[str, Any] = {
            "outcome": "refused",
            "status": None,
            "reason": None,
            "detail": "",
            "hostname": None,
            "app_id": None,
            "policy": None,
            "limit": None,
            "cors": None,
            "attempts": [],
        }

    def make(self) -> dict[str, Any]:
        """Return the answer: JSON values."""
        self._walk()
        return {**self._found, "steps": self._steps}

    def _walk(self) -> None:
        path = self._path
        try:
            request = parse_request(self._head(), path.request_names, self._bounds)
        except MessageRefused as refused:
            self._refuse("read", REFUSED_MESSAGE[refused.status], refused.reason)
            return
        nobody = cast("Downstream", _Nobody(self._question.client))
        patience = path.deadlines.response_head
        exchange = Exchange(nobody, request, self._now, patience)
        reason = path.identify(exchange)
        if exchange.hostname:
            self._found["hostname"] = exchange.hostname.decode()
            self._say("identify", f"the hostname is {self._found['hostname']}")
        if reason is None:
            reason = path.match(exchange)
        self._limit(exchange)
        route = exchange.route
        if reason is not None:
            if not self._is_full(exchange, reason):
                self._refuse("match", reason)
            return
        assert route is not None
        if route is path.own_route:
            self._say("match", "it is the gateway's own")
            if not self._is_full(exchange, None):
                self._found["outcome"] = "api"
            return
        self._match(route)
        path.preflight(exchange)
        if exchange.preflight is not None:
            self._say("preflight", "answered here, host up or not; free")
            self._found |= {"status": 204, "outcome": "preflight"}
            self._say("limit", self._used())
            return
        if self._is_full(exchange, None):
            return
        reason = path.bars(route, path.counters.in_flight)
        if reason is not None:
            self._refuse("admit", reason)
            return
        self._say("admit", "there is room")
        self._plan(exchange, route)

    def _head(self) -> bytes:
        """The request as it would come, but for what has no part in the decision."""
        asked = self._question
        lines = [f"{asked.method} {asked.target} HTTP/1.1", f"Host: {asked.host}"]
        if asked.origin:
            lines.append(f"Origin: {asked.origin}")
            if asked.method == "OPTIONS":
                lines.append("Access-Control-Request-Method: GET")
        return "\r\n".join(lines).encode()

    # ---- steps ----

    def _match(self, route: "Route") -> None:
        policy = route.policy
        self._found["app_id"] = route.app_id
        self._found["policy"] = {
            "state": policy.state.value,
            "origins": sorted(origin.decode() for origin in policy.origins),
            "own_cors": policy.own_cors,
            "limit": policy.limit,
        }
        if self._question.origin:
            allowed = cors.allows(policy, self._question.origin.encode())
            self._found["cors"] = {"origin": self._question.origin, "allowed": allowed}
        self._say("match", f"app {route.app_id}, {policy.state.value}")

    def _limit(self, exchange: Exchange) -> None:
        limit, used, seconds = self._path.limits.look(exchange.route, exchange.client)
        self._found["limit"] = {
            "client": exchange.client,
            "limit": limit,
            "used": used,
            "remaining": max(0, limit - used),
            "reset_seconds": round(seconds, 3),
        }

    def _used(self) -> str:
        return f"{self._found['limit']['used']} of {self._found['limit']['limit']} are used"

    def _is_full(self, exchange: Exchange, reason: Reason | None) -> bool:
        """Say whether the window is full, and then refuse: that comes before `reason`, which would
        be answered else, but for what is malformed.
        """
        limit = self._found["limit"]
        if reason in UNLIMITED or limit["remaining"] > 0:
            self._say("limit", self._used())
            return False
        limits, wait = self._path.limits, math.ceil(limit["reset_seconds"])
        detail = limits.detail(exchange.route, exchange.client, wait)
        self._refuse("limit", Reason.RATE_LIMITED, detail)
        self._steps[-1]["result"] = f"{self._used()}: {detail}"
        return True

    def _plan(self, exchange: Exchange, route: "Route") -> None:
        """Who would be asked, one after the other, were each out of reach."""
        path, view, now = self._path, self._path.view, self._now
        read = exchange.request.method in SAFE_METHODS
        attempts: list[dict[str, Any]] = self._found["attempts"]
        local = self._local(route)
        owner = owner_elsewhere(view, route.app_id) if view.peers else None
        if not view.peers:
            if route.hosts:
                attempts.append(local)
        else:
            total = path.deadlines.response_head
            failover = path.forwards.failover.apart()
            course = Course(failover, view, route.app_id, read=read, total=total)
            if owner is None:
                course.after_local(now + total, made=bool(route.hosts))
                if route.hosts:
                    attempts.append(local)
            else:
                begun = course.to_owner(owner, now + total, now, local=bool(route.hosts))
                if begun is not None:
                    attempts.append(self._at(begun.place, begun.cluster, local))
            first = Outcome.REFUSED if attempts else Outcome.NOTHING
            while course.attempt is not None and course.then(first) is Then.NEXT:
                course.end(first, now, spoke=False)
                following = course.next(now)
                if following is None:
                    break
                attempts.append(self._at(following.place, following.cluster, local))
                first = Outcome.REFUSED
        whose = "ours" if owner is None else f"{owner}'s"
        self._say("plan", f"the app is {whose} to serve" if view.peers else "there is one cluster")
        if not attempts:
            self._refuse("attempt", Reason.NO_UPSTREAM)
            return
        self._found["outcome"] = "forwarded" if attempts[0]["place"] != "local" else "served"

    def _local(self, route: "Route") -> dict[str, Any]:
        links = ((host, self._path.pools.link(host)) for host in route.hosts[:MAX_HOSTS])
        hosts = [
            {
                "host_id": host.host_id,
                "address": host.address,
                "weight": host.weight,
                "outstanding": link.outstanding,
                "suspect": link.suspect,
            }
            for host, link in links
        ]
        attempt = self._at(Place.LOCAL, self._path.cluster, {"hosts": hosts})
        return {**attempt, "hosts_total": len(route.hosts)}

    def _at(self, place: Place, cluster: str, local: dict[str, Any]) -> dict[str, Any]:
        if place is Place.LOCAL:
            return {"place": "local", "cluster": cluster, "set_aside": False, **local}
        aside = cluster in self._path.forwards.failover.aside()
        return {
            "place": place.name.lower(),
            "cluster": cluster,
            "set_aside": aside,
            "hosts": [],
            "hosts_total": None,
        }

    # ---- ends ----

    def _refuse(self, step: str, reason: Reason, detail: str = "") -> None:
        answer = ANSWERS[reason]
        self._say(step, detail or answer.text)
        self._found |= {
            "outcome": "refused",
            "status": answer.status,
            "reason": reason.value,
            "detail": detail or answer.text,
        }

    def _say(self, step: str, result: str) -> None:
        self._steps.append({"step": step, "result": result})
