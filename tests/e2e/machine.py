"""`shoal up` as a user runs it: a command, kubectl, and a process tree that must be empty afterwards."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from itertools import pairwise
from pathlib import Path
from typing import Any

from shoal.local.home import Home
from tests.checker import assert_holds, from_audit
from tests.checker.at_rest import Rules
from tests.controlplane import build
from tests.e2e import invariants
from tests.resting import Beside

SHOAL = str(Path(sys.executable).with_name("shoal"))


class Machine:
    """One named cluster of this machine, with its state in a folder of its own."""

    def __init__(self, name: str, home: Path, launcher: tuple[str, ...] = ()) -> None:
        """`launcher` is put before every `shoal`, to run it as someone else."""
        self.name = name
        self.home = home
        self._launcher = launcher
        self.environment = {**os.environ, "XDG_STATE_HOME": str(home), "KUBECONFIG": str(home / "kubeconfig")}
        self.environment["KUBECACHEDIR"] = str(home / "kubectl-cache")  # another server may have had its port
        self._audit = home / "audit.log"
        self.rules = Rules()
        self._beside: Beside | None = None
        self.kubectl_path = shutil.which("kubectl") or str(build.binaries("kubectl")["kubectl"])

    def up(self, *arguments: str) -> str:
        self._forget()
        chosen = dict(pairwise(arguments))
        self.rules = Rules(
            wrapper_supply=chosen.get("--supply", "fit"),
            policy=chosen.get("--policy", "priority"),
            preemption="--preemption" in arguments,
        )
        return self.shoal("up", "--name", self.name, "--detach", "--audit-log", str(self._audit), *arguments)

    def down(self, *arguments: str) -> str:
        """Stop it, and judge what it did to processes and the whole history of its API server."""
        home = Home(self.name, self.home / "shoal")
        started = invariants.whole_tree(home)
        if home.running() is not None:
            invariants.hold_while_running(home, lambda: (self.get("pods", "-A")["items"], self.get("nodes")["items"]))
        self._forget()
        said = self.shoal("down", "--name", self.name, *arguments)
        invariants.hold_afterwards(home, started)
        invariants.hold_in_order(home)
        judge(self._audit)
        return said

    def hold_at_rest(self) -> None:
        """Judge what is stored once nothing changes, where a cluster runs that decides."""
        home = Home(self.name, self.home / "shoal")
        if home.running() is not None:
            self._beside = self._beside or Beside(home.kubeconfig)
            self._beside.hold(self.rules)

    def _forget(self) -> None:
        """Connections to a cluster that is gone, or comes back elsewhere."""
        if self._beside is not None:
            self._beside.close()
        self._beside = None

    def shoal(self, *arguments: str, fails: bool = False) -> str:
        """What the command printed; `fails` expects it to refuse and returns its complaint."""
        return self._run([*self._launcher, SHOAL, *arguments], fails=fails)

    def kubectl(self, *arguments: str, stdin: str | None = None, fails: bool = False) -> str:
        return self._run([self.kubectl_path, *arguments], stdin=stdin, fails=fails)

    def pid(self) -> int:
        """The process that runs the cluster."""
        return int(json.loads((self.home / "shoal" / self.name / "running.json").read_text())["pid"])

    def get(self, *arguments: str) -> dict[str, Any]:
        return dict(json.loads(self.kubectl("get", *arguments, "-o", "json")))

    def names(self, resource: str, labels: str = "") -> list[str]:
        listed = self.kubectl("get", resource, "-l", labels, "-o", "name")
        return sorted(line.split("/", 1)[1] for line in listed.split())

    def wait(self, what: str, condition: str, *more: str, seconds: int = 180) -> None:
        """kubectl wait; with `create` as condition it also waits for the object to appear."""
        self.kubectl("wait", what, f"--for={condition}", f"--timeout={seconds}s", *more)

    def _run(self, command: list[str], *, stdin: str | None = None, fails: bool = False) -> str:
        done = subprocess.run(
            command, input=stdin, capture_output=True, text=True, env=self.environment, timeout=300, check=False
        )
        said = f"{Path(command[0]).name} {' '.join(command[1:])}: {done.stdout}{done.stderr}"
        assert (done.returncode != 0) == fails, said
        return done.stderr if fails else done.stdout


def judge(audit_log: Path) -> None:
    """Hold the invariants against all that was asked of a cluster; what is not from us only counts as circumstance."""
    if audit_log.exists():
        assert_holds(from_audit(audit_log, agents=("shoal",)))
