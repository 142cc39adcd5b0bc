"""MCAD's `--dispatcher` and `--agentconfigs`: the agents become members."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from click.testing import CliRunner

from shoal.api import kinds
from shoal.cli import agents
from shoal.cli.main import shoal
from shoal.controllers.appwrapper import AppWrapperController
from shoal.controllers.multicluster import ClusterController, HubPlaces
from shoal.controllers.planning import PlanningLoop
from shoal.errors import BadInput
from tests.cluster import running
from tests.planning import planned
from tests.unit.appwrapper.build import dispatched
from tests.unit.clusters.build import SYSTEM
from tests.unit.clusters.test_commands import call, served
from tests.unit.clusters.wrappers import SENDING, WRAPPER, gang


async def test_agents_of_mcad_become_members_and_get_app_wrappers(tmp_path: Path) -> None:
    async with running() as east, running() as west, running() as hub:
        for name, member in (("east", east), ("west", west)):
            await served(member, tmp_path / f"{name}.kubeconfig")
            await member.add_node("node-1", cpu="4", memory="64Gi")
            member.start(planned(member.client, WRAPPER).run())
        ours = await served(hub, tmp_path / "hub")
        await hub.create(kinds.NAMESPACE, {"metadata": {"name": SYSTEM}})
        found = agents.read(f"east.kubeconfig:cordon,{tmp_path}/west.kubeconfig:uncordon", tmp_path)
        for _ in range(2):  # every start of the controller
            await agents.register(hub.client, found, SYSTEM)
        config = await hub.get(kinds.MULTIKUEUE_CONFIG, agents.CONFIG)
        assert config["spec"]["clusters"] == ["east", "west"]
        settings = msgspec.structs.replace(
            SENDING, app_wrappers=agents.CONFIG, app_wrapper_namespaces="any", request_seconds=10.0, silent_seconds=15.0
        )
        loop, places = PlanningLoop(hub.client, WRAPPER.planning), HubPlaces(settings)
        AppWrapperController(loop, WRAPPER, places.for_wrappers)
        hub.start(loop.run())
        hub.start(ClusterController(hub.client, settings, places=places).run())
        await hub.create(kinds.APP_WRAPPER, gang("train"))
        await hub.until(kinds.APP_WRAPPER, "train", dispatched)
        assert await west.names(kinds.APP_WRAPPER) == ["train"]
        assert await east.names(kinds.APP_WRAPPER) == []
        rows = (await call("cluster", "list", "-o", "json", "--kubeconfig", ours)).stdout
        assert {one["name"]: (one["gangs"], one["cordoned"]) for one in msgspec.json.decode(rows)} == {
            "east": (0, True),
            "west": (1, False),
        }
        table = (await call("get", "--kubeconfig", ours)).stdout.splitlines()
        assert table[1].split()[:4] == ["default", "AppWrapper", "train", "west"]
        assert "in cluster west" in (await call("why", "train", "--kubeconfig", ours)).stdout
        refused = await call("cluster", "remove", "west", "--kubeconfig", ours)
        assert "west still has gangs (1)" in str(refused.exception)
        late = await call("cluster", "drain", "west", "--timeout", "0.5", "--kubeconfig", ours)
        assert "1 gangs are still in west" in str(late.exception)
        await hub.client.delete(kinds.APP_WRAPPER, "train", "default")
        assert (await call("cluster", "drain", "west", "--kubeconfig", ours)).exit_code == 0
        assert await west.names(kinds.APP_WRAPPER) == []


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("none:uncordon", "there is no kubeconfig"),
        ("a:sometimes", "the mode 'sometimes' is none of uncordon, cordon"),
    ],
)
def test_an_entry_that_cannot_be_read_is_named(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(BadInput, match=said):
        agents.read(text, tmp_path)


def test_a_dispatcher_without_agents_says_what_is_missing() -> None:
    for options, environment in ((["--dispatcher"], {}), ([], {"DISPATCHER_MODE": "TRUE"})):
        done = CliRunner().invoke(shoal, ["controller", *options], env=environment)
        assert done.exit_code == 2
        assert "--dispatcher needs --agentconfigs" in done.output
    done = CliRunner().invoke(shoal, ["controller", "--dispatcher=true", "--agentconfigs", "/none:uncordon"])
    assert done.exit_code == 2 and "there is no kubeconfig /none" in done.output
