"""What a kubelet does for a pod, line by line: volumes that follow their source, limits, probes, users, networks."""

from __future__ import annotations

import asyncio
import os
import shutil
import stat
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from shoal.cli.cluster import quiet_environment
from shoal.kube.clock import SystemClock
from shoal.local import machine
from shoal.local.images import ImageTable
from shoal.local.nodes.runtime import grpchealth, security
from shoal.local.nodes.runtime.devices import find_gpus
from shoal.local.nodes.runtime.limits import CgroupLimits, find_limits
from shoal.local.nodes.runtime.logs import LogOptions, read_log, why_no_log
from shoal.local.nodes.runtime.probes import Prober
from shoal.local.nodes.runtime.process import ContainerProcess, RunPlan
from shoal.local.nodes.runtime.shim.output import Log
from shoal.local.nodes.sandbox import nat, outside
from shoal.local.nodes.sandbox.dns import resolv_conf
from tests.controlplane.plane import free_ports
from tests.patience import PATIENCE
from tests.processes.conftest import Machine, pod, state, text
from tests.processes.test_pods import until


def mounted(*mounts: tuple[str, str], **more: Any) -> dict[str, Any]:
    return {"volumeMounts": [{"name": name, "mountPath": path} for name, path in mounts], **more}


# --- environment


async def test_whole_sources_with_a_prefix_and_fields_of_pod_and_node(plain: Machine) -> None:
    plain.things.config_maps["settings"] = {"data": {"MODE": "fast"}}
    plain.things.secrets["keys"] = {"data": {"TOKEN": "c2VjcmV0"}}
    fields = {
        "NODE": "spec.nodeName",
        "HOST": "status.hostIP",
        "UID_": "metadata.uid",
        "APP": "metadata.labels['app']",
        "ACCOUNT": "spec.serviceAccountName",
    }
    sizes = {"MILLI": ("requests.cpu", "1m"), "MIB": ("limits.memory", "1Mi")}
    container = {
        "envFrom": [
            {"prefix": "A_", "configMapRef": {"name": "settings"}},
            {"secretRef": {"name": "keys"}},
            {"configMapRef": {"name": "absent", "optional": True}},
        ],
        "env": [
            *({"name": n, "valueFrom": {"fieldRef": {"fieldPath": path}}} for n, path in fields.items()),
            *(
                {"name": n, "valueFrom": {"resourceFieldRef": {"resource": what, "divisor": unit}}}
                for n, (what, unit) in sizes.items()
            ),
            {"name": "BOTH", "value": "$(A_MODE)/$(TOKEN)/$$(TOKEN)"},
        ],
        "resources": {"requests": {"cpu": "250m"}, "limits": {"memory": "1Gi"}},
        "args": ["-c", "env; echo 'word=$(BOTH)'"],
    }
    manifest = pod("envy", "sh", container=container, nodeName="node-7", serviceAccountName="robot")
    run = await plain.ended(manifest)
    found = dict(line.split("=", 1) for line in (await text(run)).splitlines() if "=" in line)
    assert found["BOTH"] == found["word"] == "fast/secret/$(TOKEN)"
    assert (found["NODE"], found["UID_"], found["APP"], found["ACCOUNT"]) == ("node-7", "uid-envy", "envy", "robot")
    assert found["HOST"] == plain.host.sandbox.host_ip()
    assert (found["MILLI"], found["MIB"]) == ("250", "1024")


async def test_the_working_directory_is_made_and_expanded(one_machine: Machine) -> None:
    container = {"workingDir": "/desk/$(PART)", "env": [{"name": "PART", "value": "x"}], **mounted(("w", "/desk"))}
    run = await one_machine.ended(pod("there", "pwd", container=container, volumes=[{"name": "w", "emptyDir": {}}]))
    assert (await text(run)).rstrip().endswith("/x")


# --- volumes


