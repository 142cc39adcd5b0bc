"""Tokens that change: files that are replaced under us, and exec plug-ins that hand out short-lived ones.

Each source is asked before every request and answers from memory until what it holds is about to end, or was refused.
"""

from __future__ import annotations

import asyncio
import logging
import os
import subprocess
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from shoal.api.times import parse_time
from shoal.errors import BadInput
from shoal.kube.clock import Clock
from shoal.kube.errors import Unsent
from shoal.kube.http import TokenSource

log = logging.getLogger(__name__)

FILE_AGE = 10.0
"""Seconds after which a token file is looked at again."""
EARLY = 60_000_000
"""Microseconds before its end at which a plug-in's token is replaced."""
PLUGIN_LIMIT = 60.0


def fixed_token(token: str) -> TokenSource:
    async def give() -> str:
        return token

    return give


class TokenFile:
    """A token in a file that another program replaces, as the kubelet does."""

    def __init__(self, path: Path, *, clock: Clock) -> None:
        self._path = path
        self._clock = clock
        self._token = ""
        self._read_at = float("-inf")

    async def __call__(self) -> str:
        now = self._clock.monotonic()
        if now - self._read_at >= FILE_AGE:
            try:
                self._token = self._path.read_text().strip()
                self._read_at = now
            except OSError as error:
                if not self._token:
                    raise Unsent(f"cannot read the token file {self._path}: {error.strerror}") from None
                log.warning("the token file %s cannot be read (%s); going on with the last token", self._path, error)
        return self._token

    def refused(self) -> None:
        """Look at the file again before the next request."""
        self._read_at = float("-inf")


class EnvironmentEntry(msgspec.Struct, frozen=True):
    name: str
    value: str = ""


class ExecSettings(msgspec.Struct, rename="camel", frozen=True):
    command: str = ""
    args: list[str] | None = None
    env: list[EnvironmentEntry] | None = None
    api_version: str = "client.authentication.k8s.io/v1"
    install_hint: str = ""
    provide_cluster_info: bool = False
    interactive_mode: str = ""


class _CredentialStatus(msgspec.Struct, rename="camel", frozen=True):
    token: str = ""
    expiration_timestamp: str | None = None
    client_certificate_data: str = ""
    client_key_data: str = ""


class _Credential(msgspec.Struct, rename="camel", frozen=True):
    kind: str
    api_version: str
    status: _CredentialStatus | None = None


class _Run:
    """One run of a plug-in, in a thread: a task cancelled while asyncio starts a process may wait for it for ever."""

    def __init__(self, command: list[str], environment: dict[str, str]) -> None:
        self._command = command
        self._environment = environment
        self._process: subprocess.Popen[bytes] | None = None
        self._is_given_up = False
        self._starting = threading.Lock()

    def __call__(self) -> tuple[int, bytes, bytes]:
        """Its code and what it printed."""
        with self._starting:
            if self._is_given_up:
                return 0, b"", b""
            process = self._process = subprocess.Popen(
                self._command,
                env=self._environment,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
            )
        try:
            output, errors = process.communicate(timeout=PLUGIN_LIMIT)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            raise
        return process.returncode, output, errors

    def give_up(self) -> None:
        """No request waits for it any more."""
        with self._starting:
            self._is_given_up = True
            if self._process is not None:
                self._process.kill()


class ExecPlugin:
    """A command that prints an ExecCredential. Asked once, then again shortly before what it gave ends.

    It may hand out a token, a client certificate with its key (given to `present`), or both.
    """

    def __init__(
        self,
        settings: ExecSettings,
        directory: Path,
        *,
        source: str,
        clock: Clock,
        present: Callable[[bytes, bytes], None] = lambda certificate, key: None,
    ) -> None:
        if not settings.command:
            raise BadInput(f"the exec plug-in in {source} has no command")
        self._settings = settings
        self._directory = directory
        self._source = source
        self._clock = clock
        self._present = present
        self._asking = asyncio.Lock()
        self._asked = False
        self._token = ""
        self._ends: int | None = None

    async def __call__(self) -> str:
        async with self._asking:
            if not self._asked or (self._ends is not None and self._clock.now() >= self._ends - EARLY):
                await self._ask()
            return self._token

    def refused(self) -> None:
        """Ask it again before the next request, whatever end it named."""
        self._asked = False

    async def _ask(self) -> None:
        settings = self._settings
        command = settings.command
        if os.sep in command and not os.path.isabs(command):
            command = str(self._directory / command)
        request: dict[str, Any] = {
            "apiVersion": settings.api_version,
            "kind": "ExecCredential",
            "spec": {"interactive": False},
        }
        environment = {
            **os.environ,
            **{entry.name: entry.value for entry in settings.env or ()},
            "KUBERNETES_EXEC_INFO": msgspec.json.encode(request).decode(),
        }
        run = _Run([command, *(settings.args or ())], environment)
        try:
            code, output, errors = await asyncio.to_thread(run)
        except asyncio.CancelledError:
            run.give_up()
            raise
        except OSError as error:
            hint = f" {settings.install_hint.strip()}" if settings.install_hint else ""
            raise Unsent(
                f"the exec plug-in {command!r} of {self._source} cannot be run: {error.strerror}.{hint}"
            ) from None
        except subprocess.TimeoutExpired:
            raise Unsent(
                f"the exec plug-in {command!r} of {self._source} gave no answer in {PLUGIN_LIMIT:.0f} s"
            ) from None
        if code:
            text = errors.decode(errors="replace").strip()[-300:]
            raise Unsent(f"the exec plug-in {command!r} of {self._source} ended with {code}: {text}")
        self._keep(command, output)

    def _keep(self, command: str, output: bytes) -> None:
        try:
            answer = msgspec.json.decode(output, type=_Credential)
        except msgspec.MsgspecError as error:
            raise Unsent(
                f"the exec plug-in {command!r} of {self._source} did not print an ExecCredential: {error}"
            ) from None
        given = answer.status
        if given is None or not (given.token or given.client_certificate_data):
            raise Unsent(f"the exec plug-in {command!r} of {self._source} printed neither a token nor a certificate")
        if given.client_certificate_data:
            self._present(given.client_certificate_data.encode(), given.client_key_data.encode())
        self._token = given.token
        self._ends = parse_time(given.expiration_timestamp) if given.expiration_timestamp else None
        self._asked = True
