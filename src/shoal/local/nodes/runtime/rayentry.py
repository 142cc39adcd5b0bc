"""The `ray` command of a pod in the loopback and mounts sandboxes, and the wait for Ray's GCS in all.

Pods of those share the machine's network, and Ray's daemons bind the wildcard address. So this entry, first on
the pod's PATH, gives every daemon the pod's own address and ports, and turns the addresses that manifests name (Service
names, localhost, standard ports) into real ones. Standard library only; run as `python -I -S rayentry.py MODE …`.
It must never end another pod's Ray: `stop` signals descendants of this pod's own containers alone.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import sys
import time

TYPE_CHECKING = False  # as `typing` has it, whose import would cost every container's start
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

# flag of `ray start`, its default, its place in the pod's block
FLAGS = {
    "--port": (6379, 0),
    "--node-manager-port": (8076, 1),
    "--object-manager-port": (8077, 2),
    "--dashboard-agent-grpc-port": (52366, 3),
    "--dashboard-agent-listen-port": (52365, 4),
    "--metrics-export-port": (8080, 5),
    "--runtime-env-agent-port": (52367, 6),
    "--ray-client-server-port": (10001, 8),
}
HEAD_ONLY = ("--port", "--ray-client-server-port")
FORCED = {"--min-worker-port": "0", "--max-worker-port": "0"}
DROPPED = ("--worker-port-list",)
"""Ports of the machine, which pods of one manifest would all bind."""


class RayPod:
    """What the agent wrote down about this pod and its neighbours."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        self.directory = environment.get("SHOAL_POD_DIR", "")
        self.hosts = environment.get("SHOAL_HOSTS") or os.path.join(self.directory, "hosts")
        self.address = environment.get("SHOAL_POD_IP", "")
        self.base = int(environment.get("SHOAL_PORT_BASE") or 0)
        self.scratch = environment.get("SHOAL_SCRATCH", "")

    def resolve(self, host: str, port: int) -> tuple[str, int] | None:
        """Where host:port of the manifest really is."""
        address = self.address if host in ("localhost", "127.0.0.1") and self.base else self.named(host)
        if address is None:
            return None
        base, ports = self.neighbour(address)
        number = ports.get(str(port))
        if number is None:
            place = next((place for default, place in FLAGS.values() if default == port), None)
            number = base + place if base and place is not None else port
        return address, number

    def named(self, host: str) -> str | None:
        for line in read(self.hosts).splitlines():
            words = line.partition("#")[0].split()
            if host in words[1:]:
                return words[0]
        try:
            return str(socket.getaddrinfo(host, None, socket.AF_INET)[0][4][0])
        except OSError:
            return None

    def neighbour(self, address: str) -> tuple[int, dict[str, int]]:
        """Port block and recorded ports of the pod at this address."""
        found = self.peers().get(address)
        if found is None:
            return 0, {}
        place = os.path.join(os.path.dirname(self.directory), os.path.basename(found["directory"]))
        return found["base"], written(place, "ports.json")

    def peers(self) -> dict[str, Any]:
        return written(os.path.dirname(self.directory), "peers.json")


def read(path: str) -> str:
    try:
        with open(path, encoding="utf-8") as file:
            return file.read()
    except OSError:
        return ""


def written(directory: str, name: str) -> dict[str, Any]:
    """A JSON object that the agent wrote, or an empty one."""
    try:
        found: dict[str, Any] = json.loads(read(os.path.join(directory, name)))
    except ValueError:
        return {}
    return found


def taken(arguments: list[str], wanted: tuple[str, ...]) -> tuple[list[str], list[tuple[str, str]]]:
    """Command line words, and what these flags were given as (flag, value); words of other flags stay as they are."""
    words: list[str] = []
    given: list[tuple[str, str]] = []
    index = 0
    while index < len(arguments):
        flag, sign, value = arguments[index].partition("=")
        if flag not in wanted:
            words.append(arguments[index])
        elif sign:
            given.append((flag, value))
        elif index + 1 < len(arguments):
            index += 1
            given.append((flag, arguments[index]))
        index += 1
    return words, given


