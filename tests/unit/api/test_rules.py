"""What a kind must satisfy beyond its schema: all problems, each with its path and type."""

from __future__ import annotations

from typing import Any

import pytest

from shoal.api.appwrapper import AppWrapper, dialect, wrapped_items
from shoal.api.appwrapper_paths import resolve, steps
from shoal.api.codec import opened, typed
from shoal.api.kueue_rules import validate_cluster_queue
from shoal.api.meta import Json
from shoal.api.rules import validate
from shoal.errors import BadInput

CONFIG = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "c"}}
JOB = {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "j"}, "spec": {"template": {"spec": {}}}}


def found(obj: Json, old: Json | None = None) -> list[tuple[str, str]]:
    return [(error.type, error.path) for error in validate(obj, old)]


# --- AppWrapper


def wrapper(namespace: str = "", labels: Json | None = None, **spec: Any) -> Json:
    return {
        "kind": "AppWrapper",
        "metadata": {"name": "w", "namespace": namespace, "labels": labels or {}},
        "spec": spec,
    }


def items(*entries: Json) -> Json:
    return wrapper("mine", resources={"GenericItems": list(entries)})


@pytest.mark.parametrize(
    "spec, expected",
    [
        ({"resources": {}}, "v1beta1"),
        ({"components": []}, "v1beta2"),
        ({"resources": {}, "components": []}, None),
        ({}, None),
    ],
)
def test_the_dialect_is_read_from_the_object(spec: Json, expected: str | None) -> None:
    assert dialect(typed(wrapper(**spec), AppWrapper)) == expected
    assert (("Invalid", "spec") in found(wrapper(**spec))) == (expected is None)


def test_an_app_wrapper_without_items_is_legal() -> None:
    assert found(wrapper(resources={})) == []


@pytest.mark.parametrize(
    "obj, expected",
    [
        (items({"generictemplate": CONFIG}), []),
        (items({}), [("Required", "spec.resources.GenericItems[0].generictemplate")]),
        (
            items({"generictemplate": {"kind": "Pod", "metadata": {}}}),
            [
                ("Required", "spec.resources.GenericItems[0].generictemplate.apiVersion"),
                ("Required", "spec.resources.GenericItems[0].generictemplate.metadata.name"),
            ],
        ),
        (
            items({"generictemplate": {**CONFIG, "metadata": {"name": "c", "namespace": "theirs"}}}),
            [("Forbidden", "spec.resources.GenericItems[0].generictemplate.metadata.namespace")],
        ),
        (
            items(
                {
                    "generictemplate": CONFIG,
                    "custompodresources": [{"replicas": -1, "requests": {"cpu": "-1", "x": "?"}}],
                }
            ),
            [
                ("Invalid", "spec.resources.GenericItems[0].custompodresources[0].requests[cpu]"),
                ("Invalid", "spec.resources.GenericItems[0].custompodresources[0].requests[x]"),
                ("Invalid", "spec.resources.GenericItems[0].custompodresources[0].replicas"),
            ],
        ),
        (wrapper(components=[]), [("Required", "spec.components")]),
        (wrapper(components=[{"template": JOB, "podSets": [{"path": "template.spec.template"}]}]), []),
        (
            wrapper(components=[{"template": JOB, "podSets": [{"path": "template.spec.template"}] * 2}]),
            [("Duplicate", "spec.components[0].podSets[1].path")],
        ),
        (
            wrapper(components=[{"template": JOB, "podSets": [{"path": "template.spec.tasks[0]"}]}]),
            [("Invalid", "spec.components[0].podSets[0].path")],
        ),
        (
            wrapper(components=[{"template": {"apiVersion": "workload.codeflare.dev/v1beta2", "kind": "AppWrapper"}}]),
            [("Forbidden", "spec.components[0].template")],
        ),
    ],
)
def test_app_wrappers_are_judged_whole(obj: Json, expected: list[tuple[str, str]]) -> None:
    assert found(obj) == expected


def test_a_v1beta2_wrapper_keeps_what_it_wraps() -> None:
    old = wrapper(labels={"workload.codeflare.dev/user": "ann"}, components=[{"template": JOB}], managedBy="a")
    new = wrapper(labels={}, components=[{"template": CONFIG, "podSets": [{"path": "template"}]}], managedBy="b")
    assert [entry for entry in found(new, old) if entry[0] == "Forbidden"] == [
        ("Forbidden", "spec.components[0].template"),
        ("Forbidden", "spec.components[0].podSets"),
        ("Forbidden", "spec.managedBy"),
        ("Forbidden", "metadata.labels[workload.codeflare.dev/user]"),
    ]
    assert found({**old, "spec": {**old["spec"], "suspend": True}}, old) == []


