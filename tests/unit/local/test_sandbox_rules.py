"""What a sandbox on the machine's own network can never give is refused before it is stored, with its field."""

from __future__ import annotations

import json
from typing import Any

import pytest

from shoal.kube.admission_review import AdmissionRequest, GroupVersionKind
from shoal.local.sandbox_rules import Around, around, judge, problems

LOOPBACK = Around(lowest_port=1024, is_directory=lambda path: path in ("/etc", "/opt", "/data"))
MOUNTS = Around(mounts=True, lowest_port=1024)


def pod(**spec: Any) -> dict[str, Any]:
    return {"kind": "Pod", "metadata": {"name": "one"}, "spec": {"containers": [{"name": "main"}], **spec}}


def mounting(path: str, *command: str, **volume: Any) -> dict[str, Any]:
    main = {"name": "main", "command": list(command), "volumeMounts": [{"name": "v", "mountPath": path}]}
    return pod(containers=[main], volumes=[{"name": "v", **(volume or {"emptyDir": {}})}])


def ray_job(**spec: Any) -> dict[str, Any]:
    cluster = {"headGroupSpec": {"template": {"spec": {"containers": [{"name": "head"}]}}}}
    return {"kind": "RayJob", "metadata": {"name": "one"}, "spec": {"rayClusterSpec": cluster, **spec}}


@pytest.mark.parametrize(
    "manifest, said",
    [
        (pod(hostAliases=[{"ip": "10.0.0.1"}]), "spec.hostAliases: a container has no /etc/hosts of its own"),
        (pod(dnsConfig={"nameservers": ["10.0.0.1"]}), "spec.dnsConfig.nameservers: programs ask the name servers"),
        (
            mounting("/usr/local/bin/tool"),
            "volumeMounts[0].mountPath: programs look for /usr/local/bin/tool themselves",
        ),
        (mounting("/etc/resolv.conf"), "programs look for /etc/resolv.conf themselves"),
        (mounting("/etc/ray/tls", "cp -R /ca /etc/ray"), "command: /etc/ray is not on this machine, and /etc/ray/tls"),
        (
            pod(containers=[{"ports": [{"containerPort": 80}]}]),
            "ports[0].containerPort: this user may not listen on port 80",
        ),
        (
            pod(containers=[{"ports": [{"containerPort": 8080, "hostPort": 443}]}]),
            "ports[0].hostPort: this user may not",
        ),
        (pod(containers=[{"volumeDevices": [{"name": "disk"}]}]), "volumeDevices: there are no block devices"),
        (
            pod(containers=[{"env": [{"name": "RAY_ENABLE_K8S_TOKEN_AUTH", "value": "true"}]}]),
            "spec.containers[0].env[0]: Ray's daemons read the account's token",
        ),
        (
            {"kind": "RayCluster", "metadata": {}, "spec": {"authOptions": {"enableK8sTokenAuth": True}}},
            "spec.authOptions.enableK8sTokenAuth: Ray's daemons read",
        ),
        (ray_job(runtimeEnvYAML="image_uri: team/train"), "spec.runtimeEnvYAML: image_uri needs podman"),
        (
            {"kind": "AppWrapper", "metadata": {}, "spec": {"components": [{"template": pod(hostAliases=[{}])}]}},
            "spec.components[0].template.spec.hostAliases",
        ),
    ],
)
def test_what_can_never_work_is_said_with_its_field(manifest: dict[str, Any], said: str) -> None:
    assert said in "; ".join(problems(manifest, LOOPBACK))


@pytest.mark.parametrize(
    "manifest",
    [
        pod(),
        mounting("/home/ray/samples", "python /home/ray/samples/train.py"),
        mounting("/home/ray/samples", "cd /home/ray && ls"),  # the home is mapped, whether or not the machine has one
        mounting("/etc/config", "cat /etc/config/x"),
        mounting("/usr/share/data"),
        mounting("/data/in", "ls /data"),  # the machine has it
        mounting("/mounted/in", "mkdir -p /mounted && ls /mounted"),
        mounting("/usr/lib/models", hostPath={"path": "/usr/lib/models"}),  # the machine's own
        pod(containers=[{"ports": [{"containerPort": 8000}]}]),
        pod(dnsConfig={"options": [{"name": "ndots", "value": "2"}]}),
        ray_job(runtimeEnvYAML="pip: [torch]\nenv_vars: {container: x}"),
        {"kind": "Pod", "metadata": {}, "spec": "odd"},
        {"kind": "Pod", "metadata": {}, "spec": {"containers": [7, {"ports": 7, "env": [None], "volumeMounts": {}}]}},
    ],
)
def test_what_may_work_is_left_alone(manifest: dict[str, Any]) -> None:
    assert problems(manifest, LOOPBACK) == []


def test_with_mounts_only_the_network_is_the_machines() -> None:
    everything = [
        *(mounting("/usr/local/bin/tool"), pod(hostAliases=[{"ip": "10.0.0.1"}])),
        *(ray_job(runtimeEnvYAML="image_uri: x"), mounting("/etc/ray/tls", "cp -R /ca /etc/ray")),
    ]
    assert [problems(one, MOUNTS) for one in everything] == [[]] * 4
    assert problems(pod(containers=[{"ports": [{"containerPort": 80}]}]), MOUNTS)


def asked(obj: dict[str, Any], old: dict[str, Any] | None = None, *, applies: bool = True) -> Any:
    kind = GroupVersionKind("", "v1", obj["kind"])
    request = AdmissionRequest("1", kind=kind, name="one", object=obj, old_object=old, operation="CREATE")
    return judge(LOOPBACK, lambda: applies)(request)


def test_a_refusal_names_the_object_the_reason_and_where_it_would_run() -> None:
    verdict = asked(pod(hostAliases=[{"ip": "10.0.0.1"}]))
    assert (verdict.allowed, verdict.code) == (False, 422)
    assert verdict.message == (
        "Pod 'one' cannot run in the loopback sandbox: spec.hostAliases: a container has no /etc/hosts of its own; "
        "what the netns and mounts sandboxes would need of this machine is said by: shoal doctor"
    )


def test_what_is_stored_already_can_be_changed_and_deleted() -> None:
    before = pod(hostAliases=[{"ip": "10.0.0.1"}])
    after = json.loads(json.dumps(before))
    after["spec"]["activeDeadlineSeconds"] = 5
    assert asked(after, before).allowed
    assert asked({**before, "metadata": {"name": "one", "deletionTimestamp": "2026-01-01T00:00:00Z"}}).allowed


def test_objects_that_run_elsewhere_and_simulated_nodes_are_not_judged() -> None:
    elsewhere = ray_job(runtimeEnvYAML="image_uri: x", managedBy="kueue.x-k8s.io/multikueue")
    assert asked(elsewhere).allowed
    assert not asked(ray_job(runtimeEnvYAML="image_uri: x")).allowed
    assert asked(pod(hostAliases=[{"ip": "10.0.0.1"}]), applies=False).allowed


def test_the_lowest_port_is_tried_on_the_machine() -> None:
    assert around(mounts=False).lowest_port in (0, *range(1, 1025))
