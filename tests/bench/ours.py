"""Our gateway in the benchmark: one, or two that forward to each other (contract 4.5, 5).

Owns how they are configured, with all their defaults, and, as a program of its own, that two run
and end as one process tree: `python -m tests.bench.ours CONFIG...`.
"""

import itertools
import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from smartgw.demo.cluster import write_private
from smartgw.processes.parent import die_with
from smartgw_hosts import keyfile
from smartgw_hosts.owner import owner
from tests.bench.cases import APP, BASE_DOMAIN
from tests.bench.site import Launch, Site
from tests.gateway import toml

Sections = Mapping[str, Mapping[str, object]]


def smartgw(site: Site, *, log: bool = True, compiled: bool = True) -> Launch:
    """One gateway. `compiled`: as `smartgw compile` leaves it, which is done before."""
    sections: Sections = {} if log else {"log": {"access": "off"}}
    return Launch(
        [sys.executable, "-m", "smartgw", "serve", "--config", str(_config(site, sections))],
        {} if compiled else {"SMARTGW_NATIVE": "off"},
    )


def forwarding(site: Site, *, tls: bool = False, dead_owner: bool = False) -> Launch:
    """Two gateways: a request comes to that of a cluster without hosts, and is served by that of
    the benchmark's hosts.

    That one owns the app, or, with `dead_owner`, a third cluster that is not there.
    """
    port, internal, nobody = site.spare_ports
    entry, *others = clusters_of(site.cluster, dead_owner=dead_owner)
    urls = {
        entry: f"http://127.0.0.1:{site.port}",
        **dict.fromkeys(others, f"http://127.0.0.1:{nobody}"),
        site.cluster: f"{'https' if tls else 'http'}://127.0.0.1:{port}",
    }
    seeds = {one: site.folder / f"{one}.seed" for one in urls}
    keys = {one: keyfile.generate(seed).public_key.text for one, seed in seeds.items()}
    directory = site.folder / "clusters.json"
    entries = [
        {"id": one, "gateways": [url], "keys": [keys[one]], "state": "active"}
        for one, url in urls.items()
    ]
    directory.write_text(json.dumps({"clusters": entries}))

    def known(cluster: str) -> Sections:
        return {
            "peers": {"file": str(directory)},
            "identity": {"seed_file": str(seeds[cluster])},
        }

    folder = site.folder / "serving"
    folder.mkdir()
    # The app is known there, for the enrolment list names it; its host is of the other cluster.
    first = replace(site, cluster=entry)
    second = replace(site, folder=folder, port=port, internal_port=internal)
    listen = {"links": f"127.0.0.1:{port}", "http": [f"127.0.0.1:{nobody}"]} if tls else {}
    configs = (
        _config(first, known(entry)),
        _config(second, {**known(site.cluster), "listen": listen}),
    )
    return Launch([sys.executable, "-m", "tests.bench.ours", *map(str, configs)])


def clusters_of(serving: str, *, dead_owner: bool) -> tuple[str, ...]:
    """Return the ids of the clusters beside `serving`, so that the right one owns the app."""
    # Their places among the sorted ids decide; before and behind `bench` are enough of them.
    for first, second in itertools.permutations("acd", 2):
        others = (f"{first}-entry", *((f"{second}-dead",) if dead_owner else ()))
        if owner(APP, (serving, *others)) == (others[-1] if dead_owner else serving):
            return others
    raise ValueError(f"{serving} stands before or behind all others")


def _config(site: Site, more: Sections) -> Path:
    """Write a configuration: defaults, but for ports, the log's file, how much one client may ask,
    and what is laid over it.
    """
    top: dict[str, object] = {
        "cluster": site.cluster,
        "gateway": f"gateway-{site.port}",
        "base_domains": [BASE_DOMAIN],
        "host_networks": ["127.0.0.0/8"],
    }
    sections: dict[str, dict[str, object]] = {
        "listen": {
            "http": [f"127.0.0.1:{site.port}"],
            "internal": f"127.0.0.1:{site.internal_port}",
        },
        "bus": {"servers": [f"nats://127.0.0.1:{site.nats_port}"]},
        "trust": {"mode": "enrolment", "file": str(site.enrolment)}
        if site.enrolment
        else {"mode": "first-use"},
        "log": {"access": f"{site.folder}/access.log"},
        # It counts as usual, and lets a benchmark's one client through.
        "rates": {"requests": 1_000_000_000},
    }
    if site.long_leases:
        sections["discovery"] = {"heartbeat": 3600, "reverify": 3600, "max_hosts": 200_000}
    for name, values in more.items():
        sections[name] = {**sections.get(name, {}), **values}
    tables = ["".join(f"{key} = {toml(value)}\n" for key, value in top.items())]
    tables += [
        f"\n[{name}]\n" + "".join(f"{key} = {toml(value)}\n" for key, value in values.items())
        for name, values in sections.items()
    ]
    config = site.folder / "smartgw.toml"
    write_private(config, "".join(tables))
    return config


def main(configs: Sequence[str]) -> int:
    """Run a gateway for each configuration until one of them ends, or a signal comes."""
    parent = os.getpid()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    children = [
        subprocess.Popen(
            [sys.executable, "-m", "smartgw", "serve", "--config", config],
            preexec_fn=lambda: None if die_with(parent) else os._exit(1),
        )
        for config in configs
    ]
    try:
        os.wait()
    finally:
        for child in children:
            child.kill()
    return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
