"""Pods as processes, through the pod's own life: what it prints, how it ends, what is left."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest

from shoal.local.nodes.runtime.container import ContainerRun
from shoal.local.nodes.runtime.logs import LogOptions
from shoal.local.nodes.runtime.pod import PodRun
from shoal.local.nodes.runtime.processes import ProcessRuntime
from shoal.local.nodes.runtime.shim import kernel
from tests.patience import PATIENCE
from tests.processes.conftest import Machine, pod, state, text


async def until(condition: object, seconds: float = PATIENCE) -> None:
    """Wait for something that a process outside does; there is no event to await for it."""
    async with asyncio.timeout(seconds):
        while not condition():  # type: ignore[operator]  # noqa: ASYNC110
            await asyncio.sleep(0.02)


async def until_said(run: PodRun, words: bytes, seconds: float = PATIENCE) -> None:
    async with asyncio.timeout(seconds):
        async for chunk in run.logs("main", LogOptions(follow=True)):
            if words in chunk:
                return
    raise AssertionError(f"it never said {words!r}")


async def test_a_pod_runs_prints_and_ends_with_its_exit_code(one_machine: Machine) -> None:
    run = await one_machine.ended(pod("hello", "sh", "-c", "echo out; echo err >&2; exit 3"))
    ended = state(run)["terminated"]
    assert (run.status()["phase"], ended["exitCode"], ended["reason"]) == ("Failed", 3, "Error")
    assert sorted((await text(run)).split()) == ["err", "out"]


async def test_environment_is_built_not_inherited(one_machine: Machine, monkeypatch: object) -> None:
    os.environ["RAY_ADDRESS"] = "leaked"
    try:
        variables = [
            {"name": "FIRST", "value": "a"},
            {"name": "SECOND", "value": "$(FIRST)-$(MISSING)-$$(FIRST)"},
            {"name": "NAME", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}},
            {"name": "IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}},
            {"name": "FROM", "valueFrom": {"configMapKeyRef": {"name": "settings", "key": "mode"}}},
            {"name": "CORES", "valueFrom": {"resourceFieldRef": {"resource": "limits.cpu"}}},
        ]
        one_machine.things.config_maps["settings"] = {"data": {"mode": "fast"}}
        run = await one_machine.ended(pod("env", "sh", "-c", "env | sort", container={"env": variables}))
    finally:
        del os.environ["RAY_ADDRESS"]
    found = dict(line.split("=", 1) for line in (await text(run)).splitlines() if "=" in line)
    assert found["SECOND"] == "a-$(MISSING)-$(FIRST)"
    assert (found["NAME"], found["FROM"], found["CORES"], found["IP"]) == ("env", "fast", "4", run.address.ip)
    assert "RAY_ADDRESS" not in found


async def test_init_containers_run_in_order_and_share_volumes(one_machine: Machine) -> None:
    mounts = [{"name": "shared", "mountPath": "/shared"}]
    steps = [
        {
            "name": f"step-{n}",
            "image": "busybox",
            "command": ["sh", "-c", f"echo {n} >> /shared/order"],
            "volumeMounts": mounts,
        }
        for n in (1, 2)
    ]
    manifest = pod(
        "ordered",
        "cat",
        "/shared/order",
        container={"volumeMounts": mounts},
        initContainers=steps,
        volumes=[{"name": "shared", "emptyDir": {}}],
    )
    run = await one_machine.ended(manifest)
    assert (await text(run)).split() == ["1", "2"]
    assert run.status()["phase"] == "Succeeded"


async def test_a_failed_init_container_fails_the_pod(one_machine: Machine) -> None:
    manifest = pod("unlucky", "true", initContainers=[{"name": "check", "image": "busybox", "command": ["false"]}])
    run = await one_machine.ended(manifest)
    assert run.status()["phase"] == "Failed"
    assert "waiting" in state(run)


async def test_a_command_that_does_not_exist_is_a_start_error(one_machine: Machine) -> None:
    run = await one_machine.ended(pod("typo", "no-such-command"))
    ended = state(run)["terminated"]
    assert (ended["exitCode"], ended["reason"]) == (128, "StartError")
    assert 'exec: "no-such-command": executable file not found in $PATH' in ended["message"]


async def test_an_exec_format_error_is_visible(one_machine: Machine, tmp_path: Path) -> None:
    broken = tmp_path / "broken"
    broken.write_bytes(b"\x7fELF nonsense")
    broken.chmod(0o755)
    manifest = pod(
        "broken",
        "/files/broken",
        container={"volumeMounts": [{"name": "files", "mountPath": "/files"}]},
        volumes=[{"name": "files", "hostPath": {"path": str(tmp_path)}}],
    )
    run = await one_machine.ended(manifest)
    assert "exec format error" in state(run)["terminated"]["message"]


async def test_an_unknown_image_is_never_pulled_and_says_how_to_map_it(one_machine: Machine) -> None:
    run = one_machine.start(pod("stranger", "true", image="example.org/team/special:1"))
    await until(lambda: "ErrImageNeverPull" in str(run.status()))
    message = state(run)["waiting"]["message"]
    assert "example.org/team/special:1" in message and "--image special=" in message


async def test_a_missing_config_map_is_waited_for(one_machine: Machine) -> None:
    manifest = pod(
        "later",
        "sh",
        "-c",
        "echo $MODE",
        container={"env": [{"name": "MODE", "valueFrom": {"configMapKeyRef": {"name": "late", "key": "mode"}}}]},
    )
    run = one_machine.start(manifest)
    await until(lambda: "CreateContainerConfigError" in str(run.status()))
    assert state(run)["waiting"]["message"] == 'configmap "late" not found'
    one_machine.things.config_maps["late"] = {"data": {"mode": "there"}}
    await run.finished.wait()
    assert (await text(run)).strip() == "there"


async def test_restart_policy_always_starts_again_with_back_off(one_machine: Machine) -> None:
    run = one_machine.start(pod("again", "sh", "-c", "echo run; exit 1", policy="Always"))
    await until(lambda: run.status()["containerStatuses"][0]["restartCount"] >= 2)
    status = run.status()
    assert status["phase"] == "Running"
    assert status["containerStatuses"][0]["lastState"]["terminated"]["exitCode"] == 1
    assert (await text(run, previous=True)).strip() == "run"


async def test_a_pod_whose_container_trips_over_our_own_mistake_still_ends(
    plain: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def mistaken(self: ContainerRun) -> None:
        raise ZeroDivisionError("a mistake")

    monkeypatch.setattr(ContainerRun, "_back_off", mistaken)
    run = await plain.ended(pod("unlucky", "false", policy="Always"))
    assert (run.status()["phase"], run.status()["reason"]) == ("Failed", "AgentError")


async def test_stopping_signals_the_main_process_alone_and_waits_for_it(one_machine: Machine) -> None:
    script = 'trap "echo asked; exit 7" TERM; sleep 1000 & echo ready; wait'
    run = one_machine.start(pod("polite", "sh", "-c", script))
    await until(lambda: "running" in state(run))
    await until_said(run, b"ready")
    run.stop(10)
    await run.finished.wait()
    assert state(run)["terminated"]["exitCode"] == 7
    assert "asked" in await text(run)


async def test_hooks_run_inside_the_container(one_machine: Machine) -> None:
    hooks = {
        "postStart": {"exec": {"command": ["sh", "-c", "echo begun > $NOTES/post"]}},
        "preStop": {"exec": {"command": ["sh", "-c", "echo ending > $NOTES/pre"]}},
    }
    notes = one_machine.host.directory / "notes"
    notes.mkdir()
    manifest = pod(
        "hooked",
        "sleep",
        "1000",
        container={
            "lifecycle": hooks,
            "env": [{"name": "NOTES", "value": "/notes"}],
            "volumeMounts": [{"name": "notes", "mountPath": "/notes"}],
        },
        volumes=[{"name": "notes", "hostPath": {"path": str(notes)}}],
    )
    run = one_machine.start(manifest)
    await until((notes / "post").exists)
    run.stop(5)
    await run.finished.wait()
    assert (notes / "pre").read_text() == "ending\n"


async def test_readiness_follows_the_probe(one_machine: Machine) -> None:
    flag = one_machine.host.directory / "flag"
    flag.mkdir()
    probe = {
        "exec": {"command": ["test", "-e", "/flag/up"]},
        "periodSeconds": 0.1,
        "failureThreshold": 1,
        "timeoutSeconds": 5,
    }
    manifest = pod(
        "probed",
        "sleep",
        "1000",
        container={"readinessProbe": probe, "volumeMounts": [{"name": "flag", "mountPath": "/flag"}]},
        volumes=[{"name": "flag", "hostPath": {"path": str(flag)}}],
    )
    if not one_machine.host.sandbox.roots:
        probe["exec"]["command"][2] = str(flag / "up")  # type: ignore[index]
    run = one_machine.start(manifest)
    await until(lambda: "running" in state(run))
    assert not run.status()["containerStatuses"][0]["ready"]
    (flag / "up").touch()
    await until(lambda: run.status()["containerStatuses"][0]["ready"])
    (flag / "up").unlink()
    await until(lambda: not run.status()["containerStatuses"][0]["ready"])


async def test_a_failing_liveness_probe_restarts_the_container(one_machine: Machine) -> None:
    probe = {"exec": {"command": ["false"]}, "periodSeconds": 0.05, "failureThreshold": 2, "timeoutSeconds": 5}
    run = one_machine.start(
        pod(
            "sick",
            "sleep",
            "1000",
            policy="Always",
            container={"livenessProbe": probe},
            terminationGracePeriodSeconds=1,
        )
    )
    await until(lambda: run.status()["containerStatuses"][0]["restartCount"] >= 1)
    assert any(reason == "Unhealthy" for _, reason, _ in one_machine.events)


async def test_an_active_deadline_ends_the_pod(one_machine: Machine) -> None:
    run = await one_machine.ended(
        pod("late", "sleep", "1000", activeDeadlineSeconds=0.2, terminationGracePeriodSeconds=0)
    )
    assert (run.status()["phase"], run.status()["reason"]) == ("Failed", "DeadlineExceeded")


async def test_an_echo_image_answers_on_its_port(isolated: Machine) -> None:
    manifest = pod(
        "echo",
        image="example/echo-server:1",
        container={
            "ports": [{"containerPort": 80}],
            "readinessProbe": {"httpGet": {"path": "/", "port": 80}, "periodSeconds": 0.1, "failureThreshold": 100},
        },
    )
    run = isolated.start(manifest)
    await until(lambda: run.status()["containerStatuses"][0]["ready"])


async def test_the_machine_is_seen_but_not_changed(isolated: Machine) -> None:
    """What a container writes outside its volumes goes with it."""
    script = "echo x > /etc/written-by-a-pod && echo y > /written-at-the-root && cat /etc/written-by-a-pod; hostname"
    run = await isolated.ended(pod("writer", "sh", "-c", f"{script}; cat /etc/hostname"))
    assert (await text(run)).split() == ["x", "writer", "writer"]
    assert "written-by-a-pod" not in os.listdir("/etc") and "written-at-the-root" not in os.listdir("/")


async def test_projected_tokens_and_secrets_are_files(isolated: Machine) -> None:
    isolated.things.secrets["keys"] = {"data": {"id": "c2VjcmV0"}}
    volumes = [
        {
            "name": "api",
            "projected": {
                "sources": [
                    {"serviceAccountToken": {"path": "token", "expirationSeconds": 3607}},
                    {"configMap": {"name": "kube-root-ca.crt", "items": [{"key": "ca.crt", "path": "ca.crt"}]}},
                    {
                        "downwardAPI": {
                            "items": [{"path": "namespace", "fieldRef": {"fieldPath": "metadata.namespace"}}]
                        }
                    },
                ]
            },
        },
        {"name": "keys", "secret": {"secretName": "keys", "defaultMode": 0o400}},
    ]
    where = "/var/run/secrets/kubernetes.io/serviceaccount"
    mounts = [{"name": "api", "mountPath": where, "readOnly": True}, {"name": "keys", "mountPath": "/keys"}]
    run = await isolated.ended(
        pod(
            "account",
            "sh",
            "-c",
            f"cd {where}; cat token ca.crt namespace /keys/id",
            container={"volumeMounts": mounts},
            volumes=volumes,
        )
    )
    assert await text(run) == "token-of-defaultcertificatedefaultsecret\n"


async def test_exit_of_the_main_process_takes_everything_along(one_machine: Machine) -> None:
    """Double-forked children with a session of their own are found too."""
    script = "setsid sleep 4321 & (setsid sleep 4321 &) ; sleep 0.2"
    run = await one_machine.ended(pod("parent", "sh", "-c", script))
    assert run.status()["phase"] == "Succeeded"
    assert not [pid for pid in kernel.descendants(os.getpid()) if b"4321" in command(pid)]


def command(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


async def test_the_log_of_a_pod_that_ended_under_an_earlier_agent_can_be_read(one_machine: Machine) -> None:
    run = await one_machine.ended(pod("past", "echo", "still here"))
    later = ProcessRuntime(one_machine.host)
    chunks = [chunk async for chunk in later.old_logs(run.uid, "main", LogOptions())]
    assert b"".join(chunks) == b"still here\n"


async def test_logs_can_be_followed_tailed_and_stamped(one_machine: Machine) -> None:
    run = one_machine.start(pod("talker", "sh", "-c", "for n in 1 2 3; do echo line $n; sleep 0.3; done"))
    await until(lambda: "waiting" not in state(run))
    assert (await text(run, follow=True)).splitlines() == ["line 1", "line 2", "line 3"]
    assert (await text(run, tail=1)) == "line 3\n"
    stamped = await text(run, timestamps=True, tail=1)
    assert stamped.endswith("Z line 3\n") and stamped.startswith("20")
    assert await text(run, limit_bytes=3) == "lin"


async def test_a_pod_gets_out_by_https_proxy_but_not_to_the_machines_loopback(isolated: Machine) -> None:
    async def hello(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"outside\n")
        writer.close()

    address = isolated.host.sandbox.host_ip()
    server = await asyncio.start_server(hello, address, 0)
    port = server.sockets[0].getsockname()[1]
    script = (
        "import os, socket, urllib.parse; p = urllib.parse.urlsplit(os.environ['HTTPS_PROXY'])\n"
        "def ask(host):\n"
        "    s = socket.create_connection((p.hostname, p.port))\n"
        f"    s.sendall(f'CONNECT {{host}}:{port} HTTP/1.1\\r\\n\\r\\n'.encode())\n"
        "    print(b''.join(iter(lambda: s.recv(999), b'')).decode().split()[1:2], flush=True)\n"
        f"ask('{address}'); ask('127.0.0.1')"
    )
    async with server:
        run = await isolated.ended(pod("traveller", "python3", "-c", script, image="python"))
    assert (await text(run)).splitlines() == ["['200']", "['502']"]


async def test_an_entrypoint_that_ray_starts_later_finds_the_mounts(plain: Machine) -> None:
    """What Ray's head does with a job: a shell command out of Python. A script lies in a ConfigMap, data beside it."""
    plain.things.config_maps["code"] = {"data": {"train.py": "print('trained on', open('data').read())", "data": "ten"}}
    started = "import subprocess; subprocess.run('cd /home/%s/samples && python3 train.py' % 'ray', shell=True)"
    manifest = pod("head", "python3", "-c", started)  # the path is put together later: it is not in the manifest
    manifest["spec"]["volumes"] = [{"name": "code", "configMap": {"name": "code"}}]
    container = manifest["spec"]["containers"][0]
    container.update(image="rayproject/ray:2.60.0", volumeMounts=[{"name": "code", "mountPath": "/home/ray/samples"}])
    run = await plain.ended(manifest)
    assert (run.status()["phase"], await text(run)) == ("Succeeded", "trained on ten\n")
