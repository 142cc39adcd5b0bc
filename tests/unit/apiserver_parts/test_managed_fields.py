"""Server-side apply and field ownership: what is owned, what conflicts, what goes away, and what stays."""

from __future__ import annotations

import copy

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.api import kinds
from shoal.local.apiserver.patch import field_shapes, managed_fields
from shoal.local.apiserver.patch.errors import PatchError

DEPLOYMENT = field_shapes.of_kind(kinds.DEPLOYMENT)
POD = field_shapes.of_kind(kinds.POD)
SERVICE = field_shapes.of_kind(kinds.SERVICE)
NOW, LATER = "2024-01-01T00:00:00Z", "2024-01-02T00:00:00Z"


def apply(shape, live, config, manager="a", now=NOW, **options):
    before = copy.deepcopy((live, config))
    result = managed_fields.apply(shape, live, config, manager, now=now, api_version="apps/v1", **options)
    assert (live, config) == before
    return result


def update(shape, old, new, manager="u", now=NOW, subresource=""):
    new = copy.deepcopy(new)
    managed_fields.track(shape, old, new, manager, now=now, api_version="apps/v1", subresource=subresource)
    return new


def owners(obj):
    return {
        (e["manager"], e["operation"], e.get("subresource", "")): e["fieldsV1"]
        for e in obj["metadata"].get("managedFields", [])
    }


def deployment(**spec):
    return {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "d"}, "spec": spec}


def template(*containers):
    return {"spec": {"containers": list(containers)}}


def content(obj):
    obj = copy.deepcopy(obj)
    obj["metadata"].pop("managedFields", None)
    return obj


def test_what_is_applied_is_owned():
    obj = apply(DEPLOYMENT, None, deployment(replicas=2, template=template({"name": "main", "image": "i"})))
    assert owners(obj) == {
        ("a", "Apply", ""): {
            "f:spec": {
                "f:replicas": {},
                "f:template": {
                    "f:spec": {"f:containers": {'k:{"name":"main"}': {".": {}, "f:name": {}, "f:image": {}}}}
                },
            }
        }
    }
    [entry] = obj["metadata"]["managedFields"]
    assert (entry["apiVersion"], entry["time"], entry["fieldsType"]) == ("apps/v1", NOW, "FieldsV1")


def test_applying_again_changes_nothing_not_even_the_time():
    config = deployment(replicas=2)
    obj = apply(DEPLOYMENT, None, config)
    assert apply(DEPLOYMENT, obj, config, now=LATER) == obj


def test_a_value_owned_by_another_conflicts_and_force_takes_it():
    obj = apply(DEPLOYMENT, None, deployment(replicas=2), "a")
    with pytest.raises(PatchError) as refusal:
        apply(DEPLOYMENT, obj, deployment(replicas=3), "b")
    assert (refusal.value.code, refusal.value.reason) == (409, "Conflict")
    assert refusal.value.message == 'Apply failed with 1 conflict: conflict with "a": .spec.replicas'
    assert refusal.value.causes == [
        {"reason": "FieldManagerConflict", "message": 'conflict with "a"', "field": ".spec.replicas"}
    ]
    taken = apply(DEPLOYMENT, obj, deployment(replicas=3), "b", force=True)
    assert taken["spec"]["replicas"] == 3
    assert set(owners(taken)) == {("b", "Apply", "")}


def test_several_conflicts_are_listed_by_manager():
    obj = apply(DEPLOYMENT, None, deployment(replicas=2, paused=True), "a")
    obj = update(DEPLOYMENT, obj, {**obj, "spec": {**obj["spec"], "minReadySeconds": 1}}, "u")
    with pytest.raises(PatchError) as refusal:
        apply(DEPLOYMENT, obj, deployment(replicas=3, paused=False, minReadySeconds=2), "b")
    assert refusal.value.message == (
        'Apply failed with 3 conflicts: conflicts with "a":\n- .spec.replicas\n- .spec.paused\n'
        'conflicts with "u" using apps/v1:\n- .spec.minReadySeconds'
    )


