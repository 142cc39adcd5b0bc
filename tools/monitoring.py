"""Writes the Grafana dashboards and Prometheus rules in monitoring/ from the tables below (`make monitoring`).

A panel is a title, a unit and its queries; an alert is a query, how long it must hold, and what to do. A test reads
each query and holds it against the metrics that a running controller serves.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import msgspec

FOLDER = Path(__file__).parents[1] / "monitoring"


class Panel(msgspec.Struct, frozen=True):
    """`queries` are expressions with the legend of their lines."""

    title: str
    unit: str
    queries: dict[str, str]


class Alert(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    expression: str
    lasts: str
    severity: str
    summary: str
    runbook: str


def _quantile(share: float, name: str, by: str = "") -> str:
    labels = f"le, {by}" if by else "le"
    return f"histogram_quantile({share}, sum(rate({name}_bucket[10m])) by ({labels}))"


_BY_RESOURCE = "{{cluster_queue}} {{resource}}"
_QUEUE = 'cluster_queue=~"$queue"'
QUEUES = (
    Panel("Waiting", "short", {f"sum(kueue_pending_workloads{{{_QUEUE}}}) by (cluster_queue)": "{{cluster_queue}}"}),
    Panel(
        "Admitted",
        "short",
        {f"sum(kueue_admitted_active_workloads{{{_QUEUE}}}) by (cluster_queue)": "{{cluster_queue}}"},
    ),
    Panel(
        "Share of nominal quota in use",
        "percentunit",
        {
            f"sum(kueue_cluster_queue_resource_usage{{{_QUEUE}}}) by (cluster_queue, resource) / "
            f"sum(kueue_cluster_queue_nominal_quota{{{_QUEUE}}} > 0) by (cluster_queue, resource)": _BY_RESOURCE
        },
    ),
    Panel(
        "Reserved and not yet admitted",
        "short",
        {
            f"sum(kueue_cluster_queue_resource_reservation{{{_QUEUE}}}) by (cluster_queue, resource) - "
            f"sum(kueue_cluster_queue_resource_usage{{{_QUEUE}}}) by (cluster_queue, resource)": _BY_RESOURCE
        },
    ),
    Panel(
        "Wait until admission",
        "s",
        {
            _quantile(0.5, "kueue_admission_wait_time_seconds", "cluster_queue"): "{{cluster_queue}} median",
            _quantile(0.9, "kueue_admission_wait_time_seconds", "cluster_queue"): "{{cluster_queue}} 90 %",
        },
    ),
    Panel(
        "Admitted, finished and evicted each minute",
        "short",
        {
            "sum(rate(kueue_admitted_workloads_total[5m])) * 60": "admitted",
            "sum(rate(kueue_finished_workloads_total[5m])) * 60": "finished",
            "sum(rate(kueue_evicted_workloads_total[5m])) by (reason) * 60": "evicted: {{reason}}",
        },
    ),
    Panel(
        "Preemptions each minute",
        "short",
        {"sum(rate(kueue_preempted_workloads_total[5m])) by (reason) * 60": "{{reason}}"},
    ),
    Panel(
        "Waiting in LocalQueues",
        "short",
        {"sum(kueue_local_queue_pending_workloads) by (namespace, name)": "{{namespace}}/{{name}}"},
    ),
    Panel("AppWrappers that wait", "short", {"shoal_appwrappers_waiting": "AppWrappers"}),
    Panel(
        "Ray clusters and jobs",
        "short",
        {
            "count(kuberay_cluster_info)": "RayClusters",
            "count(kuberay_job_deployment_status) by (deployment_status)": "RayJobs {{deployment_status}}",
        },
    ),
)
CONTROLLER = (
    Panel("Replicas that lead", "short", {"sum(shoal_leading)": "leaders", "max(shoal_lease_term)": "term"}),
    Panel(
        "Plan",
        "s",
        {
            _quantile(0.5, "shoal_plan_duration_seconds"): "median",
            _quantile(0.99, "shoal_plan_duration_seconds"): "99 %",
        },
    ),
    Panel("Plans each second", "short", {"sum(rate(shoal_plan_duration_seconds_count[5m])) by (result)": "{{result}}"}),
    Panel(
        "Requests each second",
        "short",
        {
            "sum(rate(shoal_requests_total[5m])) by (verb)": "{{verb}}",
        },
    ),
    Panel(
        "Writes each second",
        "short",
        {
            "rate(shoal_writes_sent_total[5m])": "sent",
            "rate(shoal_writes_spared_total[5m])": "spared",
            "rate(shoal_writes_unknown_total[5m])": "of unknown fate",
            "rate(shoal_writes_repeated_total[5m])": "repeated",
        },
    ),
    Panel(
        "Hand-over: from the end of a gang to the next start",
        "s",
        {
            _quantile(0.5, "shoal_hand_over_seconds"): "median",
            _quantile(0.9, "shoal_hand_over_seconds"): "90 %",
        },
    ),
    Panel("From a decision to its storing", "s", {_quantile(0.99, "shoal_decision_store_seconds"): "99 %"}),
    Panel(
        "Error of estimated starts",
        "s",
        {
            _quantile(0.5, "shoal_estimate_error_seconds"): "median",
            _quantile(0.9, "shoal_estimate_error_seconds"): "90 %",
        },
    ),
    Panel(
        "Room in use",
        "percentunit",
        {"1 - sum(shoal_room) by (resource) / sum(shoal_allocatable > 0) by (resource)": "{{resource}}"},
    ),
    Panel("Take-over: from leading to the first plan", "s", {"max(shoal_take_over_seconds)": "seconds"}),
    Panel("Cycles of the engine each second", "short", {"sum(rate(shoal_engine_cycles_total[5m]))": "cycles"}),
    Panel("Objects held", "short", {"sum(shoal_cache_objects) by (kind)": "{{kind}}"}),
    Panel("Watches that started over", "short", {"sum(increase(shoal_cache_gone_total[10m])) by (kind)": "{{kind}}"}),
    Panel(
        "Reconciling Ray objects",
        "s",
        {
            _quantile(0.99, "shoal_ray_reconcile_duration_seconds", "controller"): "{{controller}} 99 %",
        },
    ),
    Panel("From admission to the last object", "s", {_quantile(0.9, "shoal_appwrapper_dispatch_seconds"): "90 %"}),
    Panel(
        "Memory and CPU",
        "short",
        {
            "process_resident_memory_bytes": "bytes {{pod}}",
            "rate(process_cpu_seconds_total[5m])": "cores {{pod}}",
        },
    ),
)
ALERTS = (
    Alert(
        name="ShoalHasNoLeader",
        expression="absent(shoal_leading == 1)",
        lasts="2m",
        severity="critical",
        summary="No replica of the controller leads: nothing is admitted.",
        runbook="kubectl -n shoal-system get pods; /readyz of each replica names what is missing.",
    ),
    Alert(
        name="ShoalLeadershipChangesOften",
        expression="max(max_over_time(shoal_lease_term[30m])) - min(min_over_time((shoal_lease_term > 0)[30m:1m])) > 5",
        lasts="5m",
        severity="warning",
        summary="The lease was handed over more than five times in half an hour.",
        runbook="Look for slow answers of the API server and for replicas that are stopped for want of memory or CPU.",
    ),
    Alert(
        name="ShoalQueueIsInactive",
        expression='kueue_cluster_queue_status{status="pending"} == 1',
        lasts="15m",
        severity="warning",
        summary="ClusterQueue {{ $labels.cluster_queue }} admits nothing.",
        runbook="kubectl describe clusterqueue says why: a flavor or check that does not exist, or a stop policy.",
    ),
    Alert(
        name="ShoalWaitsAreLong",
        expression=_quantile(0.9, "kueue_admission_wait_time_seconds", "cluster_queue") + " > 14400",
        lasts="30m",
        severity="info",
        summary="One in ten Workloads of {{ $labels.cluster_queue }} waits more than four hours.",
        runbook="shoal why of a gang that waits says what would help; shoal get -A shows what holds the quota.",
    ),
    Alert(
        name="ShoalPlansAreSlow",
        expression=_quantile(0.99, "shoal_plan_duration_seconds") + " > 1",
        lasts="15m",
        severity="warning",
        summary="A plan takes more than a second.",
        runbook="Give the controller more CPU; look how many gangs wait and how many nodes there are.",
    ),
    Alert(
        name="ShoalDecisionsAreStoredSlowly",
        expression=_quantile(0.9, "shoal_decision_store_seconds") + " > 5",
        lasts="15m",
        severity="warning",
        summary="Decisions take more than five seconds until they are stored.",
        runbook="Look at the API server's latency and flow control, and at rate(shoal_writes_sent_total[5m]).",
    ),
    Alert(
        name="ShoalWritesAreLost",
        expression="rate(shoal_writes_unknown_total[10m]) > 0.1",
        lasts="10m",
        severity="warning",
        summary="Answers of the API server do not come back.",
        runbook="Look at the API server's latency and at the network between it and the controller.",
    ),
    Alert(
        name="ShoalCannotReadObjects",
        expression="shoal_cache_undecodable_objects > 0",
        lasts="10m",
        severity="warning",
        summary="Objects of {{ $labels.kind }} cannot be read; each is left as it is.",
        runbook="The controller's log names each object and the field; correct it, or update the CRDs.",
    ),
    Alert(
        name="ShoalWatchesStartOver",
        expression="increase(shoal_cache_gone_total[30m]) > 20",
        lasts="10m",
        severity="warning",
        summary="Watches of {{ $labels.kind }} start over again and again.",
        runbook="The API server forgets revisions too soon or answers too slowly: look at its watch cache and etcd.",
    ),
    Alert(
        name="ShoalRayReconcileFails",
        expression="rate(shoal_ray_reconcile_errors_total[10m]) > 0.2",
        lasts="10m",
        severity="warning",
        summary="Passes over Ray objects fail ({{ $labels.controller }}).",
        runbook="The controller's log has the object and the error; a right or a quota may be missing.",
    ),
)  # fmt: skip


def dashboard(uid: str, title: str, panels: tuple[Panel, ...], *, queues: bool) -> str:
    variables: list[dict[str, Any]] = [
        {"name": "source", "label": "Prometheus", "type": "datasource", "query": "prometheus"}
    ]
    if queues:
        asked = "label_values(kueue_cluster_queue_status, cluster_queue)"
        variables.append(
            {"name": "queue", "label": "ClusterQueue", "type": "query", "query": asked, "refresh": 2, "multi": True,
             "includeAll": True, "allValue": ".*", "datasource": {"type": "prometheus", "uid": "${source}"}}
        )  # fmt: skip
    whole = {
        "uid": uid,
        "title": title,
        "tags": ["shoal"],
        "schemaVersion": 39,
        "refresh": "30s",
        "time": {"from": "now-6h", "to": "now"},
        "templating": {"list": variables},
        "panels": [_panel(number, panel) for number, panel in enumerate(panels)],
    }
    return json.dumps(whole, indent=1) + "\n"


def _panel(number: int, panel: Panel) -> dict[str, Any]:
    return {
        "id": number + 1,
        "type": "timeseries",
        "title": panel.title,
        "datasource": {"type": "prometheus", "uid": "${source}"},
        "gridPos": {"h": 8, "w": 12, "x": 12 * (number % 2), "y": 8 * (number // 2)},
        "fieldConfig": {"defaults": {"unit": panel.unit, "min": 0}, "overrides": []},
        "targets": [
            {"refId": chr(ord("A") + place), "expr": expression, "legendFormat": legend}
            for place, (expression, legend) in enumerate(panel.queries.items())
        ],
    }


def rules() -> str:
    import yaml

    listed = [
        {
            "alert": one.name,
            "expr": one.expression,
            "for": one.lasts,
            "labels": {"severity": one.severity},
            "annotations": {"summary": one.summary, "runbook": one.runbook},
        }
        for one in ALERTS
    ]
    text = yaml.safe_dump({"groups": [{"name": "shoal", "rules": listed}]}, sort_keys=False, width=10_000)
    return f"# Made by `make monitoring` from tools/monitoring.py; do not edit.\n{text}"


def files() -> dict[str, str]:
    return {
        "shoal-queues.json": dashboard("shoal-queues", "Shoal: queues", QUEUES, queues=True),
        "shoal-controller.json": dashboard("shoal-controller", "Shoal: controller", CONTROLLER, queues=False),
        "shoal-rules.yaml": rules(),
    }


if __name__ == "__main__":
    FOLDER.mkdir(exist_ok=True)
    for name, content in files().items():
        (FOLDER / name).write_text(content)
    sys.stdout.write(f"{FOLDER} written\n")
