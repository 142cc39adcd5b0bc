"""Strategic merge: lists merge by key, directives act, order is kept, input is never changed."""

from __future__ import annotations

import copy

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.api import kinds
from shoal.local.apiserver.patch.errors import PatchError
from shoal.local.apiserver.patch.strategic_merge import strategic_merge


def pod(**spec):
    return {"kind": "Pod", "metadata": {"name": "p"}, "spec": spec}


def names(items):
    return [item["name"] for item in items]


TWO = [{"name": "main", "image": "a:1", "env": [{"name": "X", "value": "1"}]}, {"name": "side", "image": "b:1"}]


def test_containers_merge_by_name():
    merged = strategic_merge(kinds.POD, pod(containers=TWO), pod(containers=[{"name": "main", "image": "a:2"}]))
    assert merged["spec"]["containers"] == [{**TWO[0], "image": "a:2"}, TWO[1]]


def test_env_merges_by_name_and_values_are_swapped_for_references():
    patch = pod(containers=[{"name": "main", "env": [
        {"name": "X", "value": None, "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}},
        {"name": "Y", "value": "2"}]}])  # fmt: skip
    env = strategic_merge(kinds.POD, pod(containers=TWO), patch)["spec"]["containers"][0]["env"]
    reference = {"fieldRef": {"fieldPath": "metadata.name"}}
    assert env == [{"name": "X", "valueFrom": reference}, {"name": "Y", "value": "2"}]


def test_new_items_come_before_those_that_only_the_server_has():
    merged = strategic_merge(kinds.POD, pod(containers=TWO), pod(containers=[{"name": "new", "image": "c"}]))
    assert names(merged["spec"]["containers"]) == ["new", "main", "side"]


def test_delete_directive_removes_one_item():
    patch = pod(containers=[{"name": "main", "$patch": "delete"}])
    assert names(strategic_merge(kinds.POD, pod(containers=TWO), patch)["spec"]["containers"]) == ["side"]


def test_replace_directive_replaces_a_list_or_an_object():
    patch = pod(containers=[{"name": "only", "image": "c"}, {"$patch": "replace"}])
    assert names(strategic_merge(kinds.POD, pod(containers=TWO), patch)["spec"]["containers"]) == ["only"]
    doc = {"metadata": {"labels": {"a": "1", "b": "2"}}}
    patch = {"metadata": {"labels": {"$patch": "replace", "c": "3"}}}
    assert strategic_merge(kinds.POD, doc, patch) == {"metadata": {"labels": {"c": "3"}}}


def test_set_element_order_orders():
    patch = {"spec": {"$setElementOrder/containers": [{"name": "side"}, {"name": "main"}],
                      "containers": [{"name": "side", "image": "b:2"}]}}  # fmt: skip
    merged = strategic_merge(kinds.POD, pod(containers=TWO), patch)
    assert [(c["name"], c["image"]) for c in merged["spec"]["containers"]] == [("side", "b:2"), ("main", "a:1")]


def test_tolerations_are_replaced_whole():
    doc = pod(tolerations=[{"key": "a"}, {"key": "b"}])
    assert strategic_merge(kinds.POD, doc, pod(tolerations=[{"key": "c"}]))["spec"]["tolerations"] == [{"key": "c"}]


def test_finalizers_are_a_set_and_values_can_be_deleted_from_it():
    doc = {"metadata": {"finalizers": ["a", "b"]}}
    assert strategic_merge(kinds.POD, doc, {"metadata": {"finalizers": ["b", "c"]}})["metadata"]["finalizers"] == [
        "a", "b", "c"]  # fmt: skip
    patch = {"metadata": {"$deleteFromPrimitiveList/finalizers": ["a"]}}
    assert strategic_merge(kinds.POD, doc, patch)["metadata"]["finalizers"] == ["b"]


def test_retain_keys_drops_the_other_member_of_a_union():
    doc = {"spec": {"strategy": {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 1}}}}
    patch = {"spec": {"strategy": {"$retainKeys": ["type"], "type": "Recreate"}}}
    assert strategic_merge(kinds.DEPLOYMENT, doc, patch)["spec"]["strategy"] == {"type": "Recreate"}