async def test_files_of_a_volume_follow_their_config_map(plain: Machine) -> None:
    plain.things.config_maps["live"] = {"data": {"a": "1", "old": "x"}}
    manifest = pod(
        "reader",
        "sh",
        "-c",
        "while [ -e /conf/old ]; do sleep 0.05; done; cat /conf/a; echo; ls /conf",  # what is stale goes last
        container=mounted(("conf", "/conf")),
        volumes=[{"name": "conf", "configMap": {"name": "live"}}],
    )
    run = plain.start(manifest)
    await until(lambda: "running" in state(run))
    plain.things.config_maps["live"] = {"data": {"a": "2", "new": "y"}}
    assert run.refers("ConfigMap", "live") and not run.refers("Secret", "live")
    await run.refresh("ConfigMap", "live")
    await run.finished.wait()
    assert (await text(run)).split() == ["2", "a", "new"]
    del plain.things.config_maps["live"]
    await run.refresh("ConfigMap", "live")  # gone: the files stay as they were


async def test_modes_items_and_optional_sources(isolated: Machine) -> None:
    isolated.things.config_maps["scripts"] = {"data": {"run.sh": "#!/bin/sh\necho ran $0", "other": "-"}}
    volumes = [
        {
            "name": "scripts",
            "configMap": {"name": "scripts", "items": [{"key": "run.sh", "path": "bin/go", "mode": 0o755}]},
        },
        {"name": "maybe", "secret": {"secretName": "nobody", "optional": True}},
        {
            "name": "facts",
            "downwardAPI": {
                "defaultMode": 0o600,
                "items": [
                    {"path": "labels", "fieldRef": {"fieldPath": "metadata.labels"}},
                    {"path": "cores", "resourceFieldRef": {"containerName": "main", "resource": "limits.cpu"}},
                ],
            },
        },
    ]
    script = "/s/bin/go; ls /s /m; stat -c %a /f/labels; cat /f/labels /f/cores; touch /s/x 2>&1 || echo read-only"
    container = mounted(("scripts", "/s"), ("maybe", "/m"), ("facts", "/f"))
    run = await isolated.ended(pod("files", "sh", "-c", script, container=container, volumes=volumes))
    said = await text(run)
    assert "ran /s/bin/go" in said and "600" in said and 'app="files"4' in said.replace("\n", "")
    assert "other" not in said and said.rstrip().endswith("read-only")


async def test_an_empty_directory_in_memory_is_in_memory(isolated: Machine, tmp_path: Path) -> None:
    isolated.host.memory = tmp_path / "memory"
    volumes = [{"name": "fast", "emptyDir": {"medium": "Memory"}}]
    run = isolated.start(pod("quick", "sleep", "100", container=mounted(("fast", "/fast")), volumes=volumes))
    await until(lambda: "running" in state(run))
    kept = tmp_path / "memory" / run.id / "fast"
    assert stat.S_IMODE(kept.stat().st_mode) == 0o777  # any user of the pod may write to it
    run.stop(0)
    await run.finished.wait()
    assert not kept.exists()


async def test_a_volume_that_outgrows_its_limit_evicts_the_pod(plain: Machine) -> None:
    plain.host.eviction_period = 0.1
    manifest = pod(
        "greedy",
        "sh",
        "-c",
        "head -c 200000 /dev/zero > /data/big; sleep 100",
        container=mounted(("data", "/data")),
        volumes=[{"name": "data", "emptyDir": {"sizeLimit": "100Ki"}}],
    )
    run = await plain.ended(manifest)
    status = run.status()
    assert (status["phase"], status["reason"]) == ("Failed", "Evicted")
    assert 'EmptyDir volume "data" exceeds the limit "100Ki"' in status["message"]


@pytest.mark.parametrize(
    ("volume", "complaint"),
    [
        ({"nfs": {"server": "x", "path": "/"}}, "volumes of type nfs are not available"),
        ({"hostPath": {"path": "/no/such/place"}}, "does not exist"),
        ({"hostPath": {"path": "/etc/passwd", "type": "Directory"}}, "is not a directory"),
        ({"hostPath": {"path": "/etc", "type": "Socket"}}, "is not a socket"),
        ({"configMap": {"name": "absent"}}, 'configmap "absent" not found'),
        ({"secret": {"secretName": "absent"}}, 'secret "absent" not found'),
        ({"persistentVolumeClaim": {"claimName": "absent"}}, 'persistentvolumeclaim "absent" not found'),
    ],
)
async def test_a_volume_that_cannot_be_had_says_so_and_is_tried_again(
    plain: Machine, volume: dict[str, Any], complaint: str
) -> None:
    run = plain.start(pod("waiter", "true", volumes=[{"name": "v", **volume}]))
    await until(lambda: any(reason == "FailedMount" for _, reason, _ in plain.events))
    message = next(message for _, reason, message in plain.events if reason == "FailedMount")
    assert message.startswith('MountVolume.SetUp failed for volume "v" : ') and complaint in message
    assert run.status()["phase"] == "Pending"