def test_items_of_the_legacy_list_are_read_as_generic_ones() -> None:
    obj = wrapper(
        resources={"GenericItems": [{"generictemplate": JOB}], "Items": [{"type": "ConfigMap", "template": CONFIG}]}
    )
    assert [opened(item.generic_template)["kind"] for item in wrapped_items(typed(obj, AppWrapper))] == [
        "Job",
        "ConfigMap",
    ]


@pytest.mark.parametrize(
    "path, expected",
    [
        ("template", []),
        ("template.spec.template", ["spec", "template"]),
        ("template.spec.workerGroupSpecs[10].template", ["spec", "workerGroupSpecs", 10, "template"]),
        ("template[0][1]", [0, 1]),
    ],
)
def test_a_path_has_steps(path: str, expected: list[str | int]) -> None:
    assert steps(path) == expected


@pytest.mark.parametrize(
    "path",
    ["", "spec", "templates", "template.", "template..a", "template[-1]", "template[x]", "template[0", "template]0["],
)
def test_other_paths_are_refused(path: str) -> None:
    with pytest.raises(BadInput, match="is not a path such as"):
        steps(path)


def test_a_path_that_leads_nowhere_says_where_it_ended() -> None:
    template = {"spec": {"groups": [{"template": {"spec": {}}}]}}
    assert resolve(template, "template.spec.groups[0].template") == {"spec": {}}
    for path, words in (
        ("template.spec.groups[1]", r"no element \[1\]"),
        ("template.spec.groups.template", "no field 'template'"),
        ("template.spec[0]", r"no element \[0\]"),
        ("template.nothing", "no field 'nothing'"),
    ):
        with pytest.raises(BadInput, match=words):
            resolve(template, path)


# --- QuotaSubtree


def test_a_quota_subtree_names_its_tree_and_its_children_once() -> None:
    obj = {
        "kind": "QuotaSubtree",
        "metadata": {"name": "q"},
        "spec": {"children": [{"name": "a", "quotas": {"requests": {"cpu": "-2"}}}, {"name": "a"}, {}]},
    }
    assert found(obj) == [
        ("Required", "metadata.labels[tree]"),
        ("Invalid", "spec.children[0].quotas.requests[cpu]"),
        ("Duplicate", "spec.children[1].name"),
        ("Required", "spec.children[2].name"),
    ]


# --- Kueue


def queue(*quotas: Json, covered: list[str] | None = None, **spec: Any) -> Json:
    names = covered if covered is not None else [quota["name"] for quota in quotas]
    groups = [{"coveredResources": names, "flavors": [{"name": "f", "resources": list(quotas)}]}]
    return {"apiVersion": "kueue.x-k8s.io/v1beta2", "kind": "ClusterQueue", "spec": {"resourceGroups": groups, **spec}}


CPU = {"name": "cpu", "nominalQuota": 4}
AT = "spec.resourceGroups[0].flavors[0].resources[0]"


@pytest.mark.parametrize(
    "obj, expected",
    [
        (queue(CPU), []),
        (queue({**CPU, "nominalQuota": "-1"}), [("Invalid", f"{AT}.nominalQuota")]),
        (queue({**CPU, "borrowingLimit": 1}), [("Invalid", f"{AT}.borrowingLimit")]),
        (queue({**CPU, "borrowingLimit": 1, "lendingLimit": 4}, cohortName="c"), []),
        (queue({**CPU, "lendingLimit": 5}, cohortName="c"), [("Invalid", f"{AT}.lendingLimit")]),
        (queue(CPU, covered=["memory"]), [("Invalid", f"{AT}.name")]),
        (queue(CPU, CPU), [("Duplicate", "spec.resourceGroups[0].coveredResources[1]")]),
        (
            queue(CPU, preemption={"borrowWithinCohort": {"policy": "LowerPriority"}}),
            [("Invalid", "spec.preemption")],
        ),
        (
            queue(CPU, flavorFungibility={"preference": "BorrowingOverPreemption"}),
            [("Invalid", "spec.flavorFungibility.preference")],
        ),
        (queue(CPU, fairSharing={"weight": "1n"}), [("Invalid", "spec.fairSharing.weight")]),
        (queue(CPU, fairSharing={"weight": 0}), []),
        (
            queue(CPU, admissionChecksStrategy={"admissionChecks": [{"name": "a", "onFlavors": ["f", "ghost"]}]}),
            [("NotSupported", "spec.admissionChecksStrategy.admissionChecks[0].onFlavors[1]")],
        ),
        (
            queue(CPU, namespaceSelector={"matchExpressions": [{"key": "team", "operator": "In"}]}),
            [("Required", "spec.namespaceSelector.matchExpressions[0].values")],
        ),
    ],
)
def test_cluster_queues_are_judged_as_kueue_judges(obj: Json, expected: list[tuple[str, str]]) -> None:
    assert found(obj) == expected


def test_the_old_spelling_of_a_queue_is_judged_alike() -> None:
    obj = {**queue({**CPU, "borrowingLimit": 1}, cohort="c"), "apiVersion": "kueue.x-k8s.io/v1beta1"}
    assert found(obj) == []


