"""The one form in which hostnames and origins are registered (contract 3.2, 3.9).

Owns the conversion of Unicode names to A-labels (IDNA 2008, RFC 5891, with a round-trip check)
and the serialisation of origins (RFC 6454 section 6.2). Does not know which names exist, nor
which of them are the gateway's own.
"""

import ipaddress
import re
import unicodedata
from collections.abc import Callable
from typing import Final

import idna

HOSTNAME_BYTES: Final = 253
_LABEL = r"[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?"
# Two labels at least, and the last is no number: browsers take it for an IPv4 address then (WHATWG
# URL 3.5), whatever DNS would say.
_HOSTNAME = re.compile(
    rf"(?=.{{1,{HOSTNAME_BYTES}}}\Z)(?:{_LABEL}\.)+(?![0-9]+\Z|0x[0-9a-f]*\Z){_LABEL}\Z"
)
_HOST_OF_ORIGIN = re.compile(rf"(?=.{{1,{HOSTNAME_BYTES}}}\Z){_LABEL}(?:\.{_LABEL})*\Z")
_NUMBER = re.compile(r"[0-9]+\Z|0x[0-9a-f]*\Z")
_LABEL_ONLY = re.compile(rf"{_LABEL}\Z")
_ORIGIN = re.compile(r"([A-Za-z][A-Za-z0-9+.-]{0,30})://([^/?#@\\\s]{1,300})/?\Z")
_PORTS = {"http": 80, "https": 443}


def is_label(text: str) -> bool:
    """Tell whether `text` is a hostname label in its registered form: LDH, lower case."""
    return _LABEL_ONLY.match(text) is not None


def is_hostname(text: str) -> bool:
    """Tell whether `text` is in the form that `canonical_hostname` gives."""
    if "xn--" in text:
        return _is_form(canonical_hostname, text)
    return _HOSTNAME.match(text) is not None


def canonical_label(text: str) -> str:
    """Return a hostname label as an A-label in lower case.

    Raises ValueError: what is wrong and what would be right.
    """
    if not text.isascii():
        return _a_label(text)
    label = text.lower()
    if not is_label(label):
        raise ValueError(
            f"{_shown(text)}: must be 1 to 63 letters, digits and hyphens, no hyphen at either end"
        )
    if label.startswith("xn--"):
        _check_a_label(label)
    return label


def canonical_hostname(text: str) -> str:
    """Return a hostname of at least two labels in lower case, each as an A-label.

    One dot at the end is dropped. Raises ValueError: what is wrong and what would be right.
    """
    name = text.removesuffix(".")
    if name.startswith("*."):
        raise ValueError(f"{_shown(text)}: no wildcards; register each hostname by itself")
    labels = name.split(".")
    if len(labels) < 2:
        raise ValueError(f"{_shown(text)}: must have two labels at least: shop.example.com")
    hostname = ".".join(map(canonical_label, labels))
    if len(hostname) > HOSTNAME_BYTES:
        raise ValueError(f"{_shown(text)}: longer than {HOSTNAME_BYTES} bytes as A-labels")
    if not _HOSTNAME.match(hostname):
        raise ValueError(f"{_shown(text)}: ends in a number as an IP address does; give a name")
    return hostname


def canonical_origin(text: str) -> str:
    """Return an origin as browsers send it: scheme and host in lower case, no default port.

    Raises ValueError: what is wrong and what would be right.
    """
    match = _ORIGIN.match(text)
    if match is None:
        raise ValueError(
            f"{_shown(text)}: must be scheme://host or scheme://host:port, no path: "
            "https://app.example.com"
        )
    scheme, authority = match[1].lower(), match[2]
    host, port = authority, ""
    colon = authority.rfind(":")
    if colon > authority.rfind("]"):
        host, port = authority[:colon], authority[colon + 1 :]
        if not (port.isascii() and port.isdigit() and len(port) <= 5 and 0 < int(port) < 65_536):
            raise ValueError(f"{_shown(text)}: the port must be 1 to 65535")
        port = "" if int(port) == _PORTS.get(scheme) else f":{int(port)}"
    return f"{scheme}://{_host_of_origin(host, text)}{port}"


def is_origin(text: str) -> bool:
    """Tell whether `text` is in the form that `canonical_origin` gives."""
    return _is_form(canonical_origin, text)


def _is_form(canonical: Callable[[str], str], text: str) -> bool:
    try:
        return canonical(text) == text
    except ValueError:
        return False


def _host_of_origin(host: str, text: str) -> str:
    try:
        if host.startswith("[") and host.endswith("]"):
            return f"[{ipaddress.IPv6Address(host[1:-1])}]"
        if _NUMBER.match(host.lower().rpartition(".")[2]):
            return str(ipaddress.IPv4Address(host))
        name = ".".join(map(canonical_label, host.split(".")))
    except ValueError as error:
        raise ValueError(f"{_shown(text)}: {error}") from None
    if not _HOST_OF_ORIGIN.match(name):
        raise ValueError(f"{_shown(text)}: its host is longer than {HOSTNAME_BYTES} bytes")
    return name


def _a_label(text: str) -> str:
    # Case is not a part of IDNA 2008 (RFC 5891 4.2.1); everything else that it would have to map
    # is refused, so that what was registered is what was written.
    label = unicodedata.normalize("NFC", text.lower())
    try:
        encoded: str = idna.alabel(label).decode("ascii")
        back = idna.ulabel(encoded)
    except (idna.IDNAError, UnicodeError) as error:
        raise ValueError(f"{_shown(text)}: not a name by IDNA 2008 ({error})") from None
    if back != label or not is_label(encoded):
        raise ValueError(f"{_shown(text)}: does not come back the same from its A-label")
    return encoded


def _check_a_label(label: str) -> None:
    try:
        back = idna.alabel(idna.ulabel(label)).decode("ascii")
    except (idna.IDNAError, UnicodeError) as error:
        raise ValueError(f"{_shown(label)}: not an A-label by IDNA 2008 ({error})") from None
    if back != label:
        raise ValueError(f"{_shown(label)}: not the A-label of its name, which is {back}")


def _shown(text: str) -> str:
    return ascii(text if len(text) <= 80 else text[:77] + "...")
