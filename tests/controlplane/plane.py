"""One real control plane on loopback: etcd, kube-apiserver, and as asked controller-manager, scheduler and KWOK.

Started fresh on free ports with its own certificates; several run side by side; `stop` leaves nothing behind. Tests
use the `control_plane` fixture, people use run.py. Its processes die with the test run (parent-death signal) unless
told to stay.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import random
import shutil
import signal
import socket
import ssl
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.controlplane import build, certificates

START_LIMIT = 90.0  # seconds; a loaded machine takes 5
PORTS = (12_000, 18_000)
"""Below those that pods without a network of their own get, and that the machine gives to outgoing connections."""
AUDIT_ALL = (
    "- {level: RequestResponse, verbs: [create, update, patch, delete, deletecollection]}\n"
    "- {level: RequestResponse, verbs: [get], omitStages: [RequestReceived]}\n"
    "- {level: Metadata, omitStages: [RequestReceived]}\n"
)
SHARES = 16
"""Test processes that run side by side take theirs from different parts."""


class ControlPlane:
    """`controllers`, `scheduler` and `kwok` add those processes; `nodes` creates that many simulated Node objects.
    Simulated nodes complete the pods of Jobs at once, unless `jobs_go_on`. Each of `users` has its own kubeconfig and
    may do all; `audit_rules` are what the audit log records instead of everything."""

    def __init__(
        self,
        folder: Path,
        *,
        controllers: bool = False,
        scheduler: bool = False,
        kwok: bool = False,
        nodes: int = 0,
        audit: bool = False,
        stay: bool = False,
        jobs_go_on: bool = False,
        users: tuple[str, ...] = (),
        audit_rules: str = "",
        scheduler_configuration: dict[str, Any] | None = None,
        scheduler_program: Path | None = None,
        native_groups: bool = False,
    ) -> None:
        """`scheduler_configuration` and `scheduler_program` take the place of kube-scheduler's own; `native_groups`
        switches Kubernetes' PodGroups on, which are alpha."""
        self.folder = folder
        self.controllers = controllers
        self.scheduler = scheduler
        self.kwok = kwok or nodes > 0
        self.nodes = nodes
        self.audit = audit or bool(audit_rules)
        self.audit_rules = audit_rules or AUDIT_ALL
        self.users = users
        self.stay = stay
        self.jobs_go_on = jobs_go_on
        self.scheduler_configuration = scheduler_configuration or {}
        self.scheduler_program = scheduler_program
        self.native_groups = native_groups
        self.kubeconfig = folder / "kubeconfig"
        self.audit_log = folder / "audit.log"
        self.port = 0
        self.etcd_port = 0
        self._peer_port = 0
        self._processes: dict[str, subprocess.Popen[bytes]] = {}

    @property
    def server(self) -> str:
        return f"https://127.0.0.1:{self.port}"

    def start(self) -> ControlPlane:
        wanted = ["etcd", "kube-apiserver", "kubectl"]
        wanted += ["kube-controller-manager"] if self.controllers else []
        wanted += ["kube-scheduler"] if self.scheduler else []
        wanted += ["kwok"] if self.kwok else []
        self._binaries = build.binaries(*wanted)
        if self.scheduler_program is not None:
            self._binaries["kube-scheduler"] = self.scheduler_program
        self.folder.mkdir(parents=True, exist_ok=True)
        certificates.write_all(self.folder, self.users)
        self._start_server()
        if self.controllers:
            self.restart_controllers()
        if self.scheduler:
            self._start_scheduler()
        if self.kwok:
            self._start_kwok()
        for number in range(self.nodes):
            self.add_node(f"node-{number}")
        self._write_state()
        return self

    def _start_server(self, attempts: int = 3) -> None:
        """On other ports where a stranger was quicker."""
        self.port, self.etcd_port, self._peer_port = free_ports(3)
        for user in ("admin", *self.users):
            self._write_kubeconfig(user)
        try:
            self.restart_etcd()
            self.restart_apiserver()
        except RuntimeError as error:
            if "address already in use" not in str(error) or attempts == 1:
                raise
            self.kill("kube-apiserver")
            self.kill("etcd")
            shutil.rmtree(self.folder / "etcd", ignore_errors=True)
            self._start_server(attempts - 1)

    def stop(self) -> None:
        for name in ("kwok", "kube-scheduler", "kube-controller-manager", "kube-apiserver", "etcd"):
            self.kill(name)
        shutil.rmtree(self.folder, ignore_errors=True)

    def kill(self, name: str) -> None:
        """kill −9, and wait until it is gone."""
        process = self._processes.pop(name, None)
        if process is not None:
            process.kill()
            process.wait()

    def kill_apiserver(self) -> None:
        self.kill("kube-apiserver")

    def kill_etcd(self) -> None:
        self.kill("etcd")

    def restart_etcd(self) -> None:
        client, peer = f"http://127.0.0.1:{self.etcd_port}", f"http://127.0.0.1:{self._peer_port}"
        self._spawn(
            "etcd",
            "--data-dir",
            str(self.folder / "etcd"),
            "--listen-client-urls",
            client,
            "--advertise-client-urls",
            client,
            "--listen-peer-urls",
            peer,
            "--initial-advertise-peer-urls",
            peer,
            "--initial-cluster",
            f"default={peer}",
            "--log-level=error",
        )
        self._until_ready("etcd", f"{client}/health")

    def restart_apiserver(self) -> None:
        path = self._path
        flags = [
            f"--etcd-servers=http://127.0.0.1:{self.etcd_port}",
            "--bind-address=127.0.0.1",
            f"--secure-port={self.port}",
            "--endpoint-reconciler-type=none",
            f"--tls-cert-file={path('server.crt')}",
            f"--tls-private-key-file={path('server.key')}",
            f"--client-ca-file={path('ca.crt')}",
            f"--kubelet-client-certificate={path('admin.crt')}",
            f"--kubelet-client-key={path('admin.key')}",
            "--authorization-mode=RBAC",
            "--service-account-issuer=https://kubernetes.default.svc",
            f"--service-account-key-file={path('sa.pub')}",
            f"--service-account-signing-key-file={path('sa.key')}",
            "--service-cluster-ip-range=10.0.0.0/16",
            "--disable-admission-plugins=ServiceAccount",
            f"--cert-dir={path('certs')}",
            # what it passes on to aggregated API servers, and how those know it
            f"--requestheader-client-ca-file={path('front-proxy-ca.crt')}",
            "--requestheader-allowed-names=front-proxy",
            "--requestheader-username-headers=X-Remote-User",
            "--requestheader-group-headers=X-Remote-Group",
            "--requestheader-extra-headers-prefix=X-Remote-Extra-",
            f"--proxy-client-cert-file={path('front-proxy.crt')}",
            f"--proxy-client-key-file={path('front-proxy.key')}",
            "--profiling=false",
            "--allow-privileged=true",
        ]
        if self.native_groups:
            flags += ["--feature-gates=GenericWorkload=true", "--runtime-config=scheduling.k8s.io/v1alpha2=true"]
        if self.audit:
            policy = self.folder / "audit-policy.yaml"
            policy.write_text(f"apiVersion: audit.k8s.io/v1\nkind: Policy\nrules:\n{self.audit_rules}")
            flags += [f"--audit-policy-file={policy}", f"--audit-log-path={self.audit_log}"]
        self._spawn("kube-apiserver", *flags)
        self._until_ready("kube-apiserver", f"{self.server}/readyz")
        self._until_ready("kube-apiserver", f"{self.server}/api/v1/namespaces/default")  # it comes a moment later

    def restart_controllers(self) -> None:
        """They look for kinds when they start, then only every half minute: worth it after installing CRDs."""
        self.kill("kube-controller-manager")
        self._spawn(
            "kube-controller-manager",
            f"--kubeconfig={self.kubeconfig}",
            f"--authentication-kubeconfig={self.kubeconfig}",
            f"--authorization-kubeconfig={self.kubeconfig}",
            "--leader-elect=false",
            f"--service-account-private-key-file={self._path('sa.key')}",
            f"--root-ca-file={self._path('ca.crt')}",
            "--use-service-account-credentials=false",
            "--kube-api-qps=500",
            "--kube-api-burst=1000",
            "--secure-port=0",
        )

    def cpu_seconds(self) -> dict[str, float]:
        """What each process has used so far."""
        return {name: cpu_seconds(process.pid) for name, process in self._processes.items()}

    def kubectl(self, *arguments: str, stdin: str | None = None) -> str:
        """Run the pinned kubectl against this control plane; a refusal raises with what it said."""
        return run_kubectl(self._binaries["kubectl"], self.kubeconfig, arguments, stdin)

    def open_kubectl(self, *arguments: str) -> subprocess.Popen[str]:
        """One that goes on until it is ended, such as port-forward; its output can be read."""
        command = [str(self._binaries["kubectl"]), f"--kubeconfig={self.kubeconfig}", *arguments]
        return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)

    def add_node(self, name: str, taints: dict[str, str] | None = None, **capacity: str) -> None:
        """A bare Node object; with KWOK it becomes ready by itself, without it this marks it ready."""
        sizes = {"cpu": "8", "memory": "32Gi", "pods": "110", **capacity}
        marks = [{"key": key, "value": value, "effect": "NoSchedule"} for key, value in (taints or {}).items()]
        node: dict[str, Any] = {
            "apiVersion": "v1",
            "kind": "Node",
            "metadata": {"name": name, "labels": {"kubernetes.io/hostname": name}},
            "spec": {"taints": marks},
            "status": {
                "capacity": sizes,
                "allocatable": sizes,
                "conditions": [{"type": "Ready", "status": "True", "reason": "KubeletReady"}],
            },
        }
        self.kubectl("create", "-f", "-", stdin=json.dumps(node))
        self.kubectl(
            "patch", "node", name, "--subresource=status", "--type=merge", "-p", json.dumps({"status": node["status"]})
        )

    # --- processes

    def _start_scheduler(self) -> None:
        configuration = self.folder / "scheduler.yaml"
        configuration.write_text(
            json.dumps(
                {
                    "apiVersion": "kubescheduler.config.k8s.io/v1",
                    "kind": "KubeSchedulerConfiguration",
                    **self.scheduler_configuration,
                    "leaderElection": {"leaderElect": False},
                    "clientConnection": {"kubeconfig": str(self.kubeconfig), "qps": 500, "burst": 1000},
                }
            )
        )
        self._spawn(
            "kube-scheduler",
            f"--config={configuration}",
            f"--authentication-kubeconfig={self.kubeconfig}",
            f"--authorization-kubeconfig={self.kubeconfig}",
            "--secure-port=0",
            *(["--feature-gates=GenericWorkload=true,GangScheduling=true"] if self.native_groups else []),
        )

    def _start_kwok(self) -> None:
        stages = self.folder / "stages.yaml"
        wanted = [path for path in build.kwok_stages() if not (self.jobs_go_on and path.stem == "pod-complete")]
        stages.write_text("\n---\n".join(path.read_text() for path in wanted))
        self._spawn(
            "kwok",
            f"--kubeconfig={self.kubeconfig}",
            f"--config={stages}",
            "--manage-all-nodes=true",
            "--node-ip=127.0.0.1",
            "--node-lease-duration-seconds=40",
            env={"KWOK_WORKDIR": str(self.folder)},
        )

    def _spawn(self, name: str, *arguments: str, env: dict[str, str] | None = None) -> None:
        log = (self.folder / f"{name}.log").open("ab")
        self._processes[name] = subprocess.Popen(
            [str(self._binaries[name]), *arguments],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
            cwd=self.folder,
            env={**os.environ, **(env or {})},
            preexec_fn=None if self.stay else _die_with_parent,
        )
        log.close()

    def _until_ready(self, name: str, url: str) -> None:
        context = ssl.create_default_context(cafile=self._path("ca.crt")) if url.startswith("https") else None
        if context is not None:
            context.load_cert_chain(self._path("admin.crt"), self._path("admin.key"))
        deadline = time.monotonic() + START_LIMIT
        while time.monotonic() < deadline:
            if self._processes[name].poll() is not None:
                break
            try:
                with urllib.request.urlopen(url, timeout=2, context=context):
                    return
            except (urllib.error.URLError, OSError):
                time.sleep(0.05)
        said = (self.folder / f"{name}.log").read_text(errors="replace")[-800:]
        raise RuntimeError(f"{name} did not become ready; its log ends with: {said}")

    def _path(self, name: str) -> str:
        return str(self.folder / name)

    def kubeconfig_of(self, user: str) -> Path:
        return self.kubeconfig if user == "admin" else self.folder / f"kubeconfig-{user}"

    def _write_kubeconfig(self, user: str) -> None:
        path = self.kubeconfig_of(user)
        path.touch(mode=0o600)
        path.write_text(
            json.dumps(
                {
                    "apiVersion": "v1",
                    "kind": "Config",
                    "current-context": "test",
                    "clusters": [
                        {
                            "name": "test",
                            "cluster": {"server": self.server, "certificate-authority": self._path("ca.crt")},
                        }
                    ],
                    "users": [
                        {
                            "name": user,
                            "user": {
                                "client-certificate": self._path(f"{user}.crt"),
                                "client-key": self._path(f"{user}.key"),
                            },
                        }
                    ],
                    "contexts": [{"name": "test", "context": {"cluster": "test", "user": user}}],
                }
            )
        )

    def _write_state(self) -> None:
        pids = {name: [process.pid, start_time(process.pid)] for name, process in self._processes.items()}
        (self.folder / "state.json").write_text(json.dumps({"port": self.port, "processes": pids}))


