"""How fast RayServices become ready, and what that costs: Shoal's operator and KubeRay's own, one after the other.

    python bench/operator.py services [--services 50] [--subject all|shoal|kuberay]

Each operator gets a fresh real control plane with KWOK nodes. Pods there are only told to run, so one server answers
for every dashboard and every Serve proxy: in a network of this bench's own, in which all addresses of pods lead to it
(`unshare --net`; needs root). Both operators reach dashboards through the API server. Every RayService is one
head and one worker with one application. Prints one JSON line each: seconds from the first create until every
RayService is Ready, writes per RayService as kube-apiserver counts them (creates by this bench are not among them),
calls to dashboards, and CPU seconds of the operator; then the same for half a minute at rest.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from aiohttp import web
from ray_operator import AT_ONCE, ended, reached, rest
from tests.controlplane import build
from tests.controlplane.plane import ControlPlane, cpu_seconds, free_ports

from shoal.api.crds import load_crds
from shoal.api.kinds import CRD, RAY_SERVICE
from shoal.controllers.ray import Operator, RaySettings
from shoal.kube.cache import Cache, Change
from shoal.kube.client import Client
from shoal.kube.kubeconfig import load
from shoal.kube.transport import Request

ENTRY = Path(__file__).with_name("operator.py")
INSIDE = "SHOAL_BENCH_NETWORK"
PODS = "10.0.0.0/24"
"""Where KWOK takes the addresses of pods from."""
KUBERAY = "github.com/ray-project/kuberay/ray-operator"
REST_SECONDS = 30.0
PATIENCE = 600.0
CORE = ("services", "pods", "secrets", "roles", "rolebindings")
COUNTED = re.compile(r"apiserver_request_total\{([^}]*)\} ([0-9.e+]+)")
CONFIG = """
applications:
- name: hello
  route_prefix: /
  import_path: hello:app
  deployments: [{name: Hello, num_replicas: 1}]
"""


def ray_service(number: int) -> dict[str, Any]:
    def template(name: str) -> dict[str, Any]:
        amounts = {"cpu": "100m", "memory": "2Gi"}
        container = {
            "name": name,
            "image": "rayproject/ray:2.60.0",
            "resources": {"limits": amounts, "requests": amounts},
        }
        return {"spec": {"containers": [container]}}

    group = {"groupName": "workers", "replicas": 1, "minReplicas": 1, "maxReplicas": 1, "rayStartParams": {}}
    spec = {
        "rayVersion": "2.60.0",
        "headGroupSpec": {"rayStartParams": {}, "template": template("ray-head")},
        "workerGroupSpecs": [{**group, "template": template("ray-worker")}],
    }
    return {
        "apiVersion": "ray.io/v1",
        "kind": "RayService",
        "metadata": {"name": f"bench-{number}", "namespace": "default"},
        "spec": {"serveConfigV2": CONFIG, "rayClusterConfig": spec},
    }


class Dashboards:
    """Every pod's Ray: Serve takes each configuration and runs it at once."""

    def __init__(self) -> None:
        self.calls: Counter[str] = Counter()
        self._configured: set[str] = set()

    async def listen(self) -> web.AppRunner:
        app = web.Application()
        app.router.add_route("*", "/{path:.*}", self._answer)
        runner = web.AppRunner(app, access_log=None)
        await runner.setup()
        for port in (8265, 8000):
            await web.TCPSite(runner, "0.0.0.0", port, backlog=1024).start()
        return runner

    async def _answer(self, request: web.Request) -> web.Response:
        assert request.transport is not None
        address = request.transport.get_extra_info("sockname")[0]
        self.calls[f"{request.method} {request.path}"] += 1
        if request.path.startswith("/api/serve/applications"):
            if request.method == "PUT":
                self._configured.add(address)
                return web.json_response({})
            deployment = {"name": "Hello", "status": "HEALTHY", "message": ""}
            hello = {"name": "hello", "status": "RUNNING", "message": "", "deployments": {"Hello": deployment}}
            return web.json_response({"applications": {"hello": hello} if address in self._configured else {}})
        return web.Response(text="success")


async def install(client: Client, subject: str) -> None:
    if subject == "shoal":
        definitions = [crd for crd in load_crds() if crd["spec"]["group"] in ("ray.io", "ray.k8s.io")]
    else:
        from shoal.api.manifests import read

        folder = build.module_folder("kuberay", KUBERAY) / "config" / "crd" / "bases"
        definitions = [one for path in sorted(folder.glob("*.yaml")) for one in read(path.read_text())]
    for crd in definitions:
        await client.create(CRD, crd)
    for crd in definitions:
        while True:
            held = await client.get(CRD, crd["metadata"]["name"])
            conditions = (held.get("status") or {}).get("conditions") or []
            if any(one["type"] == "Established" and one["status"] == "True" for one in conditions):
                break
            await asyncio.sleep(0.1)


async def bring_up(client: Client, services: int) -> float:
    """Seconds from the first create until all are Ready."""
    ready: set[str] = set()
    done = asyncio.Event()

    def changed(change: Change) -> None:
        conditions = ((change.new or {}).get("status") or {}).get("conditions") or []
        if any(one["type"] == "Ready" and one["status"] == "True" for one in conditions):
            ready.add(change.key.name)
            if len(ready) == services:
                done.set()

    cache: Cache[dict[str, Any]] = Cache(client, RAY_SERVICE, dict)
    cache.subscribe(changed)
    watching = asyncio.create_task(cache.run())
    await cache.synced.wait()
    slots = asyncio.Semaphore(AT_ONCE)

    async def create(number: int) -> None:
        async with slots:
            await client.create(RAY_SERVICE, ray_service(number), "default")

    began = time.monotonic()
    await asyncio.gather(*(create(number) for number in range(services)))
    try:
        await asyncio.wait_for(done.wait(), PATIENCE)
    except TimeoutError:
        raise SystemExit(f"only {len(ready)} of {services} RayServices became ready") from None
    seconds = time.monotonic() - began
    await ended(watching)
    return seconds


