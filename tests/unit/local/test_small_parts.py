"""The small pure parts of the one-machine cluster: names, images, flags, probes, addresses, kubeconfig entries."""

from __future__ import annotations

import os
import socket
import struct
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from shoal.api.quantity import amount
from shoal.errors import BadInput, ShoalError
from shoal.local import images, kubeconfigs, machine
from shoal.local.home import Home
from shoal.local.images import ImageTable, parse_mapping
from shoal.local.load import base_load_pods
from shoal.local.nodes.runtime import rayentry, rayenv, raylife, raysite
from shoal.local.nodes.runtime.environment import command_line, expand
from shoal.local.nodes.runtime.loopback import mapped, real_addresses
from shoal.local.nodes.runtime.names import hosts_text, lookup, service_lines
from shoal.local.nodes.runtime.ownership import claim
from shoal.local.nodes.runtime.probes import Fetch, recognise
from shoal.local.nodes.runtime.services import service_views
from shoal.local.nodes.runtime.simray import Submission, submission
from shoal.local.nodes.runtime.simulated import duration
from shoal.local.nodes.sandbox.dns import Query
from shoal.local.nodes.sandbox.loopback import LoopbackSandbox
from shoal.local.settings import parse_base_load, parse_duration, parse_node, parse_pool, read_file


@pytest.mark.parametrize(
    ("reference", "family"),
    [
        ("quay.io/project/ray:2.5.0-py38-cu116", "ray"),
        ("rayproject/ray-ml@sha256:0123", "ray"),
        ("registry:5000/autoscaler", "ray"),
        ("ubuntu", "shell"),
        ("docker.io/library/busybox:1", "shell"),
        ("k8s.gcr.io/pause:3.9", "pause"),
        ("kicbase/echo-server:1.0", "echo"),
        ("example/own:1", "shell"),
        ("example/glue:2", "ray"),
        ("nginx", None),
        ("example/ray/nginx", None),  # only the last component counts
    ],
)
def test_images_are_matched_by_their_last_component(reference: str, family: str | None, tmp_path: Path) -> None:
    table = ImageTable({"own": str(tmp_path), "glue": "ray"})
    found = table.find(reference)
    assert (found.family if found else None) == family


def test_an_image_mapping_must_name_something_that_exists() -> None:
    assert parse_mapping("glue=ray") == ("glue", "ray")
    assert parse_mapping(f"glue=./{os.path.relpath(sys.prefix)}") == ("glue", sys.prefix)
    for wrong in ("glue", "=ray", "glue=", "glue=/no/such/directory", "glue=rays"):
        with pytest.raises(BadInput, match="image mapping"):
            parse_mapping(wrong)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("$(A)-$(B)", "1-$(B)"),
        ("$$(A)", "$(A)"),
        ("$A", "$A"),
        ("$(A)$(A)", "11"),
        ("100%", "100%"),
        ("$()", "$()"),
    ],
)
def test_references_are_expanded_as_the_kubelet_does(text: str, shown: str) -> None:
    assert expand(text, {"A": "1"}) == shown


def test_redis_is_the_machines_own_where_it_is_installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(images, "SYSTEM_PATH", str(tmp_path))
    assert ImageTable().find("redis:7.4") is None
    assert "apt install redis-server" in ImageTable().refusal("docker.io/library/redis:7.4")
    (tmp_path / "redis-server").touch(0o755)
    found = ImageTable().find("redis:7.4")
    assert found is not None and found.command == ("redis-server", "--protected-mode", "no")


def test_args_without_a_command_replace_the_images_own() -> None:
    assert command_line({"args": ["sh", "-c", "true"]}, ["sh"], {}) == ["sh", "-c", "true"]
    assert command_line({"args": ["--port", "1"]}, ["redis-server"], {}) == ["redis-server", "--port", "1"]
    assert command_line({"command": ["x"], "args": ["-y"]}, ["sh"], {}) == ["x", "-y"]
    assert command_line({}, ["sh"], {}) == ["sh"]
    assert command_line({"command": ["a"], "args": ["$(X)"]}, ["sh"], {"X": "b"}) == ["a", "b"]


