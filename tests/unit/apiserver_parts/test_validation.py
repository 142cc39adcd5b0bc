"""What is refused, field by field, with Kubernetes' words; and what may change on objects that exist."""

from __future__ import annotations

import copy

import pytest

from shoal.api import kinds
from shoal.local.apiserver.kinds.defaults import default, select_own_pods
from shoal.local.apiserver.validation.built_in import validate


def made(kind, obj):
    obj = copy.deepcopy(obj)
    obj.setdefault("metadata", {}).setdefault("name", "x")
    obj["metadata"].setdefault("uid", "u1")
    default(kind, obj)
    return obj


def complaints(kind, obj, old=None):
    old = made(kind, old) if old is not None else None
    if kind is kinds.JOB and old is not None:
        select_own_pods(old)
    new = made(kind, obj)
    if kind is kinds.JOB:
        select_own_pods(new)
    return [str(error) for error in validate(kind, new, old)]


def container(**more):
    return {"name": "c", "image": "i:1", **more}


def pod(**spec):
    return {"spec": {"containers": [container()], **spec}}


def workload(**spec):
    return {
        "spec": {
            "selector": {"matchLabels": {"a": "b"}},
            "template": {"metadata": {"labels": {"a": "b"}}, "spec": {"containers": [container()]}},
            **spec,
        }
    }


def job(**spec):
    return {"spec": {"template": {"spec": {"restartPolicy": "Never", "containers": [container()]}}, **spec}}


@pytest.mark.parametrize(
    "kind, obj",
    [
        (kinds.POD, pod()),
        (kinds.DEPLOYMENT, workload()),
        (kinds.STATEFUL_SET, workload(serviceName="s")),
        (kinds.REPLICA_SET, workload()),
        (kinds.DAEMON_SET, workload()),
        (kinds.JOB, job()),
        (kinds.SERVICE, {"spec": {"ports": [{"port": 80}]}}),
        (kinds.CONFIG_MAP, {"data": {"a.b": "c"}}),
        (
            kinds.ROLE,
            {"metadata": {"name": "system:x"}, "rules": [{"verbs": ["get"], "apiGroups": [""], "resources": ["pods"]}]},
        ),
        (kinds.RAY_JOB, {"metadata": {"name": "r", "labels": {"kueue.x-k8s.io/queue-name": "q"}}}),
        (kinds.CRON_JOB, {"spec": {"schedule": "*/5 * * * *", "jobTemplate": {"spec": job()["spec"]}}}),
    ],
)
def test_good_objects_pass(kind, obj):
    assert complaints(kind, obj) == []
    assert complaints(kind, obj, old=obj) == []


@pytest.mark.parametrize(
    "metadata, path, words",
    [
        ({"name": "Bad_Name"}, "metadata.name", "a lowercase RFC 1123 subdomain must consist of"),
        ({"name": "a" * 254}, "metadata.name", "must be no more than 253 characters"),
        ({"name": "x", "labels": {"a b": "c"}}, "metadata.labels", "name part must consist of alphanumeric characters"),
        (
            {"name": "x", "labels": {"a": "c d"}},
            "metadata.labels",
            "a valid label must be an empty string or consist of",
        ),
        ({"name": "x", "labels": {"a": "v" * 64}}, "metadata.labels", "must be no more than 63 bytes"),
        ({"name": "x", "annotations": {"a": "v" * 300_000}}, "metadata.annotations", "Too long"),
        ({"name": "x", "finalizers": ["e.io/not a name"]}, "metadata.finalizers", "name part must consist"),
        (
            {"name": "x", "ownerReferences": [{"apiVersion": "v1", "kind": "Pod", "name": "p"}]},
            "metadata.ownerReferences.uid",
            "must not be empty",
        ),
        ({"name": "x", "generateName": "BAD-"}, "metadata.generateName", "a lowercase RFC 1123 subdomain"),
    ],
)
def test_metadata(metadata, path, words):
    found = complaints(kinds.CONFIG_MAP, {"metadata": metadata})
    assert len(found) == 1
    assert found[0].startswith(path + ": ")
    assert words in found[0]


