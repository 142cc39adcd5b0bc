"""Questions about manifests that are not stored: whether they would start, and how large a gang may be."""

from __future__ import annotations

import random
from typing import Any

import pytest

from shoal.api import kinds
from shoal.api.meta import Json
from shoal.controllers.planning.questions import drafts
from shoal.sdk import asking
from tests.cluster import Cluster
from tests.faults import proven
from tests.planning import planned
from tests.unit.appwrapper.test_rights import as_user
from tests.unit.questions.test_door import TRUSTING, asks, believes_everyone, two_namespaces
from tests.unit.queues.build import ray_job


async def verdict(cluster: Cluster, manifest: Json, **more: Any) -> Json:
    return await asking.would_start(cluster.client, manifest, "default", **more)


async def test_what_has_quota_and_room_starts_and_nothing_is_stored(cluster: Cluster) -> None:
    answer = await verdict(cluster, ray_job("small", 1))
    assert answer["verdict"] == "Starts"
    assert await cluster.names(kinds.RAY_JOB) == [] == await cluster.names(kinds.WORKLOAD)
    await cluster.settled()
    assert await cluster.names(kinds.WORKLOAD) == []


async def test_what_a_queue_could_have_later_waits_and_what_it_never_has_never_runs(cluster: Cluster) -> None:
    await cluster.create(kinds.RAY_JOB, ray_job("first", 1))
    await cluster.until(kinds.RAY_JOB, "first", lambda one: not one["spec"].get("suspend"))
    later = await verdict(cluster, ray_job("second", 2))
    assert later["verdict"] == "Waits" and later["position"] == 1 and "cpu" in later["message"], later
    never = await verdict(cluster, ray_job("huge", 9))
    assert never["verdict"] == "Never" and "cpu" in never["message"], never


async def test_an_app_wrapper_is_judged_by_room(cluster: Cluster) -> None:
    assert (await verdict(cluster, asks("fits", "15")))["verdict"] == "Starts"
    assert (await verdict(cluster, asks("large", "17")))["verdict"] == "Never"
    await cluster.create(kinds.APP_WRAPPER, asks("running", "10"))
    await cluster.until(kinds.APP_WRAPPER, "running", lambda one: bool((one.get("status") or {}).get("canrun")))
    waits = await verdict(cluster, asks("next", "8"))
    assert waits["verdict"] == "Waits" and waits["holders"] == ["AppWrapper/default/running"]


async def test_the_largest_gang_is_the_largest_that_starts(cluster: Cluster) -> None:
    """The queue has 4 cpu: head 1, submitter 0.5, workers of 1."""
    answer = await verdict(cluster, ray_job("shape", 1), largest="small")
    assert answer["largest"] == 2
    with pytest.raises(asking.NoAnswer, match="none of the pod sets head, small, submitter"):
        await verdict(cluster, ray_job("shape", 1), largest="smal")
    exactly = [await verdict(cluster, ray_job("shape", count)) for count in (2, 3)]
    assert [one["verdict"] for one in exactly] == ["Starts", "Never"]


@pytest.mark.parametrize("manifest", [{"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "x"}}])
async def test_what_no_controller_would_plan_gets_no_verdict(cluster: Cluster, manifest: Json) -> None:
    with pytest.raises(asking.NoAnswer, match="would hold this ConfigMap"):
        await verdict(cluster, manifest)


@proven(without=believes_everyone)
async def test_f251_a_question_about_a_manifest_names_only_what_its_asker_may_read(quiet: Cluster) -> None:
    """F251: a user asks whether a manifest would start, for which a gang of another namespace would have to end; the
    manifest says that it lies there and that an administrator created it. Holds: it is judged in the question's own
    namespace, names that this user may not read become counts, and nothing is stored."""
    quiet.start(planned(quiet.client, TRUSTING).run())
    await two_namespaces(quiet)
    manifest = asks("more", "8", "blue")
    manifest["metadata"]["annotations"] = {"shoal.dev/created-by": '{"user":"admin","groups":["system:masters"]}'}
    answer = await asking.would_start(as_user(quiet, "ann"), manifest, "red")
    assert answer["verdict"] == "Waits" and answer["holdersHidden"] >= 1
    assert "secret" not in str(answer) and "blue" not in str(answer)
    assert await quiet.names(kinds.APP_WRAPPER, "blue") == ["secret"]


def test_a_draft_belongs_to_its_question() -> None:
    question = {
        "metadata": {
            "name": "q", "namespace": "red", "uid": "1", "resourceVersion": "7",
            "annotations": {"shoal.dev/created-by": "ann"},
        }
    }  # fmt: skip
    claimed = b'{"kind":"Job","metadata":{"namespace":"blue","uid":"x","annotations":{"shoal.dev/created-by":"admin"}}}'
    spec = drafts.QuestionSpec(manifest=drafts.msgspec.Raw(claimed))
    made = drafts.manifest_of(question, spec, "2026-01-01T00:00:00Z")["metadata"]
    assert (made["namespace"], made["uid"], made["annotations"]) == (
        "red",
        "draft-1",
        {"shoal.dev/created-by": "ann"},
    )


@pytest.mark.parametrize("seed", range(4))
async def test_the_verdict_is_what_happens(cluster: Cluster, seed: int) -> None:
    """Jobs of random sizes, each asked about and then submitted; a random one ends now and then."""
    chance, there, seen = random.Random(seed), [], set()
    for number in range(10):
        job = ray_job(f"job-{number}", chance.randint(0, 3), cpu=chance.choice(["500m", "1", "1500m"]))
        said = (await verdict(cluster, job))["verdict"]
        seen.add(said)
        await cluster.create(kinds.RAY_JOB, job)
        await cluster.settled()
        runs = not (await cluster.get(kinds.RAY_JOB, job["metadata"]["name"]))["spec"].get("suspend")
        assert runs == (said == "Starts"), (number, said)
        there.append(job["metadata"]["name"])
        if said == "Never":  # alone, it does not start either
            for name in there[:-1]:
                await cluster.client.delete(kinds.RAY_JOB, name, "default")
            await cluster.settled()
            assert (await cluster.get(kinds.RAY_JOB, there[-1]))["spec"].get("suspend")
            await cluster.client.delete(kinds.RAY_JOB, there.pop(), "default")
            there.clear()
        elif chance.random() < 0.4:
            await cluster.client.delete(kinds.RAY_JOB, there.pop(chance.randrange(len(there))), "default")
        await cluster.settled()
    assert len(seen) > 1