def test_the_same_value_is_shared_without_conflict_and_outlives_one_owner():
    obj = apply(DEPLOYMENT, None, deployment(replicas=2), "a")
    obj = apply(DEPLOYMENT, obj, deployment(replicas=2), "b")
    assert len(owners(obj)) == 2
    obj = apply(DEPLOYMENT, obj, deployment(), "a")
    assert obj["spec"]["replicas"] == 2
    obj = apply(DEPLOYMENT, obj, deployment(), "b")
    assert "replicas" not in obj.get("spec", {})


def test_what_is_no_longer_applied_goes_away():
    obj = apply(
        DEPLOYMENT,
        None,
        deployment(replicas=2, template=template({"name": "x", "image": "i"}, {"name": "y", "image": "j"})),
    )
    obj = apply(DEPLOYMENT, obj, deployment(template=template({"name": "y", "image": "j"})))
    assert content(obj)["spec"] == {"template": template({"name": "y", "image": "j"})}


def test_a_map_that_was_applied_empty_is_filled_by_the_next_apply():
    empty = apply(DEPLOYMENT, None, deployment(template={"metadata": {"annotations": {}}}))
    filled = apply(DEPLOYMENT, empty, deployment(template={"metadata": {"annotations": {"p": "1"}}}))
    assert filled["spec"]["template"]["metadata"] == {"annotations": {"p": "1"}}


def test_an_item_stays_while_another_owns_something_in_it():
    obj = apply(DEPLOYMENT, None, deployment(template=template({"name": "x", "image": "i", "tty": True})), "a")
    obj = apply(DEPLOYMENT, obj, deployment(template=template({"name": "x", "workingDir": "/w"})), "b")
    obj = apply(DEPLOYMENT, obj, deployment(template=template()), "a")
    assert obj["spec"]["template"]["spec"]["containers"] == [{"name": "x", "workingDir": "/w"}]


def test_an_item_goes_with_its_owner_even_if_another_changed_something_in_it():
    obj = apply(
        DEPLOYMENT, None, deployment(template=template({"name": "x", "image": "i"}, {"name": "y", "image": "i"}))
    )
    changed = copy.deepcopy(obj)
    changed["spec"]["template"]["spec"]["containers"][1]["image"] = "j"
    obj = update(DEPLOYMENT, obj, changed, "u")
    obj = apply(DEPLOYMENT, obj, deployment(template=template({"name": "x", "image": "i"})))
    assert [c["name"] for c in obj["spec"]["template"]["spec"]["containers"]] == ["x"]


@pytest.mark.parametrize(
    "live, config, merged",
    [
        ("", "xy", "xy"),
        ("xy", "y", "xy"),
        ("xy", "yx", "yx"),
        ("yzx", "xy", "zxy"),
        ("ab", "ca", "cab"),
        ("abc", "b", "abc"),
    ],
)
def test_the_order_of_items_is_the_configurations_as_far_as_it_goes(live, config, merged):
    def items(names):
        return deployment(template=template(*({"name": name, "image": "i"} for name in names)))

    stored = update(DEPLOYMENT, None, items(live))
    result = apply(DEPLOYMENT, stored, items(config), force=True)
    assert "".join(c["name"] for c in result["spec"]["template"]["spec"]["containers"]) == merged


def test_ports_are_keyed_by_number_and_protocol_with_tcp_as_default():
    config = {"metadata": {"name": "s"}, "spec": {"ports": [{"port": 53}, {"port": 53, "protocol": "UDP"}]}}
    obj = apply(SERVICE, None, config)
    assert list(owners(obj)["a", "Apply", ""]["f:spec"]["f:ports"]) == [
        'k:{"port":53,"protocol":"TCP"}',
        'k:{"port":53,"protocol":"UDP"}',
    ]


