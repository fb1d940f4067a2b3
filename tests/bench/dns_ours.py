"""Our wire server as the gateway runs it, alone: `python tests/bench/dns_ours.py PORT ZONE`.

Rates are counted as usual, and let a benchmark's one client through.
"""

import asyncio
import secrets
import sys
import time
from pathlib import Path

import uvloop

from smartgw_dns import master
from smartgw_dns.catalog import Catalog
from smartgw_dns.respond import Responder
from smartgw_dns.server import Server, bind

RATE = 1_000_000_000


async def main(port: int, zone: str) -> None:
    """Serve a zone, the text of its master file, until the process is ended."""
    responder = Responder(secrets.token_bytes(32), RATE, time.time)
    responder.catalog = Catalog.of([master.read(zone)])
    server = Server(responder, [bind("127.0.0.1", port)])
    await server.start()
    await asyncio.Event().wait()


if __name__ == "__main__":
    uvloop.run(main(int(sys.argv[1]), Path(sys.argv[2]).read_text()))
