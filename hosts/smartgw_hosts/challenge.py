"""The challenge by which a host proves its key at its address (contract 2.1), both sides.

Owns what is asked, what exactly is signed, when a host refuses to sign, and how an answer is
judged. Does not send or serve: upstream.py of the gateway and the SDK's middleware do. Nonces
and times come in as arguments; that an answer came within 2 s is the sender's to see.
"""

import json
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from enum import StrEnum

from smartgw_hosts.addresses import AddressRefused, parse_address
from smartgw_hosts.identity import Identity, PublicKey, decode64, encode64
from smartgw_hosts.ids import check_id
from smartgw_hosts.strict_json import parse_object

PATH = b"/.well-known/smartgw/challenge"
CONTEXT = b"smartgw/challenge/v1"
NONCE_BYTES = 32
BODY_BYTES = 4096
"""The most that a challenge or its answer may have."""

SKEW_MS = 30_000
"""How far the gateway's clock may be from the host's."""
_ELSEWHERE = "this host does not announce that address"
_STALE = f"issued more than {SKEW_MS // 1000} s from this host's clock"

NONCES_SECONDS = 60.0
NONCES = 16_384
"""A nonce is remembered while its issue time could still be accepted, so that it serves once;
of more nonces than this the oldest are forgotten, which gives a replayer nothing: he gets the
signature he has, and the gateway takes no nonce twice."""

_DECLINES = frozenset((400, 403, 405, 409))


class Proof(StrEnum):
    """How a verification ended: a closed set, for status and metrics."""

    OK = "ok"
    REFUSED = "refused"
    TIMEOUT = "timeout"
    UNREACHABLE = "unreachable"
    ADDRESS_REFUSED = "address_refused"
    BAD_STATUS = "bad_status"
    BAD_ANSWER = "bad_answer"
    BAD_SIGNATURE = "bad_signature"
    NO_KEEPALIVE = "no_keepalive"


@dataclass(frozen=True, slots=True)
class Verdict:
    """How a verification ended; `detail` is one line for an operator, printable ASCII."""

    reason: Proof
    detail: str = ""

    @property
    def ok(self) -> bool:
        return self.reason is Proof.OK


@dataclass(frozen=True, slots=True)
class Challenge:
    """One question to one host: is the owner of `key` at `address`, now, under this id?

    `nonce` is 32 random bytes, used once; `issued_ms` is the gateway's wall clock in ms since
    the epoch. Raises ValueError (AddressRefused for the address) for a field out of its form.
    """

    nonce: bytes
    gateway_id: str
    cluster_id: str
    host_id: str
    address: str
    key: PublicKey
    issued_ms: int

    def __post_init__(self) -> None:
        if len(self.nonce) != NONCE_BYTES:
            raise ValueError(f"nonce: must be {NONCE_BYTES} bytes")
        check_id("gateway id", self.gateway_id)
        check_id("cluster id", self.cluster_id)
        check_id("host id", self.host_id)
        parse_address(self.address)
        if not 0 <= self.issued_ms < 1 << 63:
            raise ValueError("issue time: must be ms since the epoch")


def signed_bytes(challenge: Challenge) -> bytes:
    """What the host signs under `CONTEXT`: every field behind its length (4 bytes, big-endian).

    With lengths no two challenges have the same bytes, whatever stands in their fields.
    """
    fields = (
        challenge.nonce,
        challenge.gateway_id.encode(),
        challenge.cluster_id.encode(),
        challenge.host_id.encode(),
        challenge.address.encode(),
        challenge.key.value,
        challenge.issued_ms.to_bytes(8, "big"),
    )
    return b"".join(len(field).to_bytes(4, "big") + field for field in fields)


def request(challenge: Challenge) -> bytes:
    """The challenge as one whole HTTP/1.1 request, which asks to keep the connection."""
    body = json.dumps(
        {
            "nonce": encode64(challenge.nonce),
            "gateway": challenge.gateway_id,
            "cluster": challenge.cluster_id,
            "host": challenge.host_id,
            "address": challenge.address,
            "key": challenge.key.text,
            "issued": challenge.issued_ms,
        }
    ).encode()
    authority = parse_address(challenge.address).authority.encode()
    return (
        b"POST %b HTTP/1.1\r\nHost: %b\r\nContent-Type: application/json\r\n"
        b"Accept: application/json\r\nContent-Length: %d\r\n\r\n%b"
    ) % (PATH, authority, len(body), body)


def judge(challenge: Challenge, status: int, body: bytes) -> Verdict:
    """Judge a host's answer to `challenge`; never raises, whatever the answer is."""
    if status != 200:
        return _not_signed(status, body)
    if len(body) > BODY_BYTES:
        return Verdict(Proof.BAD_ANSWER, f"answer: more than {BODY_BYTES} bytes")
    try:
        answer = parse_object(body)
        if answer.get("host") != challenge.host_id:
            return Verdict(Proof.BAD_ANSWER, "answer: from another host")
        signature = decode64(_string(answer, "signature"))
    except ValueError as error:
        return Verdict(Proof.BAD_ANSWER, f"answer: {error}")
    if not challenge.key.verify(CONTEXT, signed_bytes(challenge), signature):
        return Verdict(Proof.BAD_SIGNATURE, f"not signed by key {challenge.key.key_id}")
    return Verdict(Proof.OK)


def refused_as_stale(verdict: Verdict) -> bool:
    """Tell whether the host refused to sign because of the time that the challenge bears."""
    return verdict.reason is Proof.REFUSED and verdict.detail.endswith(_STALE)


