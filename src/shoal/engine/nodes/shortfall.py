"""Why pods cannot be placed, in the words a user gets.

Called by the fit code when it failed, and by the pod scheduler for its message. Looks at the room, never changes it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np

from shoal.api.quantity import show
from shoal.engine.model import Amounts, Shortfall, ShortfallKind
from shoal.engine.nodes.labels import Mask
from shoal.engine.nodes.room import Room
from shoal.engine.nodes.shape import Shape, blocking_taint, is_cordoned_for, is_selected, ports_conflict
from shoal.engine.nodes.slot import LARGEST


def shortfalls(
    room: Room, rows: Sequence[tuple[int, str, int]], failed: int, *, looks_at_pods: bool = False
) -> tuple[Shortfall, ...]:
    """What keeps a gang out. `rows`: shape row, name and count of each pod set; `failed`: the one that found no place.

    First the gang as a whole against all nodes it may use, then the failed pod set against its own nodes, then ports,
    other pods (`looks_at_pods`: it has terms about them, or they about it) and pieces.
    """
    row, name, count = rows[failed]
    shape = room.shapes[row]
    if shape is None:
        return ()
    if not room.eligible[row].any():
        return (_nowhere(room, shape, name, count),)
    usable = np.zeros_like(room.alive)
    for other, _, _ in rows:
        usable |= room.eligible[other]
    found = _sums(room, shape, usable, _demand(room, rows), "")
    found = found or _sums(room, shape, room.eligible[row], _demand(room, [rows[failed]]), name)
    if found:
        return tuple(found)
    if shape.host_ports and int(room.totals[row]) < count <= int(room.holds(row, room.free).sum(dtype=np.int64)):
        return (_by_ports(room, shape, row, name, count),)
    if looks_at_pods and int(room.totals[row]) >= count:
        message = f"other pods keep {name} off the nodes that have room for it (pod affinity or anti-affinity)"
        return (Shortfall(kind="affinity", needed=count, place="nodes", pod_set=name, message=message),)
    return (_fragments(room, shape, row, name, count),)


def _by_ports(room: Room, shape: Shape, row: int, name: str, count: int) -> Shortfall:
    ports = ", ".join(str(port.port) for port in shape.host_ports)
    able = int(room.totals[row])
    message = f"host port(s) {ports} are free on {able} node(s), {count} pod(s) of {name} need one each"
    return Shortfall(
        kind="ports", missing=count - able, needed=count, available=able, place="nodes", pod_set=name, message=message
    )


def _demand(room: Room, rows: Sequence[tuple[int, str, int]]) -> Amounts:
    demand: Amounts = {}
    for row, _, count in rows:
        shape = room.shapes[row]
        for resource, amount in shape.requests if shape is not None else ():
            demand[resource] = demand.get(resource, 0) + amount * count
    return demand


def _sums(room: Room, shape: Shape, usable: Mask, demand: Amounts, pod_set: str) -> list[Shortfall]:
    found = []
    ruled_out = int(np.count_nonzero(room.alive & ~usable))
    for resource, needed in sorted(demand.items()):
        here = room.sum_free(resource, usable)
        if here >= needed:
            continue
        kind: ShortfallKind = "aggregate"
        message = f"{show(resource, needed)} {resource} needed, {show(resource, here)} free"
        if ruled_out and room.sum_free(resource, room.alive) >= needed:
            kind, why = _ruling(room, shape)
            message += f" on the nodes it may use; {ruled_out} node(s) {why}"
        found.append(
            Shortfall(
                kind=kind,
                resource=resource,
                missing=needed - here,
                needed=needed,
                available=here,
                place="nodes",
                pod_set=pod_set,
                nodes=ruled_out,
                message=message,
            )
        )
    return found


def _nowhere(room: Room, shape: Shape, pod_set: str, count: int) -> Shortfall:
    kind, why = _ruling(room, shape)
    total = room.node_count
    message = f"none of {total} node(s) may run pod set {pod_set}: they {why}" if total else "the cluster has no nodes"
    return Shortfall(
        kind=kind,
        resource="pods",
        missing=count,
        needed=count,
        place="nodes",
        pod_set=pod_set,
        nodes=total,
        message=message,
    )


def _ruling(room: Room, shape: Shape) -> tuple[ShortfallKind, str]:
    """What rules most nodes out: `taint` or `selector`, and the words for it."""
    causes: Counter[tuple[ShortfallKind, str]] = Counter()
    for fact in room.facts:
        taint = blocking_taint(shape, fact)
        if is_cordoned_for(shape, fact):
            causes["taint", "are unschedulable"] += 1
        elif taint is not None:
            causes["taint", f"have the taint {{{taint.key}: {taint.value}}}"] += 1
        elif not is_selected(shape, fact):
            causes["selector", "do not match its node selector or affinity"] += 1
    if not causes:
        return "aggregate", ""
    return max(causes.items(), key=lambda item: (item[1], item[0]))[0]


def _fragments(room: Room, shape: Shape, row: int, pod_set: str, count: int) -> Shortfall:
    """Sums are enough, no arrangement is: name the resource that most nodes are short of for one more pod."""
    short: Counter[str] = Counter()
    for resource, amount in shape.requests:
        free = room.free[room.resources[resource]]
        short[resource] = int(np.count_nonzero(room.eligible[row] & (free < min(amount, LARGEST))))
    resource, nodes = max(short.items(), key=lambda item: (item[1], item[0]))
    able = min(int(room.totals[row]), count)
    largest = _largest(room, resource, row)
    amount = dict(shape.requests)[resource]
    return Shortfall(
        kind="fragmentation",
        resource=resource,
        missing=count - able,
        needed=count,
        available=able,
        place="nodes",
        pod_set=pod_set,
        nodes=nodes,
        message=(
            f"enough {resource} is free in total, but not in large enough pieces: at most {able} of {count} pod(s) of "
            f"{pod_set} can be placed; each needs {show(resource, amount)}, the largest free piece is "
            f"{show(resource, largest)}"
        ),
    )


def _largest(room: Room, resource: str, row: int) -> int:
    free = room.free[room.resources[resource]][room.eligible[row]]
    return int(free.max(initial=0))


def unschedulable(room: Room, row: int, closed: Mask | None, why: str) -> str:
    """The kube-scheduler's sentence for a pod that fits nowhere. `closed`: nodes that other pods keep it off, `why`."""
    shape = room.shapes[row]
    reasons: Counter[str] = Counter()
    total = 0
    for slot in room.slots:
        if slot.fact is None or shape is None:
            continue
        total += 1
        taint = blocking_taint(shape, slot.fact)
        if is_cordoned_for(shape, slot.fact):
            reasons["node(s) were unschedulable"] += 1
        elif taint is not None:
            reasons["node(s) had untolerated taint(s)"] += 1
        elif not is_selected(shape, slot.fact):
            reasons["node(s) didn't match Pod's node affinity/selector"] += 1
        elif any(ports_conflict(want, taken) for want in shape.host_ports for taken in slot.ports):
            reasons["node(s) didn't have free ports for the requested pod ports"] += 1
        else:
            short = [resource for resource, amount in shape.requests if slot.free(resource) < amount]
            for resource in short:
                reasons["Too many pods" if resource == "pods" else f"Insufficient {resource}"] += 1
            if not short and closed is not None and closed[slot.index]:
                reasons[why] += 1
    listed = ", ".join(sorted(f"{count} {reason}" for reason, count in reasons.items()))
    return f"0/{total} nodes are available: {listed}." if listed else f"0/{total} nodes are available."
