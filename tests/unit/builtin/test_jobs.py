"""Jobs: completions, parallelism, indexes, failures, deadlines, suspension and clean-up, as batch users see them."""

from __future__ import annotations

import pytest

from shoal.api import kinds
from shoal.local.builtin import job_rules as rules
from shoal.local.builtin.jobs import JobController
from tests.faults import proven
from tests.unit.builtin.objects import job, pods_of, report, template


def condition(obj, kind):
    return next((c for c in obj["status"].get("conditions", ()) if c["type"] == kind and c["status"] == "True"), None)


async def active(cluster, count, name="j"):
    return await cluster.until(kinds.JOB, name, lambda o: o["status"].get("active", 0) == count)


async def ended(cluster, kind, name="j"):
    return await cluster.until(kinds.JOB, name, lambda o: condition(o, kind))


def alive(found):
    return [
        pod
        for pod in found
        if not pod["metadata"].get("deletionTimestamp") and pod["status"]["phase"] in ("Pending", "Running")
    ]


async def test_a_job_completes(cluster):
    await cluster.create(kinds.JOB, job())
    started = await active(cluster, 1)
    assert started["status"]["startTime"]
    [pod] = await pods_of(cluster, **{"job-name": "j"})
    await report(cluster, pod, "Succeeded")
    done = await ended(cluster, "Complete")
    assert done["status"]["succeeded"] == 1
    assert done["status"]["completionTime"]
    assert condition(done, "SuccessCriteriaMet")["reason"] == "CompletionsReached"
    assert "active" not in done["status"]
    [pod] = await pods_of(cluster, **{"job-name": "j"})
    assert not pod["metadata"].get("finalizers")


async def test_parallel_completions(cluster):
    await cluster.create(kinds.JOB, job(completions=5, parallelism=2))
    await active(cluster, 2)
    for count in range(1, 6):
        running = alive(await pods_of(cluster, **{"job-name": "j"}))
        assert len(running) == min(2, 6 - count)
        await report(cluster, running[0], "Succeeded")
        await cluster.until(kinds.JOB, "j", lambda o, count=count: o["status"].get("succeeded") == count)
        await cluster.settled(5)
    done = await ended(cluster, "Complete")
    assert done["status"]["succeeded"] == 5


async def test_a_work_queue_ends_when_one_has_succeeded_and_the_rest_are_done(cluster):
    await cluster.create(kinds.JOB, job(parallelism=2))
    await active(cluster, 2)
    first, second = await pods_of(cluster, **{"job-name": "j"})
    await report(cluster, first, "Succeeded")
    await active(cluster, 1)
    assert condition(await cluster.get(kinds.JOB, "j"), "Complete") is None
    await report(cluster, second, "Succeeded")
    assert (await ended(cluster, "Complete"))["status"]["succeeded"] == 2


async def test_indexes(cluster):
    await cluster.create(kinds.JOB, job(completions=3, parallelism=3, completionMode="Indexed"))
    await active(cluster, 3)
    found = await pods_of(cluster, **{"job-name": "j"})
    assert [rules.index_of(pod) for pod in found] == [0, 1, 2]
    assert found[1]["spec"]["hostname"] == "j-1"
    [variable] = found[1]["spec"]["containers"][0]["env"]
    assert variable["name"] == "JOB_COMPLETION_INDEX"
    assert (
        variable["valueFrom"]["fieldRef"]["fieldPath"] == "metadata.labels['batch.kubernetes.io/job-completion-index']"
    )
    await report(cluster, found[0], "Succeeded")
    await report(cluster, found[2], "Succeeded")
    half = await cluster.until(kinds.JOB, "j", lambda o: o["status"].get("succeeded") == 2)
    assert half["status"]["completedIndexes"] == "0,2"
    await report(cluster, found[1], "Succeeded")
    assert (await ended(cluster, "Complete"))["status"]["completedIndexes"] == "0-2"


async def test_no_retries_means_the_first_failure_is_the_last(cluster):
    await cluster.create(kinds.JOB, job(backoffLimit=0))
    await active(cluster, 1)
    [pod] = await pods_of(cluster, **{"job-name": "j"})
    await report(cluster, pod, "Failed")
    failed = await ended(cluster, "Failed")
    assert condition(failed, "Failed")["reason"] == "BackoffLimitExceeded"
    assert condition(failed, "Failed")["message"] == "Job has reached the specified backoff limit"
    assert failed["status"]["failed"] == 1


async def test_other_pods_are_removed_when_a_job_fails(cluster):
    await cluster.create(kinds.JOB, job(backoffLimit=0, completions=3, parallelism=3))
    await active(cluster, 3)
    found = await pods_of(cluster, **{"job-name": "j"})
    await report(cluster, found[0], "Failed")
    await ended(cluster, "Failed")
    assert alive(await pods_of(cluster, **{"job-name": "j"})) == []


