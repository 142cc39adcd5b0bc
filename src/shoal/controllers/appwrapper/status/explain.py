"""Why an AppWrapper waits, as the controller stores it in the status and `shoal why` prints it.

The controller alone judges; all others read what it said. Gangs of the AppWrapper's own namespace are named, those
of others appear by UID alone: a user that may read them can tell which they are, another learns how many. A text, so
that `kubectl describe` keeps it on one line; bounded, whatever the size of the cluster.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable

import msgspec

from shoal.api.appwrapper import AppWrapper
from shoal.api.gang import ASKED
from shoal.api.meta import Json
from shoal.api.quantity import show
from shoal.api.times import micro_text
from shoal.controllers.appwrapper.status import admission as admissions
from shoal.controllers.appwrapper.v1beta1.status import TERMINAL
from shoal.controllers.planning.naming import KnownAs, discreet, in_plain_words, plain_key
from shoal.controllers.planning.shortfalls import fields_of
from shoal.controllers.planning.words import printable
from shoal.engine.model import Explanation, Shortfall

MOST_NAMED = 20
MOST_SHORTFALLS = 8
LONGEST = 300
LONGEST_QUESTION = 64
NODE_SHORTFALLS = frozenset({"aggregate", "fragmentation", "selector", "taint", "affinity", "ports"})


class NamedGang(msgspec.Struct, frozen=True, array_like=True, omit_defaults=True):
    """A gang: by UID, and by its key where it is of the same namespace."""

    uid: str
    key: str = ""


class Short(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, rename="camel"):
    """One thing that is missing, amounts as people write them."""

    kind: str
    resource: str = ""
    needed: str = ""
    available: str = ""
    missing: str = ""
    place: str = ""
    message: str = ""


class StoredExplanation(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, rename="camel"):
    message: str = ""
    position: int = 0
    queue_length: int = 0
    shortfalls: tuple[Short, ...] = ()
    holders: tuple[NamedGang, ...] = ()
    more_holders: int = 0
    release: tuple[NamedGang, ...] = ()
    """The shortest list of gangs whose end would let it start."""
    more_release: int = 0
    increase_at: str = ""
    """The quota that would have to grow, and by how much at least."""
    increase: dict[str, str] = {}
    in_full: bool = False
    """Whether `release` and `increase` were looked for."""
    at: int = 0
    """Moment of the explanation."""
    asked: str = ""
    """Whose question it answers, if one was asked."""


def told(
    explanation: Explanation,
    namespace: str,
    uid_of: Callable[[str], str],
    known_as: KnownAs = str,
    *,
    in_full: bool,
) -> StoredExplanation:
    """What may be stored on an AppWrapper of this namespace. `uid_of` finds the UID of a gang by its key."""

    def named(keys: Iterable[str]) -> tuple[NamedGang, ...]:
        chosen = list(keys)[:MOST_NAMED]
        return tuple(NamedGang(uid_of(key), name(key) if _namespace(key) == namespace else "") for key in chosen)

    def name(key: str) -> str:
        return plain_key(known_as(key))

    def words(text: str) -> str:
        return printable(discreet(in_plain_words(text, known_as), namespace), LONGEST)

    increase = explanation.least_increase
    return StoredExplanation(
        message=words(explanation.message),
        position=explanation.position,
        queue_length=max(explanation.position, explanation.queue_length),
        shortfalls=tuple(_short(one, words) for one in explanation.shortfalls[:MOST_SHORTFALLS]),
        holders=named(explanation.holders),
        more_holders=max(0, len(explanation.holders) - MOST_NAMED),
        release=named(explanation.release),
        more_release=max(0, len(explanation.release) - MOST_NAMED),
        increase_at=increase.place if increase is not None else "",
        increase={name: show(name, value) for name, value in increase.amounts.items()} if increase is not None else {},
        in_full=in_full,
    )


def write(found: StoredExplanation) -> str:
    return msgspec.json.encode(found).decode()


def read(text: str) -> StoredExplanation | None:
    """None where nothing was told, or by a release that tells it otherwise."""
    try:
        return msgspec.json.decode(text, type=StoredExplanation) if text else None
    except msgspec.MsgspecError:
        return None


def described(wrapper: AppWrapper, names: dict[str, str]) -> Json:
    """All that is stored about one AppWrapper; `names` are the gangs that the asker may read, by UID."""
    record, status = admissions.read(wrapper.status.admission), wrapper.status
    found: Json = {}
    waiting = read(status.explanation) if is_waiting(wrapper) else None
    if waiting is not None:
        holders, hidden = _resolved(waiting.holders, names)
        release, hidden_release = _resolved(waiting.release, names)
        found |= {
            "message": waiting.message,
            "position": waiting.position,
            "queueLength": waiting.queue_length,
            "shortfalls": [msgspec.to_builtins(one) for one in waiting.shortfalls],
            "holders": holders,
            "holdersNotShown": hidden,
            "moreHolders": waiting.more_holders,
            "release": release,
            "releaseNotShown": hidden_release,
            "moreRelease": waiting.more_release,
            "leastIncrease": {"place": waiting.increase_at, "amounts": waiting.increase} if waiting.increase else None,
            "clusterTooSmall": _is_hopeless(waiting),
            "explainedAt": micro_text(waiting.at) if waiting.at else "",
        }
    elif status.message:
        found["message"] = status.message
    if status.state in TERMINAL:
        return found  # what it was given is no longer its own
    nodes: Counter[str] = Counter()
    for one in record.sets.values():
        nodes.update(one.nodes)
    found |= {"nodes": dict(nodes)} if nodes else {}
    found |= {"quota": {tree: seat.node for tree, seat in record.seats.items()}} if record.seats else {}
    found |= {"setbacks": record.setbacks, "resumeAt": record.resume_at} if record.resume_at else {}
    return found


def question(wrapper: AppWrapper) -> str:
    """What was asked last, or an empty text."""
    return printable((wrapper.metadata.annotations or {}).get(ASKED, ""), LONGEST_QUESTION)


def unnamed(wrapper: AppWrapper) -> bool:
    """Does what is stored point at gangs of other namespaces?"""
    waiting = read(wrapper.status.explanation) if is_waiting(wrapper) else None
    return waiting is not None and any(not one.key for one in (*waiting.holders, *waiting.release))


def is_waiting(wrapper: AppWrapper) -> bool:
    status = wrapper.status
    if status.can_run or wrapper.spec.suspend:
        return False
    return (status.state or "Pending") == "Pending" and status.phase in ("", "Suspended")


def _is_hopeless(waiting: StoredExplanation) -> bool:
    """No gang's end would make room, and no quota is in the way: the nodes themselves do not suffice."""
    kinds = {one.kind for one in waiting.shortfalls}
    return waiting.in_full and not waiting.release and bool(kinds) and kinds <= NODE_SHORTFALLS


def _resolved(gangs: tuple[NamedGang, ...], names: dict[str, str]) -> tuple[list[str], int]:
    """Those that the asker may read, and how many more are listed that they may not."""
    known = [key for one in gangs if (key := one.key or names.get(one.uid, ""))]
    return known, len(gangs) - len(known)


def _short(shortfall: Shortfall, words: Callable[[str], str]) -> Short:
    return Short(**fields_of(shortfall), message=words(shortfall.message))


def _namespace(key: str) -> str:
    return key.split("/")[1] if key.count("/") == 2 else ""
