"""Node ports that a user asks for: of the range for Services, and no other Service's."""

from __future__ import annotations

from typing import Any

import pytest

from shoal.api.kinds import NAMESPACE, SERVICE
from shoal.kube.client import Client
from shoal.kube.errors import Invalid
from shoal.local.apiserver.kinds import strategy
from tests.faults import proven


def gives_any_port(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(strategy, "_check_node_ports", lambda service, old, taken: None)


async def asks(client: Client, name: str, number: int, namespace: str = "default", kind: str = "NodePort") -> Any:
    spec = {"type": kind, "ports": [{"port": 80, "nodePort": number}], "selector": {"a": "b"}}
    return await client.create(SERVICE, {"metadata": {"name": name}, "spec": spec}, namespace)


@proven(without=gives_any_port)
async def test_f211_a_service_gets_no_port_of_the_machine_and_no_other_services(client: Client) -> None:
    """F211: a user's Service asks for a node port below the range, where programs of the machine are expected, or for
    that of another tenant's Service, at its creation or later. Holds: refused as Kubernetes does; its own it keeps."""
    await client.create(NAMESPACE, {"metadata": {"name": "red"}})
    for number in (22, 3306, 29999, 32768):
        with pytest.raises(Invalid, match=r"not in the valid range. The range of valid ports is 30000-32767"):
            await asks(client, "low", number)
    await asks(client, "theirs", 30080)
    with pytest.raises(Invalid, match="30080: provided port is already allocated"):
        await asks(client, "mine", 30080, "red", "LoadBalancer")
    await asks(client, "mine", 30081, "red")
    for number in (22, 30080):
        with pytest.raises(Invalid, match=rf"nodePort: Invalid value: {number}"):
            await client.patch(SERVICE, "mine", "red", {"spec": {"ports": [{"port": 80, "nodePort": number}]}})
    kept = await client.patch(SERVICE, "mine", "red", {"spec": {"ports": [{"port": 81, "nodePort": 30081}]}})
    assert kept["spec"]["ports"][0]["nodePort"] == 30081
