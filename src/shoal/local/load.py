"""The base load: system pods that hold part of a node, so that a fresh cluster reads like a real one."""

from __future__ import annotations

from shoal.api import quantity
from shoal.api.meta import Json
from shoal.errors import BadInput
from shoal.local.shapes import NodeShape

BASE_LOAD = "shoal.dev/base-load"
"""Label of its pods."""


def check_base_load(load: dict[str, str], node: NodeShape | None) -> None:
    """Refuse a load that the node would not hold, or that has none."""
    if load and node is None:
        raise BadInput("there is no node to put the base load on; declare one with --node")
    for name, text in load.items():
        offered = node.offers.get(name, "0") if node is not None else "0"
        if not name.startswith("limits.") and quantity.amount(name, text) > quantity.amount(name, offered):
            raise BadInput(f"{name}={text} is more than the first node offers ({offered})")


def base_load_pods(load: dict[str, str], nodes: list[str]) -> list[Json]:
    """Pods on the first of the nodes whose requests and limits sum up to the load exactly.

    Limits may be below requests in the sum though never in one container; so one pod carries the limits and what fits
    below them, another the rest of the requests.
    """
    limits = {name.removeprefix("limits."): text for name, text in load.items() if name.startswith("limits.")}
    requests = {name: text for name, text in load.items() if not name.startswith("limits.")}
    if not load or not nodes:
        return []
    node = nodes[0]
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
        "metadata": {"name": name, "namespace": "kube-system", "labels": {BASE_LOAD: "true"}},
        "spec": {
            "nodeName": node,
            "containers": [container],
            "terminationGracePeriodSeconds": 0,
            "tolerations": [{"operator": "Exists"}],
            "priorityClassName": "system-node-critical",
            "automountServiceAccountToken": False,
        },
    }
