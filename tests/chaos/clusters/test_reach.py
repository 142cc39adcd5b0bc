"""Clusters that cannot be reached, are slow, come back, or are not who they were."""

from __future__ import annotations

import asyncio

import msgspec
import pytest

from shoal.api import kinds
from shoal.api.meta import Json
from shoal.controllers.multicluster import credentials, loss, members
from shoal.controllers.multicluster.credentials import Insecure
from shoal.controllers.multicluster.loss import Standing
from shoal.controllers.multicluster.member import Member
from shoal.controllers.multicluster.members import Members
from shoal.controllers.multicluster.offering import Offering
from shoal.controllers.multicluster.pulse import Health, Pulse
from shoal.controllers.queues.jobs import GangJob
from tests.faults import proven
from tests.patience import PATIENCE
from tests.unit.clusters.build import (
    QUICK,
    SYSTEM,
    Town,
    condition,
    is_on,
    is_placed,
    our_check,
    secret,
    sent_job,
    town,
)
from tests.unit.queues.build import make, name_of, pods_of, said, true

SOON = msgspec.structs.replace(QUICK, lost_seconds=1.0)
LATE = msgspec.structs.replace(QUICK, lost_seconds=600.0)


def is_not_active(obj: Json) -> bool:
    return condition(obj, "Active").get("status") == "False"


async def placed(t: Town, name: str = "train", pods: int = 2) -> tuple[str, str]:
    """A job that runs somewhere: the name of its Workload, and where."""
    (made,) = await make(t.hub, sent_job(name, pods))
    workload = await t.hub.until(kinds.WORKLOAD, name_of(made), is_placed)
    home = workload["status"]["clusterName"]
    await pods_of(t.members[home], name, pods)
    await t.hub.until(kinds.JOB, name, lambda one: (one.get("status") or {}).get("active") == pods)
    return name_of(made), home


def forgets_removals(monkeypatch: pytest.MonkeyPatch) -> None:
    async def remember(self: Members, name: str, workload: Json) -> bool:
        return True

    monkeypatch.setattr(Members, "remember_removal", remember)


@proven(without=forgets_removals)
async def test_f091_a_copy_that_could_not_be_removed_is_removed_when_its_cluster_is_back() -> None:
    """F91: a cluster cannot be reached while its copy must go, and the hub is restarted. Holds: the removal is
    remembered until it is confirmed, no gang waits for it, and after the reconnect nothing is left (I37, I41)."""
    async with town("a", "b") as t:
        t.start_hub()
        await t.connected()
        name, home = await placed(t)
        t.wires[home].cut()
        await t.hub.until(kinds.MULTIKUEUE_CLUSTER, home, is_not_active)
        await t.hub.client.delete(kinds.JOB, "train", "default", propagation="Background")
        await t.hub.until_gone(kinds.WORKLOAD, name)
        assert await t.where(kinds.JOB, "train") == [home]
        await t.stop_hub()
        t.start_hub()
        t.wires[home].mend()
        await t.members[home].until_gone(kinds.WORKLOAD, name)
        assert await t.where(kinds.JOB, "train") == []
        await t.hub.until(
            kinds.MULTIKUEUE_CLUSTER, home, lambda one: "shoal.dev/removals" not in one["metadata"]["annotations"]
        )


def every_silence_is_a_loss(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Members, "until_lost", lambda self, name: None if self.usable(name) else 0.0)


@proven(without=every_silence_is_a_loss)
async def test_f092_a_short_silence_is_no_loss() -> None:
    """F92: a cluster is out of sight for less than the limit, and the hub is restarted meanwhile. Holds: shown as
    not connected, its gang stays where it is."""
    async with town("a", "b") as t:
        t.start_hub(LATE)
        await t.connected()
        name, home = await placed(t)
        t.wires[home].cut()
        await t.hub.until(kinds.MULTIKUEUE_CLUSTER, home, is_not_active)
        shown = await t.hub.until(kinds.WORKLOAD, name, lambda one: "cannot be reached" in our_check(one)["message"])
        assert our_check(shown)["state"] == "Ready"
        await t.stop_hub()
        t.start_hub(LATE)
        t.wires[home].mend()
        await t.connected(home)
        back = await t.hub.until(kinds.WORKLOAD, name, lambda one: "reached" not in our_check(one)["message"])
        assert is_on(home)(back) and not condition(back, "Evicted")
        assert len(await pods_of(t.members[home], "train", 2)) == 2


def no_cluster_is_ever_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(members, "seconds_until_lost", lambda *_: None)


