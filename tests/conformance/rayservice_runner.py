"""Runs neutral RayService and RayCronJob cases against Shoal's Ray operator and says which hold.

`python tests/conformance/run.py rayservice FILE` prints the counts per family; with `-m
tests.conformance.rayservice_runner FILE [--case ID]` every difference. A `quirk` never counts as failed.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from shoal.api.times import parse_time, seconds_text
from shoal.controllers.ray import names, view
from shoal.controllers.ray.cron.rules import cron_problem
from shoal.controllers.ray.cron.schedule import parse_schedule, parse_zone
from shoal.controllers.ray.pods import builder
from shoal.controllers.ray.service import applications, belongings, spec_changes
from shoal.controllers.ray.service.rules import first_problem
from shoal.controllers.ray.service.steps import ClusterShare, UpgradeShares, next_capacities, next_traffic
from shoal.controllers.ray.service.upgrade_strategy import step_options
from tests.conformance.kuberay_projection import compare
from tests.conformance.kuberay_runner import Outcome, settings_of, summary, tabulated
from tests.conformance.rayservice_traces import ServiceStage

Json = dict[str, Any]


def run(path: str | Path) -> dict[str, dict[str, Any]]:
    return tabulated(outcomes(path))


def outcomes(path: str | Path, *, case: str = "") -> list[Outcome]:
    cases = json.loads(Path(path).read_text())["cases"]
    return [run_case(one) for one in cases if case in ("", one["id"])]


def run_case(case: Json) -> Outcome:
    outcome = Outcome(case["id"], case["family"], case["level"], "passed")
    check = CHECKS.get(case["family"])
    if check is None:
        outcome.result, outcome.detail = "skipped", "no check for this family"
        return outcome
    try:
        problems = check(case["given"], case["expect"])
    except Exception as error:  # a crash is a failed case, not the end of the run
        problems = [f"{type(error).__name__}: {error}"]
    if problems:
        outcome.result = "differs" if case["level"] == "quirk" else "failed"
        outcome.detail = "; ".join(problems)
    return outcome


def check_validate_service(given: Json, expect: Json) -> list[str]:
    problem = first_problem(given["service"], settings_of(given))
    built: Json = {"valid": problem is None}
    if problem is not None and "event" in expect:
        built["event"] = problem.event
    return compare({key: expect[key] for key in ("valid", "event") if key in expect}, built, "")


def check_validate_cron(given: Json, expect: Json) -> list[str]:
    problem = cron_problem(given["cronJob"], settings_of(given))
    return [] if (not problem) == expect["valid"] else [f"expected valid={expect['valid']}, problem: {problem}"]


def check_services(given: Json, expect: Json) -> list[str]:
    service, name = given["service"], given["clusterName"]
    cluster = {"metadata": {"name": name, "namespace": view.namespace(service)}}
    built = {
        "headService": _service(belongings.head_service(service, name, settings_of(given))),
        "serveService": _service(belongings.serve_service(service, cluster, settings_of(given))),
    }
    wanted = {part: dict(found) for part, found in expect.items() if part in built}
    for part in wanted.values():
        part["type"] = part.get("type") or "ClusterIP"
        part.setdefault("headless", False)
    return compare(wanted, built, "")


def _service(service: Json) -> Json:
    ports = {
        port["name"]: {key: port[key] for key in ("port", "appProtocol", "nodePort") if key in port}
        for port in service["spec"].get("ports") or []
    }
    return {
        **{key: service["metadata"].get(key) for key in ("name", "namespace", "labels", "annotations")},
        "headless": service["spec"].get("clusterIP") == "None",
        "ports": ports,
        "selector": service["spec"]["selector"],
        "type": service["spec"].get("type") or "ClusterIP",
    }


def check_cluster(given: Json, expect: Json) -> list[str]:
    settings = settings_of(given)
    made = belongings.cluster_of(
        given["service"], given["clusterName"], settings, active_cluster=given.get("activeCluster") or ""
    )
    annotations, owner = dict(view.annotations_of(made)), view.metadata(made)["ownerReferences"][0]
    annotations[names.CONFIG_HASH] = f"<{len(annotations[names.CONFIG_HASH])} characters>"
    if annotations[names.OPERATOR_VERSION] == settings.version:
        annotations[names.OPERATOR_VERSION] = "<operator version>"
    built = {
        "name": view.name(made),
        "labels": view.labels(made),
        "annotations": annotations,
        "owner": {key: owner[key] for key in ("blockOwnerDeletion", "controller", "kind")},
        "replicasPerGroup": [group.get("replicas") for group in view.groups(made)],
    }
    return compare(expect, built, "")


def check_pods(given: Json, expect: Json) -> list[str]:
    settings = settings_of(given)
    cluster = belongings.cluster_of(given["service"], "svc1-abcde", settings)
    pods = {"head": builder.head_pod(cluster, settings)}
    pods["worker"] = builder.worker_pod(cluster, view.groups(cluster)[0], settings)
    return [one for role, wanted in expect.items() for one in _compare_pod(wanted, pods[role], role)]


def _compare_pod(wanted: Json, pod: Json, role: str) -> list[str]:
    ray = pod["spec"]["containers"][0]
    env = {one["name"]: one.get("value") for one in ray["env"]}
    probe = dict(ray["readinessProbe"])
    if "exec" in probe:
        words = " ".join(probe["exec"]["command"]).replace("'", " ").split()
        probe["execChecks"] = [word for word in words if word.startswith("http")]
    built = {
        "env": {name: env.get(name) for name in wanted.get("env") or {}},
        "readinessProbe": {key: probe.get(key) for key in wanted.get("readinessProbe") or {}},
        "serveLabel": view.labels(pod).get(names.SERVE),
    }
    return compare(wanted, {key: built[key] for key in wanted}, role)


def check_upgrade(given: Json, expect: Json) -> list[str]:
    settings = settings_of(given)
    cluster = belongings.cluster_of(given["before"], "svc1-aaaaa", settings)
    if given.get("clusterOperatorVersion"):
        cluster["metadata"]["annotations"][names.OPERATOR_VERSION] = given["clusterOperatorVersion"]
    built = {"action": spec_changes.action(given["after"], cluster, settings, is_active=True)}
    return compare(expect, built, "")


def check_health(given: Json, expect: Json) -> list[str]:
    stored = applications.statuses(given["applications"])
    built = {
        "ready": applications.is_ready(stored),
        "statuses": {name: one["status"] for name, one in stored.items()},
        "submit": applications.must_submit(
            given.get("cachedConfig"), given.get("desiredConfig") or "", given["applications"]
        ),
    }
    return compare(expect, {key: built[key] for key in expect}, "")


def check_step(given: Json, expect: Json) -> list[str]:
    options, rollback = step_options(given["service"]), bool(given.get("rollback"))
    shares = UpgradeShares(_share(given["active"]), _share(given["pending"]))
    shares = next_capacities(shares, options, rollback=rollback)
    shares = next_traffic(shares, options, pending_ready=bool(given.get("pendingReady")), rollback=rollback)
    built = {
        role: {"targetCapacity": one.capacity, "weight": one.traffic}
        for role, one in (("active", shares.active), ("pending", shares.pending))
    }
    return compare(expect, built, "")


def _share(part: Json) -> ClusterShare:
    return ClusterShare(part["targetCapacity"], part["trafficRoutedPercent"], part.get("secondsSinceTrafficMoved"))


def check_rollback(given: Json, expect: Json) -> list[str]:
    pending = belongings.cluster_of(given["pendingFrom"], "svc1-bbbbb", settings_of(given))
    return compare(expect, {"rollbackInProgress": spec_changes.rolls_back(given["desired"], pending)}, "")


def check_cron_next(given: Json, expect: Json) -> list[str]:
    rows = []
    for row in given["rows"]:
        schedule, zone = parse_schedule(row["schedule"]), parse_zone(row.get("timeZone") or "UTC")
        found: list[str] = []
        moment: int | None = parse_time(row["after"])
        while moment is not None and len(found) < 3:
            moment = schedule.next_after(moment, zone)
            if moment is not None:
                found.append(seconds_text(moment))
        rows.append({"next": found})
    return compare(expect, {"rows": rows}, "")


def check_trace(given: Json, expect: Json) -> list[str]:
    return asyncio.run(_replay(given, expect))


async def _replay(given: Json, expect: Json) -> list[str]:
    stage = ServiceStage(settings_of(given))
    await stage.start()
    try:
        seen = [built for step in given["steps"] if (built := await stage.play(step)) is not None]
    finally:
        await stage.stop()
    problems: list[str] = []
    told: set[str] = set()
    for wanted, built in zip(expect["observations"], seen, strict=True):
        wanted = {key: value for key, value in wanted.items() if key != "lastPass"}
        events, fresh = set(wanted.pop("eventReasonsSincePrevious", [])), set(built.pop("events"))
        told |= fresh
        # an event told once need not be told again on every pass; one that the reference never told is a difference
        problems += [f"{wanted['at']}: event {event} missing" for event in sorted(events - told)]
        problems += [f"{wanted['at']}: event {event} not expected" for event in sorted(fresh - events)]
        if "submissions" in built:
            built["distinctServeSubmissionsSincePrevious"] = built.pop("submissions")
        problems += compare(wanted, built, str(wanted["at"]))
    return problems


CHECKS: dict[str, Callable[[Json, Json], list[str]]] = {
    "validate-rayservice": check_validate_service,
    "validate-raycronjob": check_validate_cron,
    "service-services": check_services,
    "service-cluster": check_cluster,
    "service-pods": check_pods,
    "service-upgrade": check_upgrade,
    "serve-health": check_health,
    "incremental-pass": check_step,
    "rollback-decision": check_rollback,
    "cron-next": check_cron_next,
    "trace-rayservice": check_trace,
    "trace-raycronjob": check_trace,
}


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("file")
    parser.add_argument("--case", default="")
    chosen = parser.parse_args(arguments)
    found = outcomes(chosen.file, case=chosen.case)
    for outcome in found:
        if outcome.result in ("failed", "differs"):
            print(f"{outcome.result} {outcome.level} {outcome.id}: {outcome.detail[:3000]}")
    print(summary(found))
    return 1 if any(outcome.result == "failed" and outcome.level == "core" for outcome in found) else 0


if __name__ == "__main__":
    sys.exit(main())
