"""A hostile pod in both sandboxes, as root and as an ordinary user: what it learns of the cluster and of its machine.

Each world is a process of its own, as the agent of `shoal up` is one: `python -m tests.attacks.pods SANDBOX VIEW DIR`
runs the hostile pod beside a victim and prints what it got hold of. As root, the ordinary user is `nobody`.
"""

from __future__ import annotations

import asyncio
import base64
import json
import os
import secrets
import shutil
import sys
import tempfile
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import partial
from pathlib import Path

import msgspec

from shoal.local.nodes.runtime.host import PodHost
from shoal.local.nodes.runtime.limits import NoLimits
from shoal.local.nodes.runtime.shim import kernel, private
from shoal.local.nodes.sandbox import Sandbox, ownspace, views
from shoal.local.nodes.sandbox.loopback import LoopbackSandbox, MountsSandbox
from shoal.local.nodes.sandbox.netns import NetnsSandbox
from tests.attacks.attack import Room, Succeeded, Unable
from tests.patience import PATIENCE

SCRIPT = Path(__file__).with_name("hostile_pod.py")
NOBODY = 65534
HIDES = True
"""False: worlds are as they were before anything was hidden, for the proof that the attacks work."""
ROOT = Path(__file__).parents[2]


class Outcome(msgspec.Struct):
    """What the hostile pod printed, or why it could not be tried."""

    lines: list[dict[str, object]] = []
    unable: str = ""

    def judged(self, *whats: str) -> str:
        if self.unable:
            raise Unable(self.unable)
        if not any("done" in line for line in self.lines):
            raise Succeeded(f"the hostile pod did not come to its end: {self.lines}")
        found = [line for line in self.lines if "what" in line and (not whats or str(line["what"]).startswith(whats))]
        if found:
            raise Succeeded("; ".join(f"{line['what']}: {line['how']}" for line in found[:5]))
        user = next(line["uid"] for line in self.lines if "done" in line)
        return f"nothing found (as user {user} in its own eyes)"


def become(user: int) -> None:
    """In a child, before it becomes another program: this user, who sees the Python that root has at home."""
    prefixes = [sys.base_prefix, sys.prefix, str(ROOT)]
    closed = {str(above) for prefix in prefixes for above in Path(prefix).parents if not above.stat().st_mode & 1}
    if closed:
        kernel.unshare(kernel.CLONE_NEWNS)
        kernel.mount("none", "/", None, kernel.MS_REC | kernel.MS_PRIVATE)
        private.cover("", sorted(closed), [[prefix, False] for prefix in prefixes])
    os.setgroups([])
    os.setresgid(user, user, user)
    os.setresuid(user, user, user)


async def attempt(sandbox: str, view: str, user: int) -> Outcome:
    """Run a world of its own as this user."""
    if user != os.geteuid() and os.geteuid() != 0:
        return Outcome(unable=f"only root can act as user {user}")
    folder = Path(tempfile.mkdtemp(prefix="attacked-", dir="/var/tmp"))
    try:
        os.chmod(folder, 0o755)
        if user != os.geteuid():
            os.chown(folder, user, user)
        command = [sys.executable, "-m", "tests.attacks.pods", sandbox, view if HIDES else "", str(folder)]
        command += [] if HIDES else ["open"]
        process = await asyncio.create_subprocess_exec(
            *command,
            cwd=ROOT,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            env={**os.environ, "HOME": str(folder), "PYTHONDONTWRITEBYTECODE": "1"},
            preexec_fn=partial(become, user) if user != os.geteuid() else None,
        )
        output, errors = await asyncio.wait_for(process.communicate(), 3 * PATIENCE)
        if process.returncode == 3:
            return Outcome(unable=errors.decode().strip().splitlines()[-1])
        lines = [json.loads(line) for line in output.decode().splitlines() if line.startswith("{")]
        if process.returncode:
            raise RuntimeError(errors.decode()[-2000:])
        return Outcome(lines=lines)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


