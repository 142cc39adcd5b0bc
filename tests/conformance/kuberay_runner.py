"""Runs neutral KubeRay cases against Shoal's Ray operator and says which hold.

`run(path)` takes any file of the schema `{cases: [{id, family, level, title, given, expect}]}` and returns
outcomes; `python -m tests.conformance.kuberay_runner FILE [--json OUT] [--family F] [--case ID]` prints them. A
`quirk` is behaviour of the reference that we may improve on, so it is reported but never counts as failed.
"""

from __future__ import annotations

import argparse
import collections
import json
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from shoal.controllers.ray import names, services, view
from shoal.controllers.ray.cluster import counts, redis_cleanup, upgrade
from shoal.controllers.ray.pods import autoscaler, builder, fault_tolerance
from shoal.controllers.ray.settings import RaySettings, from_environment
from tests.conformance.kuberay_projection import (
    compare,
    defaulted,
    ingress_view,
    normal_amounts,
    pod_view,
    service_view,
)

Json = dict[str, Any]


@dataclass
class Outcome:
    id: str
    family: str
    level: str
    result: str  # passed, failed, skipped, differs (a quirk with another outcome)
    detail: str = ""


class Skip(Exception):
    """The case asks for something that does not apply here; the text says what."""


def run(path: str | Path) -> dict[str, dict[str, Any]]:
    return tabulated(outcomes(path))


def tabulated(found: list[Outcome]) -> dict[str, dict[str, Any]]:
    """Counts per family, with the failed cases by name; a quirk passes with either outcome."""
    table: dict[str, dict[str, Any]] = {}
    for outcome in found:
        row = table.setdefault(outcome.family, {"passed": 0, "failed": 0, "skipped": 0, "failed_ids": []})
        row[outcome.result if outcome.result in row else "passed"] += 1
        if outcome.result == "failed":
            row["failed_ids"].append(outcome.id)
    return table


def outcomes(path: str | Path, *, family: str = "", case: str = "") -> list[Outcome]:
    cases = json.loads(Path(path).read_text())["cases"]
    return [run_case(one) for one in cases if family in ("", one["family"]) and case in ("", one["id"])]


def run_case(case: Json) -> Outcome:
    check = CHECKS.get(case["family"])
    outcome = Outcome(case["id"], case["family"], case["level"], "passed")
    if check is None:
        outcome.result, outcome.detail = "skipped", "no check for this family"
        return outcome
    try:
        problems = check(case["given"], case["expect"])
    except Skip as reason:
        outcome.result, outcome.detail = "skipped", str(reason)
        return outcome
    except Exception as error:  # a crash is a failed case, not the end of the run
        problems = [f"{type(error).__name__}: {error}"]
    if problems:
        outcome.result = "differs" if case["level"] == "quirk" else "failed"
        outcome.detail = "; ".join(problems)
    return outcome


def settings_of(given: Json) -> RaySettings:
    return from_environment(given.get("operatorEnv") or {}, given.get("featureGates"))


def prepared(cluster: Json, uid: str = "cluster-uid-1") -> Json:
    """The cluster as an API server would hand it over: with a namespace and a UID (samples were recorded without)."""
    stored = view.clone(cluster)
    metadata = stored.setdefault("metadata", {})
    metadata.setdefault("namespace", "default")
    metadata.setdefault("uid", uid)
    return stored


def check_pods(given: Json, expect: Json) -> list[str]:
    return _compare_pods(prepared(given["cluster"]), settings_of(given), expect)


def check_sample_cluster(given: Json, expect: Json) -> list[str]:
    from shoal.controllers.ray.validation.cluster_rules import problems_of_cluster

    settings = settings_of(given)
    cluster = prepared(given["manifest"], uid="")
    problems = [*problems_of_cluster(cluster, settings)]
    if bool(problems) == expect["valid"]:
        return [f"valid: expected {expect['valid']}, problems {problems}"]
    found = _compare_pods(cluster, settings, expect["pods"])
    found += check_counts({"cluster": given["manifest"]}, expect["counts"])
    found += compare(expect["headService"], service_view(services.head_service(cluster, settings)), "headService")
    return found


def _compare_pods(cluster: Json, settings: RaySettings, expect: Json) -> list[str]:
    problems = compare(expect["head"], pod_view(builder.head_pod(cluster, settings), is_head=True), "head")
    workers = [pod_view(builder.worker_pod(cluster, group, settings), is_head=False) for group in view.groups(cluster)]
    if len(workers) != len(expect["workers"]):
        return [*problems, f"workers: expected {len(expect['workers'])}, got {len(workers)}"]
    for index, (wanted, built) in enumerate(zip(expect["workers"], workers, strict=True)):
        problems += compare(wanted, built, f"workers[{index}]")
    return problems


