"""Every Ray cluster of the embedded cluster has a token of its own, and its pods look as published."""

from __future__ import annotations

import asyncio

import aiohttp
import pytest

from shoal.api.kinds import RAY_JOB, SECRET
from shoal.api.meta import Json
from shoal.local.nodes.runtime import planning
from tests.e2e.conftest import Whole
from tests.faults import proven
from tests.unit.ray.builders import group, ray_job

pytestmark = [pytest.mark.ray, pytest.mark.timeout(300)]

WRITES = (
    ("POST", "/api/jobs/"),
    ("POST", "/api/jobs/x/stop"),
    ("DELETE", "/api/jobs/x"),
    ("PUT", "/api/serve/applications/"),
    ("DELETE", "/api/serve/applications/"),
    ("PUT", "/api/packages/gcs/a.zip"),
    ("POST", "/api/job_agent/jobs/"),
    ("POST", "/logs/anything"),
)


def no_tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    async def nothing(pod: Json, sources: object) -> dict[str, str]:
        return {}

    monkeypatch.setattr(planning, "token_variables", nothing)


@proven(without=no_tokens)
async def test_f118_an_open_dashboard_takes_nothing_without_its_token(whole: Whole) -> None:
    """F118: a stranger reaches the dashboard of a cluster whose manifest says nothing. Holds: every write path answers
    401, or 403 to another cluster's token; with its own token jobs run, and no pod shows it."""
    job = ray_job("train", entrypoint="echo the driver ran")
    job["spec"]["rayClusterSpec"]["workerGroupSpecs"] = [group(replicas=1)]
    await whole.client.create(RAY_JOB, job, "default")

    async def ended() -> Json | None:
        found = await whole.client.get(RAY_JOB, "train", "default")
        return found if (found.get("status") or {}).get("jobDeploymentStatus") in ("Complete", "Failed") else None

    done = (await whole.until(ended, 120))["status"]
    assert done["jobStatus"] == "SUCCEEDED", done["message"]  # its submitter, a Job of its own, had the token

    pods = await whole.pods(done["rayClusterName"])
    head = next(pod for pod in pods if pod["metadata"]["labels"]["ray.io/node-type"] == "head")
    assert all("RAY_AUTH" not in str(pod["spec"]) for pod in pods)
    address = head["status"]["podIP"]
    async with aiohttp.ClientSession() as stranger:
        for headers, refusal in (({}, 401), ({"Authorization": "Bearer of-another-cluster"}, 403)):
            answers = await asyncio.gather(
                *(_answer(stranger, method, f"http://{address}:8265{path}", headers) for method, path in WRITES)
            )
            assert set(answers) == {refusal}, dict(zip(WRITES, answers, strict=True))
    assert (await whole.job(done["rayClusterName"], "echo again"))["status"] == "SUCCEEDED"
    secret = await whole.client.get(SECRET, done["rayClusterName"], "default")
    assert secret["metadata"]["ownerReferences"][0]["kind"] == "RayCluster"


async def _answer(session: aiohttp.ClientSession, method: str, url: str, headers: dict[str, str]) -> int:
    async with session.request(method, url, json={}, headers=headers) as answer:
        return answer.status