def start_arguments(arguments: list[str], pod: RayPod) -> list[str]:
    """`ray start` with the pod's own address, ports and directory."""
    kept, given = taken(
        arguments, (*FLAGS, *FORCED, *DROPPED, "--address", "--node-ip-address", "--temp-dir", "--dashboard-host")
    )
    chosen, head = dict(given), "--head" in kept
    recorded: dict[str, int] = {}
    if "--address" in chosen:
        kept.append(f"--address={real_address(chosen['--address'], pod)}")
    for flag, (default, place) in FLAGS.items():
        if flag in HEAD_ONLY and not head:
            continue
        asked = chosen.get(flag, str(default))
        recorded[asked] = pod.base + place
        kept.append(f"{flag}={pod.base + place}")
    kept += [f"{flag}={value}" for flag, value in FORCED.items()]
    temporary = pod.scratch or chosen.get("--temp-dir", "/tmp/ray")  # the latter where it is the container's own
    kept += [f"--node-ip-address={pod.address}", f"--temp-dir={temporary}"]
    if head:
        kept.append(f"--dashboard-host={pod.address}")
    known = written(pod.directory, "ports.json")
    with open(os.path.join(pod.directory, "ports.json"), "w", encoding="utf-8") as file:
        json.dump({**known, **recorded}, file)
    return kept


def real_address(text: str, pod: RayPod) -> str:
    """`[scheme://]host:port` with host and port as they really are; waits for a name that has no address yet."""
    scheme, sign, rest = text.rpartition("://")
    host, colon, port = rest.partition(":")
    if not colon or not port.rstrip("/").isdigit():
        return text
    while True:
        found = pod.resolve(host, int(port.rstrip("/")))
        if found is not None:
            return f"{scheme}{sign}{found[0]}:{found[1]}"
        time.sleep(0.25)


def translate(arguments: list[str], pod: RayPod) -> list[str]:
    """Any `ray` command line. Only addresses change; every other word reaches Ray as it was written."""
    if arguments[:1] == ["start"]:
        return ["start", *start_arguments(arguments[1:], pod)]
    translated = list(arguments)
    end = arguments.index("--") if "--" in arguments else len(arguments)  # an entrypoint follows: it is the user's
    for index, word in enumerate(arguments[:end]):
        flag, sign, value = word.partition("=")
        if flag in ("--address", "--gcs-address"):
            if sign:
                translated[index] = f"{flag}={real_address(value, pod)}"
            elif index + 1 < end:
                translated[index + 1] = real_address(arguments[index + 1], pod)
    if arguments[:1] == ["kuberay-autoscaler"] and not any(word.startswith("--gcs-address") for word in arguments):
        translated.append(f"--gcs-address={real_address('localhost:6379', pod)}")  # else the machine's own address
    return translated


def stop_own(pod: RayPod) -> None:
    """End the Ray of this pod and of no other: SIGTERM to its `ray start` processes."""
    own, stopped = f" --node-ip-address={pod.address} ".encode(), 0
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                with open(f"/proc/{name}/cmdline", "rb") as file:
                    line = file.read().replace(b"\0", b" ") + b" "
            except OSError:
                continue
            if own in line and b" start " in line and b"rayentry" not in line:
                with contextlib.suppress(OSError):
                    os.kill(int(name), signal.SIGTERM)
                    stopped += 1
    print(f"Stopped {stopped} Ray node(s) of this pod.", flush=True)


def wait(host: str, port: int) -> None:
    """Exit when host:port accepts a connection."""
    pod, began, said = RayPod(os.environ), time.monotonic(), 0.0
    print(f"waiting for {host}:{port}", flush=True)
    while True:
        found = pod.resolve(host, port) if pod.base else (host, port)
        try:
            if found is not None:
                with socket.create_connection(found, timeout=2):
                    print(f"{host}:{port} answers after {time.monotonic() - began:.1f} s", flush=True)
                    return
            problem = "the name has no address yet"
        except OSError as error:
            problem = str(error)
        if time.monotonic() - began > 120 and time.monotonic() - said > 30:
            said = time.monotonic()
            print(f"{host}:{port}: {problem}", flush=True)
        time.sleep(0.25)


def ray(real: str, arguments: list[str]) -> None:
    pod = RayPod(os.environ)
    environment = dict(os.environ)
    if arguments[:1] == ["stop"]:
        stop_own(pod)
        return
    if environment.get("RAY_ADDRESS"):
        environment["RAY_ADDRESS"] = real_address(environment["RAY_ADDRESS"], pod)
    os.execve(real, [real, *translate(arguments, pod)], environment)


if __name__ == "__main__":
    if sys.argv[1] == "wait":
        wait(sys.argv[2], int(sys.argv[3]))
    elif sys.argv[1] == "ray":
        ray(sys.argv[2], sys.argv[3:])
