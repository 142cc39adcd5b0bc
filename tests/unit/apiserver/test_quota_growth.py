"""A quota holds for what grows after it was let in: resized pods, types of Services, sizes of claims."""

from __future__ import annotations

from typing import Any

import pytest

from shoal.api.kinds import LIMIT_RANGE, PERSISTENT_VOLUME_CLAIM, POD, RESOURCE_QUOTA, SERVICE
from shoal.api.meta import Json
from shoal.kube.client import Client
from shoal.kube.errors import Forbidden
from shoal.local.apiserver.admission import plugins
from tests.faults import proven
from tests.unit.apiserver.builders import pod


def counts_new_ones_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plugins, "may_grow", lambda resource, subresource: False)


def sized(name: str, cpu: str) -> Json:
    made = pod(name)
    made["spec"]["containers"][0]["resources"] = {"requests": {"cpu": cpu}}
    return made


async def limited(client: Client, **hard: str) -> None:
    named = {name.replace("_", "."): value for name, value in hard.items()}
    await client.create(RESOURCE_QUOTA, {"metadata": {"name": "q"}, "spec": {"hard": named}}, "default")


async def resize(client: Client, name: str, cpu: str) -> Any:
    container = {"name": "main", "resources": {"requests": {"cpu": cpu}}}
    change = {"spec": {"containers": [container]}}
    return await client.patch(POD, name, "default", change, patch_type="strategic", subresource="resize")


@proven(without=counts_new_ones_alone)
async def test_f212_a_pod_that_is_resized_stays_within_its_quota(client: Client) -> None:
    """F212: a user who may resize pods makes one larger than the quota of its namespace leaves room for. Holds: refused
    with what is used and what is more; within the quota it grows, and it may always shrink."""
    await limited(client, requests_cpu="2")
    await client.create(POD, sized("one", "1"), "default")
    await client.create(POD, sized("two", "500m"), "default")
    with pytest.raises(Forbidden, match=r"exceeded quota: q, requested: requests.cpu=7, used: requests.cpu=1500m"):
        await resize(client, "one", "8")
    grown = await resize(client, "one", "1500m")
    assert grown["spec"]["containers"][0]["resources"]["requests"]["cpu"] == "1500m"
    await client.patch(RESOURCE_QUOTA, "q", "default", {"spec": {"hard": {"requests.cpu": "1"}}})
    shrunk = await resize(client, "one", "600m")
    assert shrunk["spec"]["containers"][0]["resources"]["requests"]["cpu"] == "600m"


@proven(without=counts_new_ones_alone)
async def test_f212_services_and_claims_that_grow_stay_within_their_quota(client: Client) -> None:
    """F212: a Service becomes a NodePort and a claim grows where the quota has no room for either. Holds: refused."""
    await limited(client, services_nodeports="0", requests_storage="1Gi")
    spec = {"ports": [{"port": 80}], "selector": {"a": "b"}}
    await client.create(SERVICE, {"metadata": {"name": "plain"}, "spec": spec}, "default")
    with pytest.raises(Forbidden, match=r"exceeded quota: q, requested: services.nodeports=1"):
        await client.patch(SERVICE, "plain", "default", {"spec": {"type": "NodePort"}})
    claim = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "2Gi"}}}
    with pytest.raises(Forbidden, match="exceeded quota"):
        await client.create(PERSISTENT_VOLUME_CLAIM, {"metadata": {"name": "c"}, "spec": claim}, "default")


async def test_a_pod_that_is_resized_stays_within_its_limit_range(client: Client) -> None:
    limit = {"type": "Container", "max": {"cpu": "2"}, "default": {"cpu": "2"}}
    await client.create(LIMIT_RANGE, {"metadata": {"name": "l"}, "spec": {"limits": [limit]}}, "default")
    made = sized("one", "1")
    made["spec"]["containers"][0]["resources"]["limits"] = {"cpu": "2"}
    await client.create(POD, made, "default")
    with pytest.raises(Forbidden, match="maximum cpu usage"):
        container = {"name": "main", "resources": {"requests": {"cpu": "1"}, "limits": {"cpu": "3"}}}
        change = {"spec": {"containers": [container]}}
        await client.patch(POD, "one", "default", change, patch_type="strategic", subresource="resize")