def check_services(given: Json, expect: Json) -> list[str]:
    cluster, settings = prepared(given["cluster"]), settings_of(given)
    serve = services.serve_service(cluster)
    role, binding = autoscaler.role(cluster), autoscaler.role_binding(cluster)
    built = {
        "headService": service_view(services.head_service(cluster, settings)),
        "headlessWorkerService": service_view(services.headless_service(cluster)),
        "ingressIfEnabled": ingress_view(services.ingress(cluster)),
        "serviceAccount": autoscaler.service_account(cluster)["metadata"]["name"],
        "role": {"name": role["metadata"]["name"], "rules": role["rules"]},
        "roleBinding": {
            "name": binding["metadata"]["name"],
            "subjects": binding["subjects"],
            "roleRef": binding["roleRef"],
        },
    }
    if serve is not None:
        built["serveService"] = service_view(serve)
    return compare(expect, built, "")


def check_names(given: Json, expect: Json) -> list[str]:
    cluster, group = given["clusterName"], given["groupName"]
    built = {
        "checkLabel": names.checked_label(cluster),
        "checkName": names.checked_name(cluster),
        "headPodDeterministic": names.head_pod_prefix(cluster).rstrip("-"),
        "headPodPrefix": names.head_pod_prefix(cluster),
        "identifierHead": names.identifier(cluster, names.HEAD),
        "ingress": names.ingress(cluster),
        "redisCleanupJob": names.redis_cleanup_job(cluster),
        "serveService": names.serve_service(cluster),
        "workerPodPrefix": names.worker_pod_prefix(cluster, group),
    }
    return compare(expect, {key: built[key] for key in expect}, "")


def check_counts(given: Json, expect: Json) -> list[str]:
    cluster = defaulted(prepared(given["cluster"]))
    desired, minimum = counts.desired_resources(cluster), counts.min_resources(cluster)
    everything = {name: str(amount) for name, amount in desired.items()}
    smallest = {name: str(amount) for name, amount in minimum.items()}
    built = {
        "desiredPodsPerGroup": [counts.wanted_pods(group) for group in view.groups(cluster)],
        "desiredResources": everything,
        "desiredWorkerReplicas": counts.desired_workers(cluster),
        "maxWorkerReplicas": counts.max_workers(cluster),
        "minResources": smallest,
        "minWorkerReplicas": counts.min_workers(cluster),
        "gang": {
            "withoutAutoscaler": {"minMember": counts.desired_workers(cluster) + 1, "minResources": everything},
            "withAutoscaler": {"minMember": counts.min_workers(cluster) + 1, "minResources": smallest},
        },
    }
    return compare(normal_amounts(expect), normal_amounts(built), "")


def check_upgrade(given: Json, expect: Json) -> list[str]:
    differs = upgrade.spec_hash(given["before"]) != upgrade.spec_hash(given["after"])
    return [] if differs == expect["recreateNeeded"] else [f"recreateNeeded: got {differs}"]


def check_replacement(given: Json, expect: Json) -> list[str]:
    from shoal.controllers.ray.pods.observed import is_dead

    dead = is_dead(given["pod"])
    return [] if dead == expect["replacePod"] else [f"replacePod: got {dead}"]


def check_redis_cleanup(given: Json, expect: Json) -> list[str]:
    cluster, settings = prepared(given["cluster"]), settings_of(given)
    job = redis_cleanup.cleanup_job(cluster, settings)
    template = job["spec"]["template"]
    ray = template["spec"]["containers"][0]
    env = pod_view({"metadata": template["metadata"], "spec": template["spec"]}, is_head=True)["rayContainer"]["env"]
    script = " ".join([*ray["command"], *ray["args"]])
    built = {
        "name": job["metadata"]["name"],
        "labels": job["metadata"]["labels"],
        "activeDeadlineSeconds": job["spec"]["activeDeadlineSeconds"],
        "backoffLimit": job["spec"]["backoffLimit"],
        "podLabels": template["metadata"]["labels"],
        "restartPolicy": template["spec"]["restartPolicy"],
        "containers": [container["name"] for container in template["spec"]["containers"]],
        "initContainers": [container["name"] for container in template["spec"].get("initContainers") or []],
        "resources": ray["resources"],
        "env": {name: value for name, value in env.items() if name in expect["env"]},
        "commandMentions": [word for word in expect["commandMentions"] if word in script],
    }
    return compare(expect, built, "") + ([] if fault_tolerance.uses_redis(cluster) else ["cluster does not use Redis"])


def check_validate_cluster(given: Json, expect: Json) -> list[str]:
    from shoal.controllers.ray.validation.cluster_rules import problems_of_cluster

    problems = problems_of_cluster(prepared(given["cluster"]), settings_of(given))
    return [] if (not problems) == expect["valid"] else [f"expected valid={expect['valid']}, problems: {problems}"]