def test_a_stored_mistake_does_not_block_other_changes() -> None:
    old = queue(CPU, admissionChecksStrategy={"admissionChecks": [{"name": "a", "onFlavors": ["ghost"]}]})
    new = {**old, "spec": {**old["spec"], "stopPolicy": "Hold"}}
    assert validate_cluster_queue(new, old) == []
    assert len(validate_cluster_queue(new, old, reject_stored_flavors=True)) == 1


def test_a_cohort_may_lend_more_than_its_own_but_needs_a_parent_for_limits() -> None:
    obj = {**queue({**CPU, "lendingLimit": 9}), "kind": "Cohort"}
    assert found(obj) == [("Invalid", f"{AT}.lendingLimit")]
    obj["spec"]["parentName"] = "root"
    assert found(obj) == []


def test_a_flavor_has_legal_labels_taints_and_tolerations() -> None:
    obj = {
        "kind": "ResourceFlavor",
        "spec": {
            "nodeLabels": {"pool": "a b"},
            "nodeTaints": [{"key": "spot", "effect": "NoSchedule"}, {"key": "spot", "effect": "NoSchedule"}],
            "tolerations": [
                {"operator": "Equal"},
                {"key": "k", "operator": "Exists", "value": "v"},
                {"key": "k", "operator": "Exists", "effect": "NoSchedule", "tolerationSeconds": 5},
            ],
        },
    }
    assert found(obj) == [
        ("Invalid", "spec.nodeLabels"),
        ("Duplicate", "spec.nodeTaints[1]"),
        ("Invalid", "spec.tolerations[0].operator"),
        ("Invalid", "spec.tolerations[1].operator"),
        ("Invalid", "spec.tolerations[2].effect"),
    ]


# --- Workload


def workload(*pod_sets: Json, status: Json | None = None, **spec: Any) -> Json:
    return {
        "kind": "Workload",
        "metadata": {"name": "w"},
        "spec": {"podSets": list(pod_sets), **spec},
        "status": status or {},
    }


def pod_set(name: str = "main", count: int = 2, **fields: Any) -> Json:
    return {"name": name, "count": count, "template": {"spec": {"containers": [{"name": "c"}]}}, **fields}


def reserved(count: int = 2, usage: str = "4", **status: Any) -> Json:
    given = {"name": "main", "count": count, "resourceUsage": {"cpu": usage}}
    return {
        "conditions": [{"type": "QuotaReserved", "status": "True"}],
        "admission": {"clusterQueue": "q", "podSetAssignments": [given]},
        **status,
    }


@pytest.mark.parametrize(
    "obj, expected",
    [
        (workload(pod_set()), []),
        (workload(pod_set("a", minCount=1), pod_set("b", minCount=1)), [("Invalid", "spec.podSets")]),
        (
            workload(
                pod_set(template={"spec": {"containers": [{"resources": {"requests": {"pods": 1, "cpu": "-1"}}}]}})
            ),
            [
                ("Invalid", "spec.podSets[0].template.spec.containers[0].resources.requests[pods]"),
                ("Invalid", "spec.podSets[0].template.spec.containers[0].resources.requests[cpu]"),
            ],
        ),
        (workload(pod_set(), status=reserved()), []),
        (
            workload(pod_set(count=3), status=reserved(count=3, usage="4")),
            [("Invalid", "status.admission.podSetAssignments[0].resourceUsage[cpu]")],
        ),
        (
            workload(pod_set(), status={"conditions": [{"type": "QuotaReserved", "status": "True"}]}),
            [("Required", "status.admission")],
        ),
        (
            workload(pod_set(), status={"reclaimablePods": [{"name": "main", "count": 3}, {"name": "x", "count": 0}]}),
            [("Invalid", "status.reclaimablePods[main].count"), ("NotSupported", "status.reclaimablePods[x].name")],
        ),
    ],
)
def test_workloads_are_judged_as_kueue_judges(obj: Json, expected: list[tuple[str, str]]) -> None:
    assert found(obj) == expected


def test_a_workload_with_quota_keeps_its_shape_and_its_queue() -> None:
    old = workload(pod_set(), status=reserved(), queueName="a", priorityClassRef={"kind": "PriorityClass", "name": "x"})
    new = workload(
        pod_set(count=3), status=reserved(), queueName="b", priorityClassRef={"kind": "PriorityClass", "name": "y"}
    )
    assert found(new, old) == [
        ("Invalid", "spec.podSets.0"),
        ("Invalid", "spec.queueName"),
        ("Invalid", "spec.priorityClassRef.name"),
    ]


def test_an_admission_may_be_cleared_but_not_rewritten() -> None:
    old = workload(pod_set(), status=reserved())
    assert found(workload(pod_set()), old) == []
    assert found(workload(pod_set(), status=reserved(usage="6")), old) == [("Invalid", "status.admission")]