def test_probes_of_ray_are_recognised_and_others_are_left_to_a_process() -> None:
    text = (
        "wget --tries 1 -T 2 -q -O- http://localhost:52365/api/local_raylet_healthz | grep success && "
        "wget --tries 1 -T 10 -q -O- http://localhost:8265/api/gcs_healthz | grep success"
    )
    assert recognise(["bash", "-c", text]) == [
        Fetch("localhost", 52365, "/api/local_raylet_healthz", "success"),
        Fetch("localhost", 8265, "/api/gcs_healthz", "success"),
    ]
    for other in (
        ["true"],
        ["bash", "-c", "wget http://elsewhere:1/ | grep x"],
        ["sh", "-c", "rm -rf /x && true"],
        ["bash", "-c", "curl http://localhost:1/ | grep x; touch /y"],
        [],
    ):
        assert recognise(other) is None


def test_what_starts_a_ray_node_and_what_only_waits_for_one() -> None:
    head = ["bash", "-c", "--", "ulimit -n 65536; ray start --head --block --dashboard-agent-listen-port=50000"]
    assert (rayenv.gate_weight(head), rayenv.agent_port(head)) == (2, 50000)
    assert rayenv.gate_weight(["bash", "-c", "ray start --address=a:1"]) == 1
    assert rayenv.gate_weight(["python", "train.py"]) == 0
    assert rayenv.waits_for(["bash", "-c", "until ray health-check --address head.ns.svc:6379; do sleep 5; done"]) == (
        "head.ns.svc",
        6379,
    )


def test_nodes_and_pools_are_read_from_flags() -> None:
    first, second = parse_node("cpu=8,memory=8118372Ki,nvidia.com/gpu=1,count=2,labels=a=b;c=d,taints=k=v:NoSchedule")
    assert (first.name, second.name, first.capacity["nvidia.com/gpu"]) == ("node-0", "node-1", "1")
    assert first.labels == {"a": "b", "c": "d"} and first.taints == (
        {"key": "k", "value": "v", "effect": "NoSchedule"},
    )
    assert [shape.name for shape in parse_node("cpu=1,memory=1Gi,name=big")] == ["big"]
    pool = parse_pool("name=gpu,cpu=4,memory=16Gi,nvidia.com/gpu=1,min=1,max=4,delay=500ms")
    assert (pool.least, pool.most, pool.delay, pool.capacity["cpu"]) == (1, 4, 0.5, "4")


@pytest.mark.parametrize(
    "text",
    [
        "cpu=1",
        "memory=1Gi",
        "cpu=x,memory=1Gi",
        "cpu=1,memory=1Gi,cpu=2",
        "cpu=1,memory=1Gi,count=0",
        "cpu",
        "",
        "cpu=1,memory=1Gi,taints=k",
        "cpu=1,memory=1Gi,runtime=magic",
        "cpu=-1,memory=1Gi",
    ],
)
def test_a_bad_node_is_refused_with_its_words(text: str) -> None:
    with pytest.raises(BadInput):
        parse_node(text)


@pytest.mark.parametrize(("text", "seconds"), [("2s", 2.0), ("500ms", 0.5), ("1m", 60.0), ("3", 3.0), ("1.5s", 1.5)])
def test_durations(text: str, seconds: float) -> None:
    assert parse_duration(text) == seconds


def test_a_configuration_file_says_the_same_as_flags(tmp_path: Path) -> None:
    file = tmp_path / "cluster.yaml"
    file.write_text(
        "nodes:\n- {cpu: 4, memory: 8Gi, count: 2, labels: {a: b}}\n- cpu=1,memory=1Gi,name=small\n"
        "pools:\n- name=gpu,cpu=4,memory=8Gi,max=2\nimages: {glue: ray}\nruntime: simulated\n"
        "idleSeconds: 30\nbookingSeconds: 0\n"
    )
    found = read_file(file)
    assert [(shape.name, shape.runtime) for shape in found.nodes] == [
        ("node-0", "simulated"),
        ("node-1", "simulated"),
        ("small", "simulated"),
    ]
    assert found.pools[0].name == "gpu" and found.images == {"glue": "ray"}
    assert (found.idle_seconds, found.booking_seconds) == (30.0, 0.0)
    file.write_text("idleSeconds: soon\n")
    with pytest.raises(BadInput, match="idleSeconds is 'soon'; write a number of seconds"):
        read_file(file)
    file.write_text("nods: []\n")
    with pytest.raises(BadInput, match="unknown field 'nods'"):
        read_file(file)


