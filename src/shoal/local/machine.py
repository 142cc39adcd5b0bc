"""What this machine is and what it lets us do. Read once by `shoal up` and shown by `shoal doctor`."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import re
import shutil
import sys
from pathlib import Path

import msgspec

from shoal.local.nodes.runtime.devices import find_gpus
from shoal.local.nodes.runtime.limits import CGROUP
from shoal.local.nodes.sandbox import ownspace, trials


class Finding(msgspec.Struct, frozen=True):
    """One line of `shoal doctor`. `advice` is what to do when it is not good."""

    name: str
    good: bool
    detail: str
    advice: str = ""
    required: bool = False


def cpu_count() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def memory_bytes() -> int:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def capacity() -> dict[str, str]:
    """This machine as a node's capacity."""
    found = {"cpu": str(cpu_count()), "memory": f"{memory_bytes() // 1024}Ki"}
    disk = shutil.disk_usage("/")
    found["ephemeral-storage"] = f"{disk.total // 1024}Ki"
    if gpus := find_gpus():
        found["nvidia.com/gpu"] = str(len(gpus))
    return found


def gpu_labels() -> dict[str, str]:
    """This machine's GPUs as a node's labels, by the names that clusters with NVIDIA's feature discovery use."""
    found = find_gpus()
    if not found:
        return {}
    least = min(gpu.memory for gpu in found)
    product = re.sub(r"[^A-Za-z0-9_.-]+", "-", found[0].model).strip("-_.")[:63]
    return {"nvidia.com/gpu.memory": str(least), **({"nvidia.com/gpu.product": product} if product else {})}


def may_use_namespaces() -> bool:
    """Root's namespaces, networks among them, and the library that joins these."""
    return knows_netlink() and trials.changes_network() and trials.own_root(network=True)


def may_use_mounts() -> bool:
    """Root's namespaces but for networks."""
    return sys.platform == "linux" and trials.own_root()


def knows_netlink() -> bool:
    return sys.platform == "linux" and importlib.util.find_spec("pyroute2") is not None


def may_have_own_namespaces() -> bool:
    """Whether a user without rights gets a user namespace in which those of root are allowed."""
    return knows_netlink() and ownspace.permitted()


def may_have_own_mounts() -> bool:
    """The same but for networks."""
    return sys.platform == "linux" and ownspace.permitted(network=False)


def best_sandbox() -> str:
    """What `auto` means here."""
    if may_use_namespaces() or may_have_own_namespaces():
        return "netns"
    return "mounts" if may_use_mounts() or may_have_own_mounts() else "loopback"


def sandbox_finding() -> Finding:
    """Which sandbox pods get here, and why."""
    if may_use_namespaces():
        detail = "netns: own network, PID and mount namespaces"
        return Finding("sandbox", True, detail + (" (root)" if os.geteuid() == 0 else ""))
    if may_have_own_namespaces():
        detail = "netns: own network, PID and mount namespaces inside a user namespace, without rights"
        return Finding("sandbox", True, detail)
    block = "an address of 127.0.0.0/8 and a port block per pod"
    if best_sandbox() == "mounts":
        detail = f"mounts: own PID and mount namespaces; {block}"
        return Finding("sandbox", False, detail, f"for standard ports: {_no_networks()}")
    detail = f"loopback: {block}; needs no rights"
    return Finding("sandbox", False, detail, f"for standard ports and mount paths: {_no_mounts()}")


def _no_mounts() -> str:
    """Why there are no mount namespaces."""
    if os.geteuid() == 0:
        return (
            "this root may not make mount namespaces: allow CAP_SYS_ADMIN, and unshare and mount in its seccomp profile"
        )
    return (
        "neither root nor user namespaces: run as root, or allow unprivileged user namespaces (sysctl "
        "user.max_user_namespaces, kernel.apparmor_restrict_unprivileged_userns)"
    )


def _no_networks() -> str:
    """Why there are no network namespaces where there are others."""
    if not knows_netlink():
        return 'pyroute2 is missing: pip install "shoal-ray[local]"'
    if not trials.changes_network() and os.geteuid() == 0:
        return "this root may not change the network: allow CAP_NET_ADMIN"
    return "the kernel gives no network namespaces, or no bridge in them (sysctl user.max_net_namespaces)"


_PARTS = (
    (
        "own network",
        "pods have standard ports and addresses of their own",
        "pods share the machine's network: Ray's ports are moved into a block per pod, and two pods that listen on one "
        "port of all addresses clash",
    ),
    (
        "own files",
        "volumes are mounted at their paths, /tmp is the container's own",
        "mount paths are replaced in commands, environment and entrypoints, but not inside programs and files; "
        "/tmp is shared",
    ),
    (
        "own processes",
        "containers see their own processes only",
        "containers see every process of your user",
    ),
)
"""What a sandbox gives and what its lack costs, part by part."""