async def writes(client: Client) -> Counter[str]:
    """What kube-apiserver has counted so far of what an operator writes, by verb and resource."""
    answer = await client.transport.send(Request(method="GET", path="/metrics", headers=dict(client.headers)))
    found: Counter[str] = Counter()
    for labels, count in COUNTED.findall(answer.body.decode()):
        told = dict(re.findall(r'(\w+)="([^"]*)"', labels))
        part = told.get("subresource", "")
        own = told.get("group") == "ray.io" or (told.get("resource") in CORE and not part)
        if own and told.get("verb") in ("POST", "PUT", "PATCH", "APPLY", "DELETE"):
            found[f"{told['verb']} {told['resource']}{'/' + part if part else ''}"] += int(float(count))
    return found


async def measure(kubeconfig: Path, services: int, pid: int) -> dict[str, Any]:
    dashboards = Dashboards()
    runner = await dashboards.listen()
    try:
        async with reached(kubeconfig) as client:
            before, used = await writes(client), cpu_seconds(pid)
            seconds = await bring_up(client, services)
            told, spent, calls = await writes(client) - before, cpu_seconds(pid) - used, dashboards.calls.total()
            told["POST rayservices"] -= services  # this bench's own
            before, used = await writes(client), cpu_seconds(pid)
            await asyncio.sleep(REST_SECONDS)
            at_rest = await writes(client) - before
            per = {name: round(count / services, 2) for name, count in sorted(told.items()) if count}
            return {
                "seconds": round(seconds, 2),
                "writes_per_service": round(sum(per.values()), 2),
                "dashboard_calls_per_service": round(calls / services, 1),
                "cpu_operator": round(spent, 2),
                "at_rest": {
                    "seconds": REST_SECONDS,
                    "writes": at_rest.total(),
                    "dashboard_calls_per_service": round((dashboards.calls.total() - calls) / services, 1),
                    "cpu_operator": round(cpu_seconds(pid) - used, 2),
                },
                "by_kind": per,
            }
    finally:
        await runner.cleanup()


@contextmanager
def operating(subject: str, control: ControlPlane, log: Path) -> Iterator[int]:
    if subject == "shoal":
        command = [sys.executable, str(ENTRY), "operator", "--through-server", "--kubeconfig", str(control.kubeconfig)]
    else:
        metrics, probes = free_ports(2)
        command = [
            str(build.program("kuberay", KUBERAY)), f"--metrics-addr=127.0.0.1:{metrics}",
            f"--health-probe-bind-address=127.0.0.1:{probes}", "--enable-leader-election=false",
            "--reconcile-concurrency=10", "--use-kubernetes-proxy",
        ]  # fmt: skip
    with log.open("wb") as file:
        environment = {**os.environ, "KUBECONFIG": str(control.kubeconfig), "ENABLE_WEBHOOKS": "false"}
        process = subprocess.Popen(command, env=environment, stdout=file, stderr=file)
    try:
        time.sleep(5)  # its caches are filled
        if process.poll() is not None:
            raise SystemExit(f"the operator ended: {log.read_text()[-2000:]}")
        yield process.pid
    finally:
        process.terminate()
        process.wait(60)


def run(subject: str, services: int) -> dict[str, Any]:
    folder = Path(tempfile.mkdtemp(prefix="shoal-bench-")) / "state"
    control = ControlPlane(folder, controllers=True, scheduler=True, kwok=True)
    control.start()
    try:
        for number in range(10):
            control.add_node(f"node-{number}", cpu="64", memory="256Gi", pods="500")

        async def prepare() -> None:
            async with reached(control.kubeconfig) as client:
                await install(client, subject)

        asyncio.run(prepare())
        control.restart_controllers()
        rest(control)
        with operating(subject, control, folder.parent / f"{subject}.log") as pid:
            return asyncio.run(measure(control.kubeconfig, services, pid))
    finally:
        control.stop()


async def operate(kubeconfig: str) -> None:
    """Shoal's operator alone, until it is ended."""
    settings = RaySettings(kubernetes_proxy=True)
    await Operator(Client(load(kubeconfig), timeout=60), settings).run_until_cancelled()


def own_network() -> None:
    """Start again in a network in which addresses of pods lead to this machine; nothing outside it changes."""
    if os.environ.get(INSIDE):
        from pyroute2 import IPRoute

        with IPRoute() as network:
            loopback = network.link_lookup(ifname="lo")[0]
            network.link("set", index=loopback, state="up")
            network.addr("add", index=loopback, address="10.255.255.1", prefixlen=32)
            network.route("add", dst=PODS, oif=loopback, type="local", table=255, scope=254)
            network.route("add", dst="0.0.0.0/0", oif=loopback, scope=253)
        return
    os.execvpe("unshare", ["unshare", "--net", sys.executable, *sys.argv], {**os.environ, INSIDE: "1"})


def main(services: int, subject: str) -> None:
    subjects = ("shoal", "kuberay") if subject == "all" else (subject,)
    if "kuberay" in subjects and not os.environ.get(INSIDE):  # nothing can be downloaded from there
        build.module_folder("kuberay", KUBERAY)
        build.program("kuberay", KUBERAY)
    own_network()
    for one in subjects:
        print(json.dumps({"where": "services", "subject": one, "services": services, **run(one, services)}), flush=True)
