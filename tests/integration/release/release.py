"""A release of the chart on a real control plane, by Helm itself; this module plays kubelet and Service network.

The Deployment's replicas are processes with the very command that the API server stores and the token of the release's
service account, and so is the Job that Helm runs before it deletes the release. `Relay` is the webhooks' Service.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from tests.controlplane.plane import ControlPlane, free_ports
from tests.patience import PATIENCE

Json = dict[str, Any]
CHART = Path(__file__).parents[3] / "charts" / "shoal"
SHOAL = (sys.executable, "-c", "import sys; from shoal.cli.main import main; sys.exit(main())")
NAMESPACE = "shoal-system"
CONTROLLER = "shoal-controller"
RELEASE = "shoal-release"


class Relay:
    """One address in front of replicas that come and go, as a Service is: a connection goes to the first that takes it,
    the newest first."""

    def __init__(self) -> None:
        (self.port,) = free_ports(1)
        self.targets: list[int] = []
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, daemon=True)

    @property
    def url(self) -> str:
        return f"https://127.0.0.1:{self.port}"

    def start(self) -> None:
        self._thread.start()
        self._call(asyncio.start_server(self._serve, "127.0.0.1", self.port))

    def stop(self) -> None:
        self._call(self._end())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)

    async def _end(self) -> None:
        serving = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
        for task in serving:
            task.cancel()
        await asyncio.gather(*serving, return_exceptions=True)

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.run_forever()

    def _call(self, work: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(30)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        for port in reversed(self.targets):
            with contextlib.suppress(OSError):
                inside, outside = await asyncio.open_connection("127.0.0.1", port)
                await asyncio.gather(_pump(reader, outside), _pump(inside, writer))
                return
        writer.close()


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError):
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()
    writer.close()


class Replica:
    """One controller process of the release."""

    def __init__(self, process: subprocess.Popen[bytes], log: Path, webhook_port: int, health_port: int) -> None:
        self.process, self.log = process, log
        self.webhook_port, self.health_port = webhook_port, health_port

    @property
    def said(self) -> str:
        return self.log.read_text()

    def until_ready(self) -> None:
        deadline, said = time.monotonic() + 2 * PATIENCE, ""
        while time.monotonic() < deadline:
            assert self.process.poll() is None, self.said
            try:
                with urllib.request.urlopen(f"http://127.0.0.1:{self.health_port}/readyz", timeout=10) as answer:
                    said = answer.read().decode()
                    return
            except urllib.error.HTTPError as error:
                said = error.read().decode()
            except OSError as error:
                said = str(error)
            time.sleep(0.1)
        raise AssertionError(f"never ready: {said}")

    def end(self) -> None:
        self.process.terminate()
        assert self.process.wait(60) == 0, self.said
        assert "forbidden" not in self.said.lower(), self.said


class Release:
    """One release of the chart, with its replicas."""

    def __init__(self, helm: Path, plane: ControlPlane, folder: Path) -> None:
        self.plane, self.folder, self._helm = plane, folder, helm
        self.relay = Relay()
        self.replicas: list[Replica] = []
        self._count = 0

    # --- Helm

    def helm(self, *arguments: str | Path) -> str:
        done = subprocess.run(
            [self._helm, *arguments, "--namespace", NAMESPACE, "--kubeconfig", self.plane.kubeconfig],
            capture_output=True,
            text=True,
            timeout=300,
            env={**os.environ, **{f"HELM_{one}_HOME": str(self.folder / one) for one in ("CACHE", "CONFIG", "DATA")}},
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    def install(self, verb: str, values: Json, chart: Path = CHART) -> None:
        path = self.folder / "values.json"
        path.write_text(json.dumps({"image": "registry.example/shoal:1", "webhookUrl": self.relay.url, **values}))
        more = ("--create-namespace",) if verb == "install" else ()
        self.helm(verb, "shoal", chart, "--values", path, *more)

    def uninstall(self) -> str:
        """Helm waits for its Job, whose pod is played here."""
        with contextlib.ExitStack() as stack:
            deleting = subprocess.Popen(
                [self._helm, "uninstall", "shoal", "--namespace", NAMESPACE, "--kubeconfig", self.plane.kubeconfig],
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
            stack.callback(deleting.kill)
            pod = self._pod_of_job()
            for replica in self.replicas:  # the Deployment is to be scaled to none by that Job: its pods end
                replica.process.terminate()
            self.run_pod(pod)
            out, errors = deleting.communicate(timeout=180)
            assert deleting.returncode == 0, errors
            return out

    # --- kubelet

    def get(self, *what: str) -> Json:
        return dict(json.loads(self.plane.kubectl("get", *what, "-o", "json")))

    def account(self, name: str, namespace: str) -> Path:
        """A kubeconfig with the token of a service account."""
        token = self.plane.kubectl("-n", namespace, "create", "token", name).strip()
        own = json.loads(self.plane.kubeconfig.read_text())
        own["users"] = [{"name": "admin", "user": {"token": token}}]
        path = self.folder / f"{namespace}-{name}.kubeconfig"
        path.write_text(json.dumps(own))
        return path

    def begin(self, environment: Json | None = None) -> Replica:
        """One more replica, as the stored Deployment has it; `environment` may lead to another release's code."""
        pod = self.get("-n", NAMESPACE, "deployment", CONTROLLER)["spec"]["template"]["spec"]
        webhook, health = free_ports(2)
        self._count += 1
        path, log = self.account(pod["serviceAccountName"], NAMESPACE), self.folder / f"replica-{self._count}.log"
        own = (f"--kubeconfig={path}", f"--webhook-url=https://127.0.0.1:{webhook}", f"--health-port={health}")
        command = pod["containers"][0]["command"]
        assert command[0] == "shoal"
        with log.open("wb") as output:
            process = subprocess.Popen(
                [*SHOAL, *command[1:], *own],
                stdout=output,
                stderr=output,
                env={**os.environ, "SHOAL_HISTORY": "memory", **(environment or {})},
            )
        replica = Replica(process, log, webhook, health)
        self.replicas.append(replica)
        self.relay.targets.append(webhook)
        return replica

    def end(self, replica: Replica) -> None:
        """As a kubelet ends a pod: no new connections, then SIGTERM."""
        self.relay.targets.remove(replica.webhook_port)
        self.replicas.remove(replica)
        replica.end()

    def _pod_of_job(self) -> Json:
        found: list[Json] = []

        def there() -> bool:
            pods = self.get("-n", NAMESPACE, "pods", "-l", f"batch.kubernetes.io/job-name={RELEASE}")["items"]
            found[:] = [one for one in pods if (one.get("status") or {}).get("phase") == "Running"]
            return bool(found)

        until(there, "the Job before the removal has no running pod")
        return found[0]

    def run_pod(self, pod: Json) -> None:
        (container,) = pod["spec"]["containers"]
        path = self.account(pod["spec"]["serviceAccountName"], NAMESPACE)
        assert container["command"][0] == "shoal"
        done = subprocess.run(
            [*SHOAL, *container["command"][1:], f"--kubeconfig={path}"], capture_output=True, text=True, timeout=180
        )
        assert done.returncode == 0, done.stderr
        ended = json.dumps({"status": {"phase": "Succeeded", "containerStatuses": None}})
        name = pod["metadata"]["name"]
        where = ("-n", NAMESPACE, "pod", name, "--subresource=status", "--type=merge", "-p", ended)
        self.plane.kubectl("patch", *where)

    def stop(self) -> None:
        for replica in self.replicas:
            replica.process.kill()
            replica.process.wait()
        self.relay.stop()


def until(holds: Callable[[], bool], otherwise: str) -> None:
    """A refusal of the server counts as not yet."""
    deadline, refused = time.monotonic() + 2 * PATIENCE, ""
    while True:
        try:
            if holds():
                return
            refused = ""
        except RuntimeError as error:
            refused = str(error)
        assert time.monotonic() < deadline, f"{otherwise}: {refused}"
        time.sleep(0.2)


@contextlib.contextmanager
def released(helm: Path, plane: ControlPlane, folder: Path) -> Iterator[Release]:
    release = Release(helm, plane, folder)
    release.relay.start()
    try:
        yield release
    finally:
        release.stop()