def part_findings(sandbox: str) -> list[Finding]:
    given = {"netns": ("own network", "own files", "own processes"), "mounts": ("own files", "own processes")}
    had = given.get(sandbox, ())
    return [Finding(name, name in had, good if name in had else cost) for name, good, cost in _PARTS]


def view_finding() -> Finding:
    """Whether pods of the loopback sandbox are kept from the cluster's credentials. In netns they are."""
    from shoal.local.nodes.sandbox import views

    view = views.best()
    detail = f"in loopback {views.described(view)}"
    advice = "run only pods that you trust, or allow user namespaces, or use a kernel with Landlock (5.19 or newer)"
    return Finding("pods and credentials", bool(view), detail, advice)


def outside_finding(sandbox: str) -> Finding:
    """How pods get to other networks."""
    from shoal.local.nodes.sandbox import nat

    if sandbox != "netns":
        return Finding("way out", True, "pods use the machine's own network")
    why = nat.obstacle() if may_use_namespaces() else "only root can translate addresses"
    detail = "pods are routed to other networks" if not why else "pods reach other networks through HTTPS_PROXY only"
    return Finding("way out", not why, detail, f"for a route: {why}")


def root_finding(sandbox: str) -> Finding:
    """What of the machine's files containers can change."""
    if sandbox == "loopback":
        detail = "not used in loopback: containers write where your user may, into the machine's own files"
        return Finding("overlay file system", False, detail)
    there = "overlay" in _text("/proc/filesystems")
    detail = "containers see a writable root of their own" if there else "missing"
    advice = "containers see the machine's root read-only; load the overlay module"
    return Finding("overlay file system", there, detail, advice)


def memory_controller() -> str:
    """Which control group version can hold memory limits here: `v2`, `v1` or empty."""
    with contextlib.suppress(OSError):
        if "memory" in (CGROUP / "cgroup.controllers").read_text().split() and os.access(CGROUP, os.W_OK):
            return "v2"
    if os.access(CGROUP / "memory", os.W_OK) and (CGROUP / "memory" / "memory.limit_in_bytes").exists():
        return "v1"
    return ""


def findings() -> list[Finding]:
    """Everything that `shoal doctor` looks at."""
    controller = memory_controller()
    disk = shutil.disk_usage(Path.home())
    shared = shutil.disk_usage("/dev/shm") if os.path.isdir("/dev/shm") else None
    ray = importlib.util.find_spec("ray") is not None
    sandbox = sandbox_finding()
    name = sandbox.detail.partition(":")[0]
    found = [
        Finding("Linux", sys.platform == "linux", sys.platform, "pods as processes need Linux", required=True),
        Finding(
            "Python", sys.version_info >= (3, 11), sys.version.split()[0], "use Python 3.11 or newer", required=True
        ),
        Finding(
            "Ray",
            ray,
            "installed beside shoal" if ray else "not found",
            'pods of Ray images will not start: pip install "shoal-ray[local]"',
        ),
        sandbox,
        *part_findings(name),
        view_finding(),
        outside_finding(name),
        root_finding(name),
        Finding(
            "memory limits",
            bool(controller),
            f"cgroup {controller}" if controller else "memory is watched once a second, CPU limits are not enforced",
            "for limits by the kernel run as root, or: systemd-run --user --scope -p Delegate=yes shoal up",
        ),
        Finding("GPUs", True, _gpus()),
        Finding(
            "cores and memory",
            cpu_count() >= 2 and memory_bytes() >= 4 << 30,
            f"{cpu_count()} cores, {memory_bytes() >> 30} GiB",
            "one Ray head takes 0.7 GiB and 5 CPU-seconds to start, a worker 0.25 GiB",
        ),
        Finding(
            "disk",
            disk.free > 2 << 30,
            f"{disk.free >> 30} GiB free at home",
            "free some space: state and logs are stored there",
        ),
        Finding(
            "/dev/shm",
            shared is not None and shared.total >= 1 << 30,
            f"{shared.total >> 20} MiB" if shared else "missing",
            "Ray's object store needs it: mount a larger tmpfs",
        ),
        Finding(
            "kubectl",
            shutil.which("kubectl") is not None,
            shutil.which("kubectl") or "not found",
            "optional: install kubectl to use the cluster from a shell",
        ),
    ]
    return found


def _gpus() -> str:
    found = find_gpus()
    return ", ".join(f"{gpu.model} ({gpu.memory >> 10} GiB)" for gpu in found) or "none"


def _text(path: str) -> str:
    with contextlib.suppress(OSError):
        return Path(path).read_text()
    return ""
