"""Control of apps and enrolments (contract 10.1, 1.4, 3.3, 3.4, 3.9).

Owns the operations and the JSON of the two kinds. How a change is made is records.py's, what a
record may be smartgw.state.records'.
"""

from collections.abc import Callable
from typing import Any

from smartgw.api import models
from smartgw.api.answers import ApiError, rfc3339
from smartgw.api.audit import Audit
from smartgw.api.operations import Access, Bound, Call, Operation, Outcome, Reply
from smartgw.api.records import Records, bad_field, etag_of, updated_at
from smartgw.state.desired import Desired, Stored
from smartgw.state.durable import DurableState
from smartgw.state.names import canonical_hostname
from smartgw.state.records import (
    App,
    FieldError,
    Kind,
    app_key,
    check_enrolment,
    enrolment_key,
    register,
)
from smartgw_hosts.enrolment import Enrolment
from smartgw_hosts.identity import PublicKey
from smartgw_hosts.ids import check_app_id, check_id

_AWAY = Outcome(503, "The state is not known, or the change cannot be stored now.", models.Error)
_TAKEN = Outcome(409, "A name is another app's, or others changed it at once.", models.Error)
_CLASH = Outcome(409, "Others changed it at once.", models.Error)
_GONE = Outcome(204, "It is deleted.")

LIST_APPS = Operation(
    "list_apps",
    "GET",
    "/api/v3/apps",
    "Registered apps",
    "By id. Apps that hosts announce and nobody registered are not among them.",
    "apps",
    Access.SERVICE,
    (Outcome(200, "A page of apps.", models.Apps), _AWAY),
    query=models.AppsPage,
)
READ_APP = Operation(
    "read_app",
    "GET",
    "/api/v3/apps/{app_id}",
    "One registered app",
    "As it is in force at this gateway; Age says for how long that may be out of date.",
    "apps",
    Access.SERVICE,
    (Outcome(200, "The app.", models.App), _AWAY),
    versioned=True,
)
PUT_APP = Operation(
    "put_app",
    "PUT",
    "/api/v3/apps/{app_id}",
    "Register an app, or replace what was decided about it",
    "The whole is replaced: what is left out has its default. Safe to repeat. In force at every "
    "gateway within two seconds.",
    "apps",
    Access.SERVICE,
    (
        Outcome(200, "Replaced, or the same as before.", models.App),
        Outcome(201, "Registered.", models.App),
        _TAKEN,
        _AWAY,
    ),
    body=models.AppWrite,
    versioned=True,
)
DELETE_APP = Operation(
    "delete_app",
    "DELETE",
    "/api/v3/apps/{app_id}",
    "Forget what was decided about an app",
    "Its names are free again. An app that hosts still announce is then served as an unregistered "
    "one, where the settings allow it: retire it first.",
    "apps",
    Access.SERVICE,
    (_GONE, _CLASH, _AWAY),
    versioned=True,
)
LIST_ENROLMENTS = Operation(
    "list_enrolments",
    "GET",
    "/api/v3/enrolments",
    "Enrolments",
    "Those made here, of every cluster; entries of enrolment files are not among them.",
    "enrolments",
    Access.SERVICE,
    (Outcome(200, "A page of enrolments.", models.Enrolments), _AWAY),
    query=models.EnrolmentsPage,
)
READ_ENROLMENT = Operation(
    "read_enrolment",
    "GET",
    "/api/v3/enrolments/{cluster}/{host_id}",
    "One enrolment",
    "As it is in force at this gateway.",
    "enrolments",
    Access.SERVICE,
    (Outcome(200, "The enrolment.", models.Enrolment), _AWAY),
    versioned=True,
)
PUT_ENROLMENT = Operation(
    "put_enrolment",
    "PUT",
    "/api/v3/enrolments/{cluster}/{host_id}",
    "Trust a host with a key and apps, or replace that",
    "In force at every gateway of its cluster within two seconds. Safe to repeat.",
    "enrolments",
    Access.SERVICE,
    (
        Outcome(200, "Replaced, or the same as before.", models.Enrolment),
        Outcome(201, "Enrolled.", models.Enrolment),
        _CLASH,
        _AWAY,
    ),
    body=models.EnrolmentWrite,
    versioned=True,
)
DELETE_ENROLMENT = Operation(
    "delete_enrolment",
    "DELETE",
    "/api/v3/enrolments/{cluster}/{host_id}",
    "Trust a host no more",
    "Its traffic and its connections end within two seconds.",
    "enrolments",
    Access.SERVICE,
    (_GONE, _CLASH, _AWAY),
    versioned=True,
)


