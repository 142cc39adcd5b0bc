"""Probes, carried out by the agent itself.

An exec probe that only fetches from localhost with wget or curl and greps the answer (as KubeRay's do) is recognised
and done over a socket: it needs no wget in the environment and costs a millisecond instead of a process tree.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import shlex
import ssl
from collections.abc import Callable

import msgspec

from shoal.api.meta import Json
from shoal.kube.clock import Clock
from shoal.local.nodes.runtime import grpchealth
from shoal.local.nodes.runtime.process import ContainerProcess
from shoal.local.nodes.sandbox import Sandbox, SandboxAddress

_LONGEST_BODY = 64 << 10


class Fetch(msgspec.Struct, frozen=True):
    """One step of a recognised exec probe: GET the URL, expect the text in the answer."""

    host: str
    port: int
    path: str
    expect: str


class ProbeVerdict(msgspec.Struct, frozen=True):
    good: bool
    message: str = ""


class Prober:
    """Runs the checks of one pod's containers."""

    def __init__(self, sandbox: Sandbox, address: SandboxAddress) -> None:
        self._sandbox = sandbox
        self._address = address

    async def check(self, probe: Json, container: Json, process: ContainerProcess) -> ProbeVerdict:
        """One attempt, within the probe's timeout. Never raises for a failing target."""
        timeout = float(probe.get("timeoutSeconds") or 1)
        try:
            return await asyncio.wait_for(self._attempt(probe, container, process, timeout), timeout + 0.5)
        except TimeoutError:
            return ProbeVerdict(False, f"{self._target(probe, container)}timed out after {timeout:g}s")
        except OSError as error:
            reason = os.strerror(error.errno).lower() if error.errno else str(error)
            return ProbeVerdict(False, f"{self._target(probe, container)}{reason}")

    def _target(self, probe: Json, container: Json) -> str:
        """What was asked, as the kubelet says it."""
        action = probe.get("httpGet") or probe.get("tcpSocket")
        if not action:
            return ""
        host = action.get("host") or self._address.ip
        with contextlib.suppress(OSError):
            place = f"{host}:{port_number(action['port'], container)}"
            url = f"{(action.get('scheme') or 'HTTP').lower()}://{place}{action.get('path') or '/'}"
            return (f'Get "{url}": ' if "httpGet" in probe else "") + f"dial tcp {place}: connect: "
        return ""

    async def _attempt(self, probe: Json, container: Json, process: ContainerProcess, timeout: float) -> ProbeVerdict:
        if action := probe.get("httpGet"):
            host = action.get("host") or self._address.ip
            port = port_number(action["port"], container)
            headers = {header["name"]: header["value"] for header in action.get("httpHeaders") or ()}
            secure = (action.get("scheme") or "HTTP").upper() == "HTTPS"
            status, _ = await self.fetch(host, port, action.get("path") or "/", headers, timeout, secure)
            return ProbeVerdict(200 <= status < 400, f"HTTP probe failed with statuscode: {status}")
        if action := probe.get("tcpSocket"):
            connection = await asyncio.wait_for(
                self._sandbox.connect(
                    self._address, action.get("host") or self._address.ip, port_number(action["port"], container)
                ),
                timeout,
            )
            connection.close()
            return ProbeVerdict(True)
        if action := probe.get("grpc"):
            return await self._grpc(action, timeout)
        if action := probe.get("exec"):
            return await self._exec(action.get("command") or [], process, timeout)
        return ProbeVerdict(False, "the probe names no exec, httpGet, tcpSocket or grpc action")

    async def _grpc(self, action: Json, timeout: float) -> ProbeVerdict:
        async with asyncio.timeout(timeout):
            connection = await self._sandbox.connect(self._address, self._address.ip, int(action["port"]))
            reader, writer = await asyncio.open_connection(sock=connection)
            try:
                status = await grpchealth.serving(reader, writer, action.get("service") or "", self._address.ip)
            finally:
                writer.close()
        return ProbeVerdict(status == "SERVING", f"service unhealthy (responded with {status!r})")

    async def _exec(self, command: list[str], process: ContainerProcess, timeout: float) -> ProbeVerdict:
        steps = recognise(command)
        if steps is None:
            code, output = await process.enter(command, timeout)
            return ProbeVerdict(code == 0, output.decode(errors="replace").strip()[-1024:])
        for step in steps:
            status, body = await self.fetch(step.host, step.port, step.path, {}, timeout, False)
            if status >= 400 or step.expect.encode() not in body:
                return ProbeVerdict(
                    False, f"{step.path} on port {step.port} answered {status}, without {step.expect!r}"
                )
        return ProbeVerdict(True)

    async def fetch(
        self, host: str, port: int, path: str, headers: dict[str, str], timeout: float, secure: bool
    ) -> tuple[int, bytes]:
        """GET, seen from inside the pod. Status and the beginning of the body."""
        async with asyncio.timeout(timeout):
            connection = await self._sandbox.connect(self._address, host, port)
            tls = None
            if secure:
                tls = ssl.create_default_context()
                tls.check_hostname, tls.verify_mode = (
                    False,
                    ssl.CERT_NONE,
                )  # as the kubelet: a probe does not authenticate
            reader, writer = await asyncio.open_connection(
                sock=connection, ssl=tls, server_hostname=host if tls else None
            )
            try:
                sent = {
                    "Host": f"{host}:{port}",
                    "User-Agent": "kube-probe/shoal",
                    "Accept": "*/*",
                    "Connection": "close",
                }
                sent.update(headers)
                lines = [f"GET {path} HTTP/1.1", *(f"{name}: {value}" for name, value in sent.items()), "", ""]
                writer.write("\r\n".join(lines).encode())
                answer = b""
                while len(answer) < _LONGEST_BODY and (data := await reader.read(8192)):
                    answer += data
            finally:
                writer.close()
        head, _, body = answer.partition(b"\r\n\r\n")
        words = head.split(None, 2)
        if len(words) < 2 or not words[1].isdigit():
            raise OSError(f"port {port} did not answer in HTTP")
        return int(words[1]), body


