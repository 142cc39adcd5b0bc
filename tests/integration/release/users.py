"""A user with the cluster role edit, the load that they make, and what the server's audit log says of it."""

from __future__ import annotations

import json
import subprocess
import threading
from collections import Counter
from pathlib import Path

from tests.controlplane.plane import ControlPlane, run_kubectl
from tests.integration.release.release import SHOAL, Release, until

SAMPLES = Path(__file__).parents[3] / "samples"
LAB = "lab"
PAUSE = 0.3
"""Seconds between two submissions."""


class Eve:
    """A user with the cluster role edit in one namespace, and nothing else."""

    def __init__(self, release: Release) -> None:
        plane = self._plane = release.plane
        plane.kubectl("create", "namespace", LAB)
        plane.kubectl("-n", LAB, "create", "serviceaccount", "eve")
        plane.kubectl("-n", LAB, "create", "rolebinding", "eve", "--clusterrole=edit", f"--serviceaccount={LAB}:eve")
        self.kubeconfig = release.account("eve", LAB)

    def kubectl(self, *arguments: str, stdin: str | None = None) -> str:
        return run_kubectl(self._plane._binaries["kubectl"], self.kubeconfig, ("-n", LAB, *arguments), stdin)

    def shoal(self, *arguments: str) -> str:
        command = [*SHOAL, *arguments, "-n", LAB, f"--kubeconfig={self.kubeconfig}"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=120)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def until_may(self, *resources: str) -> None:
        for one in resources:
            until(
                lambda one=one: self.kubectl("auth", "can-i", "create", one).strip() == "yes", f"may not create {one}"
            )  # type: ignore[misc]

    def create(self, sample: str) -> None:
        text = (SAMPLES / sample).read_text().replace("namespace: default", f"namespace: {LAB}")
        self.kubectl("create", "-f", "-", stdin=text)

    def until_state(self, name: str, state: str) -> None:
        def is_so() -> bool:
            found = json.loads(self.kubectl("get", "appwrapper", name, "-o", "json"))
            return bool((found.get("status") or {}).get("state") == state)

        until(is_so, f"{name} is not {state}")

    def until_running(self, names: list[str]) -> None:
        def are_so() -> bool:
            found = json.loads(self.kubectl("get", "appwrappers.workload.codeflare.dev", "-o", "json"))["items"]
            running = {one["metadata"]["name"] for one in found if one.get("status", {}).get("state") == "Running"}
            return set(names) <= running

        until(are_so, f"not all of {len(names)} gangs run")

    def pods(self, cluster: str) -> list[str]:
        return self.kubectl("get", "pods", "-l", f"ray.io/cluster={cluster}", "-o", "name").split()

    def pods_of(self, job: str) -> list[str]:
        """Heads and workers of a RayJob."""
        clusters = json.loads(self.kubectl("get", "rayclusters", "-o", "json"))["items"]
        owned = [
            one for one in clusters if one["metadata"].get("labels", {}).get("ray.io/originated-from-cr-name") == job
        ]
        return [pod for one in owned for pod in self.pods(one["metadata"]["name"])]


class Load:
    """Eve submits gangs, one after the other, until told to stop; every refusal is kept."""

    def __init__(self, eve: Eve, name: str = "load") -> None:
        self._eve, self._name = eve, name
        self.submitted: list[str] = []
        self.refused: list[str] = []
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Load:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join(60)

    def _run(self) -> None:
        while not self._stop.wait(PAUSE):
            name = f"{self._name}-{len(self.submitted)}"
            amounts = {"requests": {"cpu": "10m", "memory": "1Mi"}}
            spec = {"containers": [{"name": "main", "image": "none", "resources": amounts}]}
            pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "namespace": LAB}, "spec": spec}
            wrapper = {
                "apiVersion": "workload.codeflare.dev/v1beta1",
                "kind": "AppWrapper",
                "metadata": {"name": name, "namespace": LAB},
                "spec": {"resources": {"GenericItems": [{"generictemplate": pod}]}},
            }
            try:
                self._eve.kubectl("create", "-f", "-", stdin=json.dumps(wrapper))
                self.submitted.append(name)
            except RuntimeError as error:
                self.refused.append(str(error))
                return


def created(plane: ControlPlane, resource: str) -> Counter[str]:
    """How often objects of a namespace were created, from the server's own audit log."""
    found: Counter[str] = Counter()
    for line in plane.audit_log.read_text().splitlines():
        entry = json.loads(line)
        reference = entry.get("objectRef") or {}
        if (entry["verb"], reference.get("resource"), reference.get("namespace")) != ("create", resource, LAB):
            continue
        stored = entry["stage"] == "ResponseComplete" and entry["responseStatus"]["code"] == 201
        if stored and not reference.get("subresource") and "dryRun" not in entry["requestURI"]:
            found[str(reference.get("name") or entry["responseObject"]["metadata"]["name"])] += 1
    return found
