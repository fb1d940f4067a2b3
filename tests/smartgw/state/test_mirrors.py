"""A cluster with a NATS of its own, which mirrors the bucket of another (infra/nats)."""

import asyncio

import pytest

from smartgw.state import jetstream
from smartgw.state.durable import NameTaken, Unavailable
from smartgw.state.records import register
from tests.servers import Nats, free_port
from tests.stores import BUCKET, Gateways, until


async def test_clusters_share_a_state_by_a_mirror() -> None:
    """Control plane: several clusters share state over one NATS cluster or by mirrored buckets."""
    leaf_port = free_port()
    hub, leaf = Nats(), Nats()
    for server, more in (
        (hub, f"server_name: hub\nleafnodes {{ listen: 127.0.0.1:{leaf_port} }}"),
        (
            leaf,
            "server_name: leaf\n"
            f'leafnodes {{ remotes: [{{ url: "nats-leaf://127.0.0.1:{leaf_port}" }}], '
            'reconnect: "200ms" }',
        ),
    ):
        name = "hub" if server is hub else "leaf"
        store = f'store_dir: "{server.folder}/jetstream", domain: {name}'
        server.configure(f"{more}\njetstream {{ {store} }}")
    at_hub, at_leaf = Gateways(hub), Gateways(leaf)
    try:
        await hub.start_async()
        await leaf.start_async()
        one = await at_hub.add()
        await one.store.write(register(app_id="shop", label="store"))
        mirror = {
            "name": jetstream.stream(BUCKET),
            "storage": "file",
            "max_msgs_per_subject": jetstream.HISTORY,
            "allow_direct": True,
            "mirror_direct": True,
            "mirror": {"name": jetstream.stream(BUCKET), "external": {"api": "$JS.hub.API"}},
        }
        made = await at_leaf.ask(f"$JS.API.STREAM.CREATE.{jetstream.stream(BUCKET)}", mirror)
        assert "error" not in made, made
        other = await at_leaf.add()
        await until(lambda: other.store.desired.digest == one.store.desired.digest)
        stored = await other.store.write(register(app_id="mail"))
        await until(lambda: one.store.desired.app("mail") is not None, 2)
        assert other.store.desired.digest == one.store.desired.digest
        assert stored.revision == one.store.desired.revision
        with pytest.raises(NameTaken):
            await other.store.write(register(app_id="x", label="store"))
        # Cut off, it goes on reading, and what it cannot store it refuses.
        hub.kill()
        await asyncio.sleep(0.5)
        with pytest.raises(Unavailable):
            await other.store.write(register(app_id="y"))
        assert other.store.desired.app("shop") is not None
    finally:
        await at_leaf.stop()
        await at_hub.stop()
        leaf.stop()
        hub.stop()