async def follow(
    probe: Json,
    container: Json,
    process: ContainerProcess,
    prober: Prober,
    clock: Clock,
    report: Callable[[ProbeVerdict], None],
) -> None:
    """Check again and again; a verdict is reported when enough answers in a row agree on a new one."""
    succeed, fail = int(probe.get("successThreshold") or 1), int(probe.get("failureThreshold") or 3)
    period = float(probe.get("periodSeconds") or 10)
    since = (clock.now() - (process.started_at or clock.now())) / 1e6  # a resumed container had its delay already
    await clock.sleep(max(0.0, float(probe.get("initialDelaySeconds") or 0) - max(0.0, since)))
    good = bad = 0
    while True:
        verdict = await prober.check(probe, container, process)
        good, bad = (good + 1, 0) if verdict.good else (0, bad + 1)
        if good == succeed or bad == fail:
            report(verdict)
        await clock.sleep(period)


_FETCH = re.compile(r"https?://(localhost|127\.0\.0\.1):(\d+)(/\S*)?")


def recognise(command: list[str]) -> list[Fetch] | None:
    """The fetches of a probe that is nothing but fetches from localhost, else None."""
    text = _script(command)
    if text is None:
        return None
    steps = []
    for part in text.split("&&"):
        fetch, _, rest = part.partition("|")
        words = _words(fetch)
        searched = _words(rest)
        target = _FETCH.fullmatch(words[-1]) if words else None
        if target is None or words[0] not in ("wget", "curl"):
            return None
        if searched and (searched[0] != "grep" or len(searched) < 2):
            return None
        if any(character in rest for character in "|;<>$`"):
            return None
        expect = searched[-1] if searched else ""
        steps.append(Fetch(target.group(1), int(target.group(2)), target.group(3) or "/", expect))
    return steps


def _script(command: list[str]) -> str | None:
    if len(command) >= 3 and command[0].rsplit("/", 1)[-1] in ("sh", "bash") and command[1] in ("-c", "-lc", "-cl"):
        return command[-1] if len(command) == 3 else None
    return shlex.join(command) if command and command[0] in ("wget", "curl") else None


def _words(text: str) -> list[str]:
    with contextlib.suppress(ValueError):
        return shlex.split(text)
    return []


def port_number(port: int | str, container: Json) -> int:
    """A port by number or by the name that the container gives it."""
    if isinstance(port, int) or str(port).isdigit():
        return int(port)
    for declared in container.get("ports") or ():
        if declared.get("name") == port:
            return int(declared["containerPort"])
    raise OSError(f'no port named "{port}" in container {container.get("name")}')