async def test_a_job_takes_back_its_pod_and_lets_a_stranger_go(cluster):
    made = await cluster.create(kinds.JOB, job())
    await active(cluster, 1)
    [pod] = await pods_of(cluster, **{"job-name": "j"})
    name = pod["metadata"]["name"]
    await cluster.client.patch(kinds.POD, name, "default", {"metadata": {"ownerReferences": None}})
    back = await cluster.until(kinds.POD, name, lambda o: o["metadata"].get("ownerReferences"))
    assert back["metadata"]["ownerReferences"][0]["uid"] == made["metadata"]["uid"]
    labels = {"batch.kubernetes.io/controller-uid": None, "controller-uid": None}
    await cluster.client.patch(kinds.POD, name, "default", {"metadata": {"labels": labels}})
    gone = await cluster.until(kinds.POD, name, lambda o: not o["metadata"].get("ownerReferences"))
    assert not gone["metadata"].get("finalizers")


async def test_pods_that_go_by_suspension_have_not_failed(cluster):
    """However often: a Job that gives way to others is not ended by that."""
    await cluster.create(kinds.JOB, job(completions=5, parallelism=5, backoffLimit=1))
    for _ in range(3):
        await active(cluster, 5)
        await cluster.client.patch(kinds.JOB, "j", "default", {"spec": {"suspend": True}})
        await cluster.until(kinds.JOB, "j", lambda o: condition(o, "Suspended"))
        await cluster.client.patch(kinds.JOB, "j", "default", {"spec": {"suspend": False}})
    running = await active(cluster, 5)
    assert "failed" not in running["status"]


def sees_no_strays(monkeypatch):
    monkeypatch.setattr(JobController, "_is_stray", lambda self, pod: False)


@proven(without=sees_no_strays)
async def test_f154_orphaned_pods_of_a_deleted_job_can_be_deleted(cluster):
    """F154: a Job is deleted and leaves its pods behind, with the finalizer that let it count them. Holds: pods without
    a Job lose that finalizer, and go when they are deleted."""
    await cluster.create(kinds.JOB, job(completions=2, parallelism=2))
    await active(cluster, 2)
    await cluster.client.delete(kinds.JOB, "j", "default", propagation="Orphan")
    for pod in await pods_of(cluster, **{"job-name": "j"}):
        name = pod["metadata"]["name"]
        left = await cluster.until(kinds.POD, name, lambda o: not o["metadata"].get("finalizers"))
        assert not left["metadata"].get("ownerReferences")
        await cluster.client.delete(kinds.POD, name, "default", grace_seconds=0)
        await cluster.until_gone(kinds.POD, name)


async def test_pods_of_a_deleted_job_go_though_another_of_its_name_is_there(cluster):
    await cluster.create(kinds.JOB, job(completions=2, parallelism=2))
    await active(cluster, 2)
    before = [pod["metadata"]["name"] for pod in await pods_of(cluster, **{"job-name": "j"})]
    await cluster.client.delete(kinds.JOB, "j", "default", propagation="Background")
    await cluster.create(kinds.JOB, job(suspend=True))
    for name in before:
        await cluster.until_gone(kinds.POD, name)


async def test_a_job_that_adopts_an_orphan_counts_it(cluster):
    labels = {"task": "train"}
    wanted = job(selector={"matchLabels": labels}, manualSelector=True)
    wanted["spec"]["template"].setdefault("metadata", {})["labels"] = labels
    await cluster.create(kinds.JOB, wanted)
    await active(cluster, 1)
    [pod] = await pods_of(cluster, **labels)
    await cluster.client.delete(kinds.JOB, "j", "default", propagation="Orphan")
    await cluster.until(kinds.POD, pod["metadata"]["name"], lambda o: not o["metadata"].get("finalizers"))
    await cluster.create(kinds.JOB, wanted)
    await active(cluster, 1)
    [adopted] = await pods_of(cluster, **labels)
    assert adopted["metadata"]["uid"] == pod["metadata"]["uid"]
    assert adopted["metadata"]["finalizers"] == ["batch.kubernetes.io/job-tracking"]
    await report(cluster, adopted, "Succeeded")
    assert (await ended(cluster, "Complete"))["status"]["succeeded"] == 1


async def test_suspend_and_resume(cluster):
    await cluster.create(kinds.JOB, job(suspend=True, completions=2, parallelism=2))
    held = await cluster.until(kinds.JOB, "j", lambda o: condition(o, "Suspended"))
    assert "startTime" not in held["status"]
    assert await pods_of(cluster, **{"job-name": "j"}) == []
    await cluster.client.patch(kinds.JOB, "j", "default", {"spec": {"suspend": False}})
    started = await active(cluster, 2)
    assert started["status"]["startTime"]
    assert not condition(started, "Suspended")
    await cluster.client.patch(kinds.JOB, "j", "default", {"spec": {"suspend": True}})
    stopped = await cluster.until(kinds.JOB, "j", lambda o: condition(o, "Suspended") and not o["status"].get("active"))
    await cluster.settled()
    assert await pods_of(cluster, **{"job-name": "j"}) == []
    assert "failed" not in stopped["status"], "a suspended pod has not failed"


