"""Service names inside pods: every pod's /etc/hosts, rewritten when services or the pods behind them change.

Names lead straight to the pods behind a Service: there is no packet rewriting on one machine. Files are changed in
place, because they are bind-mounted into running containers.
"""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path

from shoal.api.meta import Json

DOMAIN = "cluster.local"

ServiceLines = dict[str, list[tuple[str, list[str]]]]
"""Namespace to the short names of its services, each with its addresses."""


def service_lines(services: Iterable[Json], pods: Iterable[Json]) -> ServiceLines:
    """The addresses behind every service that has some."""
    by_namespace: dict[str, list[Json]] = defaultdict(list)
    for pod in pods:
        by_namespace[pod["metadata"].get("namespace", "")].append(pod)
    found: ServiceLines = defaultdict(list)
    for service in services:
        spec, metadata = service.get("spec") or {}, service["metadata"]
        namespace = metadata.get("namespace", "")
        selector = spec.get("selector")
        if not selector:
            continue
        addresses = [
            pod["status"]["podIP"]
            for pod in by_namespace[namespace]
            if _selected(pod, selector) and _reachable(pod, bool(spec.get("publishNotReadyAddresses")))
        ]
        if addresses:
            found[namespace].append((metadata["name"], sorted(addresses)))
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


def _selected(pod: Json, selector: dict[str, str]) -> bool:
    labels = pod["metadata"].get("labels") or {}
    return all(labels.get(name) == value for name, value in selector.items())


def _reachable(pod: Json, even_unready: bool) -> bool:
    status = pod.get("status") or {}
    if (
        not status.get("podIP")
        or status.get("phase") in ("Succeeded", "Failed")
        or pod["metadata"].get("deletionTimestamp")
    ):
        return False
    if even_unready:
        return True
    return any(
        condition["type"] == "Ready" and condition["status"] == "True" for condition in status.get("conditions") or ()
    )