async def test_claims_outlive_pods_and_sub_paths_part_them(one_machine: Machine) -> None:
    volumes = [{"name": "data", "persistentVolumeClaim": {"claimName": "books"}}]
    for name, script in (("writer", "echo kept > /data/page"), ("reader", "cat /data/page")):
        mounts = {"volumeMounts": [{"name": "data", "mountPath": "/data", "subPath": "volume-1"}]}
        run = await one_machine.ended(pod(name, "sh", "-c", script, container=mounts, volumes=volumes))
        assert run.status()["phase"] == "Succeeded", await text(run)
    assert await text(run) == "kept\n"
    assert (one_machine.host.claims / "default" / "books" / "volume-1" / "page").exists()


# --- probes and hooks


async def test_a_sidecar_is_up_before_the_next_container_starts_and_ends_after_the_others(plain: Machine) -> None:
    notes = plain.host.directory / "notes"
    notes.mkdir()
    sidecar = {
        "name": "proxy",
        "image": "busybox",
        "restartPolicy": "Always",
        "command": [
            "sh",
            "-c",
            'trap "echo side-ends >> /n/log; exit 0" TERM; sleep 0.3; touch /n/up; sleep 100 & wait',
        ],
        "startupProbe": {"exec": {"command": ["test", "-e", "/n/up"]}, "periodSeconds": 0.05, "failureThreshold": 99},
        **mounted(("n", "/n")),
    }
    check = {
        "name": "check",
        "image": "busybox",
        "command": ["sh", "-c", "test -e /n/up && echo side-up >> /n/log"],
        **mounted(("n", "/n")),
    }
    manifest = pod(
        "pair",
        "sh",
        "-c",
        "echo main-ends >> /n/log",
        container=mounted(("n", "/n")),
        initContainers=[sidecar, check],
        volumes=[{"name": "n", "hostPath": {"path": str(notes)}}],
    )
    run = await plain.ended(manifest)
    assert run.status()["phase"] == "Succeeded"
    assert (notes / "log").read_text().split() == ["side-up", "main-ends", "side-ends"]


async def test_a_startup_probe_holds_the_others_back_and_its_failure_restarts(plain: Machine) -> None:
    never = {"exec": {"command": ["false"]}, "periodSeconds": 0.05, "failureThreshold": 2}
    container = {"startupProbe": never, "readinessProbe": {"exec": {"command": ["true"]}, "periodSeconds": 0.05}}
    run = plain.start(pod("slow", "sleep", "100", policy="Always", container=container))
    await until(lambda: run.status()["containerStatuses"][0]["restartCount"] >= 1)
    assert not run.status()["containerStatuses"][0]["ready"]
    assert any("Startup probe failed" in message for _, _, message in plain.events)


async def test_tcp_and_http_probes_reach_the_pod(one_machine: Machine) -> None:
    server = "import http.server as h; h.HTTPServer(('', %d), h.SimpleHTTPRequestHandler).serve_forever()"
    (port,) = free_ports(1)
    container = {
        "ports": [{"name": "web", "containerPort": port}],
        "startupProbe": {"tcpSocket": {"port": "web"}, "periodSeconds": 0.05, "failureThreshold": 200},
        "readinessProbe": {"httpGet": {"path": "/absent", "port": "web"}, "periodSeconds": 0.05},
    }
    run = one_machine.start(pod("web", "python3", "-c", server % port, image="python", container=container))
    await until(lambda: run.status()["containerStatuses"][0]["started"])
    await until(lambda: any("statuscode: 404" in message for _, _, message in one_machine.events))
    assert not run.status()["containerStatuses"][0]["ready"]