def test_the_base_load_sums_up_exactly_even_when_limits_are_below_requests() -> None:
    load = parse_base_load("cpu=3050m,memory=2918400Ki,limits.cpu=2200m,limits.memory=3020800Ki")
    pods = base_load_pods(load, ["node-0"])
    sums: dict[tuple[str, str], int] = {}
    for pod in pods:
        resources = pod["spec"]["containers"][0]["resources"]
        for part in ("requests", "limits"):
            for name, text in resources[part].items():
                sums[part, name] = sums.get((part, name), 0) + amount(name, text)
        for name, text in resources["limits"].items():
            assert amount(name, resources["requests"][name]) <= amount(name, text)
    assert sums == {
        ("requests", "cpu"): 3050,
        ("requests", "memory"): 2918400 << 10,
        ("limits", "cpu"): 2200,
        ("limits", "memory"): 3020800 << 10,
    }


SERVICES = [
    {
        "metadata": {"name": "head-svc", "namespace": "ns"},
        "spec": {"selector": {"app": "head"}, "publishNotReadyAddresses": True},
    },
    {"metadata": {"name": "web", "namespace": "ns"}, "spec": {"selector": {"app": "head"}}},
    {"metadata": {"name": "outside", "namespace": "ns"}, "spec": {}},
]
PODS = [
    {
        "metadata": {"name": "head", "namespace": "ns", "labels": {"app": "head"}},
        "spec": {},
        "status": {"podIP": "10.1.2.3", "phase": "Running"},
    }
]


def test_service_names_lead_to_the_pods_behind_them() -> None:
    lines = service_lines(service_views(SERVICES, PODS), {})
    assert lines == {"ns": [("head-svc", ["10.1.2.3"])]}  # `web` wants ready pods, and there is none
    assert lookup("head-svc.ns.svc.cluster.local", lines) == ["10.1.2.3"]
    assert lookup("web.ns.svc.cluster.local", lines) == []
    assert lookup("example.org", lines) is None
    text = hosts_text("127.0.0.1\tlocalhost\n", "ns", lines)
    assert "10.1.2.3\thead-svc.ns.svc.cluster.local head-svc.ns.svc head-svc.ns head-svc" in text.splitlines()
    assert "head-svc.ns\n" in hosts_text("", "other", lines).replace("head-svc.ns ", "head-svc.ns\n")


def test_the_resolver_answers_with_addresses_and_never_with_ipv6() -> None:
    def question(kind: int) -> bytes:
        name = b"".join(bytes([len(part)]) + part for part in (b"head", b"ns", b"svc")) + b"\0"
        return struct.pack("!HHHHHH", 7, 0x0100, 1, 0, 0, 0) + name + struct.pack("!HH", kind, 1)

    query = Query(question(1))
    assert (query.name, query.kind) == ("head.ns.svc", 1)
    answer = query.answer(0, ["10.1.2.3"])
    assert answer[:2] == b"\0\7" and answer.endswith(b"\x0a\x01\x02\x03") and answer[6:8] == b"\0\1"
    assert Query(question(28)).answer(0)[6:8] == b"\0\0"
    for broken in (b"", b"x" * 11, question(1)[:-6], question(1)[:12] + b"\xff" * 20):
        with pytest.raises((ValueError, IndexError, struct.error)):
            Query(broken)