def stop_by_state(folder: Path) -> None:
    """End what `run.py start` left running: only processes whose start time still matches."""
    state = json.loads((folder / "state.json").read_text())
    for pid, started in reversed(list(state["processes"].values())):
        if start_time(pid) == started:
            os.kill(pid, signal.SIGKILL)
    shutil.rmtree(folder, ignore_errors=True)


def start_time(pid: int) -> int | None:
    """Clock ticks since boot at which a process started: with the pid, its identity."""
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19])
    except (OSError, IndexError, ValueError):
        return None


def cpu_seconds(pid: int) -> float:
    user, system = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[11:13]
    return (int(user) + int(system)) / os.sysconf("SC_CLK_TCK")


def free_ports(count: int) -> list[int]:
    """Ports that no process listens on and that no other caller gets here: its server may bind it much later."""
    worker = os.environ.get("PYTEST_XDIST_WORKER", "").removeprefix("gw")
    share = int(worker) % SHARES if worker.isdigit() else random.SystemRandom().randrange(SHARES)
    width = (PORTS[1] - PORTS[0]) // SHARES
    found: list[int] = []
    while len(found) < count:
        port = PORTS[0] + share * width + random.SystemRandom().randrange(width)
        with contextlib.suppress(OSError), socket.socket() as probe:
            probe.bind(("127.0.0.1", port))
            if port not in _TOLD:
                _TOLD.add(port)
                found.append(port)
    return found


