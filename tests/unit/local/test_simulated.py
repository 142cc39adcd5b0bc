"""Pods that only the clock moves."""

from __future__ import annotations

import json
from typing import Any

import aiohttp
import pytest

from shoal.api.kinds import POD
from shoal.kube.clock import SystemClock
from shoal.kube.errors import BadRequest, NotFound
from shoal.local.nodes.agent import agent as agent_module
from shoal.local.nodes.agent.streams import PodStreams
from shoal.local.nodes.runtime.simray import SERVE_STATUS, SimulatedRay
from shoal.local.nodes.runtime.simulated import EXIT_CODE, RUN_SECONDS, START_SECONDS
from tests.faults import proven
from tests.unit.local.parts import Cluster, condition, phase


async def test_a_pod_is_bound_runs_and_is_deleted(cluster: Cluster) -> None:
    await cluster.nodes("4")
    await cluster.begin(cluster.agent, cluster.scheduler)
    await cluster.pod("one")
    running = await cluster.see(POD, "one", "default", phase("Running"))
    assert running["spec"]["nodeName"] == "node-0" and running["status"]["podIP"]
    assert condition("Ready", "True")(running) and condition("PodScheduled", "True")(running)
    await cluster.client.delete(POD, "one", "default")

    async def gone() -> bool:
        return cluster.agent.running("default", "one") is None

    await cluster.until(gone)
    with pytest.raises(NotFound):
        await cluster.client.get(POD, "one", "default")


@pytest.mark.parametrize(
    ("annotations", "command", "wanted"),
    [
        ({RUN_SECONDS: "0.1"}, ["whatever"], "Succeeded"),
        ({RUN_SECONDS: "0.1", EXIT_CODE: "2"}, ["whatever"], "Failed"),
        ({START_SECONDS: "0.1", RUN_SECONDS: "0.1"}, ["whatever"], "Succeeded"),
        ({}, ["sh", "-c", "sleep 0.1"], "Succeeded"),
        ({}, ["/bin/sleep", "0.1s"], "Succeeded"),
        ({RUN_SECONDS: "not a number"}, ["sleep", "0"], "Running"),
    ],
)
async def test_pods_end_as_told(cluster: Cluster, annotations: dict[str, str], command: list[str], wanted: str) -> None:
    await cluster.nodes("4")
    await cluster.begin(cluster.agent, cluster.scheduler)
    await cluster.pod("timed", annotations=annotations, container={"command": command})
    ended = await cluster.see(POD, "timed", "default", phase(wanted))
    if wanted == "Failed":
        assert ended["status"]["containerStatuses"][0]["state"]["terminated"]["exitCode"] == 2


def starts_anything(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(agent_module, "TERMINAL", ())


@proven(without=starts_anything)
async def test_f108_a_pod_that_ended_is_never_started_again(cluster: Cluster) -> None:
    """F108: the agent starts and finds a pod that ended long ago. Holds: it is left as it is."""
    await cluster.nodes("4")
    await cluster.pod("done", nodeName="node-0", annotations={RUN_SECONDS: "0"})
    await cluster.client.patch(POD, "done", "default", {"status": {"phase": "Succeeded"}}, subresource="status")
    await cluster.begin(cluster.agent)
    await cluster.pod("fresh", nodeName="node-0")
    await cluster.see(POD, "fresh", "default", phase("Running"))
    assert cluster.agent.running("default", "done") is None


async def test_a_debugger_that_cannot_run_says_so_at_once(cluster: Cluster) -> None:
    """Or `kubectl debug` would wait for it for ever."""
    await cluster.nodes("4")
    await cluster.begin(cluster.scheduler, cluster.agent)
    await cluster.pod("looked-into")
    await cluster.see(POD, "looked-into", "default", phase("Running"))
    debugger = {"name": "debugger", "image": "busybox"}
    body = {"spec": {"ephemeralContainers": [debugger]}}
    await cluster.client.patch(POD, "looked-into", "default", body, subresource="ephemeralcontainers")
    found = await cluster.see(
        POD, "looked-into", "default", lambda pod: bool(pod["status"].get("ephemeralContainerStatuses"))
    )
    (status,) = found["status"]["ephemeralContainerStatuses"]
    assert "no processes to debug" in status["state"]["terminated"]["message"]
    cluster.server.set_log_source(PodStreams(cluster.agent, cluster.clock).log)
    with pytest.raises(BadRequest, match="no processes to debug"):
        await anext(cluster.client.logs("looked-into", "default", container="debugger"))


@pytest.mark.parametrize(
    ("told", "status", "code"), [({}, "RUNNING", 200), ({SERVE_STATUS: "DEPLOY_FAILED"}, "DEPLOY_FAILED", 404)]
)
async def test_serve_of_a_simulated_head_runs_what_it_is_told(told: dict[str, str], status: str, code: int) -> None:
    """At the port that the head names, by the longest route that fits, until Serve is ended."""
    address, ports = "127.131.7.7", [{"name": "serve", "containerPort": 9100}]
    pod = {"metadata": {"annotations": told}, "spec": {"containers": [{"name": "ray-head", "ports": ports}]}}
    ray, dashboard = SimulatedRay(pod, address, SystemClock()), f"http://{address}:8265/api/serve/applications/"
    proxy = f"http://{address}:9100"
    config = {
        "applications": [
            {"name": "all", "route_prefix": "/"},
            {"name": "fruit", "route_prefix": "/fruit", "deployments": [{"name": "Mango"}]},
        ]
    }
    await ray.start()
    try:
        async with aiohttp.ClientSession() as session:
            assert (await answer(session, "GET", dashboard))[1] == {"applications": {}}
            assert (await answer(session, "PUT", dashboard, {"applications": [{}]}))[0] == 400
            assert (await answer(session, "PUT", dashboard, config))[0] == 200
            found = (await answer(session, "GET", dashboard))[1]["applications"]
            assert {name: one["status"] for name, one in found.items()} == {"all": status, "fruit": status}
            assert list(found["fruit"]["deployments"]) == ["Mango"]
            assert (await answer(session, "GET", f"{proxy}/-/healthz"))[0] == 200
            served = [await answer(session, "POST", proxy + path) for path in ("/fruit/mango", "/fruits")]
            assert [one[0] for one in served] == [code, code]
            if code == 200:
                assert [one[1].split()[1] for one in served] == ["fruit", "all"]
            assert (await answer(session, "DELETE", dashboard))[0] == 200
            assert (await answer(session, "GET", dashboard))[1] == {"applications": {}}
    finally:
        await ray.stop()


async def answer(session: aiohttp.ClientSession, method: str, url: str, body: Any = None) -> tuple[int, Any]:
    async with session.request(method, url, json=body) as told:
        said = await told.text()
        return told.status, json.loads(said) if said.startswith("{") else said