def test_ray_start_gets_the_pods_own_address_and_ports(tmp_path: Path) -> None:
    pod = rayentry.RayPod(
        {
            "SHOAL_POD_DIR": str(tmp_path),
            "SHOAL_POD_IP": "127.9.1.2",
            "SHOAL_PORT_BASE": "20000",
            "SHOAL_SCRATCH": "/tmp/s",
        }
    )
    arguments = rayentry.translate(
        [
            "start",
            "--head",
            "--block",
            "--num-cpus",
            "2",
            "--metrics-export-port=9090",
            "--dashboard-host=0.0.0.0",
            "--port=6379",
        ],
        pod,
    )
    assert arguments[:5] == ["start", "--head", "--block", "--num-cpus", "2"]
    for expected in (
        "--port=20000",
        "--metrics-export-port=20005",
        "--dashboard-agent-listen-port=20004",
        "--node-ip-address=127.9.1.2",
        "--dashboard-host=127.9.1.2",
        "--temp-dir=/tmp/s",
        "--min-worker-port=0",
    ):
        assert arguments.count(expected) == 1, expected
    assert "9090" in (tmp_path / "ports.json").read_text()  # so that a probe on 9090 finds it


def test_addresses_of_manifests_become_real_ones(tmp_path: Path) -> None:
    own, head = tmp_path / "own", tmp_path / "head"
    own.mkdir()
    head.mkdir()
    (own / "hosts").write_text("127.9.1.2\thead-svc.ns.svc head-svc\n")
    (tmp_path / "peers.json").write_text(f'{{"127.9.1.2": {{"base": 20020, "directory": "{head}"}}}}')
    pod = rayentry.RayPod({"SHOAL_POD_DIR": str(own), "SHOAL_POD_IP": "127.9.1.3", "SHOAL_PORT_BASE": "20040"})
    assert rayentry.real_address("head-svc:6379", pod) == "127.9.1.2:20020"
    assert rayentry.real_address("http://head-svc:8265", pod) == "http://127.9.1.2:8265"
    assert rayentry.real_address("auto", pod) == "auto"
    line = rayentry.translate(
        ["job", "submit", "--address", "http://head-svc:8265", "--", "python", "--address", "x:1"], pod
    )
    assert line == ["job", "submit", "--address", "http://127.9.1.2:8265", "--", "python", "--address", "x:1"]
    following = ["job", "logs", "--address=http://head-svc:8265", "--follow", "job-1", "--log-color", "false", "-v"]
    assert rayentry.translate(following, pod) == [*following[:2], "--address=http://127.9.1.2:8265", *following[3:]]
    assert rayentry.translate(["status", "--address"], pod) == ["status", "--address"]  # Ray says what is missing


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("/data", "/real"),
        ("cat /data/x", "cat /real/x"),
        ("/database", "/database"),
        ("/my/data", "/my/data"),
        ("/data/inner/x", "/deep/x"),
        ("--in=/data", "--in=/real"),
    ],
)
def test_mount_paths_are_mapped_where_they_cannot_be_mounted(text: str, shown: str) -> None:
    assert mapped(text, [("/data", "/real"), ("/data/inner", "/deep")]) == shown


@pytest.mark.parametrize(
    ("command", "seconds"),
    [
        (["sleep", "30"], 30.0),
        (["sh", "-c", "echo a; sleep 1.5m"], 90.0),
        (["sh", "-c", "sleep 1 && sleep 2"], 3.0),
        (["python", "sleepy.py"], None),
        (["sleep", "infinity"], None),
    ],
)
def test_a_simulated_pod_lasts_as_long_as_its_sleep(command: list[str], seconds: float | None) -> None:
    assert duration({"metadata": {}, "spec": {"containers": [{"command": command}]}}) == seconds