def test_service_ports_of_one_number_are_told_apart_by_protocol():
    tcp, udp = {"port": 53, "protocol": "TCP", "name": "t"}, {"port": 53, "protocol": "UDP", "name": "u"}
    patch = {"spec": {"ports": [tcp, {**udp, "targetPort": 5353}]}}
    merged = strategic_merge(kinds.SERVICE, {"spec": {"ports": [tcp, udp]}}, patch)
    assert sorted(port["name"] for port in merged["spec"]["ports"]) == ["t", "u"]
    assert next(p for p in merged["spec"]["ports"] if p["name"] == "u")["targetPort"] == 5353


def test_conditions_and_owners_merge_by_their_keys():
    doc = {"metadata": {"ownerReferences": [{"uid": "1", "name": "a"}]}, "status": {"conditions": [{"type": "Ready",
           "status": "False"}]}}  # fmt: skip
    patch = {"metadata": {"ownerReferences": [{"uid": "2", "name": "b"}]},
             "status": {"conditions": [{"type": "Ready", "status": "True"}]}}  # fmt: skip
    merged = strategic_merge(kinds.POD, doc, patch)
    assert {owner["uid"] for owner in merged["metadata"]["ownerReferences"]} == {"1", "2"}
    assert merged["status"]["conditions"] == [{"type": "Ready", "status": "True"}]


@pytest.mark.parametrize(
    "kind, patch, code",
    [
        (kinds.RAY_JOB, {"spec": {}}, 415),
        (kinds.POD, [], 400),
        (kinds.POD, {"spec": {"containers": [{"image": "x"}]}}, 422),
        (kinds.POD, {"spec": {"containers": ["x"]}}, 422),
        (kinds.POD, {"$patch": "explode"}, 400),
        (kinds.POD, {"spec": {"$retainKeys": "all"}}, 400),
        (kinds.POD, {"spec": {"$setElementOrder/containers": "name"}}, 400),
    ],
)
def test_refusals(kind, patch, code):
    with pytest.raises(PatchError) as refusal:
        strategic_merge(kind, pod(containers=TWO), patch)
    assert refusal.value.code == code


envs = st.lists(st.fixed_dictionaries({"name": st.sampled_from("ABCD")}, optional={"value": st.sampled_from("12")}),
                max_size=4, unique_by=lambda e: e["name"])  # fmt: skip
containers = st.lists(
    st.fixed_dictionaries({"name": st.sampled_from("abc"), "env": envs}), max_size=3, unique_by=lambda c: c["name"]
)


@given(containers, containers)
def test_merging_is_idempotent_and_leaves_its_input_alone(doc, patch):
    doc, patch = pod(containers=doc), pod(containers=patch)
    before = copy.deepcopy((doc, patch))
    once = strategic_merge(kinds.POD, doc, patch)
    twice = strategic_merge(kinds.POD, once, patch)
    assert (doc, patch) == before
    assert {c["name"]: {e["name"]: e for e in c["env"]} for c in once["spec"]["containers"]} == {
        c["name"]: {e["name"]: e for e in c["env"]} for c in twice["spec"]["containers"]
    }
    found = {c["name"]: c for c in once["spec"]["containers"]}
    for wanted in patch["spec"]["containers"]:
        for variable in wanted["env"]:
            here = next(e for e in found[wanted["name"]]["env"] if e["name"] == variable["name"])
            assert here.items() >= variable.items()


@given(containers)
def test_an_empty_patch_changes_nothing_and_the_result_is_fresh(items):
    doc = pod(containers=items)
    merged = strategic_merge(kinds.POD, doc, {})
    assert merged == doc
    assert merged["spec"] is not doc["spec"]