def test_atomic_lists_are_owned_whole_and_sets_by_value():
    obj = apply(POD, None, {"metadata": {"name": "p", "finalizers": ["f/x"]}, "spec": {"tolerations": [{"key": "a"}]}})
    assert owners(obj)["a", "Apply", ""] == {
        "f:metadata": {"f:finalizers": {'v:"f/x"': {}}},
        "f:spec": {"f:tolerations": {}},
    }
    obj = apply(POD, obj, {"metadata": {"name": "p", "finalizers": ["f/y"]}}, "b")
    assert obj["metadata"]["finalizers"] == ["f/x", "f/y"]


def test_an_update_takes_what_it_changes():
    obj = apply(DEPLOYMENT, None, deployment(replicas=2, paused=True), "a")
    obj = update(DEPLOYMENT, obj, deployment(replicas=5, paused=True), "u")
    assert owners(obj) == {
        ("a", "Apply", ""): {"f:spec": {"f:paused": {}}},
        ("u", "Update", ""): {"f:spec": {"f:replicas": {}}},
    }
    with pytest.raises(PatchError, match='conflict with "u" using apps/v1'):
        apply(DEPLOYMENT, obj, deployment(replicas=2, paused=True), "a")


def test_an_update_that_removes_a_field_removes_it_from_everyone():
    obj = apply(DEPLOYMENT, None, deployment(replicas=2, paused=True), "a")
    obj = update(DEPLOYMENT, obj, deployment(paused=True), "u")
    assert owners(obj) == {("a", "Apply", ""): {"f:spec": {"f:paused": {}}}}


def test_an_update_without_change_keeps_the_entries():
    obj = update(DEPLOYMENT, None, deployment(replicas=2))
    assert update(DEPLOYMENT, obj, obj, now=LATER) == obj


def test_a_repeated_status_write_only_moves_the_time():
    obj = update(DEPLOYMENT, None, deployment(replicas=2))
    one = update(DEPLOYMENT, obj, {**obj, "status": {"replicas": 1}}, "c", subresource="status")
    two = update(DEPLOYMENT, one, {**one, "status": {"replicas": 2}}, "c", LATER, subresource="status")
    assert owners(two)["c", "Update", "status"] is not None
    assert owners(two) == owners(one)
    assert [e["time"] for e in two["metadata"]["managedFields"]] == [NOW, LATER]


def test_a_client_may_ask_to_start_over():
    obj = update(DEPLOYMENT, None, deployment(replicas=2), "old")
    changed = {**deployment(replicas=3), "metadata": {"name": "d", "managedFields": [{}]}}
    bare = update(DEPLOYMENT, obj, changed, "new")
    assert owners(bare) == {}  # no manager owns anything until the first apply
    applied = apply(DEPLOYMENT, bare, deployment(replicas=3), "first")
    assert set(owners(applied)) == {("first", "Apply", ""), ("before-first-apply", "Update", "")}


def test_old_updaters_are_folded_together():
    obj = update(DEPLOYMENT, None, deployment(replicas=0))
    for number in range(15):
        new = {**obj, "metadata": {**obj["metadata"], "labels": {f"l{n}": "" for n in range(number + 1)}}}
        obj = update(DEPLOYMENT, obj, new, f"m{number:02}", f"2024-01-01T00:00:{number:02}Z")
    found = owners(obj)
    assert len(found) == managed_fields.MOST_UPDATERS
    assert ("ancient-changes", "Update", "") in found


def test_custom_kinds_follow_their_schema():
    shape = field_shapes.of_schema(
        {
            "type": "object",
            "properties": {
                "spec": {
                    "type": "object",
                    "properties": {
                        "groups": {
                            "type": "array",
                            "x-kubernetes-list-type": "map",
                            "x-kubernetes-list-map-keys": ["groupName"],
                            "items": {
                                "type": "object",
                                "properties": {"groupName": {"type": "string"}, "replicas": {"type": "integer"}},
                            },
                        },
                        "whole": {
                            "type": "object",
                            "x-kubernetes-map-type": "atomic",
                            "properties": {"a": {"type": "string"}},
                        },
                        "free": {"type": "object", "x-kubernetes-preserve-unknown-fields": True},
                    },
                }
            },
        }
    )
    obj = apply(
        shape,
        None,
        {
            "metadata": {"name": "r"},
            "spec": {"groups": [{"groupName": "w", "replicas": 1}], "whole": {"a": "x"}, "free": {"deep": {"x": [1]}}},
        },
    )
    assert owners(obj)["a", "Apply", ""]["f:spec"] == {
        "f:groups": {'k:{"groupName":"w"}': {".": {}, "f:groupName": {}, "f:replicas": {}}},
        "f:whole": {},
        "f:free": {"f:deep": {"f:x": {}}},
    }
    with pytest.raises(PatchError, match=r"\.spec\.size: field not declared in schema"):
        apply(shape, obj, {"metadata": {"name": "r"}, "spec": {"size": 1}})


