"""A gang's PodGroup, in the API of scheduler-plugins or in Kubernetes' own."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from shoal.api.appwrapper import AppWrapper
from shoal.api.meta import Json
from shoal.controllers.appwrapper import AppWrapperSettings
from shoal.controllers.appwrapper.status.admission import StoredAdmission
from shoal.controllers.appwrapper.v1beta1.placing import added_names, placed
from tests.unit.appwrapper.build import app_wrapper, pod


@pytest.mark.parametrize(
    "api, spec, label, of_pod",
    [
        ("scheduling.x-k8s.io", {"minMember": 2}, "gang", None),
        ("scheduling.k8s.io", {"schedulingPolicy": {"gang": {"minCount": 2}}}, None, {"podGroupName": "gang"}),
    ],
)
def test_a_gang_joins_the_pod_groups_of_either_api(api: Any, spec: Json, label: Any, of_pod: Any) -> None:
    sent = msgspec.json.encode(app_wrapper("gang", pod("a", cpu="1"), pod("b", cpu="1")))
    wrapper = msgspec.json.decode(sent, type=AppWrapper)
    settings = AppWrapperSettings(pod_groups=True, pod_group_api=api)
    group, first, _ = placed(wrapper, [pod("a", cpu="1"), pod("b", cpu="1")], StoredAdmission(), settings)
    assert group["apiVersion"].partition("/")[0] == api and group["spec"] == spec
    assert added_names(wrapper, settings) == ((group["apiVersion"], "PodGroup", "gang"),)
    assert (first["metadata"].get("labels") or {}).get("scheduling.x-k8s.io/pod-group") == label
    assert first["spec"].get("schedulingGroup") == of_pod