def test_two_controllers_and_late_finalizers():
    owner = {"apiVersion": "v1", "kind": "Pod", "name": "p", "uid": "1", "controller": True}
    [message] = complaints(
        kinds.CONFIG_MAP, {"metadata": {"ownerReferences": [owner, {**owner, "name": "q", "uid": "2"}]}}
    )
    assert "Only one reference can have Controller set to true" in message
    dying = {"metadata": {"deletionTimestamp": "2024-01-01T00:00:00Z", "finalizers": ["a.b/c"]}}
    late = {"metadata": {"deletionTimestamp": "2024-01-01T00:00:00Z", "finalizers": ["a.b/c", "a.b/d"]}}
    assert complaints(kinds.CONFIG_MAP, late, old=dying) == [
        "metadata.finalizers: Forbidden: no new finalizers can be added if the object is being deleted, found new "
        'finalizers []string{"a.b/d"}'
    ]


@pytest.mark.parametrize(
    "obj, message",
    [
        ({"spec": {}}, "spec.containers: Required value"),
        (pod(containers=[{"name": "c"}]), "spec.containers[0].image: Required value"),
        (pod(containers=[container(), container()]), 'spec.containers[1].name: Duplicate value: "c"'),
        (
            pod(restartPolicy="Sometimes"),
            'spec.restartPolicy: Unsupported value: "Sometimes": supported values: "Always", "OnFailure", "Never"',
        ),
        (
            pod(containers=[container(volumeMounts=[{"name": "v", "mountPath": "/v"}])]),
            'spec.containers[0].volumeMounts[0].name: Not found: "v"',
        ),
        (
            pod(containers=[container(resources={"requests": {"cpu": "2"}, "limits": {"cpu": "1"}})]),
            'spec.containers[0].resources.requests: Invalid value: "2": must be less than or equal to cpu limit of 1',
        ),
        (
            pod(containers=[container(resources={"requests": {"nvidia.com/gpu": "1"}})]),
            "spec.containers[0].resources.limits: Required value: Limit must be set for non overcommitable resources",
        ),
        (
            pod(containers=[container(resources={"limits": {"nvidia.com/gpu": "500m"}})]),
            'spec.containers[0].resources.limits[nvidia.com/gpu]: Invalid value: "500m": must be an integer',
        ),
        (
            pod(containers=[container(ports=[{"containerPort": 70000}])]),
            "spec.containers[0].ports[0].containerPort: Invalid value: 70000: must be between 1 and 65535, inclusive",
        ),
        (
            pod(volumes=[{"name": "v", "emptyDir": {}, "hostPath": {"path": "/x"}}]),
            "spec.volumes[0].hostPath: Forbidden: may not specify more than 1 volume type",
        ),
        (pod(tolerations=[{"operator": "Exists", "value": "x"}]), "spec.tolerations[0].operator: Invalid value"),
    ],
)
def test_pods(obj, message):
    assert any(found.startswith(message) for found in complaints(kinds.POD, obj)), complaints(kinds.POD, obj)


def test_a_running_pod_takes_few_changes():
    old = pod(tolerations=[{"key": "a", "operator": "Exists"}])
    image = pod(containers=[container(image="i:2")], tolerations=[*old["spec"]["tolerations"], {"operator": "Exists"}])
    assert complaints(kinds.POD, image, old=old) == []
    [message] = complaints(kinds.POD, pod(nodeSelector={"a": "b"}), old=pod())
    assert message.startswith("spec: Forbidden: pod updates may not change fields other than")
    assert message.endswith("changed here: nodeSelector")
    gated = pod(schedulingGates=[{"name": "g"}])
    assert complaints(kinds.POD, pod(nodeSelector={"a": "b"}), old=gated) == []
    [message] = complaints(kinds.POD, gated, old=pod())
    assert message.startswith("spec.schedulingGates[0].name: Forbidden: only deletion is allowed")