class Control:
    """`bounds` are the operations with what they do.

    `durable` gives the store, None while there is none; `base_domains` those that labels are below.
    """

    def __init__(
        self,
        durable: Callable[[], DurableState | None],
        audit: Audit,
        base_domains: Callable[[], tuple[str, ...]],
    ) -> None:
        self._base_domains = base_domains
        self._apps = Records(durable, audit, Kind.APPS, "app", self._app_json)
        self._enrolments = Records(durable, audit, Kind.ENROLMENTS, "enrolment", _enrolment_json)
        self.bounds: tuple[Bound, ...] = (
            (LIST_APPS, self._list_apps),
            (READ_APP, self._read_app),
            (PUT_APP, self._put_app),
            (DELETE_APP, self._delete_app),
            (LIST_ENROLMENTS, self._list_enrolments),
            (READ_ENROLMENT, self._read_enrolment),
            (PUT_ENROLMENT, self._put_enrolment),
            (DELETE_ENROLMENT, self._delete_enrolment),
        )

    # ---- apps ----

    async def _list_apps(self, call: Call) -> Reply:
        page: models.AppsPage = call.query
        state = page.state
        return await self._apps.page(
            "apps",
            page.cursor,
            page.limit,
            lambda record: state is None or (isinstance(record, App) and record.state == state),
        )

    async def _read_app(self, call: Call) -> Reply:
        app_id = _app_id(call)
        return self._apps.read(call, app_key(app_id), app_id)

    async def _put_app(self, call: Call) -> Reply:
        app_id = _app_id(call)
        wanted: models.AppWrite = call.body
        try:
            app = register(
                app_id=app_id,
                label=wanted.label,
                hostnames=wanted.hostnames,
                state=wanted.state,
                origins=wanted.origins,
                own_cors=wanted.own_cors,
                limit=wanted.limit,
                labels=wanted.labels,
            )
        except FieldError as error:
            raise bad_field(error) from None

        def place(name: str) -> str:
            for number, hostname in enumerate(wanted.hostnames):
                if canonical_hostname(hostname) == name:
                    return f"/hostnames/{number}"
            return "/label"

        return await self._apps.put(call, app, {"app_id": app_id}, place)

    async def _delete_app(self, call: Call) -> Reply:
        app_id = _app_id(call)
        return await self._apps.delete(call, app_key(app_id), {"app_id": app_id})

    def _app_json(self, desired: Desired, stored: Stored) -> dict[str, Any]:
        app = stored.record
        assert isinstance(app, App)
        label, hostnames = desired.names(app)
        below = () if label is None else (f"{label}.{base}" for base in self._base_domains())
        return {
            "app_id": app.app_id,
            "label": app.label,
            "hostnames": list(app.hostnames),
            "state": app.state.value,
            "origins": list(app.origins),
            "own_cors": app.own_cors,
            "limit": app.limit,
            "labels": dict(app.labels),
            "served": [*below, *hostnames],
            "etag": etag_of(stored),
            "updated_at": updated_at(stored),
        }

    # ---- enrolments ----

    async def _list_enrolments(self, call: Call) -> Reply:
        page: models.EnrolmentsPage = call.query
        cluster = page.cluster
        return await self._enrolments.page(
            "enrolments",
            page.cursor,
            page.limit,
            lambda record: (
                cluster is None or (isinstance(record, Enrolment) and record.cluster == cluster)
            ),
        )

    async def _read_enrolment(self, call: Call) -> Reply:
        cluster, host_id = _host(call)
        return self._enrolments.read(call, enrolment_key(cluster, host_id), host_id)

    async def _put_enrolment(self, call: Call) -> Reply:
        cluster, host_id = _host(call)
        wanted: models.EnrolmentWrite = call.body
        key, apps = PublicKey.parse(wanted.key), tuple(wanted.apps)
        expires = None if wanted.expires is None else models.unix_of(wanted.expires)
        try:
            enrolment = check_enrolment(Enrolment(host_id, key, cluster, apps, expires))
        except FieldError as error:
            raise bad_field(error) from None
        subject = {"cluster": cluster, "host_id": host_id}
        return await self._enrolments.put(call, enrolment, subject)

    async def _delete_enrolment(self, call: Call) -> Reply:
        cluster, host_id = _host(call)
        subject = {"host_id": host_id, "cluster": cluster}
        return await self._enrolments.delete(call, enrolment_key(cluster, host_id), subject)


def _app_id(call: Call) -> str:
    try:
        return check_app_id(call.path["app_id"])
    except ValueError as error:
        raise ApiError(400, "bad_parameter", str(error), parameter="app_id") from None


def _host(call: Call) -> tuple[str, str]:
    for name, what in (("cluster", "cluster id"), ("host_id", "host id")):
        try:
            check_id(what, call.path[name])
        except ValueError as error:
            raise ApiError(400, "bad_parameter", str(error), parameter=name) from None
    return call.path["cluster"], call.path["host_id"]


def _enrolment_json(desired: Desired, stored: Stored) -> dict[str, Any]:
    enrolment = stored.record
    assert isinstance(enrolment, Enrolment)
    return {
        "host_id": enrolment.host_id,
        "cluster": enrolment.cluster,
        "key": enrolment.key.text,
        "key_id": enrolment.key.key_id,
        "apps": list(enrolment.apps),
        "expires": None if enrolment.expires is None else rfc3339(_within(enrolment.expires)),
        "etag": etag_of(stored),
        "updated_at": updated_at(stored),
    }


def _within(unix: float) -> float:
    """What another version stored may be beyond the years that can be written."""
    return min(max(unix, 0.0), 253_402_300_799.0)