async def test_a_grpc_server_is_asked_for_its_health() -> None:
    grpc = pytest.importorskip("grpc", reason="grpcio comes with Ray")
    answers = {b"": b"\x08\x01", b"\x0a\x04slow": b"\x08\x02"}

    class Handler(grpc.GenericRpcHandler):  # type: ignore[misc, name-defined]
        def service(self, details: Any) -> Any:
            if details.method == "/grpc.health.v1.Health/Check":
                return grpc.unary_unary_rpc_method_handler(lambda request, context: answers[request])
            return None

    from concurrent.futures import ThreadPoolExecutor

    server = grpc.server(ThreadPoolExecutor(1), handlers=[Handler()])
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    try:
        for service, expected in (("", "SERVING"), ("slow", "NOT_SERVING")):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            async with asyncio.timeout(PATIENCE):
                assert await grpchealth.serving(reader, writer, service, "localhost") == expected
            writer.close()
    finally:
        server.stop(0)


async def test_a_hook_that_fails_after_the_start_restarts_the_container(
    plain: Machine,
) -> None:
    hook = {"lifecycle": {"postStart": {"exec": {"command": ["sh", "-c", "echo no; exit 4"]}}}}
    run = plain.start(pod("hooked", "sleep", "100", policy="Always", container=hook, terminationGracePeriodSeconds=0))
    await until(lambda: run.status()["containerStatuses"][0]["restartCount"] >= 1)
    assert any(reason == "FailedPostStartHook" and "exited with 4" in message for _, reason, message in plain.events)


# --- limits


async def test_a_cpu_limit_is_held_by_the_kernel(isolated: Machine) -> None:
    limits = isolated.host.limits
    if not isinstance(limits, CgroupLimits) or limits.cpu_root is None:
        pytest.skip("no CPU control group is available on this machine")
    spin = (
        "import time; began = time.process_time(); end = time.monotonic() + 0.6\n"
        "while time.monotonic() < end: pass\nprint(time.process_time() - began)"
    )
    container = {"resources": {"limits": {"cpu": "200m"}}}
    run = await isolated.ended(pod("spin", "python3", "-c", spin, image="python", container=container))
    assert float(await text(run)) < 0.4


def test_a_delegated_group_of_version_2_is_used(tmp_path: Path) -> None:
    (tmp_path / "cgroup.controllers").write_text("cpu memory pids")
    found = find_limits("mine", tmp_path)
    assert isinstance(found, CgroupLimits) and found.version == 2
    joined = found.open("pod-main", 1 << 20)
    found.hold_cpu("pod-main", 1500)
    group = found.root / "pod-main"
    assert joined == [str(group / "cgroup.procs")]
    assert (group / "memory.max").read_text() == str(1 << 20)
    assert (group / "cpu.max").read_text() == "150000 100000"
    (group / "memory.events").write_text("low 0\noom_kill 1\n")
    assert found.killed_for_memory("pod-main")


# --- who and where


@pytest.mark.skipif(
    os.geteuid() != 0 or security.mapped_users() < 65536, reason="only root can run containers as someone else"
)
async def test_containers_run_as_the_user_that_the_manifest_names(isolated: Machine) -> None:
    script = "id -u; id -g; id -G; touch /data/mine && stat -c %g /data/mine; grep NoNewPrivs /proc/self/status"
    container = mounted(("data", "/data"), securityContext={"runAsUser": 1234, "allowPrivilegeEscalation": False})
    manifest = pod(
        "someone",
        "sh",
        "-c",
        script,
        container=container,
        securityContext={"runAsGroup": 2345, "fsGroup": 3456},
        volumes=[{"name": "data", "emptyDir": {}}],
    )
    run = await isolated.ended(manifest)
    assert (await text(run)).split() == ["1234", "2345", "2345", "3456", "3456", "NoNewPrivs:", "1"]


async def test_what_cannot_be_honoured_is_said(plain: Machine) -> None:
    run = await plain.ended(pod("other", "id", "-u", container={"securityContext": {"runAsUser": 1234}}))
    assert (await text(run)).strip() == str(os.getuid())
    assert any(reason == "SecurityContextIgnored" for _, reason, _ in plain.events)
    assert security.mapped_users() > 0