@pytest.mark.parametrize(
    "kind, obj, message",
    [
        (kinds.DEPLOYMENT, {"spec": {"template": pod()}}, "spec.selector: Required value"),
        (
            kinds.DEPLOYMENT,
            workload(selector={"matchLabels": {"a": "other"}}),
            'spec.template.metadata.labels: Invalid value: {"a":"b"}: `selector` does not match template `labels`',
        ),
        (
            kinds.DEPLOYMENT,
            workload(replicas=-1),
            "spec.replicas: Invalid value: -1: must be greater than or equal to 0",
        ),
        (
            kinds.DEPLOYMENT,
            workload(
                template={
                    "metadata": {"labels": {"a": "b"}},
                    "spec": {"restartPolicy": "Never", "containers": [container()]},
                }
            ),
            'spec.template.spec.restartPolicy: Unsupported value: "Never": supported values: "Always"',
        ),
        (
            kinds.JOB,
            job(template={"spec": {"containers": [container()]}}),
            'spec.template.spec.restartPolicy: Required value: valid values: "OnFailure", "Never"',
        ),
        (
            kinds.JOB,
            job(completionMode="Indexed", parallelism=2),
            "spec.completions: Required value: when completion mode is Indexed",
        ),
        (kinds.JOB, job(backoffLimit=-1), "spec.backoffLimit: Invalid value: -1: must be greater than or equal to 0"),
        (kinds.SERVICE, {"spec": {}}, "spec.ports: Required value"),
        (kinds.SERVICE, {"spec": {"ports": [{"port": 1}, {"port": 2}]}}, "spec.ports[0].name: Required value"),
        (
            kinds.SERVICE,
            {"metadata": {"name": "x.y"}, "spec": {"ports": [{"port": 1}]}},
            'metadata.name: Invalid value: "x.y": a lowercase RFC 1123 label must consist of',
        ),
        (
            kinds.CONFIG_MAP,
            {"data": {"a b": ""}},
            'data[a b]: Invalid value: "a b": a valid config key must consist of',
        ),
        (
            kinds.CLUSTER_ROLE_BINDING,
            {"roleRef": {"kind": "Role", "name": "r"}, "subjects": [{"kind": "ServiceAccount", "name": "s"}]},
            "subjects[0].namespace: Required value",
        ),
        (kinds.PRIORITY_CLASS, {"value": 2_000_000_000}, "value: Forbidden: maximum allowed value"),
        (
            kinds.CRON_JOB,
            {"spec": {"schedule": "often", "jobTemplate": {"spec": job()["spec"]}}},
            'spec.schedule: Invalid value: "often": expected exactly 5 fields, found 1',
        ),
    ],
)
def test_other_kinds(kind, obj, message):
    assert any(found.startswith(message) for found in complaints(kind, obj)), complaints(kind, obj)


@pytest.mark.parametrize(
    "kind, old, new, message",
    [
        (
            kinds.DEPLOYMENT,
            workload(),
            workload(
                selector={"matchLabels": {"a": "b", "c": "d"}},
                template={"metadata": {"labels": {"a": "b", "c": "d"}}, "spec": {"containers": [container()]}},
            ),
            'spec.selector: Invalid value: {"matchLabels":{"a":"b","c":"d"}}: field is immutable',
        ),
        (
            kinds.STATEFUL_SET,
            workload(serviceName="s"),
            workload(serviceName="t"),
            "spec: Forbidden: updates to statefulset spec for fields other than",
        ),
        (kinds.JOB, job(completions=1), job(completions=2), "spec.completions: Invalid value: 2: field is immutable"),
        (
            kinds.JOB,
            job(),
            job(template={"spec": {"restartPolicy": "Never", "containers": [container(image="j")]}}),
            "spec.template: Invalid value",
        ),
        (
            kinds.ROLE_BINDING,
            {"roleRef": {"kind": "Role", "name": "r"}},
            {"roleRef": {"kind": "Role", "name": "s"}},
            "roleRef: Invalid value",
        ),
        (kinds.PRIORITY_CLASS, {"value": 1}, {"value": 2}, "value: Forbidden: may not be changed in an update."),
        (
            kinds.CONFIG_MAP,
            {"immutable": True, "data": {"a": "b"}},
            {"immutable": True, "data": {"a": "c"}},
            "data: Forbidden: field is immutable when `immutable` is set",
        ),
        (kinds.SECRET, {"type": "Opaque"}, {"type": "other"}, 'type: Invalid value: "other": field is immutable'),
    ],
)
def test_what_may_not_change(kind, old, new, message):
    assert any(found.startswith(message) for found in complaints(kind, new, old)), complaints(kind, new, old)