def test_our_kubeconfig_entry_comes_and_goes_and_nothing_else_changes(tmp_path: Path) -> None:
    theirs = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "work",
        "clusters": [{"name": "work", "cluster": {}}],
        "users": [{"name": "work", "user": {"token": "x"}}],
        "contexts": [{"name": "work", "context": {}}],
        "extra": 1,
    }
    own = {
        "clusters": [{"name": "c", "cluster": {"server": "https://127.0.0.1:1"}}],
        "users": [{"name": "u", "user": {}}],
        "contexts": [{"name": "x", "context": {"namespace": "default"}}],
    }
    target, source = tmp_path / "config", tmp_path / "own"
    target.write_text(yaml.safe_dump(theirs))
    target.chmod(0o600)
    source.write_text(yaml.safe_dump(own))
    kubeconfigs.add(source, "shoal-local", target)
    kubeconfigs.add(source, "shoal-local", target)
    merged = yaml.safe_load(target.read_text())
    assert merged["current-context"] == "shoal-local"
    assert [entry["name"] for entry in merged["contexts"]] == ["work", "shoal-local"]
    assert kubeconfigs.remove("shoal-local", target) is True
    assert yaml.safe_load(target.read_text()) == {**theirs, "current-context": ""}
    assert kubeconfigs.remove("shoal-local", target) is False
    assert target.stat().st_mode & 0o777 == 0o600


def a_kubeconfig(place: Path) -> Path:
    place.write_text(
        yaml.safe_dump(
            {
                "clusters": [{"name": "x", "cluster": {"server": "https://127.0.0.1:1"}}],
                "users": [{"name": "x", "user": {}}],
                "contexts": [{"name": "x", "context": {}}],
            }
        )
    )
    return place


def test_a_kubeconfig_that_is_a_link_stays_one(tmp_path: Path) -> None:
    link = tmp_path / "config"
    link.symlink_to(tmp_path / "kept-elsewhere")
    kubeconfigs.add(a_kubeconfig(tmp_path / "own"), "shoal-local", link)
    assert link.is_symlink() and "shoal-local" in (tmp_path / "kept-elsewhere").read_text()
    assert kubeconfigs.remove("shoal-local", link) and link.is_symlink()


@pytest.mark.parametrize("text", ["clusters: [1]", "contexts: {a: b}", "just words", "[1"])
def test_a_kubeconfig_that_is_none_is_left_as_it_is(tmp_path: Path, text: str) -> None:
    target = tmp_path / "config"
    target.write_text(text)
    with pytest.raises(ShoalError, match=r"left as it is.*; use --no-kubeconfig"):
        kubeconfigs.add(a_kubeconfig(tmp_path / "own"), "shoal-local", target)
    assert target.read_text() == text


def test_a_kubeconfig_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ShoalError, match="file/config cannot be written: File exists; use --no-kubeconfig"):
        kubeconfigs.add(a_kubeconfig(tmp_path / "own"), "shoal-local", tmp_path / "file" / "config")


def test_a_cluster_is_known_by_pid_and_start_time(tmp_path: Path) -> None:
    home = Home("one", tmp_path)
    home.create()
    assert home.running() is None
    home.write_running(port=1)
    found = home.running()
    assert found is not None and found[1]["port"] == 1
    running = home.directory / "running.json"
    running.write_text(running.read_text().replace(f'"start": {found[0].start}', '"start": 1'))
    assert home.running() is None
    with pytest.raises(BadInput):
        Home("../up", tmp_path)


def test_a_submitters_command_is_understood() -> None:
    submit = "ray job submit --address http://head.ns.svc:8265 --no-wait --submission-id job-1 -- python a.py -- b"
    script = f"until x; do sleep 2; done\n{submit}"
    found = submission({"command": ["/bin/bash", "-ce", "--"], "args": [script]})
    assert found == Submission("head.ns.svc", 8265, "job-1", "python a.py -- b")
    assert submission({"command": ["python", "submit.py"]}) is None
    assert submission({"args": ["ray job submit --no-wait -- python a.py"]}) is None  # names no head


async def test_addresses_known_when_a_container_starts_are_put_into_its_command(tmp_path: Path) -> None:
    sandbox = LoopbackSandbox("addresses", None, tmp_path)
    head, other = await sandbox.open("head"), await sandbox.open("other")
    sandbox.lookup = lambda name: [head.ip] if name == "head.ns.svc.cluster.local" else []
    known, late = "head.ns.svc.cluster.local", "late.ns.svc.cluster.local"
    text = f"get http://{known}:8265/x {known}:6379 {late}:1 localhost:6379"
    assert real_addresses(text, other, sandbox) == (
        f"get http://{head.ip}:8265/x {head.ip}:{head.port_base} {late}:1 {other.ip}:{other.port_base}"
    )


