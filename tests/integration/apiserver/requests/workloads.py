"""Deployments and their like, jobs and cron jobs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from tests.integration.apiserver.requests.step import Step, delete, get, patch, post, put, template


def workloads() -> Iterator[Step]:
    apps, batch = "/apis/apps/v1/namespaces/diff", "/apis/batch/v1/namespaces/diff"
    selector = {"matchLabels": {"a": "b"}}
    for plural, kind in (
        ("deployments", "Deployment"),
        ("replicasets", "ReplicaSet"),
        ("statefulsets", "StatefulSet"),
        ("daemonsets", "DaemonSet"),
    ):
        base = {"apiVersion": "apps/v1", "kind": kind, "metadata": {"name": "w"}}
        spec: dict[str, Any] = {"selector": selector, "template": template()}
        if kind == "StatefulSet":
            spec["serviceName"] = "s"
        yield post(f"{apps}/{plural}", {**base, "spec": spec})
        yield post(
            f"{apps}/{plural}",
            {**base, "metadata": {"name": "bad1"}, "spec": {**spec, "template": template({"x": "y"})}},
        )
        yield post(f"{apps}/{plural}", {**base, "metadata": {"name": "bad2"}, "spec": {"template": template()}})
        yield post(f"{apps}/{plural}", {**base, "metadata": {"name": "bad3"}, "spec": {**spec, "replicas": -1}})
        yield post(
            f"{apps}/{plural}",
            {**base, "metadata": {"name": "bad4"}, "spec": {**spec, "template": template(restartPolicy="Never")}},
        )
        yield patch(f"{apps}/{plural}/w", {"spec": {"selector": {"matchLabels": {"c": "d"}}}})
        yield patch(f"{apps}/{plural}/w", {"metadata": {"labels": {"l": "m"}}})
        if kind != "DaemonSet":
            yield get(f"{apps}/{plural}/w/scale")
            yield patch(f"{apps}/{plural}/w/scale", {"spec": {"replicas": 3}})
            yield patch(f"{apps}/{plural}/w/scale", {"spec": {"replicas": -3}})
            yield put(
                f"{apps}/{plural}/w/scale",
                {
                    "apiVersion": "autoscaling/v1",
                    "kind": "Scale",
                    "metadata": {"name": "w", "namespace": "diff"},
                    "spec": {"replicas": 2},
                },
            )
        yield patch(f"{apps}/{plural}/w/status", {"status": {"observedGeneration": 1}})
        yield delete(f"{apps}/{plural}/w")
    job = {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "j"}}
    yield post(
        f"{batch}/jobs",
        {
            **job,
            "spec": {"template": {"spec": {"restartPolicy": "Never", "containers": [{"name": "c", "image": "i"}]}}},
        },
    )
    yield post(
        f"{batch}/jobs",
        {
            **job,
            "metadata": {"name": "j2"},
            "spec": {"template": {"spec": {"containers": [{"name": "c", "image": "i"}]}}},
        },
    )
    yield post(
        f"{batch}/jobs",
        {
            **job,
            "metadata": {"name": "j3"},
            "spec": {
                "suspend": True,
                "parallelism": 2,
                "completions": 3,
                "completionMode": "Indexed",
                "template": {"spec": {"restartPolicy": "OnFailure", "containers": [{"name": "c", "image": "i"}]}},
            },
        },
    )
    yield post(
        f"{batch}/jobs",
        {
            **job,
            "metadata": {"name": "j4"},
            "spec": {
                "parallelism": -1,
                "template": {"spec": {"restartPolicy": "Never", "containers": [{"name": "c", "image": "i"}]}},
            },
        },
    )
    yield patch(f"{batch}/jobs/j", {"spec": {"parallelism": 3}})
    yield patch(f"{batch}/jobs/j", {"spec": {"completions": 3}})
    yield patch(f"{batch}/jobs/j3", {"spec": {"suspend": False}})
    yield patch(f"{batch}/jobs/j/status", {"status": {"active": 1}})
    yield delete(f"{batch}/jobs/j", {"apiVersion": "v1", "kind": "DeleteOptions", "propagationPolicy": "Background"})
    yield delete(f"{batch}/jobs/j3")
    yield post(
        f"{batch}/cronjobs",
        {
            "apiVersion": "batch/v1",
            "kind": "CronJob",
            "metadata": {"name": "cj"},
            "spec": {
                "schedule": "* * * * *",
                "jobTemplate": {
                    "spec": {
                        "template": {"spec": {"restartPolicy": "Never", "containers": [{"name": "c", "image": "i"}]}}
                    }
                },
            },
        },
    )
    yield post(
        f"{batch}/cronjobs",
        {
            "apiVersion": "batch/v1",
            "kind": "CronJob",
            "metadata": {"name": "cj2"},
            "spec": {
                "schedule": "often",
                "jobTemplate": {
                    "spec": {
                        "template": {"spec": {"restartPolicy": "Never", "containers": [{"name": "c", "image": "i"}]}}
                    }
                },
            },
        },
    )
