"""Containers with a root of their own on the machine's network: the mounts sandbox."""

from __future__ import annotations

from tests.processes.conftest import Machine, pod, state, text
from tests.processes.test_pods import until

LOOK = "cat /etc/words/word; echo; ls /tmp; hostname; ls -d /proc/[0-9]* | wc -l"


async def test_paths_tmp_names_and_processes_are_the_containers_own(rooted: Machine) -> None:
    rooted.things.config_maps["words"] = {"data": {"word": "fish"}}
    mount = {"volumeMounts": [{"name": "words", "mountPath": "/etc/words"}]}
    volumes = [{"name": "words", "configMap": {"name": "words"}}]
    run = await rooted.ended(pod("own", "sh", "-c", LOOK, container=mount, volumes=volumes))
    *said, processes = (await text(run)).split()
    assert said[0] == "fish" and said[-1] == "own"
    assert int(processes) < 10, "only its own processes"


async def test_a_probe_asks_the_pods_own_server(rooted: Machine) -> None:
    probe = {"httpGet": {"path": "/", "port": 8099}, "periodSeconds": 1}
    ports = {"ports": [{"containerPort": 8099}], "readinessProbe": probe}
    run = rooted.start(pod("echo", image="echo-server", container=ports))
    await until(lambda: "running" in state(run) and run.status()["containerStatuses"][0]["ready"])
    assert run.status()["podIP"].startswith("127.")