def test_a_scratch_directory_that_someone_else_prepared_is_refused(tmp_path: Path) -> None:
    theirs = tmp_path / "shoal-1000"
    theirs.symlink_to(tmp_path)
    with pytest.raises(ShoalError, match="belongs to another user"):
        claim(theirs)
    ours = tmp_path / "ours"
    claim(ours)
    assert ours.stat().st_mode & 0o777 == 0o700


def test_a_drained_raylet_is_told_from_one_that_is_gone(tmp_path: Path) -> None:
    """By the last session's own log; whatever else lies there, or nothing, means that it is simply gone."""
    assert not raylife.was_drained(tmp_path)
    for name, words in (("session_2026-01-01_1", "The node is drained"), ("session_2026-01-02_1", "Raylet started")):
        (tmp_path / name / "logs").mkdir(parents=True)
        (tmp_path / name / "logs" / "raylet.out").write_text(f"[I] {words}, continue\n")
    assert not raylife.was_drained(tmp_path)
    log = tmp_path / "session_2026-01-02_1" / "logs" / "raylet.out"
    log.write_text("x" * 100_000 + "The node is drained, continue to shut down raylet...\n")
    assert raylife.was_drained(tmp_path)
    log.rename(tmp_path / "elsewhere")
    log.symlink_to(tmp_path / "elsewhere")
    assert not raylife.was_drained(tmp_path)


def test_doctor_says_what_each_missing_part_of_the_sandbox_costs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "may_use_namespaces", lambda: False)
    monkeypatch.setattr(machine, "may_have_own_namespaces", lambda: False)
    monkeypatch.setattr(machine, "best_sandbox", lambda: "loopback")
    monkeypatch.setattr("os.geteuid", lambda: 0)
    assert "CAP_SYS_ADMIN" in machine.sandbox_finding().advice
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    found = {one.name: one for one in machine.findings()}
    assert not found["sandbox"].good and "user namespaces" in found["sandbox"].advice
    assert not found["overlay file system"].good
    assert "/tmp is shared" in found["own files"].detail
    assert "moved" in found["own network"].detail
    assert not found["own processes"].good
    monkeypatch.setattr(machine, "may_use_namespaces", lambda: True)
    assert all(one.good for one in machine.findings() if one.name.startswith("own "))


def test_a_server_in_a_loopback_pod_has_the_pods_own_address(tmp_path: Path) -> None:
    program = """
import socket, urllib.request, http.server, threading
server = http.server.HTTPServer(("0.0.0.0", PORT), http.server.SimpleHTTPRequestHandler)
threading.Thread(target=server.serve_forever, daemon=True).start()
free = socket.create_server(("", 0))
print(server.socket.getsockname()[0], free.getsockname()[0], urllib.request.urlopen("http://localhost:PORT/").status)
"""
    with socket.create_server(("127.9.0.1", 0)) as other:  # another pod has the same port
        port = other.getsockname()[1]
        environment = {
            "PYTHONPATH": raysite.DIRECTORY,
            "SHOAL_POD_IP": "127.9.0.2",
            "SHOAL_POD_DIR": str(tmp_path),
            "NO_PROXY": "*",
        }
        argv = [sys.executable, "-c", program.replace("PORT", str(port))]
        told = subprocess.run(argv, env=environment, cwd=tmp_path, capture_output=True, text=True, check=True)
        shared = subprocess.run(
            argv, env={**environment, "SHOAL_HOST_PORTS": str(port)}, cwd=tmp_path, capture_output=True, text=True
        )
    assert told.stdout.split() == ["127.9.0.2", "0.0.0.0", "200"]
    assert "Address already in use" in shared.stderr  # a port of the machine itself is asked for as it is