@proven(without=no_cluster_is_ever_lost)
async def test_f092_a_long_silence_is_a_loss_and_the_gang_goes_to_the_next_cluster() -> None:
    """F92: a cluster stays silent beyond the limit and comes back later. Holds: its gang runs elsewhere, and what the
    returned cluster still has of it is removed."""
    async with town("a", "b") as t:
        t.start_hub(SOON)
        await t.connected()
        name, home = await placed(t)
        (other,) = {"a", "b"} - {home}
        t.wires[home].cut()
        await t.hub.until(kinds.WORKLOAD, name, is_on(other))
        await pods_of(t.members[other], "train", 2)
        lost = await t.hub.get(kinds.WORKLOAD, name)
        assert f'Admitting remote lost: cluster "{home}"' in said(lost, "Evicted")[2]
        t.wires[home].mend()
        await t.members[home].until_gone(kinds.JOB, "train")
        await t.members[home].until_gone(kinds.WORKLOAD, name)
        assert await t.where(kinds.JOB, "train") == [other]


def one_queue_for_all(monkeypatch: pytest.MonkeyPatch) -> None:
    """For each gang the hub asks every cluster, one after the other."""
    kept = Offering.offer

    async def offer(self: Offering, workload: Json, check: Json, kind: GangJob, job: Json) -> float | None:
        for name in self._hub.clusters_of(check["name"]) or ():
            member = self._members.get(name)
            if member is not None:
                await member.client.list(kinds.WORKLOAD, "default")
        return await kept(self, workload, check, kind, job)

    monkeypatch.setattr(Offering, "offer", offer)


@proven(without=one_queue_for_all)
async def test_f093_a_cluster_that_hangs_holds_up_no_other() -> None:
    """F93: one cluster accepts requests and never answers. Holds: gangs go to the other one meanwhile."""
    patient = msgspec.structs.replace(QUICK, request_seconds=60, silent_seconds=600)
    async with town("a", "b") as t:
        t.start_hub(patient)
        await t.connected()
        t.wires["a"].hangs = True
        (made,) = await make(t.hub, sent_job("train", 2))
        async with asyncio.timeout(PATIENCE):
            await t.hub.until(kinds.WORKLOAD, name_of(made), is_on("b"))
            await pods_of(t.members["b"], "train", 2)


def a_rejected_credential_is_only_silence(monkeypatch: pytest.MonkeyPatch) -> None:
    kept = Pulse._say

    def say(self: Pulse, health: Health) -> None:
        if health.connected or self.health is None:
            kept(self, health)

    monkeypatch.setattr(Pulse, "_say", say)


@proven(without=a_rejected_credential_is_only_silence)
async def test_f096_nothing_goes_where_the_credential_is_rejected_and_what_runs_there_stays() -> None:
    """F96: a member rejects the credential, which is rotated later. Holds: no dispatch there, running work is not
    evicted for it, and the new credential is used without a restart."""
    async with town("a") as t:
        t.start_hub()
        await t.connected()
        name, _ = await placed(t)
        t.wires["a"].rejects = True
        shown = await t.hub.until(kinds.MULTIKUEUE_CLUSTER, "a", is_not_active)
        assert "the credential is rejected" in condition(shown, "Active")["message"]
        (second,) = await make(t.hub, sent_job("next", 1))
        await t.hub.until(kinds.ADMISSION_CHECK, "elsewhere", is_not_active)
        await t.settled()
        running = await t.hub.get(kinds.WORKLOAD, name)
        assert is_on("a")(running) and not condition(running, "Evicted")
        assert await t.where(kinds.WORKLOAD, name_of(second)) == []
        t.wires["a"].rejects = False
        data = secret("a", "a#rotated")["data"]
        await t.hub.client.patch(kinds.SECRET, "a-kubeconfig", SYSTEM, {"data": data})
        await t.hub.until(kinds.WORKLOAD, name_of(second), is_on("a"))


def every_clock_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    def until_lost(name: str, standings: list[Standing], now: int, limit: float) -> float | None:
        mine = next(one for one in standings if one.name == name)
        return None if mine.connected else limit - (now - mine.since) / loss.SECOND

    monkeypatch.setattr(loss, "seconds_until_lost", until_lost)


@proven(without=every_clock_runs)
def test_f135_when_most_are_silent_at_once_no_cluster_is_lost() -> None:
    """F135: all clusters, or most, fall silent at once. Holds: it is the hub that is cut off; the clocks stop, and
    begin again from zero when half of them answer again."""
    second = loss.SECOND

    def left(*standings: Standing, now: int) -> float | None:
        return loss.seconds_until_lost("a", list(standings), now * second, 900)

    def silent(name: str, since: int) -> Standing:
        return Standing(name, False, since * second)

    def there(name: str, since: int) -> Standing:
        return Standing(name, True, since * second)

    assert left(silent("a", 100), silent("b", 100), silent("c", 100), now=5000) is None
    assert left(silent("a", 100), silent("b", 100), there("c", 0), now=5000) is None
    assert left(silent("a", 100), there("b", 0), there("c", 0), now=1000) == 0
    assert left(silent("a", 100), there("b", 4000), there("c", 0), now=4100) == 800
    assert left(silent("a", 100), now=5000) is None
    assert left(there("a", 100), there("b", 0), now=5000) is None