_TOLD: set[int] = set()


def _die_with_parent() -> None:
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG


def run_kubectl(program: Path, kubeconfig: Path, arguments: tuple[str, ...], stdin: str | None) -> str:
    """What it printed; a refusal raises with what it said. What it learns of a server is kept beside that server's
    kubeconfig: another one may have had the same port before."""
    outcome = subprocess.run(
        [str(program), f"--kubeconfig={kubeconfig}", *arguments],
        input=stdin,
        capture_output=True,
        text=True,
        timeout=120,
        env={**os.environ, "KUBECACHEDIR": str(kubeconfig.parent / "kubectl-cache")},
    )
    if outcome.returncode:
        raise RuntimeError(f"kubectl {' '.join(arguments)}: {outcome.stderr.strip()}")
    return outcome.stdout


def await_openapi(kubectl: Callable[..., str]) -> None:
    """Until the OpenAPI tells of every kind: on a real server it follows a new CRD, and `kubectl explain` reads it."""
    deadline = time.monotonic() + 120
    wanted = {
        (f"/openapi/v3/apis/{crd['spec']['group']}/{version['name']}", crd["spec"]["names"]["plural"])
        for crd in json.loads(kubectl("get", "crd", "-o", "json"))["items"]
        for version in crd["spec"]["versions"]
        if version["served"]
    }
    while wanted:
        documents = json.loads(kubectl("get", "--raw", "/openapi/v3"))["paths"]
        for path in {path for path, _ in wanted if path.removeprefix("/openapi/v3/") in documents}:
            told = {one.rpartition("/")[2] for one in json.loads(kubectl("get", "--raw", path))["paths"]}
            wanted -= {(path, plural) for plural in told}
        if wanted and time.monotonic() > deadline:
            raise RuntimeError(f"the OpenAPI was without {sorted(wanted)} for two minutes")


def await_kinds(kubectl: Callable[..., str]) -> None:
    """Until every CRD is served and kubectl finds it: a real server tells of a kind a moment after it serves it.
    (`kubectl wait` gives up at once where a new one has no condition yet.)"""
    deadline = time.monotonic() + 120
    while True:
        found = json.loads(kubectl("get", "crd", "-o", "json"))["items"]
        if all(map(_is_established, found)):
            told = kubectl("api-resources", "-o", "name").split()
            if {crd["metadata"]["name"] for crd in found} <= set(told):
                return
        if time.monotonic() > deadline:
            raise RuntimeError("a CRD was not served within two minutes")
        time.sleep(0.1)


def _is_established(crd: dict[str, Any]) -> bool:
    conditions = (crd.get("status") or {}).get("conditions") or ()
    return any(one["type"] == "Established" and one["status"] == "True" for one in conditions)