async def world(sandbox: Sandbox, view: str, folder: Path, hides: bool) -> list[str]:
    """A cluster's folder with secrets, a pod that has one, and the hostile pod: what that prints."""
    from tests.processes.conftest import Machine, Things, pod, text

    mark = secrets.token_hex(16)
    (folder / "state" / "api").mkdir(parents=True, mode=0o700)
    for name in ("api/ca.key", "kubeconfig", "running.json"):
        (folder / "state" / name).write_text(f'"{mark}"')
    shared = Path("/dev/shm") / f"shoal-attacked-{os.getpid()}"
    shared.mkdir(mode=0o700)
    (shared / "secret").write_text(mark)
    host = PodHost(
        directory=folder / "state" / "run",
        sandbox=sandbox,
        sources=Things(),
        limits=NoLimits(),
        private=(folder / "state", shared) if hides else (),
        view=view,
    )
    machine = Machine(host, host.sources)  # type: ignore[arg-type]
    machine.things.secrets["token"] = {"data": {"token": base64.b64encode(mark.encode()).decode()}}
    await sandbox.start()
    try:
        volumes = [{"name": "own", "secret": {"secretName": "token"}}]
        mounts = [{"name": "own", "mountPath": "/own"}]
        victim = pod("victim", "sleep", "600", container={"volumeMounts": mounts}, volumes=volumes)
        machine.start(victim)
        (folder / "script").mkdir()
        shutil.copy(SCRIPT, folder / "script" / "hostile.py")
        environment = {"LOOK_FOR": mark[::-1], "LOOK_IN": str(folder / "state")}
        if sandbox.roots:
            environment["OWN_ROOT"] = "1"
        hostile = pod(
            "hostile",
            "python3",
            str(folder / "script" / "hostile.py"),
            image="python",
            container={"env": [{"name": name, "value": value} for name, value in environment.items()]},
        )
        run = await machine.ended(hostile)
        return (await text(run)).splitlines()
    finally:
        for one in machine.pods:
            one.stop(0)
            await one.finished.wait()
        await sandbox.stop()
        shutil.rmtree(shared, ignore_errors=True)


def main(sandbox: str, view: str, folder: Path, *options: str) -> None:
    """In a process of its own."""
    name = f"attacked@{folder}"
    pods = folder / "state" / "run" / "pods"
    if sandbox == "netns":
        outward = None
        if os.geteuid() != 0:
            if not ownspace.permitted():
                print("user namespaces are not allowed here", file=sys.stderr)
                sys.exit(3)
            outward = ownspace.enter(pods, 0).outward
        made: Sandbox = NetnsSandbox(name, None, outward)
    elif sandbox == "mounts":
        if os.geteuid() != 0:
            if not ownspace.permitted(network=False):
                print("user namespaces are not allowed here", file=sys.stderr)
                sys.exit(3)
            ownspace.enter_mounts(pods)
        made = MountsSandbox(name, None, pods)
    else:
        if view and not views._works(view):
            print(f"this machine does not allow {view}", file=sys.stderr)
            sys.exit(3)
        made = LoopbackSandbox(name, None, pods)
    for line in asyncio.run(world(made, view if sandbox == "loopback" else "", folder, "open" not in options)):
        print(line)


def room(name: str, sandbox: str, view: str, user: int) -> Room:
    @asynccontextmanager
    async def tried() -> AsyncIterator[Outcome]:
        yield await attempt(sandbox, view, user)

    opened: Callable[[], AbstractAsyncContextManager[Outcome]] = tried
    made = Room(name, opened)

    def attack(what: str, *whats: str) -> None:
        async def carry_out(outcome: Outcome) -> str:
            return outcome.judged(*whats)

        made.attack("a pod", what)(carry_out)

    attack("reads the CA's key, the administrator's token and other pods' secrets, by every path", "read", "linked")
    attack("reaches them through other processes: root, environment, memory, namespaces", "entered", "opened")
    attack("takes away what covers them: unmounts, mounts elsewhere, in namespaces of its own", "took", "mounted")
    attack("changes its own record, the cluster's files, settings of the kernel", "could")
    attack("anything else that it tries")
    return made


ROOMS = (
    room("the machine, as a pod of root in netns", "netns", "", 0),
    room("the machine, as a pod of an ordinary user in netns", "netns", "", NOBODY),
    room("the machine, as a pod of root in mounts", "mounts", "", 0),
    room("the machine, as a pod of an ordinary user in mounts", "mounts", "", NOBODY),
    room("the machine, as a pod of root in loopback (mounts)", "loopback", views.MOUNTS, 0),
    room("the machine, as a pod of root in loopback (Landlock)", "loopback", views.LANDLOCK, 0),
    room("the machine, as a pod of an ordinary user in loopback (mounts)", "loopback", views.USER_MOUNTS, NOBODY),
    room("the machine, as a pod of an ordinary user in loopback (Landlock)", "loopback", views.LANDLOCK, NOBODY),
)

if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], Path(sys.argv[3]), *sys.argv[4:])