async def test_a_deleted_pod_is_replaced_and_counted_once(cluster):
    await cluster.create(kinds.JOB, job())
    await active(cluster, 1)
    [pod] = await pods_of(cluster, **{"job-name": "j"})
    await cluster.client.delete(kinds.POD, pod["metadata"]["name"], "default")
    found = await cluster.until(kinds.JOB, "j", lambda o: o["status"].get("failed") == 1)
    assert not found["status"].get("uncountedTerminatedPods")
    await active(cluster, 1)
    [other] = await pods_of(cluster, **{"job-name": "j"})
    assert other["metadata"]["name"] != pod["metadata"]["name"]
    await report(cluster, other, "Succeeded")
    done = await ended(cluster, "Complete")
    assert (done["status"]["succeeded"], done["status"]["failed"]) == (1, 1)


async def test_deleting_a_job_frees_its_pods(cluster):
    await cluster.create(kinds.JOB, job())
    await active(cluster, 1)
    await cluster.client.delete(kinds.JOB, "j", "default", propagation="Background")
    await cluster.settled()
    assert await cluster.client.list(kinds.POD, "default") == []


async def test_a_pod_failure_policy_ends_the_job_at_once(cluster):
    policy = {
        "rules": [
            {"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget"}]},
            {"action": "FailJob", "onExitCodes": {"operator": "In", "values": [42]}},
        ]
    }
    await cluster.create(kinds.JOB, job(podFailurePolicy=policy))
    await active(cluster, 1)
    [pod] = await pods_of(cluster, **{"job-name": "j"})
    await report(
        cluster,
        pod,
        "Failed",
        containerStatuses=[
            {
                "name": "c",
                "image": "i",
                "imageID": "",
                "ready": False,
                "restartCount": 0,
                "state": {"terminated": {"exitCode": 42}},
            }
        ],
    )
    failed = await ended(cluster, "Failed")
    assert condition(failed, "Failed")["reason"] == "PodFailurePolicy"
    assert "exit code 42 matching FailJob rule at index 1" in condition(failed, "Failed")["message"]


@pytest.mark.parametrize(
    "indexes, text",
    [
        (set(), ""),
        ({0}, "0"),
        ({0, 1}, "0,1"),
        ({0, 1, 2}, "0-2"),
        ({0, 2, 3, 4, 7}, "0,2-4,7"),
    ],
)
def test_index_texts(indexes, text):
    assert rules.print_indexes(indexes) == text
    assert rules.parse_indexes(text) == indexes


SECOND = 1_000_000
T0 = 1_704_067_200 * SECOND  # 2024-01-01


def failed_pod(name, at):
    moment = f"2024-01-01T00:00:{at:02}Z"
    return {
        "metadata": {"name": name, "uid": name},
        "status": {
            "phase": "Failed",
            "containerStatuses": [{"name": "c", "state": {"terminated": {"exitCode": 1, "finishedAt": moment}}}],
        },
    }


@pytest.mark.parametrize(
    "failures, seconds, wait",
    [
        ([], 0, 0),
        ([0], 0, 10),
        ([0], 4, 6),
        ([0], 30, 0),
        ([0, 10], 10, 20),
        ([0, 10, 30], 30, 40),
    ],
)
def test_each_failure_doubles_the_wait(failures, seconds, wait):
    found = [failed_pod(f"p{at}", at) for at in failures]
    assert rules.backoff(job(), found, T0 + seconds * SECOND) == wait


@pytest.mark.parametrize(
    "spec, tally, reason",
    [
        ({"backoffLimit": 2}, rules.Tally(0, 3, set(), set()), "BackoffLimitExceeded"),
        ({"backoffLimit": 2}, rules.Tally(0, 2, set(), set()), None),
        ({"completions": 2}, rules.Tally(2, 0, set(), set()), "CompletionsReached"),
        ({"completions": 2, "completionMode": "Indexed"}, rules.Tally(2, 0, {0, 1}, set()), "CompletionsReached"),
        (
            {
                "completions": 4,
                "completionMode": "Indexed",
                "successPolicy": {"rules": [{"succeededIndexes": "0,2-3", "succeededCount": 2}]},
            },
            rules.Tally(2, 0, {0, 3}, set()),
            "SuccessPolicy",
        ),
        (
            {"completions": 2, "completionMode": "Indexed", "successPolicy": {"rules": [{"succeededCount": 2}]}},
            rules.Tally(2, 0, {0, 1}, set()),
            "SuccessPolicy",
        ),
        (
            {"completions": 2, "completionMode": "Indexed", "backoffLimitPerIndex": 0},
            rules.Tally(1, 1, {0}, {1}),
            "FailedIndexes",
        ),
        (
            {"completions": 4, "completionMode": "Indexed", "backoffLimitPerIndex": 0, "maxFailedIndexes": 0},
            rules.Tally(0, 1, set(), {1}),
            "MaxFailedIndexesExceeded",
        ),
    ],
)
def test_verdicts(spec, tally, reason):
    found = rules.verdict({**job(), "spec": {"template": template(), **spec}}, [], tally, T0)
    assert (found.reason if found else None) == reason