async def test_a_read_only_root_stays_as_it_is(isolated: Machine) -> None:
    script = "touch /etc/x 2>&1; touch /x 2>&1; touch /data/y && echo volume; touch /tmp/z && echo temporary"
    container = mounted(("data", "/data"), securityContext={"readOnlyRootFilesystem": True})
    run = await isolated.ended(
        pod("frozen", "sh", "-c", script, container=container, volumes=[{"name": "data", "emptyDir": {}}])
    )
    said = await text(run)
    assert said.count("Read-only file system") == 2 and said.split()[-2:] == ["volume", "temporary"]


async def test_host_network_is_the_machines_own(isolated: Machine) -> None:
    run = await isolated.ended(pod("open", "readlink", "/proc/self/ns/net", hostNetwork=True))
    assert (await text(run)).strip() == os.readlink("/proc/self/ns/net")
    assert run.status()["podIP"] == isolated.host.sandbox.host_ip()


async def test_a_last_message_is_kept(one_machine: Machine) -> None:
    run = await one_machine.ended(pod("famous", "sh", "-c", "echo because > /dev/termination-log; exit 2"))
    assert state(run)["terminated"]["message"] == "because\n"
    fallback = {"terminationMessagePolicy": "FallbackToLogsOnError"}
    run = await one_machine.ended(pod("loud", "sh", "-c", "echo the end; exit 2", container=fallback))
    assert state(run)["terminated"]["message"] == "the end\n"


async def test_commands_run_later_see_the_volumes_too(one_machine: Machine) -> None:
    manifest = pod(
        "entered",
        "sh",
        "-c",
        "echo here > /data/file; sleep 100",
        container=mounted(("data", "/data")),
        volumes=[{"name": "data", "emptyDir": {}}],
    )
    run = one_machine.start(manifest)
    await until(lambda: "running" in state(run))
    container = run.container("main")
    assert container is not None and container.process is not None
    code, output = await container.process.enter(
        ["sh", "-c", "until test -s /data/file; do sleep 0.05; done; cat /data/file"]
    )
    assert (code, output) == (0, b"here\n")


# --- logs


async def test_a_log_is_followed_through_its_rotation(tmp_path: Path) -> None:
    log, ended = Log(str(tmp_path / "log"), 400), False
    log.take("stdout", b"first\n")
    seen: list[bytes] = []

    async def follow() -> None:
        async for chunk in read_log(tmp_path, LogOptions(follow=True), lambda: ended, SystemClock()):
            seen.append(chunk)

    following = asyncio.create_task(follow())
    await until(lambda: bool(seen))
    for number in range(8):
        log.take("stdout", b"line %d\n" % number)
    assert (tmp_path / "log.1").exists()
    await until(lambda: b"line 7" in b"".join(seen))
    ended = True
    await following
    assert b"".join(seen).split(b"\n")[:-1] == [b"first", *(b"line %d" % number for number in range(8))]


async def test_logs_since_a_moment(plain: Machine) -> None:
    run = await plain.ended(pod("old", "sh", "-c", "echo early; sleep 0.3; echo late"))
    stamps = [line.split()[0] for line in (await text(run, timestamps=True)).splitlines()]
    from shoal.api.times import parse_time

    assert await text(run, since=parse_time(stamps[1])) == "late\n"


async def test_a_deadline_counts_from_when_the_pod_began_whichever_agent_watched_it(plain: Machine) -> None:
    manifest = pod("late", "sleep", "100", activeDeadlineSeconds=30, terminationGracePeriodSeconds=0)
    manifest["status"] = {"startTime": "2020-01-01T00:00:00Z"}
    run = await plain.ended(manifest)
    assert (run.status()["phase"], run.status()["reason"]) == ("Failed", "DeadlineExceeded")


def test_names_are_asked_for_as_the_pod_wants() -> None:
    assert resolv_conf("ns").splitlines()[1] == "search ns.svc.cluster.local svc.cluster.local cluster.local"
    own = {"nameservers": ["192.0.2.1"], "searches": ["corp"], "options": [{"name": "ndots", "value": "1"}]}
    alone = resolv_conf("ns", {"dnsPolicy": "None", "dnsConfig": own})
    assert alone == "nameserver 192.0.2.1\nsearch corp\noptions ndots:1\n"
    both = resolv_conf("ns", {"dnsConfig": own}).splitlines()
    assert both[:2] == ["nameserver 127.0.0.1", "nameserver 192.0.2.1"] and "ndots:1" in both[3]


