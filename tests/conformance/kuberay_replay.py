"""Compares what a played trace shows with what the case says: settled states, and not where ours is the better way.

Used by the runner only.
"""

from __future__ import annotations

import asyncio
from typing import Any

from shoal.controllers.ray import RaySettings
from tests.conformance.kuberay_projection import compare, normal_amounts
from tests.conformance.kuberay_traces import Stage

Json = dict[str, Any]

OUR_EVENTS = ("Warning RayClusterAdvice", "Warning RayJobAttemptFailed")


def replay(given: Json, expect: Json, settings: RaySettings) -> list[str]:
    return asyncio.run(_replay(given, expect, settings))


async def _replay(given: Json, expect: Json, settings: RaySettings) -> list[str]:
    stage = Stage(settings)
    await stage.start()
    try:
        observed = [built for step in given["steps"] if (built := await stage.play(step)) is not None]
    finally:
        await stage.stop()
    if len(observed) != len(expect["observations"]):
        return [f"expected {len(expect['observations'])} observations, got {len(observed)}"]
    problems: list[str] = []
    told: set[str] = set()
    asked_to_stop = '"suspend": true' in str(given).replace("'", '"').replace("True", "true") or "Deadline" in str(
        given
    )
    for wanted, built in zip(expect["observations"], observed, strict=True):
        wanted = dict(wanted)
        events, fresh = set(wanted.pop("eventReasonsSincePrevious", [])), set(built.pop("events")) - {*OUR_EVENTS}
        told |= fresh
        # an event told once need not be told again on every pass; one that the reference never told is a difference
        problems += [f"{wanted['at']}: event {event} missing" for event in sorted(events - told)]
        if "only" not in wanted:
            problems += [f"{wanted['at']}: event {event} not expected" for event in sorted(fresh - events)]
        if built.get("stopCalled") and not wanted.get("stopCalled") and asked_to_stop:
            built["stopCalled"] = False  # the reference leaves a suspended or late Ray job running; we stop it
        if _one_of_several_goes(given) and built.get("replicaIndexLabels") and _sizes(wanted) == _sizes(built):
            built["replicaIndexLabels"] = wanted["replicaIndexLabels"]
        if _ray_said_so_first(wanted, built):
            built["status"] = {**built["status"], **{key: wanted["status"][key] for key in ("reason", "jobStatus")}}
        if "only" in wanted:
            problems += compare({"only": wanted["only"]}, _normal(built), str(wanted["at"]))
            continue
        problems += compare(_normal(wanted), _normal(built), str(wanted["at"]))
    return problems


def _ray_said_so_first(wanted: Json, built: Json) -> bool:
    """The submitter failed because the job did: for the reference a failed submission, unless it looked before."""
    theirs, ours = wanted.get("status") or {}, built.get("status") or {}
    return theirs.get("reason") == "SubmissionFailed" and (ours.get("reason"), ours.get("jobStatus")) == (
        "AppFailed",
        "FAILED",
    )


def _one_of_several_goes(given: Json) -> bool:
    """A person asks for fewer workers and names none: the reference takes the first it lists, we the least useful."""
    steps = {step["do"] for step in given["steps"]}
    return "patchCluster" in steps and "workersToDelete" not in steps


def _sizes(observation: Json) -> Json:
    return {group: len(pairs) for group, pairs in (observation.get("replicaIndexLabels") or {}).items()}


def _normal(observation: Json) -> Json:
    """Quantities as amounts; an absent map and an empty one are the same."""
    if observation.get("clusters"):
        observation = {
            **observation,
            "clusters": [
                {key: {} if value is None else value for key, value in one.items()} for one in observation["clusters"]
            ],
        }
    status = observation.get("status")
    if not isinstance(status, dict):
        return observation
    amounts = {key: normal_amounts(value) for key, value in status.items() if key.startswith("desired")}
    return {**observation, "status": {**status, **amounts}}
