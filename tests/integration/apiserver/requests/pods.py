"""Pods: good and bad specs, what may change, status, binding, deletion."""

from __future__ import annotations

from collections.abc import Iterator

from tests.integration.apiserver.requests.step import NS, STRATEGIC, Step, delete, get, patch, pod, post


def pods() -> Iterator[Step]:
    where = f"{NS}/pods"
    yield post(where, pod("p"))
    yield get(f"{where}/p")
    for index, spec in enumerate(
        (
            {"containers": []},
            {"containers": None},
            {"containers": [{"name": "c"}]},
            {"containers": [{"image": "i"}]},
            {"containers": [{"name": "Bad_Name", "image": "i"}]},
            {"containers": [{"name": "c", "image": "i"}, {"name": "c", "image": "i"}]},
            {"containers": [{"name": "c", "image": "i", "resources": {"requests": {"cpu": "x"}}}]},
            {
                "containers": [
                    {"name": "c", "image": "i", "resources": {"requests": {"cpu": "2"}, "limits": {"cpu": "1"}}}
                ]
            },
            {"containers": [{"name": "c", "image": "i", "resources": {"requests": {"cpu": "-1"}}}]},
            {"containers": [{"name": "c", "image": "i", "resources": {"requests": {"example.com/gpu": "1"}}}]},
            {
                "containers": [
                    {"name": "c", "image": "i", "resources": {"limits": {"example.com/gpu": "1", "memory": "1Gi"}}}
                ]
            },
            {
                "containers": [
                    {"name": "c", "image": "i", "env": [{"name": "A", "value": "b"}, {"name": "1x", "value": "b"}]}
                ]
            },
            {"containers": [{"name": "c", "image": "i", "ports": [{"containerPort": 70000}]}]},
            {"containers": [{"name": "c", "image": "i", "ports": [{"containerPort": 80, "protocol": "XYZ"}]}]},
            {"containers": [{"name": "c", "image": "i", "volumeMounts": [{"name": "none", "mountPath": "/x"}]}]},
            {
                "containers": [{"name": "c", "image": "i", "volumeMounts": [{"name": "v", "mountPath": "/x"}]}],
                "volumes": [{"name": "v", "emptyDir": {}}],
            },
            {"restartPolicy": "Sometimes"},
            {"restartPolicy": "Never"},
            {"nodeName": "n1"},
            {"priorityClassName": "none"},
            {"priority": 5},
            {"priorityClassName": "system-cluster-critical"},
            {"terminationGracePeriodSeconds": -1},
            {"activeDeadlineSeconds": 0},
            {"nodeSelector": {"a": "b"}},
            {"tolerations": [{"key": "a", "operator": "Bogus"}]},
            {"tolerations": [{"operator": "Exists"}]},
            {
                "affinity": {
                    "nodeAffinity": {
                        "requiredDuringSchedulingIgnoredDuringExecution": {
                            "nodeSelectorTerms": [
                                {"matchExpressions": [{"key": "a", "operator": "In", "values": ["b"]}]}
                            ]
                        }
                    }
                }
            },
            {"schedulingGates": [{"name": "example.com/gate"}]},
            {"initContainers": [{"name": "i", "image": "i"}]},
            {"hostNetwork": True},
            {"unknownField": 1},
            {"dnsPolicy": "Bogus"},
            {"overhead": {"cpu": "1"}},
        )
    ):
        yield post(where, pod(f"p{index}", **spec))
    one = f"{where}/p"
    yield patch(one, {"spec": {"containers": [{"name": "c", "image": "new"}]}}, STRATEGIC)
    yield patch(one, {"spec": {"nodeName": "x"}})
    yield patch(one, {"spec": {"restartPolicy": "Never"}})
    yield patch(one, {"spec": {"activeDeadlineSeconds": 100}})
    yield patch(one, {"status": {"phase": "Running"}})
    yield patch(f"{one}/status", {"status": {"phase": "Running", "podIP": "1.2.3.4", "podIPs": [{"ip": "1.2.3.4"}]}})
    yield patch(f"{one}/status", {"status": {"conditions": [{"type": "Ready", "status": "True"}]}}, STRATEGIC)
    yield get(f"{one}/status")
    yield get(f"{one}/log")
    yield post(
        f"{one}/binding",
        {"apiVersion": "v1", "kind": "Binding", "metadata": {"name": "p"}, "target": {"kind": "Node", "name": "n9"}},
    )
    yield post(
        f"{one}/binding",
        {"apiVersion": "v1", "kind": "Binding", "metadata": {"name": "p"}, "target": {"kind": "Node", "name": "n8"}},
    )
    yield post(f"{one}/binding", {"apiVersion": "v1", "kind": "Binding", "metadata": {"name": "p"}, "target": {}})
    yield delete(one)
    yield delete(f"{one}?gracePeriodSeconds=0")
    yield get(one)
    yield delete(f"{where}/p15")
