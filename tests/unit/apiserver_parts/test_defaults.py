"""Built-in objects on their way in: types checked, unknown fields dropped, defaults filled in."""

from __future__ import annotations

import copy

import pytest

from shoal.api import kinds
from shoal.local.apiserver.kinds.defaults import default, select_own_pods
from shoal.local.apiserver.patch.errors import PatchError
from shoal.local.apiserver.validation.decoding import decode


def filled(kind, obj):
    obj = copy.deepcopy(obj)
    default(kind, obj)
    once = copy.deepcopy(obj)
    default(kind, obj)
    assert obj == once, "filling in twice is the same as once"
    return obj


def template(**spec):
    return {"spec": {"containers": [{"name": "c", "image": "i:1"}], **spec}}


def test_a_pod():
    pod = filled(
        kinds.POD,
        {
            "spec": {
                "containers": [
                    {
                        "name": "c",
                        "image": "busybox",
                        "ports": [{"containerPort": 80}],
                        "readinessProbe": {"httpGet": {"port": 80}},
                        "resources": {"limits": {"cpu": "1"}},
                        "env": [{"name": "N", "valueFrom": {"fieldRef": {"fieldPath": "x"}}}],
                    }
                ],
                "volumes": [{"name": "v"}, {"name": "s", "secret": {"secretName": "x"}}],
            }
        },
    )["spec"]
    assert (pod["restartPolicy"], pod["dnsPolicy"], pod["terminationGracePeriodSeconds"]) == (
        "Always",
        "ClusterFirst",
        30,
    )
    assert (pod["schedulerName"], pod["enableServiceLinks"], pod["securityContext"]) == ("default-scheduler", True, {})
    [container] = pod["containers"]
    assert container["imagePullPolicy"] == "Always"
    assert container["ports"] == [{"containerPort": 80, "protocol": "TCP"}]
    assert container["resources"] == {"limits": {"cpu": "1"}, "requests": {"cpu": "1"}}
    assert container["readinessProbe"] == {
        "httpGet": {"port": 80, "path": "/", "scheme": "HTTP"},
        "timeoutSeconds": 1,
        "periodSeconds": 10,
        "successThreshold": 1,
        "failureThreshold": 3,
    }
    assert container["env"][0]["valueFrom"]["fieldRef"]["apiVersion"] == "v1"
    assert pod["volumes"] == [
        {"name": "v", "emptyDir": {}},
        {"name": "s", "secret": {"secretName": "x", "defaultMode": 420}},
    ]


@pytest.mark.parametrize(
    "image, policy",
    [
        ("a", "Always"),
        ("a:latest", "Always"),
        ("a:1", "IfNotPresent"),
        ("host:5000/a", "Always"),
        ("host:5000/a:2", "IfNotPresent"),
        ("a@sha256:abc", "IfNotPresent"),
    ],
)
def test_pull_policy_follows_the_tag(image, policy):
    pod = filled(kinds.POD, {"spec": {"containers": [{"name": "c", "image": image}]}})
    assert pod["spec"]["containers"][0]["imagePullPolicy"] == policy


def test_workloads():
    deployment = filled(kinds.DEPLOYMENT, {"spec": {"template": template()}})["spec"]
    assert (deployment["replicas"], deployment["progressDeadlineSeconds"]) == (1, 600)
    assert deployment["strategy"] == {
        "type": "RollingUpdate",
        "rollingUpdate": {"maxUnavailable": "25%", "maxSurge": "25%"},
    }
    assert "enableServiceLinks" not in deployment["template"]["spec"]
    recreate = filled(kinds.DEPLOYMENT, {"spec": {"template": template(), "strategy": {"type": "Recreate"}}})["spec"]
    assert recreate["strategy"] == {"type": "Recreate"}
    assert (
        filled(kinds.STATEFUL_SET, {"spec": {"template": template()}})["spec"]["podManagementPolicy"] == "OrderedReady"
    )
    labelled = {"spec": {"template": {**template(), "metadata": {"labels": {"a": "b"}}}}}
    assert filled(kinds.REPLICATION_CONTROLLER, labelled)["metadata"]["labels"] == {"a": "b"}
    assert "labels" not in filled(kinds.REPLICA_SET, labelled).get("metadata", {})


def test_a_job_selects_its_own_pods_once_it_has_a_uid():
    job = filled(kinds.JOB, {"metadata": {"name": "j", "uid": "u1"}, "spec": {"template": template()}})
    assert (job["spec"]["completions"], job["spec"]["parallelism"], job["spec"]["backoffLimit"]) == (1, 1, 6)
    select_own_pods(job)
    assert job["spec"]["selector"] == {"matchLabels": {"batch.kubernetes.io/controller-uid": "u1"}}
    labels = job["spec"]["template"]["metadata"]["labels"]
    assert (labels["job-name"], labels["batch.kubernetes.io/controller-uid"]) == ("j", "u1")
    own = {"matchLabels": {"mine": "yes"}}
    kept = filled(kinds.JOB, {"metadata": {"uid": "u1"}, "spec": {"manualSelector": True, "selector": own}})
    assert kept["spec"]["selector"] == own
    parallel = filled(kinds.JOB, {"spec": {"parallelism": 3, "template": template()}})["spec"]
    assert "completions" not in parallel