# --- images and devices


@pytest.mark.parametrize(
    ("reference", "family"),
    [
        ("quay.io/project-codeflare/ray:2.5.0-py38-cu116", "ray"),
        ("rayproject/ray-ml:2.9.0", "ray"),
        ("localhost:5000/a/b/ray@sha256:0123", "ray"),
        ("autoscaler", "ray"),
        ("ubuntu", "shell"),
        ("docker.io/library/debian:12", "shell"),
        ("busybox:latest", "shell"),
        ("alpine:3", "shell"),
        ("registry.access.redhat.com/ubi9/ubi-minimal:9.4", "shell"),
        ("ubi8", "shell"),
        ("python:3.11-slim", "shell"),
        ("ealen/echo-server:0.9.2", "echo"),
        ("registry.k8s.io/pause:3.9", "pause"),
        ("team/glue:7", "ray"),
        ("nginx", None),
        ("rayproject/ray-something", None),
    ],
)
def test_images_are_known_by_their_last_name(reference: str, family: str | None) -> None:
    found = ImageTable({"glue": "ray"}).find(reference)
    assert (found.family if found else None) == family


async def test_an_echo_image_without_a_command_answers_and_pause_sleeps(one_machine: Machine) -> None:
    port = {"ports": [{"containerPort": 80}], "args": ["-text=hello there"]}
    echo = one_machine.start(pod("echo", image="hashicorp/http-echo", container=port))
    pause = one_machine.start(pod("pause", image="registry.k8s.io/pause:3.9"))
    await until(lambda: "running" in state(echo) and "running" in state(pause))
    assert echo.address is not None
    prober = Prober(one_machine.host.sandbox, echo.address)

    async def answer() -> bytes:
        try:
            return (await prober.fetch(echo.address.ip, 80, "/", {}, 2.0, False))[1]
        except OSError:
            await asyncio.sleep(0.05)
            return b""

    async with asyncio.timeout(PATIENCE):
        while not (said := await answer()):
            pass
    assert said == b"hello there\n"


def test_gpus_are_counted_by_the_drivers_library(monkeypatch: pytest.MonkeyPatch) -> None:
    library = ModuleType("pynvml")
    library.nvmlInit = lambda: None  # type: ignore[attr-defined]
    library.nvmlDeviceGetCount = lambda: 3  # type: ignore[attr-defined]
    library.nvmlDeviceGetHandleByIndex = lambda number: number  # type: ignore[attr-defined]
    library.nvmlDeviceGetUUID = lambda handle: f"GPU-{handle}".encode()  # type: ignore[attr-defined]
    library.nvmlDeviceGetMinorNumber = lambda handle: 2 - handle  # type: ignore[attr-defined]
    library.nvmlDeviceGetName = lambda handle: "NVIDIA H200"  # type: ignore[attr-defined]
    library.nvmlDeviceGetMemoryInfo = lambda handle: SimpleNamespace(total=140 << 30)  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "pynvml", library)
    assert [gpu.minor for gpu in find_gpus()] == [2, 1, 0] and machine.capacity()["nvidia.com/gpu"] == "3"
    assert "NVIDIA H200 (140 GiB)" in next(one.detail for one in machine.findings() if one.name == "GPUs")
    labels = {"nvidia.com/gpu.memory": str(140 << 10), "nvidia.com/gpu.product": "NVIDIA-H200"}
    assert machine.gpu_labels() == labels

    def broken() -> None:
        raise RuntimeError("driver not loaded")

    library.nvmlInit = broken  # type: ignore[attr-defined]
    monkeypatch.setattr(shutil, "which", lambda name: None)
    assert find_gpus() == () and "nvidia.com/gpu" not in machine.capacity()


def test_why_pods_have_no_route_out_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nat, "FORWARDING", tmp_path / "forward")
    (tmp_path / "forward").write_text("0\n")
    assert "sysctl -w net.ipv4.ip_forward=1" in nat.obstacle()
    (tmp_path / "forward").write_text("1\n")
    monkeypatch.setattr(nat, "routes", list)
    assert "no route" in nat.obstacle()


