"""Service names inside pods: every pod's /etc/hosts, rewritten when services or the pods behind them change.

Names lead straight to the pods behind a Service where its ports are theirs, else to the address where it is relayed.
Files are changed in place, because they are bind-mounted into running containers.
"""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path

from shoal.api.meta import Json
from shoal.local.nodes.runtime.services import ServiceView

DOMAIN = "cluster.local"

ServiceLines = dict[str, list[tuple[str, list[str]]]]
"""Namespace to the short names of its services, each with its addresses."""


def service_lines(views: Iterable[ServiceView], address: dict[str, str]) -> ServiceLines:
    """What every Service's name leads to: its pods, or the address where it is relayed."""
    found: ServiceLines = defaultdict(list)
    for view in views:
        if not view.direct and view.cluster_ip in address:
            found[view.namespace].append((view.name, [address[view.cluster_ip]]))
        elif view.addresses:
            found[view.namespace].append((view.name, list(view.addresses)))
    return found


def hosts_text(
    own: str, namespace: str, services: ServiceLines, pods: Iterable[Json] = (), api: str = "127.0.0.1"
) -> str:
    """A pod's hosts file: its own names, the API server, all services, those of its namespace by short name too."""
    lines = [
        own.rstrip("\n"),
        f"{api}\tkubernetes.default.svc.{DOMAIN} kubernetes.default.svc kubernetes.default kubernetes",
    ]
    for where, entries in sorted(services.items()):
        for name, addresses in sorted(entries):
            names = [f"{name}.{where}.svc.{DOMAIN}", f"{name}.{where}.svc", f"{name}.{where}"]
            if where == namespace:
                names.append(name)
            lines += [f"{address}\t{' '.join(names)}" for address in addresses]
    for pod in pods:
        spec, address = pod["spec"], (pod.get("status") or {}).get("podIP")
        if address and spec.get("subdomain") and spec.get("hostname"):
            where = pod["metadata"].get("namespace", "")
            name = f"{spec['hostname']}.{spec['subdomain']}.{where}.svc"
            lines.append(f"{address}\t{name}.{DOMAIN} {name}")
    return "\n".join(lines) + "\n"


def lookup(name: str, services: ServiceLines, pods: Iterable[Json] = (), api: str = "127.0.0.1") -> list[str] | None:
    """Addresses behind a full cluster name; None when it is not one."""
    if not name.endswith(f".svc.{DOMAIN}"):
        return None
    parts = name.removesuffix(f".svc.{DOMAIN}").split(".")
    if len(parts) not in (2, 3):
        return []
    *host, service, namespace = parts
    if (service, namespace) == ("kubernetes", "default"):
        return [api]
    if host:
        return [
            pod["status"]["podIP"]
            for pod in pods
            if pod["spec"].get("hostname") == host[0]
            and pod["spec"].get("subdomain") == service
            and pod["metadata"].get("namespace") == namespace
            and (pod.get("status") or {}).get("podIP")
        ]
    return next((addresses for short, addresses in services.get(namespace, ()) if short == service), [])


def rewrite(path: Path, text: str) -> bool:
    """Change a file in place, keeping its inode; False when nothing changed or it is gone."""
    try:
        if path.read_text() == text:
            return False
        with os.fdopen(os.open(path, os.O_RDWR | os.O_NOFOLLOW), "r+") as file:
            file.write(text)
            file.truncate()
    except OSError:
        return False
    return True
