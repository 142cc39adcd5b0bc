"""Typed and raw: what a controller does not read survives whatever it writes."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from shoal.api import codec
from shoal.api.appwrapper import AppWrapper
from shoal.api.core import Pod
from shoal.api.kueue_workload import Workload
from shoal.api.meta import Json
from shoal.api.ray import RayCluster
from shoal.api.registry import ENTRIES, RegisteredKind
from tests.faults import proven
from tests.unit.api.shapes import objects

replace = msgspec.structs.replace

WORKLOAD: Json = {
    "metadata": {"name": "train", "labels": {"team": "a"}},
    "spec": {
        "podSets": [{"name": "head", "count": 1, "template": {"spec": {"containers": []}}, "fromTheFuture": {"a": 1}}]
    },
    "status": {
        "conditions": [{"type": "Admitted", "status": "False", "observedBy": "someone"}],
        "newList": [1, 2],
    },
}


def test_only_the_changed_field_changes() -> None:
    before = codec.typed(WORKLOAD, Workload)
    after = replace(before, spec=replace(before.spec, active=False))
    assert codec.rewrite(WORKLOAD, before, after) == {**WORKLOAD, "spec": {**WORKLOAD["spec"], "active": False}}
    assert codec.merge_patch(WORKLOAD, codec.rewrite(WORKLOAD, before, after)) == {"spec": {"active": False}}


def _whole_objects(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(codec, "rewrite", lambda raw, before, after: codec.plain(after))


@proven(without=_whole_objects)
def test_f068_unknown_fields_survive_read_change_write() -> None:
    """F68: the CRD is newer than this controller. Holds: fields it does not know survive, in list elements too."""
    before = codec.typed(WORKLOAD, Workload)
    assert before.status.conditions is not None
    admitted = replace(before.status.conditions[0], status="True")
    finished = replace(admitted, type="Finished", status="False")
    pod_set = replace(before.spec.pod_sets[0], count=2)
    after = replace(
        before,
        spec=replace(before.spec, pod_sets=(pod_set,)),
        status=replace(before.status, conditions=(finished, admitted)),
    )
    written = codec.rewrite(WORKLOAD, before, after)
    assert written["spec"]["podSets"][0] == {**WORKLOAD["spec"]["podSets"][0], "count": 2}
    assert written["status"] == {
        "conditions": [
            {"type": "Finished", "status": "False"},
            {"type": "Admitted", "status": "True", "observedBy": "someone"},
        ],
        "newList": [1, 2],
    }


def test_a_removed_field_is_removed_and_its_neighbours_stay() -> None:
    raw = {"spec": {"suspend": True, "headGroupSpec": {"template": {"spec": {}}, "future": 1}, "future": 2}}
    before = codec.typed(raw, RayCluster)
    after = replace(before, spec=replace(before.spec, suspend=None))
    assert codec.rewrite(raw, before, after) == {
        "spec": {"headGroupSpec": {"template": {"spec": {}}, "future": 1}, "future": 2}
    }


def test_elements_without_a_name_are_matched_by_position() -> None:
    raw = {"spec": {"resources": {"GenericItems": [{"replicas": 1, "mine": 1}, {"replicas": 2, "mine": 2}]}}}
    before = codec.typed(raw, AppWrapper)
    assert before.spec.resources is not None and before.spec.resources.generic_items is not None
    first, second = before.spec.resources.generic_items
    for items, expected in (
        ((first, replace(second, replicas=5)), [{"replicas": 1, "mine": 1}, {"replicas": 5, "mine": 2}]),
        ((second,), [{"replicas": 2, "mine": 2}]),  # the front one was taken out
        ((first, second, first), [{"replicas": 1, "mine": 1}, {"replicas": 2, "mine": 2}, {"replicas": 1}]),
    ):
        resources = replace(before.spec.resources, generic_items=items)
        after = replace(before, spec=replace(before.spec, resources=resources))
        assert codec.rewrite(raw, before, after)["spec"]["resources"]["GenericItems"] == expected


def test_a_merge_patch_deletes_with_null_and_replaces_lists() -> None:
    before = {"a": 1, "b": {"c": [1], "d": 2}, "e": 3}
    after = {"a": 1, "b": {"c": [1, 2]}, "f": {"g": None}}
    assert codec.merge_patch(before, after) == {"b": {"c": [1, 2], "d": None}, "e": None, "f": {"g": None}}


def test_a_raw_template_opens_and_seals() -> None:
    template = {"metadata": {"labels": {"a": "b"}}, "spec": {"containers": [{"name": "c", "new": [1]}]}}
    cluster = codec.typed({"spec": {"headGroupSpec": {"template": template}}}, RayCluster)
    assert codec.opened(cluster.spec.head_group_spec.template) == template
    assert codec.opened(RayCluster().spec.head_group_spec.template) == {}
    assert codec.plain(cluster)["spec"]["headGroupSpec"]["template"] == template


@pytest.mark.parametrize("entry", ENTRIES, ids=lambda entry: f"{entry.kind.api_version}-{entry.kind.kind}")
@settings(max_examples=5, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_any_object_round_trips_through_its_type(entry: RegisteredKind, data: st.DataObject) -> None:
    raw: Json = data.draw(objects(entry.type))
    view = codec.typed(raw, entry.type)
    assert codec.typed(codec.plain(view), entry.type) == view  # the view itself is stable
    assert codec.rewrite(raw, view, view) == raw  # a write without a change changes nothing
    other = codec.typed(data.draw(objects(entry.type)), entry.type)
    written = codec.rewrite(raw, view, other)
    # What was meant is what is written; as JSON, since members of raw maps have no order.
    assert codec.plain(codec.typed(written, entry.type)) == codec.plain(other)
    assert _unknown(written, raw) == _unknown(raw, raw)  # and fields that the codec did not read are still there


def _unknown(written: Json, raw: Json) -> dict[str, Any]:
    return {name: written.get(name) for name in ("x-unknown", "zz9") if name in raw}


def test_a_null_field_is_an_absent_field() -> None:
    template = {"metadata": None, "spec": {"containers": [{"name": "a", "env": None, "resources": None}]}}
    assert codec.typed({"spec": template["spec"]}, Pod).spec.containers[0].name == "a"
    assert codec.without_nulls({"a": None, "b": [None, {"c": None}]}) == {"b": [None, {}]}
    with pytest.raises(msgspec.ValidationError, match=r"spec\.nodeName"):
        codec.typed({"spec": {"nodeName": 7, "hostname": None}}, Pod)


def test_a_cached_pod_is_read_without_its_bulk() -> None:
    pod = codec.typed({"spec": {"affinity": {"podAffinity": {}}, "containers": [{"name": "a"}]}}, Pod)
    assert bytes(pod.spec.affinity) == b'{"podAffinity":{}}' and not pod.spec.volumes