def test_pods_go_out_through_the_machines_proxy_although_we_do_not(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("https_proxy", "HTTPS_PROXY", outside.KEPT):
        monkeypatch.setenv(name, "")
    assert outside.machine_proxy() is None
    monkeypatch.setenv("HTTPS_PROXY", "http://proxy.example:3128")
    quiet_environment()
    assert "HTTPS_PROXY" not in os.environ and outside.machine_proxy() == ("proxy.example", 3128)


async def test_what_ends_before_anyone_looks_still_started(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both words of the shim may be there when the first is read."""
    process = ContainerProcess(tmp_path)
    monkeypatch.setattr(process, "_spawn", lambda plan, notify: os.write(notify, b"started\nexited\n"))
    assert await process.start(RunPlan(argv=["true"], env={}))


async def test_a_crash_loop_counts_restarts_when_they_begin(plain: Machine) -> None:
    plain.host.restart_base = 60.0
    run = plain.start(pod("loop", "sh", "-c", "echo bad; exit 7", policy="Always"))
    await until(lambda: "waiting" in state(run) and state(run)["waiting"]["reason"] == "CrashLoopBackOff")
    (status,) = run.status()["containerStatuses"]
    assert status["state"]["waiting"]["message"] == (
        "back-off 60s restarting failed container=main pod=loop_default(uid-loop)"
    )
    assert (status["restartCount"], status["lastState"]["terminated"]["reason"]) == (1, "Error")
    assert await text(run) == await text(run, previous=True) == "bad\n"  # between two runs the last one is both


async def test_a_failing_probe_says_what_was_asked(plain: Machine) -> None:
    probe = {"httpGet": {"port": 18799, "path": "/ready"}, "periodSeconds": 0.05, "failureThreshold": 1}
    plain.start(pod("deaf", "sleep", "100", container={"readinessProbe": probe}))
    await until(lambda: any(reason == "Unhealthy" for _, reason, _ in plain.events))
    said = next(message for _, reason, message in plain.events if reason == "Unhealthy")
    assert said.startswith('Readiness probe failed: Get "http://127.') and ':18799/ready": dial tcp ' in said
    assert said.endswith("connect: nothing listens on port 18799 of the pod")


async def test_following_a_log_loses_nothing_that_is_written_meanwhile(tmp_path: Path) -> None:
    def add(*words: str, to: str = "log") -> None:
        with (tmp_path / to).open("a") as file:
            file.writelines(f"2026-01-01T00:00:00.000000000Z stdout F {word}\n" for word in words)

    add("a", "b", to="log.1")
    add("c", "d")
    ended = asyncio.Event()
    seen: list[bytes] = []
    async for chunk in read_log(tmp_path, LogOptions(follow=True, tail=3), ended.is_set, SystemClock()):
        seen += chunk.split()
        if seen[-1] == b"b":
            add("e")  # while the kept lines are still being read
        elif seen[-1] == b"e":
            (tmp_path / "log").rename(tmp_path / "log.1")
            add("f")
            ended.set()
    assert seen == [b"b", b"c", b"d", b"e", b"f"]


@pytest.mark.parametrize(
    ("status", "previous", "words"),
    [
        ({"state": {"running": {}}}, False, ""),
        ({"state": {"terminated": {}}}, False, ""),
        ({"state": {"waiting": {"reason": "CrashLoopBackOff"}}, "lastState": {"terminated": {"x": 1}}}, False, ""),
        (
            {"state": {"waiting": {"reason": "ErrImageNeverPull"}}},
            False,
            'container "main" in pod "p" is waiting to start: ErrImageNeverPull',
        ),
        ({"state": {"running": {}}}, True, 'previous terminated container "main" in pod "p" not found'),
        (None, False, 'container "main" in pod "p" is not available'),
    ],
)
def test_why_there_is_no_log_yet(status: dict[str, Any] | None, previous: bool, words: str) -> None:
    statuses = [{"name": "main", **status}] if status is not None else []
    manifest = {"metadata": {"name": "p"}, "status": {"containerStatuses": statuses}}
    assert why_no_log(manifest, "main", previous) == words