def refused_as_elsewhere(verdict: Verdict) -> bool:
    """Tell whether the host refused to sign because it announces another address by now."""
    return verdict.reason is Proof.REFUSED and verdict.detail.endswith(_ELSEWHERE)


def _not_signed(status: int, body: bytes) -> Verdict:
    """Tell a host that refused to sign from something at its address that is no host."""
    if status in _DECLINES and len(body) <= BODY_BYTES:
        try:
            error = _string(parse_object(body), "error")
        except ValueError:
            pass
        else:
            # The text is the host's: cut and escaped before it stands in logs and status.
            return Verdict(Proof.REFUSED, f"status {status}: {ascii(error[:200])[1:-1]}")
    hint = ": run the SDK's middleware or `smartgw host` there" if status == 404 else ""
    return Verdict(Proof.BAD_STATUS, f"status {status}{hint}")


class _Declined(Exception):
    """Why the host does not sign: a status, and a text for the JSON error."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status = status
        self.text = text


class Responder:
    """The host's side: signs challenges that are surely its own, and nothing else."""

    def __init__(
        self,
        identity: Identity,
        host_id: str,
        cluster_id: str,
        addresses: Callable[[], Collection[str]],
    ) -> None:
        """`addresses` gives what the host announces at this moment, in `parse_address`'s form.

        Raises ValueError for ids that `check_id` refuses.
        """
        self._identity = identity
        self._host_id = check_id("host id", host_id)
        self._cluster_id = check_id("cluster id", cluster_id)
        self._addresses = addresses
        self._nonces: OrderedDict[bytes, float] = OrderedDict()

    def answer(
        self,
        method: bytes,
        raw_target: bytes,
        fields: Iterable[tuple[bytes, bytes]],
        body: bytes,
        now: float,
        now_ms: int,
    ) -> tuple[int, bytes]:
        """Answer one request with a status and a JSON body; never raises, whatever is asked.

        Args:
            method, raw_target: as they stood in the request line, nothing decoded.
            fields: names and values of all header fields.
            body: the body, of which more than `BODY_BYTES` need not be read.
            now: monotonic seconds. now_ms: wall clock, ms since the epoch.
        Returns:
            200 with `{"host", "signature"}`, or 400, 403, 405 or 409 with `{"error"}`; never
            404, so that a gateway can tell that no SDK is there.
        """
        try:
            _check_request(method, raw_target, fields, body)
            challenge = _read(body)
            self._check_own(challenge)
            self._check_fresh(challenge, now, now_ms)
        except _Declined as declined:
            return declined.status, json.dumps({"error": declined.text}).encode()
        signature = self._identity.sign(CONTEXT, signed_bytes(challenge))
        answer = {"host": self._host_id, "signature": encode64(signature)}
        return 200, json.dumps(answer).encode()

    def _check_own(self, challenge: Challenge) -> None:
        """A challenge that another host, or this one elsewhere, should answer is a relayed one."""
        if challenge.host_id != self._host_id:
            raise _Declined(403, "this is another host")
        if challenge.cluster_id != self._cluster_id:
            raise _Declined(403, "this host is of another cluster")
        if challenge.key != self._identity.public_key:
            raise _Declined(403, "this host has another key")
        announced = {parse_address(address) for address in self._addresses()}
        if parse_address(challenge.address) not in announced:
            raise _Declined(403, _ELSEWHERE)

    def _check_fresh(self, challenge: Challenge, now: float, now_ms: int) -> None:
        """Last of the checks: only what would be signed may use the nonces' memory."""
        if abs(challenge.issued_ms - now_ms) > SKEW_MS:
            raise _Declined(403, _STALE)
        while self._nonces and (
            len(self._nonces) >= NONCES or next(iter(self._nonces.values())) <= now - NONCES_SECONDS
        ):
            self._nonces.popitem(last=False)
        if challenge.nonce in self._nonces:
            raise _Declined(409, "this nonce has been used")
        self._nonces[challenge.nonce] = now


def _check_request(
    method: bytes, raw_target: bytes, fields: Iterable[tuple[bytes, bytes]], body: bytes
) -> None:
    if raw_target != PATH:
        raise _Declined(400, f"the raw target must be exactly {PATH.decode()}")
    if method != b"POST":
        raise _Declined(405, "the method must be POST")
    for name, _ in fields:
        # Without the characters that one parser or another reads as something else or skips.
        if name.translate(None, b"-_ \t").lower() in (b"via", b"forwarded"):
            raise _Declined(403, "came through a proxy")
    if len(body) > BODY_BYTES:
        raise _Declined(400, f"the body must not have more than {BODY_BYTES} bytes")


def _read(body: bytes) -> Challenge:
    try:
        members = parse_object(body)
        issued = members.get("issued")
        if type(issued) is not int:
            raise ValueError("issued: must be an integer")
        return Challenge(
            nonce=decode64(_string(members, "nonce")),
            gateway_id=_string(members, "gateway"),
            cluster_id=_string(members, "cluster"),
            host_id=_string(members, "host"),
            address=_string(members, "address"),
            key=PublicKey.parse(_string(members, "key")),
            issued_ms=issued,
        )
    except AddressRefused as error:
        raise _Declined(400, f"address: {error}") from None
    except ValueError as error:
        raise _Declined(400, f"challenge: {error}") from None


def _string(members: dict[str, object], name: str) -> str:
    value = members.get(name)
    if not isinstance(value, str):
        raise ValueError(f"{name}: must be a string")
    return value
