"""Who calls the API: what its credential says, never where it comes from (contract 10.1, 10.2).

Owns which issuers count, that an unknown key has their keys read again, and what is told of
refusals: their number by reason, and nothing of a token. What a token must be is tokens.py's,
where keys come from issuer_keys.py's.
"""

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Callable, Sequence

from smartgw.api.issuer_keys import IssuerKeys
from smartgw.api.operator import Operator
from smartgw.api.tokens import Caller, Issuer, Refusal, Role, bearer, claimed, judge
from smartgw.config_fields import Auth
from smartgw_hosts.quiet_log import QuietLog

_log = logging.getLogger(__name__)
RENEWAL_SECONDS = 2.0
"""How long a caller whose key is not known waits for the issuer's keys."""


class Credentials:
    """Make it in the loop that it runs in, `start`, and `stop`.

    `operator`: whose token counts as a service's at the internal listener.
    Attributes: `refused` counts by reason.
    """

    def __init__(
        self, auth: Auth, operator: Operator, *, wall: Callable[[], float] = time.time
    ) -> None:
        self.operator = operator
        self.refused: Counter[Refusal] = Counter({reason: 0 for reason in Refusal})
        self._wall = wall
        self._say = QuietLog(60.0, _log)
        self._auth = auth
        self._sources: dict[str, IssuerKeys] = {}
        self._started = False

    def start(self) -> None:
        """Read the issuers' keys and follow them."""
        self._started = True
        self._follow()

    async def configure(self, auth: Auth) -> None:
        """Put other issuers in force; the keys of those that stay are kept."""
        self._auth = auth
        if self._started:
            await asyncio.gather(*(source.stop() for source in self._follow()))

    async def stop(self) -> None:
        """Follow no keys any more."""
        await asyncio.gather(*(source.stop() for source in self._sources.values()))

    def degraded(self) -> list[str]:
        """What works less well than it could, in lines."""
        return [f"auth: {source.fault}" for source in self._sources.values() if source.fault]

    async def service(self, fields: Sequence[str], *, internal: bool) -> Caller | None:
        """Return the service that calls, None for everybody else.

        `fields`: the request's Authorization fields. `internal`: it came to that listener.
        """
        if internal and self.operator.holds(fields):
            return self.operator.caller
        caller = await self.caller(fields)
        if caller is not None and caller.role is not Role.SERVICE:
            self._refuse(Refusal.NOT_A_SERVICE, caller.issuer)
            return None
        return caller

    async def caller(self, fields: Sequence[str]) -> Caller | None:
        """Return who calls, service or session; None when that is not known."""
        token = bearer(fields)
        verdict = self._judge(token)
        # A refusal is a text too, so it is asked for first.
        may_be_new = verdict is Refusal.UNKNOWN_KEY and not isinstance(token, Refusal)
        if may_be_new and await self._renew(token):
            verdict = self._judge(token)
        if isinstance(verdict, Caller):
            return verdict
        known = token if isinstance(token, Refusal) else claimed(token)
        issuer = "" if isinstance(known, Refusal) else known.issuer
        self._refuse(verdict, issuer if issuer in self._sources else "")
        return None

    def known(self, fields: Sequence[str]) -> Caller | None:
        """Return who calls where nobody is refused: by the keys that there are, and not counted."""
        verdict = self._judge(bearer(fields))
        return verdict if isinstance(verdict, Caller) else None

    def _judge(self, token: str | Refusal) -> Caller | Refusal:
        issuers = {
            each.issuer: Issuer(
                each.issuer,
                each.audience,
                frozenset(Role(role) for role in each.roles),
                self._sources[each.issuer].keys,
            )
            for each in self._auth.issuer
            if each.issuer in self._sources
        }
        return judge(token, issuers, now=self._wall(), skew=self._auth.skew)

    async def _renew(self, token: str) -> bool:
        found = claimed(token)
        if isinstance(found, Refusal):
            return False
        try:
            async with asyncio.timeout(RENEWAL_SECONDS):
                return await self._sources[found.issuer].renew()
        except TimeoutError:
            return False

    def _refuse(self, reason: Refusal, issuer: str) -> None:
        self.refused[reason] += 1
        whose = f" of {issuer}" if issuer else ""
        text = f"API: a credential{whose} is refused: {reason.value}"
        # A command learns by a 401 where its token is: that one shows none is no sign of anything.
        level = logging.INFO if reason is Refusal.MISSING else logging.WARNING
        self._say(level, f"{reason} {issuer}", text)

    def _follow(self) -> list[IssuerKeys]:
        """Follow the keys of the issuers as they are now; return those that are left."""
        before, self._sources = self._sources, {}
        for each in self._auth.issuer:
            source = before.pop(each.issuer, None)
            if source is None or source.source != (each.jwks_file, each.jwks_url):
                if source is not None:
                    before[each.issuer] = source
                source = IssuerKeys(each.issuer, each.jwks_file, each.jwks_url)
                source.start()
            self._sources[each.issuer] = source
        return list(before.values())
