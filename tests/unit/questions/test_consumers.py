"""Which gangs use a quota: a number for everyone who reads the QuotaSubtree, names for those who may read the gangs."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner

from shoal.api import kinds
from shoal.api.meta import Json
from shoal.cli import why
from shoal.controllers.appwrapper import AppWrapperSettings, quota
from shoal.engine.mcad import NodeUse
from tests.cluster import Cluster
from tests.faults import proven
from tests.planning import planned
from tests.unit.appwrapper.build import dispatched
from tests.unit.appwrapper.test_faults_races import labelled, plant
from tests.unit.appwrapper.test_rights import as_user, grant
from tests.unit.questions.test_door import QUESTIONS, WRAPPERS, answered, asks

QUOTAS = ("quota.codeflare.dev", "quotasubtrees")
TRUSTING = AppWrapperSettings(trust_unstamped=True)


def names_everyone(monkeypatch: pytest.MonkeyPatch) -> None:
    counted = quota.status_of

    def named(subtree: object, tree: str, use: dict[tuple[str, str], NodeUse]) -> Json:
        status = counted(subtree, tree, use)  # type: ignore[arg-type]
        for child in status.get("children") or ():
            child["consumers"] = list(use.get((tree, child["name"]), NodeUse()).holders)
        return status

    monkeypatch.setattr(quota, "status_of", named)


async def shared(cluster: Cluster) -> None:
    """Gangs of blue and of red at one node of a tree; ann has rights in red, where the tree is."""
    cluster.start(planned(cluster.client, TRUSTING).run())
    for name in ("red", "blue"):
        await cluster.create(kinds.NAMESPACE, {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})
    await plant(cluster)
    await grant(cluster, "ann", "red", WRAPPERS, QUESTIONS, QUOTAS)
    await grant(cluster, "ann", "default", QUESTIONS, QUOTAS)
    for name, namespace in (("hidden", "blue"), ("mine", "red")):
        await cluster.create(kinds.APP_WRAPPER, labelled(asks(name, "1", namespace), team="green"))
        await cluster.until(kinds.APP_WRAPPER, name, dispatched, namespace)
    await cluster.until(kinds.QUOTA_SUBTREE, "team-root", lambda one: "'consumerCount': 2" in str(one.get("status")))


def asked(name: str) -> Json:
    return {
        "apiVersion": "shoal.dev/v1alpha1",
        "kind": "Question",
        "metadata": {"name": name, "namespace": "default"},
        "spec": {"question": "Consumers", "target": {"kind": "QuotaSubtree", "name": "team-root"}},
    }


@proven(without=names_everyone)
async def test_f206_a_quota_tree_names_no_gang_to_those_who_may_not_read_it(quiet: Cluster) -> None:
    """F206: tenants share a quota tree, and each may read it. Holds: it shows how many gangs use a node; which ones is
    answered to each asker by what that user may read."""
    await shared(quiet)
    shown = await as_user(quiet, "ann").get(kinds.QUOTA_SUBTREE, "team-root", "default")
    assert "hidden" not in json.dumps(shown) and "mine" not in json.dumps(shown["status"])
    await as_user(quiet, "ann").create(kinds.QUESTION, asked("by-ann"), "default")
    answer = (await quiet.until(kinds.QUESTION, "by-ann", answered))["status"]
    green = next(one for one in answer["consumers"] if one["node"] == "green")
    assert green["gangs"] == ["AppWrapper/red/mine"] and green["hidden"] == 1
    assert "hidden-" not in json.dumps(answer) and "blue/" not in json.dumps(answer)
    await quiet.client.create(kinds.QUESTION, asked("by-admin"), "default")
    answer = (await quiet.until(kinds.QUESTION, "by-admin", answered))["status"]
    green = next(one for one in answer["consumers"] if one["node"] == "green")
    assert sorted(green["gangs"]) == ["AppWrapper/blue/hidden", "AppWrapper/red/mine"]
    assert "hidden" not in green


async def test_a_user_who_may_not_read_the_tree_is_told_nothing_of_it(quiet: Cluster) -> None:
    await shared(quiet)
    await grant(quiet, "eve", "default", QUESTIONS)
    await as_user(quiet, "eve").create(kinds.QUESTION, asked("by-eve"), "default")
    answer = (await quiet.until(kinds.QUESTION, "by-eve", answered))["status"]
    assert answer["reason"] == "NotFound" and "consumers" not in answer


def test_the_command_prints_names_and_how_many_are_hidden(monkeypatch: pytest.MonkeyPatch) -> None:
    node = {"node": "green", "gangs": ["AppWrapper/red/mine"], "hidden": 1}
    told = {"kind": "QuotaSubtree", "namespace": "default", "name": "team-root", "namedBy": "Rights"}

    async def consumers(*_: object) -> Json:
        return {**told, "consumers": [node, {"node": "blue"}]}

    monkeypatch.setattr(why, "_consumers", consumers)
    printed = CliRunner().invoke(why.command, ["quotasubtree/team-root"]).output
    assert "green: used by AppWrapper/red/mine and 1 more gang that you may not read" in printed
    assert "blue: not used" in printed
