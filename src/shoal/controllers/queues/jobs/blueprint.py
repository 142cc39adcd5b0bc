"""A kind of job whose pods another object describes: its blueprint, as a runtime is a TrainJob's.

Such a kind says which object a job names, and answers as any other kind once it knows that object (`knowing`). Caches
and admission read the blueprint and hand it over; callers of a kind see no difference. Pure.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, TypeGuard

import msgspec

from shoal.api.kind import Key, Kind
from shoal.api.meta import Json
from shoal.controllers.queues.jobs.base import GangJob
from shoal.errors import BadInput


class BlueprintName(msgspec.Struct, frozen=True):
    """Which object describes the pods of a job."""

    kind: Kind
    key: Key

    @property
    def index(self) -> str:
        return f"{self.kind.resource}/{self.key}"


class NoBlueprint(BadInput):
    """The object that describes the job's pods does not exist, or not yet."""

    def __init__(self, name: BlueprintName, field: str) -> None:
        super().__init__(f"{name.kind.kind} {name.key.name} does not exist; create it, or correct {field}")
        self.name = name


def missing_reason(name: BlueprintName) -> str:
    """Of the event that says that it does not exist."""
    return f"{name.kind.kind}NotFound"


class WithBlueprint(GangJob, Protocol):
    blueprint_kinds: tuple[Kind, ...]
    """Watched before jobs of this kind are, so that a job never comes before the object that it names."""

    def blueprint_name(self, job: Json) -> BlueprintName | None:
        """The object that this job names; None where it names none that counts, which `pod_sets` then says."""

    def knowing(self, blueprint: Json | None, recorded: Sequence[Json]) -> GangJob:
        """This kind, for a job whose blueprint is this (None: it does not exist). `recorded` are the pod sets of the
        job's Workload, where it has one: while a job runs, its pods are those that its blueprint made of it then."""


class WithCopies(WithBlueprint, Protocol):
    """A kind whose own controller may keep a copy of a job's blueprint, and goes by that alone from then on."""

    def copy_name(self, job: Json) -> BlueprintName:
        """The object with the copy. It is not watched: it is read once it may be there, before a start, and before a
        change is followed."""

    def may_have_copy(self, job: Json) -> bool:
        """Has its own controller seen this job? It is started only then."""

    def from_copy(self, kept: Json, job: Json) -> Json | None:
        """What `knowing` takes for the blueprint; None where that object is not this job's copy."""


def has_copies(kind: GangJob) -> TypeGuard[WithCopies]:
    return has_blueprint(kind) and hasattr(kind, "copy_name")


def has_blueprint(kind: GangJob) -> TypeGuard[WithBlueprint]:
    return bool(getattr(kind, "blueprint_kinds", ()))
