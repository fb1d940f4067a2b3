"""The data path and discovery as machine code: our own modules, compiled by mypyc.

Owns which modules are compiled, where the result lies, and that it is used only when it was made
from the very source that lies here; otherwise Python runs that source, and nothing but the CPU
tells the difference. Making it is `smartgw compile`'s.
"""

import hashlib
import importlib.util
import os
import sys
import sysconfig
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import EXTENSION_SUFFIXES, ExtensionFileLoader, ModuleSpec
from pathlib import Path
from types import ModuleType

MODULES = (
    "smartgw_hosts.authentic",
    "smartgw_hosts.bus_queue",
    "smartgw_hosts.checks",
    "smartgw_hosts.chunked",
    "smartgw_hosts.grammar",
    "smartgw_hosts.grants",
    "smartgw_hosts.host",
    "smartgw_hosts.http1",
    "smartgw_hosts.leases",
    "smartgw_hosts.pool",
    "smartgw_hosts.records",
    "smartgw_hosts.skew",
    "smartgw_hosts.start_line",
    "smartgw_hosts.tape",
    "smartgw_hosts.timers",
    "smartgw_hosts.wire",
    "smartgw.admission.sharing",
    "smartgw.admission.table",
    "smartgw.admission.window",
    "smartgw.peers.links",
    "smartgw.peers.opening",
    "smartgw.logline",
    "smartgw.proxy.choice",
    "smartgw.proxy.client_side",
    "smartgw.proxy.counters",
    "smartgw.proxy.downstream",
    "smartgw.proxy.exchange",
    "smartgw.proxy.forwards",
    "smartgw.proxy.headers",
    "smartgw.proxy.ledger",
    "smartgw.proxy.limits",
    "smartgw.proxy.link",
    "smartgw.proxy.locally",
    "smartgw.proxy.marks",
    "smartgw.proxy.outlet",
    "smartgw.proxy.path",
    "smartgw.proxy.pools",
    "smartgw.proxy.turns",
    "smartgw.proxy.upstream",
    "smartgw.routing.failover",
    "smartgw.routing.forwarding",
    "smartgw.routing.hostname",
    "smartgw.routing.policy",
    "smartgw.routing.shards",
    "smartgw.routing.snapshot",
    "smartgw.routing.wellknown",
)
"""What every request goes through, and every message of a host. A module stands here because it was
measured to be worth it."""

LIBRARY = "smartgw_native"
"""The name under which mypyc puts the code of all modules into one shared library."""

_ROOTS = Path(__file__).parents[1], Path(__file__).parents[1] / "hosts"
_active = False


def sources() -> dict[str, Path]:
    """Return module -> its source, wherever the packages are installed."""
    found = {}
    for module in MODULES:
        relative = Path(*module.split(".")).with_suffix(".py")
        found[module] = next(
            (root / relative for root in _ROOTS if (root / relative).exists()), _ROOTS[0] / relative
        )
    return found


def place() -> Path:
    """Return the folder of what is compiled from the present source for this Python."""
    digest = hashlib.sha256(f"{sys.version} {sysconfig.get_platform()}".encode())
    for module, path in sources().items():
        digest.update(f"\0{module}\0".encode() + path.read_bytes())
    return Path(sysconfig.get_path("platlib")) / LIBRARY / digest.hexdigest()[:16]


def install() -> bool:
    """Have the compiled modules imported from now on; False when there are none that fit.

    `SMARTGW_NATIVE=off` leaves them aside, to find out whether a fault is theirs.
    """
    global _active
    if os.environ.get("SMARTGW_NATIVE") == "off":
        return False
    try:
        folder = place()
        if not folder.is_dir():
            return False
    except OSError:
        return False
    sys.meta_path.insert(0, _Finder(folder))
    _active = True
    return True


def active() -> bool:
    """Tell whether this process runs compiled modules."""
    return _active


class _Finder(MetaPathFinder):
    """Finds the compiled modules, and the library that their stubs load."""

    def __init__(self, folder: Path) -> None:
        suffix = EXTENSION_SUFFIXES[0]
        self._files = {m: folder.joinpath(*m.split(".")).with_suffix(suffix) for m in MODULES}
        library = f"{LIBRARY}__mypyc"
        self._files[library] = folder / f"{library}{suffix}"

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        file = self._files.get(fullname)
        if file is None:
            return None
        loader = ExtensionFileLoader(fullname, str(file))
        return importlib.util.spec_from_file_location(fullname, file, loader=loader)