def test_services_and_others():
    spec = filled(kinds.SERVICE, {"spec": {"ports": [{"port": 80}]}})["spec"]
    assert spec["ports"] == [{"port": 80, "protocol": "TCP", "targetPort": 80}]
    assert (spec["type"], spec["sessionAffinity"], spec["internalTrafficPolicy"]) == ("ClusterIP", "None", "Cluster")
    assert filled(kinds.SECRET, {})["type"] == "Opaque"
    crd = filled(kinds.CRD, {"spec": {"names": {"kind": "RayJob"}}})["spec"]
    assert (crd["names"]["singular"], crd["names"]["listKind"], crd["conversion"]) == (
        "rayjob",
        "RayJobList",
        {"strategy": "None"},
    )
    binding = filled(kinds.ROLE_BINDING, {"roleRef": {"kind": "Role"}, "subjects": [{"kind": "User", "name": "u"}]})
    assert binding["subjects"][0]["apiGroup"] == binding["roleRef"]["apiGroup"] == "rbac.authorization.k8s.io"
    assert filled(kinds.CONFIG_MAP, {"data": {}}) == {"data": {}}


def test_decoding_drops_what_is_unknown_or_null_and_writes_quantities_one_way():
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "p", "creationTimestamp": None, "colour": "red"},
        "spec": {
            "containers": [{"name": "c", "imagee": "x", "resources": {"requests": {"cpu": 0.5, "memory": "1024Mi"}}}],
            "nodeSelector": {"a": "b"},
            "volumes": None,
        },
    }
    assert decode(kinds.POD, pod) == ["metadata.colour", "spec.containers[0].imagee"]
    assert pod == {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "p"},
        "spec": {
            "containers": [{"name": "c", "resources": {"requests": {"cpu": "500m", "memory": "1Gi"}}}],
            "nodeSelector": {"a": "b"},
        },
    }


@pytest.mark.parametrize(
    "kind, obj, message",
    [
        (
            kinds.DEPLOYMENT,
            {"spec": {"replicas": "two"}},
            'Deployment in version "v1" cannot be handled as a Deployment: json: cannot unmarshal string into Go '
            "struct field DeploymentSpec.spec.replicas of type int32",
        ),
        (
            kinds.POD,
            {"spec": {"containers": {}}},
            "cannot unmarshal object into Go struct field PodSpec.spec.containers of type []v1.Container",
        ),
        (kinds.POD, {"spec": {"hostNetwork": 1}}, "of type bool"),
        (
            kinds.POD,
            {"metadata": {"labels": {"a": 1}}},
            "cannot unmarshal number into Go struct field ObjectMeta.metadata.labels of type string",
        ),
        (kinds.POD, {"spec": {"overhead": {"cpu": "much"}}}, "quantities must match the regular expression"),
        (kinds.SECRET, {"data": {"a": "no base64!"}}, "illegal base64"),
        (kinds.LEASE, {"spec": {"renewTime": "now"}}, "parsing time"),
        (kinds.JOB, {"spec": {"parallelism": 2**31}}, "of type int32"),
        (kinds.JOB, {"spec": []}, "cannot unmarshal array"),
    ],
)
def test_wrong_types_are_refused(kind, obj, message):
    with pytest.raises(PatchError) as refusal:
        decode(kind, obj)
    assert refusal.value.code == 400
    assert message in refusal.value.message


def test_bytes_may_come_in_lines_and_are_stored_as_one():
    """As Go's decoder takes them: `ca.crt: |` in a manifest ends with a line break."""
    held = {"data": {"ca.crt": "aGVs\nbG8=\r\n"}}
    decode(kinds.SECRET, held)
    assert held["data"] == {"ca.crt": "aGVsbG8="}


def test_a_crd_with_a_nested_schema_is_read_whole():
    schema = {
        "type": "object",
        "properties": {
            "spec": {
                "type": "object",
                "properties": {
                    "x": {"type": "array", "items": {"type": "string"}, "x-kubernetes-validations": [{"rule": "true"}]}
                },
            }
        },
    }
    crd = {
        "metadata": {"name": "n"},
        "spec": {
            "group": "g",
            "versions": [{"name": "v1", "served": True, "storage": True, "schema": {"openAPIV3Schema": schema}}],
        },
    }
    before = copy.deepcopy(crd)
    assert decode(kinds.CRD, crd) == []
    assert crd == before


def test_custom_kinds_are_left_alone():
    obj = {"anything": [None]}
    assert decode(kinds.RAY_JOB, obj) == []
    assert obj == {"anything": [None]}
