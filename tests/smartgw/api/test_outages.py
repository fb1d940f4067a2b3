"""The API while the bus, or another cluster, is away."""

import json
from pathlib import Path
from typing import Any

from tests.federation import Federation
from tests.gateway import Cluster, wait_until
from tests.raw_http import Answer
from tests.servers import Nats
from tests.smartgw.api import issuing
from tests.smartgw.api.services import Service, reason


def test_without_the_bus_reads_go_on_and_writes_are_refused(tmp_path: Path) -> None:
    """10, 11.2: the bus away: traffic and reads go on, writes are 503, and all is well again
    when it is back.
    """
    nats = Nats(jetstream=True).start()
    cluster = Cluster(nats=nats)
    try:
        gateway = cluster.gateway(issuing.settings(tmp_path))
        host = cluster.host()
        service = Service(gateway)
        service.put(host.app, limit=70)
        nats.kill()

        def age() -> int:
            return int(service.call("GET", f"/api/v3/apps/{host.app}").one("Age"))

        wait_until(lambda: age() > 0, what="reads say how old they are")
        answer = service.call("PUT", f"/api/v3/apps/{host.app}", {"limit": 80})
        assert (answer.status, reason(answer)) == (503, "state_unavailable")
        assert answer.one("Retry-After")
        assert service.call("DELETE", f"/api/v3/apps/{host.app}").status == 503
        assert json.loads(service.call("GET", f"/api/v3/apps/{host.app}").body)["limit"] == 70
        assert gateway.ask(host.hostname).status == 200
        assert service.explain(host.hostname)["outcome"] == "served"
        nats.start()
        wait_until(
            lambda: service.call("PUT", f"/api/v3/apps/{host.app}", {"limit": 90}).status == 200
        )
        wait_until(lambda: age() == 0)
    finally:
        cluster.stop()
        nats.stop()


def test_explain_knows_who_owns_an_app_and_who_is_asked_next(tmp_path: Path) -> None:
    """10.4: with several clusters, the order in which a request then meets them."""
    with Federation(tmp_path) as clusters:
        app = clusters.app("c2")
        for one in ("c1", "c2"):
            clusters.host(one, app)
        gateway, hostname = clusters.gateways["c1"], clusters.hostname(app)

        def explain(method: str = "GET") -> Any:
            path = f"/api/v3/explain?host={hostname}&method={method}"
            return json.loads(gateway.internal(path)[1])

        def ask(method: str = "GET") -> Answer:
            return gateway.ask(hostname, method=method)

        read, write = explain(), explain("POST")
        assert (read["outcome"], read["owner"]) == ("forwarded", "c2")
        assert [each["cluster"] for each in read["attempts"]] == ["c2", "c1", "c3"]
        assert [each["place"] for each in read["attempts"]] == ["owner", "local", "peer"]
        assert [each["cluster"] for each in write["attempts"]] == ["c2"]
        assert not ask().all("X-Failover-Cluster")
        clusters.gateways["c2"].stop()
        assert ask().one("X-Failover-Cluster") == "c1"
        assert ask("POST").status in (502, 503, 504)
        # The one that keeps failing is set aside, which changes who is asked first.
        for _ in range(20):
            ask()
        found = explain()
        assert [each["cluster"] for each in found["attempts"]] == ["c1", "c3", "c2"]
        assert [each["set_aside"] for each in found["attempts"]] == [False, False, True]
