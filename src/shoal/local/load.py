"""The base load: system pods that hold part of a node, so that a fresh cluster reads like a real one."""

from __future__ import annotations

from shoal.api import quantity
from shoal.api.meta import Json


def base_load_pods(load: dict[str, str], node: str) -> list[Json]:
    """Pods whose requests and limits sum up to the load exactly.

    Limits may be below requests in the sum though never in one container; so one pod carries the limits and what fits
    below them, another the rest of the requests.
    """
    limits = {name.removeprefix("limits."): text for name, text in load.items() if name.startswith("limits.")}
    requests = {name: text for name, text in load.items() if not name.startswith("limits.")}
    if not load or not node:
        return []
    below, rest = {}, {}
    for name, text in requests.items():
        amount = quantity.amount(name, text)
        under = min(amount, quantity.amount(name, limits[name])) if name in limits else 0
        if under:
            below[name] = text if under == amount else quantity.show(name, under)
        if amount - under:
            rest[name] = text if not under else quantity.show(name, amount - under)
    pods = []
    if limits:
        floor = {name: "0" for name in limits if name not in below}
        pods.append(_pod("base-load-limited", node, {**floor, **below}, limits))
    if rest:
        pods.append(_pod("base-load", node, rest, {}))
    return pods


def _pod(name: str, node: str, requests: dict[str, str], limits: dict[str, str]) -> Json:
    container = {"name": "load", "image": "pause", "resources": {"requests": requests, "limits": limits}}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": "kube-system", "labels": {"shoal.dev/base-load": "true"}},
        "spec": {
            "nodeName": node,
            "containers": [container],
            "terminationGracePeriodSeconds": 0,
            "tolerations": [{"operator": "Exists"}],
            "priorityClassName": "system-node-critical",
            "automountServiceAccountToken": False,
        },
    }