def test_a_suspended_job_may_still_be_sent_elsewhere():
    placed = job(suspend=False)
    placed["spec"]["template"]["spec"]["nodeSelector"] = {"zone": "a"}
    placed["spec"]["template"]["metadata"] = {"annotations": {"flavor": "x"}}
    assert complaints(kinds.JOB, placed, old=job(suspend=True)) == []
    assert len(complaints(kinds.JOB, placed, old=job(suspend=False))) == 1


def crd(schema=None, **spec):
    schema = {"type": "object"} if schema is None else schema
    return {
        "metadata": {"name": "things.example.org"},
        "spec": {
            "group": "example.org",
            "scope": "Namespaced",
            "names": {"plural": "things", "kind": "Thing"},
            "versions": [{"name": "v1", "served": True, "storage": True, "schema": {"openAPIV3Schema": schema}}],
            **spec,
        },
    }


SCHEMA = "spec.versions[0].schema.openAPIV3Schema"


def holding(child):
    return crd({"type": "object", "properties": {"a": child}})


def version(**more):
    return crd(versions=[{**crd()["spec"]["versions"][0], **more}])


LABELS = {"type": "object", "properties": {"labels": {"type": "object"}}}
KEYED = {"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["k"]}


@pytest.mark.parametrize(
    "obj, message",
    [
        (crd(names={**crd()["spec"]["names"], "shortNames": ["a", "b_c"]}), "spec.names.shortNames[1]: Invalid value"),
        (version(deprecationWarning="w"), 'spec.versions[0].deprecationWarning: Invalid value: "w": can only be set'),
        (version(deprecated=True, deprecationWarning=""), "spec.versions[0].deprecationWarning: Invalid value"),
        (version(selectableFields=[{"jsonPath": ".spec.none"}]), "spec.versions[0].selectableFields[0].jsonPath"),
        (
            crd({"type": "object", "properties": {"metadata": LABELS}}),
            f"{SCHEMA}.properties[metadata]: Forbidden: must not specify anything other than name and generateName",
        ),
        (
            holding({"type": "object", "properties": {"x": {"type": "string"}}, "additionalProperties": False}),
            f"{SCHEMA}.properties[a].additionalProperties: Forbidden",
        ),
        (
            holding({"type": "object", "x-kubernetes-embedded-resource": True}),
            f"{SCHEMA}.properties[a].properties: Required value",
        ),
        (
            holding({"type": "array", "items": {"type": "object"}, "x-kubernetes-list-type": "set"}),
            f"{SCHEMA}.properties[a].items.x-kubernetes-map-type: Invalid value",
        ),
        (
            holding({"type": "array", "items": {"type": "object", "properties": {"k": {"type": "string"}}}, **KEYED}),
            f"{SCHEMA}.properties[a].items.properties[k].default: Required value",
        ),
        (
            {**crd(), "metadata": {"name": "wrong"}},
            'metadata.name: Invalid value: "wrong": must be spec.names.plural+"."+spec.group',
        ),
        (crd(scope="Galaxy"), 'spec.scope: Unsupported value: "Galaxy"'),
        (
            crd(versions=[{"name": "v1", "served": True, "storage": True}]),
            f"{SCHEMA}: Required value",
        ),
        (crd(versions=[]), "spec.versions: Required value"),
        (crd({"properties": {}}), f"{SCHEMA}.type: Required value: must not be empty at the root"),
        (
            crd({"type": "object", "properties": {"spec": {"properties": {}}}}),
            f"{SCHEMA}.properties[spec].type: Required value: must not be empty for specified object fields",
        ),
        (
            crd({"type": "object", "properties": {"l": {"type": "array"}}}),
            f"{SCHEMA}.properties[l].items: Required value",
        ),
        (
            crd({"type": "object", "properties": {"l": {"type": "thing"}}}),
            f"{SCHEMA}.properties[l].type: Unsupported value",
        ),
        (
            crd({"type": "object", "x-kubernetes-validations": [{"rule": "self.x =="}]}),
            f'{SCHEMA}.x-kubernetes-validations[0].rule: Invalid value: "self.x ==": compilation failed',
        ),
        (
            crd({"type": "object", "anyOf": [{"type": "object"}]}),
            f"{SCHEMA}.anyOf[0].type: Forbidden: must be empty to be",
        ),
        (
            crd({"type": "object", "properties": {"s": {"type": "string", "pattern": "(["}}}),
            f"{SCHEMA}.properties[s].pattern: Invalid value",
        ),
        (crd(conversion={"strategy": "Webhook"}), "spec.conversion.webhook.clientConfig: Required value"),
    ],
)
def test_definitions(obj, message):
    assert any(found.startswith(message) for found in complaints(kinds.CRD, obj)), complaints(kinds.CRD, obj)


def test_protected_groups_need_approval():
    obj = crd(group="batch.k8s.io")
    obj["metadata"]["name"] = "things.batch.k8s.io"
    [message] = complaints(kinds.CRD, obj)
    assert message.startswith("metadata.annotations[api-approved.kubernetes.io]: Required value")
    obj["metadata"]["annotations"] = {"api-approved.kubernetes.io": "unapproved"}
    assert complaints(kinds.CRD, obj) == []
    assert complaints(kinds.CRD, crd()) == []
    assert complaints(kinds.CRD, crd(scope="Cluster"), old=crd()) == [
        'spec.scope: Invalid value: "Cluster": field is immutable'
    ]


REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
NODE_TERMS = "spec.affinity.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution.nodeSelectorTerms"
NEAR = "spec.affinity.podAntiAffinity.requiredDuringSchedulingIgnoredDuringExecution[0]"

WRONG_SELECTOR = {"matchExpressions": [{"key": "a", "operator": "Near"}]}


def terms(*expressions):
    return {"nodeSelectorTerms": [{"matchExpressions": list(expressions)}]}


@pytest.mark.parametrize(
    ("part", "fields"),
    [
        ({"affinity": {"nodeAffinity": {REQUIRED: {"nodeSelectorTerms": []}}}}, {NODE_TERMS}),
        (
            {"affinity": {"nodeAffinity": {REQUIRED: terms({"key": "a", "operator": "In"})}}},
            {f"{NODE_TERMS}[0].matchExpressions[0].values"},
        ),
        (
            {"affinity": {"nodeAffinity": {REQUIRED: terms({"key": "", "operator": "Is", "values": ["b"]})}}},
            {f"{NODE_TERMS}[0].matchExpressions[0].{name}" for name in ("key", "operator")},
        ),
        ({"affinity": {"nodeAffinity": {REQUIRED: terms({"key": "a", "operator": "Gt", "values": ["3"]})}}}, set()),
        ({"affinity": {"podAntiAffinity": {REQUIRED: [{}]}}}, {f"{NEAR}.topologyKey"}),
        (
            {"affinity": {"podAntiAffinity": {REQUIRED: [{"topologyKey": "zone", "labelSelector": WRONG_SELECTOR}]}}},
            {f"{NEAR}.labelSelector.matchExpressions[0].operator"},
        ),
        (
            {"topologySpreadConstraints": [{"maxSkew": 0, "topologyKey": "zone", "whenUnsatisfiable": "Never"}]},
            {f"spec.topologySpreadConstraints[0].{name}" for name in ("maxSkew", "whenUnsatisfiable")},
        ),
    ],
)
def test_where_a_pod_wants_to_be_must_make_sense(part, fields):
    assert {error.path for error in validate(kinds.POD, made(kinds.POD, pod(**part)))} == fields


@pytest.mark.parametrize(
    ("kind", "body", "fields"),
    [
        (kinds.PERSISTENT_VOLUME_CLAIM, {"spec": {}}, {"spec.accessModes", "spec.resources[storage]"}),
        (
            kinds.ROLE_BINDING,
            {"roleRef": {"kind": "Role", "name": "r"}, "subjects": [{"kind": "User", "name": "u", "apiGroup": "x"}]},
            {"subjects[0].apiGroup"},
        ),
        (kinds.EVENT, {"involvedObject": {"kind": "Pod", "name": "p"}}, {"involvedObject.namespace"}),
        (
            kinds.REPLICATION_CONTROLLER,
            {"spec": {"selector": {"a": "b"}, "template": {"spec": {"containers": [container()]}}}},
            {"spec.template.metadata.labels"},
        ),
    ],
)
def test_lesser_kinds_are_looked_at_too(kind, body, fields):
    obj = made(kind, {"metadata": {"name": "x", "namespace": "n"}, **body})
    assert {error.path for error in validate(kind, obj)} == fields