def believes_names(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Members, "_problem", lambda self, name, health: "")
    monkeypatch.setattr(Members, "may_write", lambda self, name: self.get(name) is not None)

    async def check_way(self: Member, name: str, accepting: str) -> None:
        return None

    monkeypatch.setattr(Member, "check_way", check_way)


@proven(without=believes_names)
async def test_f138_another_cluster_under_a_known_name_gets_nothing() -> None:
    """F138: under a known name another cluster answers. Holds: known by the UID of its kube-system; it gets nothing."""
    async with town("a", "b") as t:
        await t.hub.client.delete(kinds.MULTIKUEUE_CLUSTER, "b")
        t.start_hub()
        await t.connected("a")
        t.wires["a"].cut()
        t.wires["a"].server = t.members["b"].server
        t.wires["a"].mend()
        shown = await t.hub.until(kinds.MULTIKUEUE_CLUSTER, "a", is_not_active)
        assert condition(shown, "Active")["reason"] == "AnotherCluster"
        await make(t.hub, sent_job("train", 1))
        await t.settled()
        assert t.wires["a"].sent == []
        assert await t.members["b"].names(kinds.WORKLOAD) == []


async def test_a_cluster_is_not_its_own_member_nor_twice_a_member() -> None:
    async with town("a", "b") as t:
        t.wires["a"].server = t.hub.server
        t.start_hub()
        await t.connected("b")
        await t.add("c", "b#again")
        for name, why in (("a", "it is this cluster itself"), ("c", "it is the same cluster as b")):
            shown = await t.hub.until(
                kinds.MULTIKUEUE_CLUSTER, name, lambda one, why=why: why in condition(one, "Active").get("message", "")
            )
            assert condition(shown, "Active")["status"] == "False"


GOOD: Json = {
    "current-context": "m",
    "contexts": [{"name": "m", "context": {"cluster": "m", "user": "m"}}],
    "clusters": [{"name": "m", "cluster": {"server": "https://member:6443"}}],
    "users": [{"name": "m", "user": {"token": "t"}}],
}
RISKY: dict[str, tuple[str, Json]] = {
    "users[].user.exec": ("users", {"exec": {"apiVersion": "client.authentication.k8s.io/v1", "command": "sh"}}),
    "users[].user.tokenFile": ("users", {"tokenFile": "/var/run/secrets/token"}),
    "users[].user.client-key": ("users", {"client-key": "/etc/key", "client-certificate-data": "eA=="}),
    "clusters[].cluster.certificate-authority": ("clusters", {"certificate-authority": "/etc/ca"}),
    "clusters[].cluster.insecure-skip-tls-verify": ("clusters", {"insecure-skip-tls-verify": True}),
    "clusters[].cluster.server": ("clusters", {"server": "http://member:6443"}),
}


def takes_any_kubeconfig(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(credentials, "check", lambda target: None)


@pytest.mark.parametrize("field", [*RISKY])
@proven(without=takes_any_kubeconfig)
def test_f130_a_members_kubeconfig_runs_nothing_and_reads_no_file(field: str) -> None:
    """F130: a kubeconfig that runs commands, reads files or trusts anybody. Holds: refused with the field named."""
    part, change = RISKY[field]
    inner = part.removesuffix("s")
    config = {**GOOD, part: [{"name": "m", inner: {**GOOD[part][0][inner], **change}}]}
    credentials.connect(msgspec.json.encode(GOOD), "Secret")
    with pytest.raises(Insecure) as refused:
        credentials.connect(msgspec.json.encode(config), "Secret")
    assert field in str(refused.value)


async def test_a_cluster_without_a_usable_secret_says_what_is_missing() -> None:
    async with town("a") as t:
        await t.hub.client.delete(kinds.SECRET, "a-kubeconfig", SYSTEM)
        t.start_hub()
        shown = await t.hub.until(kinds.MULTIKUEUE_CLUSTER, "a", is_not_active)
        assert condition(shown, "Active")["reason"] == "BadKubeConfig"
        assert "Secret shoal-system/a-kubeconfig does not exist" in condition(shown, "Active")["message"]
        check = await t.hub.until(kinds.ADMISSION_CHECK, "elsewhere", is_not_active)
        assert condition(check, "Active")["reason"] == "NoUsableClusters"
        await t.hub.create(kinds.SECRET, secret("a", "a"))
        await t.connected("a")
        await t.hub.until(kinds.ADMISSION_CHECK, "elsewhere", true("Active"))