def check_validate_job(given: Json, expect: Json) -> list[str]:
    from shoal.controllers.ray.validation.job_rules import problems_of_job

    problems = problems_of_job(prepared(given["job"]), settings_of(given))
    return [] if (not problems) == expect["valid"] else [f"expected valid={expect['valid']}, problems: {problems}"]


def check_submission(given: Json, expect: Json) -> list[str]:
    from tests.conformance.kuberay_projection import submission_view

    return compare(expect, submission_view(prepared(given["job"]), settings_of(given), set(expect)), "")


def check_sample_job(given: Json, expect: Json) -> list[str]:
    from shoal.controllers.ray.validation.job_rules import problems_of_job
    from tests.conformance.kuberay_projection import sample_cluster, submission_view

    settings = settings_of(given)
    job = prepared(given["manifest"])
    name = job["metadata"]["name"]
    job["status"] = {
        "jobId": f"{name}-abcde",
        "rayClusterName": f"{name}-abcde",
        "dashboardURL": f"{name}-abcde-head-svc.{view.namespace(job)}.svc.cluster.local:8265",
    }
    problems = problems_of_job(job, settings)
    if bool(problems) == expect["valid"]:
        return [f"valid: expected {expect['valid']}, problems {problems}"]
    found: list[str] = []
    if "pods" in expect:
        cluster = sample_cluster(job, expect["pods"]["head"]["labels"][names.CLUSTER])
        found += _compare_pods(cluster, settings, expect["pods"])
        found += check_counts({"cluster": cluster}, expect["counts"])
    if expect["submission"]:
        shell = expect["submission"]["shell"]
        built = submission_view(job, settings, {"shell"})["shell"]
        found += compare(shell, {key: built[key] for key in shell}, "submission.shell")
    return found


def check_autoscaler_config(given: Json, expect: Json) -> list[str]:
    from tests.conformance.kuberay_autoscaler import derived_config

    return compare(expect, derived_config(prepared(given["cluster"]), Skip), "")


def check_autoscaler_patches(given: Json, expect: Json) -> list[str]:
    from tests.conformance.kuberay_autoscaler import provider_requests

    return compare(expect, provider_requests(given, expect, Skip), "")


def check_trace(given: Json, expect: Json) -> list[str]:
    from tests.conformance.kuberay_replay import replay

    return replay(given, expect, settings_of(given))


CHECKS: dict[str, Callable[[Json, Json], list[str]]] = {
    "pod-build": check_pods,
    "sample-raycluster": check_sample_cluster,
    "sample-rayjob": check_sample_job,
    "services": check_services,
    "names": check_names,
    "counts": check_counts,
    "upgrade-hash": check_upgrade,
    "pod-replacement": check_replacement,
    "redis-cleanup": check_redis_cleanup,
    "validate-raycluster": check_validate_cluster,
    "validate-rayjob": check_validate_job,
    "job-submission": check_submission,
    "autoscaler-config": check_autoscaler_config,
    "autoscaler-patches": check_autoscaler_patches,
    "trace-raycluster": check_trace,
    "trace-rayjob": check_trace,
}


def summary(found: list[Outcome]) -> str:
    table: dict[str, collections.Counter[str]] = {}
    for outcome in found:
        table.setdefault(outcome.family, collections.Counter())[outcome.result] += 1
    columns = ("passed", "failed", "skipped", "differs")
    lines = [f"{'family':24}" + "".join(f"{column:>9}" for column in columns)]
    lines += [
        f"{family:24}" + "".join(f"{row[column]:9}" for column in columns) for family, row in sorted(table.items())
    ]
    core = [outcome for outcome in found if outcome.level == "core" and outcome.result != "skipped"]
    good = sum(outcome.result == "passed" for outcome in core)
    lines.append(f"core: {good} of {len(core)} ({100 * good / max(1, len(core)):.1f} %)")
    return "\n".join(lines)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Run KubeRay cases against Shoal's Ray operator.")
    parser.add_argument("file")
    parser.add_argument("--json", default="")
    parser.add_argument("--family", default="")
    parser.add_argument("--case", default="")
    chosen = parser.parse_args(arguments)
    found = outcomes(chosen.file, family=chosen.family, case=chosen.case)
    for outcome in found:
        if outcome.result in ("failed", "differs"):
            print(f"{outcome.result} {outcome.level} {outcome.id}: {outcome.detail[:1500]}")
    print(summary(found))
    if chosen.json:
        Path(chosen.json).write_text(json.dumps([asdict(outcome) for outcome in found], indent=1))
    return 1 if any(outcome.result == "failed" and outcome.level == "core" for outcome in found) else 0


if __name__ == "__main__":
    sys.exit(main())
