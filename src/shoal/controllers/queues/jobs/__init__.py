"""The kinds of jobs that a queue can hold back and start, by kind.

A kind is a file of this folder that names its `JOBS`; nothing else lists it. A kind of another package is found by its
entry point (group `shoal.job_kinds`, a class or an object); one that an administrator describes (`configured`) is added
by the entry point of the process (`use`). Rights, webhooks, questions and copies in other clusters
are derived from what is found here.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Iterable, Iterator
from importlib.metadata import entry_points

from shoal.api.kind import Kind
from shoal.api.kinds import POD
from shoal.controllers.queues.jobs.base import End, GangJob, lacking
from shoal.errors import BadInput

ENTRY_POINTS = "shoal.job_kinds"
OF_PODS = {"deployment", "statefulset"}
"""Frameworks of which the pods are queued."""


def _shipped() -> Iterator[GangJob]:
    for module in pkgutil.iter_modules(__path__):
        yield from getattr(importlib.import_module(f"{__name__}.{module.name}"), "JOBS", ())


def _installed() -> Iterator[GangJob]:
    """Kinds that other packages bring. Raises BadInput for one that cannot be used: an installed kind is wanted."""
    for entry in entry_points(group=ENTRY_POINTS):
        try:
            found = entry.load()
            job: GangJob = found() if isinstance(found, type) else found
        except (ImportError, AttributeError, TypeError) as error:
            raise BadInput(f"kind of job {entry.value} cannot be loaded: {error}; correct or uninstall it") from error
        if missing := lacking(job):
            raise BadInput(f"kind of job {entry.value} lacks {', '.join(missing)}; see shoal.contracts")
        yield job


ALL: list[GangJob] = []
BY_KIND: dict[Kind, GangJob] = {}
BY_NAME: dict[tuple[str, str], GangJob] = {}


def use(kinds: Iterable[GangJob]) -> None:
    """Take these kinds, too. An entry point calls it with what an administrator described, before it puts anything
    together. Raises BadInput for a kind that is there already."""
    for one in kinds:
        name = (one.kind.group, one.kind.kind)
        if name in BY_NAME:
            raise BadInput(f"kind of job {one.kind.group_kind} is known already; take it out of the configuration")
        ALL.append(one)
        BY_KIND[one.kind] = BY_NAME[name] = one


def framework(one: GangJob) -> str:
    """As Kueue's configuration calls a kind: those of Kubernetes' own workloads have no group."""
    name = one.kind.kind.lower()
    return name if one.kind.group in ("", "apps") else f"{one.kind.group}/{name}"


def only(frameworks: Iterable[str]) -> None:
    """Forget all kinds but these, before anything is put together. Raises BadInput for a name that no kind has."""
    wanted = set(frameworks)
    if unknown := sorted(wanted - known_frameworks()):
        raise BadInput(f"queues.frameworks: there is no kind of job {', '.join(unknown)}")
    if wanted & OF_PODS:
        wanted.add("pod")
    for one in [one for one in ALL if framework(one) not in wanted]:
        ALL.remove(one)
        del BY_KIND[one.kind], BY_NAME[one.kind.group, one.kind.kind]


def known_frameworks() -> set[str]:
    return {framework(one) for one in ALL} | OF_PODS


def sendable() -> list[GangJob]:
    """Kinds that can run in another cluster: objects that their own controller follows there, not single pods."""
    return [one for one in ALL if one.kind != POD]


use((*_shipped(), *_installed()))

__all__ = ["ALL", "BY_KIND", "BY_NAME", "End", "GangJob", "known_frameworks", "only", "sendable", "use"]