def test_an_update_that_adds_a_map_owns_the_map_too():
    obj = update(POD, None, {"metadata": {"name": "p", "labels": {"a": "b"}}, "spec": {"hostname": "h"}})
    assert owners(obj)["u", "Update", ""] == {
        "f:metadata": {"f:labels": {".": {}, "f:a": {}}},
        "f:spec": {"f:hostname": {}},
    }


@pytest.mark.parametrize(
    "config, message",
    [
        ({"metadata": {"managedFields": [{"manager": "x"}]}}, "managedFields must be nil"),
        ({"spec": {"template": template({"name": "x"}, {"name": "x"})}}, "duplicate entries"),
    ],
)
def test_what_cannot_be_applied(config, message):
    with pytest.raises(PatchError, match=message) as refusal:
        apply(DEPLOYMENT, None, config)
    assert refusal.value.code == 400


specs = st.fixed_dictionaries(
    {},
    optional={
        "replicas": st.integers(0, 2),
        "paused": st.booleans(),
        "minReadySeconds": st.integers(0, 2),
        "template": st.builds(
            lambda cs: template(*cs),
            st.lists(
                st.fixed_dictionaries(
                    {"name": st.sampled_from("xyz")}, optional={"image": st.sampled_from("ij"), "tty": st.booleans()}
                ),
                max_size=3,
                unique_by=lambda c: c["name"],
            ),
        ),
    },
)


def leaves(value, path=()):
    if isinstance(value, dict):
        return [leaf for name, item in value.items() for leaf in leaves(item, (*path, name))]
    if isinstance(value, list):
        return [leaf for item in value for leaf in leaves(item, (*path, item["name"]))]
    return [(path, value)]


@given(specs, specs)
def test_applying_what_someone_else_never_touched_and_taking_it_back_leaves_no_trace(first, second):
    base = apply(DEPLOYMENT, None, deployment(**first), "a")
    both = apply(DEPLOYMENT, base, deployment(**second), "b", force=True)
    assert set(leaves(second)) <= set(leaves(both["spec"])), "what is applied is there"
    again = apply(DEPLOYMENT, both, deployment(**second), "b", force=True)
    assert again == both
    gone = apply(DEPLOYMENT, both, deployment(), "b", force=True)
    assert (
        ("b", "Apply", "") not in owners(gone) or not leaves(second) or owners(gone)["b", "Apply", ""] == {"f:spec": {}}
    )
    kept = [leaf for leaf in leaves(first) if leaf in leaves(both["spec"])]
    lost = {path for path, _ in leaves(second)} - {path for path, _ in leaves(first)}
    assert {path for path, _ in leaves(gone.get("spec", {}))}.isdisjoint(lost)
    assert set(kept) <= set(leaves(gone.get("spec", {})))


@given(specs, specs)
def test_updates_record_exactly_what_they_changed(first, second):
    one = update(DEPLOYMENT, None, deployment(**first), "one")
    two = update(DEPLOYMENT, one, deployment(**second), "two")
    assert content(two) == deployment(**second)
    back = update(DEPLOYMENT, two, deployment(**second), "three")
    assert owners(back) == owners(two)
    taken = apply(DEPLOYMENT, two, deployment(**second), "four")  # every value is as it is: no manager is in conflict
    assert content(taken)["spec"] == second
