"""The demo's issuer of tokens: its key, its key set, and a token of either role (contract 12.2).

Owns their files. The gateways read the key set, whoever tries the API shows the tokens.
"""

import time
from pathlib import Path

from smartgw.api.minting import key_set, mint
from smartgw.api.tokens import Role
from smartgw.demo.cluster import fresh_key, issuer_keys, write_private
from smartgw_hosts import keyfile

TTL = 30 * 86_400.0
"""Seconds; as long as a demo may be left running."""


def write_issuer(folder: Path) -> dict[str, str]:
    """Write a fresh key and its key set; return the tokens, as demo.json shows them."""
    seed = folder / "issuer.seed"
    fresh_key(seed)
    identity = keyfile.load(seed)
    write_private(issuer_keys(folder), key_set([identity.public_key]))
    now = time.time()
    return {
        role.value: mint(identity, role, f"demo-{role.value}", now=now, ttl=TTL) for role in Role
    }
