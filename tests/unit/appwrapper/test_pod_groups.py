"""A gang's PodGroup, in the API of scheduler-plugins or in Kubernetes' own."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from shoal.api import kinds
from shoal.api.appwrapper import AppWrapper
from shoal.api.meta import Json
from shoal.controllers.appwrapper import AppWrapperSettings
from shoal.controllers.appwrapper.reconciler import AppWrapperReconciler
from shoal.controllers.appwrapper.status.admission import StoredAdmission
from shoal.controllers.appwrapper.v1beta1.placing import added_names, placed
from tests.cluster import Cluster
from tests.faults import proven
from tests.planning import planned
from tests.unit.appwrapper.build import app_wrapper, dispatched, has_state, pod


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


def _groups_whatever_is_served(patch: pytest.MonkeyPatch) -> None:
    async def chosen(self: AppWrapperReconciler) -> AppWrapperSettings:
        return self.context.settings

    patch.setattr(AppWrapperReconciler, "_placing", chosen)


@proven(without=_groups_whatever_is_served)
async def test_f446_without_the_api_of_pod_groups_gangs_start_all_the_same(
    quiet: Cluster, caplog: pytest.LogCaptureFixture
) -> None:
    """F446: Kubernetes' own PodGroups are asked for, and the API server does not serve them. Holds: gangs start without
    one, as the plan decided, and the log says so once."""
    settings = AppWrapperSettings(trust_unstamped=True, pod_groups=True, pod_group_api="scheduling.k8s.io")
    quiet.start(planned(quiet.client, settings).run())
    for name in ("first", "second"):
        await quiet.create(kinds.APP_WRAPPER, app_wrapper(name, pod(name, cpu="1")))
        started = await quiet.until(kinds.APP_WRAPPER, name, lambda one: dispatched(one) or has_state("Failed")(one))
        assert started["status"]["state"] != "Failed", started["status"]
        assert "schedulingGroup" not in (await quiet.get(kinds.POD, name))["spec"]
    told = [one for one in caplog.messages if "gangs start without a PodGroup" in one]
    assert told == ["gangs start without a PodGroup: the API server serves no PodGroup in scheduling.k8s.io/v1alpha2"]
