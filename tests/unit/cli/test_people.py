"""The roles that people get, and what `shoal get` shows to those who may list only some kinds."""

from __future__ import annotations

import pytest
from click.testing import CliRunner

from shoal.api import kinds, people
from shoal.api.crds.catalogue import DEFINITIONS
from shoal.api.kind import Kind
from shoal.api.meta import Json
from shoal.cli import get, installation, why
from shoal.errors import ShoalError
from shoal.kube.client import Client
from shoal.kube.errors import Forbidden
from shoal.sdk.rows import rows_of
from tests.cluster import Cluster
from tests.faults import proven
from tests.unit.appwrapper.build import app_wrapper, config_map
from tests.unit.appwrapper.test_rights import RBAC, WRAPPERS, grant
from tests.unit.queues.build import ray_job

ROLES = {role["metadata"]["name"]: role for role in installation.roles_for_people()}


def resources_of(rules: list[Json], verb: str) -> set[str]:
    return {
        f"{resource}.{group}"
        for rule in rules
        if verb in rule["verbs"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
    }


def test_every_kind_has_readers_and_someone_who_may_write_it() -> None:
    readable = resources_of([*people.viewing(), *people.asking(), *people.overseeing()], "list")
    writable = resources_of([*people.submitting(), *people.asking(), *people.administering()], "create")
    every = {one.name for one in DEFINITIONS}
    assert readable == every
    assert writable == every
    assert {one.plural for one in DEFINITIONS} >= people.SUBMITTED | people.ASKED


@pytest.mark.parametrize("name", sorted(ROLES))
def test_no_role_of_people_has_a_star_or_writes_a_status(name: str) -> None:
    for rule in ROLES[name]["rules"]:
        assert "*" not in [*rule["apiGroups"], *rule["resources"], *rule["verbs"]]
        if any(resource.endswith("/status") for resource in rule["resources"]):
            assert rule["verbs"] == ["get"]


async def bind(cluster: Cluster, user: str, role: str, namespace: str) -> Client:
    """As `kubectl create rolebinding USER --clusterrole ROLE --user USER`."""
    binding = {
        "apiVersion": f"{RBAC}/v1",
        "kind": "RoleBinding",
        "metadata": {"name": user, "namespace": namespace},
        "roleRef": {"apiGroup": RBAC, "kind": "ClusterRole", "name": role},
        "subjects": [{"kind": "User", "name": user, "apiGroup": RBAC}],
    }
    await cluster.client.create(kinds.ROLE_BINDING, binding, namespace)
    return Client(cluster.server.transport(user=user, groups=("system:authenticated",)))


RAY: Json = {
    "apiVersion": "ray.k8s.io/v1alpha1",
    "kind": "Ray",
    "metadata": {"name": "old"},
    "spec": {"head": {"template": {}}},
}
QUEUE: Json = {
    "apiVersion": "kueue.x-k8s.io/v1beta2",
    "kind": "LocalQueue",
    "metadata": {"name": "mine"},
    "spec": {"clusterQueue": "all"},
}
QUOTA: Json = {
    "apiVersion": "quota.codeflare.dev/v1alpha1",
    "kind": "QuotaSubtree",
    "metadata": {"name": "mine"},
    "spec": {"children": []},
}
QUESTION: Json = {
    "apiVersion": "shoal.dev/v1alpha1",
    "kind": "Question",
    "metadata": {"name": "asked"},
    "spec": {"target": {"kind": "AppWrapper", "name": "gang"}},
}


def _edits_everything(monkeypatch: pytest.MonkeyPatch) -> None:
    every = frozenset(one.plural for one in DEFINITIONS)
    monkeypatch.setattr(people, "SUBMITTED", every)


@proven(without=_edits_everything)
async def test_f270_who_may_edit_a_namespace_submits_and_grants_nothing(quiet: Cluster) -> None:
    """F270: a user has the cluster role edit in one namespace, and nothing else. Holds: they submit AppWrappers, Ray's
    kinds and questions; queues, quota, Workloads and statuses, which decide over others, are refused."""
    ann = await bind(quiet, "ann", "edit", "default")
    await ann.create(kinds.APP_WRAPPER, app_wrapper("gang", config_map("made")), "default")
    await ann.create(kinds.RAY_JOB, ray_job("tune", 2), "default")
    await ann.create(kinds.RAY, RAY, "default")
    await ann.create(kinds.QUESTION, QUESTION, "default")
    refused: list[tuple[Kind, Json]] = [(kinds.LOCAL_QUEUE, QUEUE), (kinds.QUOTA_SUBTREE, QUOTA)]
    for kind, obj in refused:
        with pytest.raises(Forbidden):
            await ann.create(kind, obj, "default")
    with pytest.raises(Forbidden):
        await ann.patch(kinds.APP_WRAPPER, "gang", "default", {"status": {"canrun": True}}, subresource="status")
    assert {row["name"] for row in await rows_of(ann, "default")} == {"gang", "tune", "old"}
    with pytest.raises(Forbidden):
        await ann.list(kinds.WORKLOAD, None)


async def test_who_may_view_reads_gangs_and_queues_and_writes_nothing(quiet: Cluster) -> None:
    await quiet.create(kinds.APP_WRAPPER, app_wrapper("gang", config_map("made")))
    bob = await bind(quiet, "bob", "view", "default")
    found = await get.listing(bob, "default")
    assert [row["name"] for row in found.rows] == ["gang"] and found.refused == []
    assert await bob.list(kinds.LOCAL_QUEUE, "default") == []
    with pytest.raises(Forbidden):
        await bob.delete(kinds.APP_WRAPPER, "gang", "default")


async def test_get_shows_what_may_be_listed_and_names_the_rest(quiet: Cluster) -> None:
    await quiet.create(kinds.APP_WRAPPER, app_wrapper("gang", config_map("made")))
    await quiet.create(kinds.RAY_JOB, ray_job("hidden", 2))
    await grant(quiet, "cleo", "default", WRAPPERS)
    cleo = Client(quiet.server.transport(user="cleo", groups=("system:authenticated",)))
    found = await get.listing(cleo, "default")
    assert [row["name"] for row in found.rows] == ["gang"]
    assert "rayjobs.ray.io" in found.refused and "workloads.kueue.x-k8s.io" in found.refused
    assert "appwrappers.workload.codeflare.dev" not in found.refused
    with pytest.raises(ShoalError, match="ask for that right"):
        await get.listing(cleo, None)


async def test_a_kind_that_is_not_served_is_not_missed(quiet: Cluster) -> None:
    await quiet.client.delete(kinds.CRD, "appwrappers.mcad.ibm.com")
    await quiet.until_gone(kinds.CRD, "appwrappers.mcad.ibm.com")
    await grant(quiet, "cleo", "default", WRAPPERS)
    cleo = Client(quiet.server.transport(user="cleo", groups=("system:authenticated",)))
    assert "appwrappers.mcad.ibm.com" not in (await get.listing(cleo, "default")).refused


async def test_why_looks_past_kinds_that_may_not_be_read(quiet: Cluster) -> None:
    await quiet.create(kinds.APP_WRAPPER_LEGACY, {**app_wrapper("gang"), "apiVersion": "mcad.ibm.com/v1beta1"})
    await grant(quiet, "dora", "default", ("mcad.ibm.com", "appwrappers"))
    dora = Client(quiet.server.transport(user="dora", groups=("system:authenticated",)))
    told = await why.explain_to(dora, (kinds.APP_WRAPPER, kinds.APP_WRAPPER_LEGACY), "gang", "default")
    assert told["name"] == "gang"
    with pytest.raises(ShoalError, match="ask for that right"):
        await why.explain_to(dora, (kinds.RAY_JOB, kinds.RAY_CLUSTER), "gang", "default")


def test_the_command_says_what_is_not_complete(monkeypatch: pytest.MonkeyPatch) -> None:
    async def some(*_: object) -> get.Listing:
        return get.Listing([], ["rayjobs.ray.io", "workloads.kueue.x-k8s.io"])

    monkeypatch.setattr(get, "_gather", some)
    done = CliRunner().invoke(get.command, ["-n", "red"])
    assert done.exit_code == 0
    assert "not complete: you may not list rayjobs.ray.io, workloads.kueue.x-k8s.io in namespace red" in done.stderr
    assert "no gangs in namespace red that you may list" in done.stderr
