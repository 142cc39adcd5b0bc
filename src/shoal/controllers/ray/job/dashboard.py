"""The HTTP client of a Ray dashboard's job API: small, bounded and distrustful.

A dashboard is the user's code: it may be slow, lie, answer with gigabytes or send us elsewhere. So every call has a
time and a size limit, redirects are refused, and the only credential it ever gets is its own cluster's token. Called by
the poller, never from a reconcile.
"""

from __future__ import annotations

import ipaddress
import re
from typing import TYPE_CHECKING, Protocol

import msgspec

from shoal.api.meta import Json
from shoal.errors import ShoalError

if TYPE_CHECKING:
    import aiohttp

TERMINAL = ("SUCCEEDED", "FAILED", "STOPPED")
STATES = ("PENDING", "RUNNING", *TERMINAL)

LARGEST_ANSWER = 1 << 20
_TIMEOUT = 2.0
_HOST = re.compile(r"[a-z0-9]([-a-z0-9.]*[a-z0-9])?", re.ASCII)


class DashboardError(ShoalError):
    """No usable answer: unreachable, too slow, too large, refused or not understood."""


class JobInfo(msgspec.Struct, frozen=True, rename=None):
    """What Ray says about a job. Times are milliseconds since the epoch."""

    status: str
    message: str = ""
    start_time: int | None = None
    end_time: int | None = None
    error_type: str | None = None
    driver_exit_code: int | None = None


class DashboardTarget(msgspec.Struct, frozen=True):
    """Where one attempt's job lives. `body` is set when the operator submits it itself."""

    address: str
    submission_id: str
    token: str = ""
    body: bytes = b""
    proxy: str = ""
    """The head Service's proxy on the API server, for operators that have no other way."""


class Dashboard(Protocol):
    async def job(self, target: DashboardTarget) -> JobInfo | None:
        """The job, or None when Ray does not know it."""
        ...

    async def submit(self, target: DashboardTarget) -> None:
        """Hand the job over; an id that Ray already has counts as done."""
        ...

    async def stop(self, target: DashboardTarget) -> None: ...

    async def close(self) -> None: ...


class HttpDashboard:
    """The job API over HTTP."""

    def __init__(self, timeout: float = _TIMEOUT) -> None:
        self._seconds = timeout
        self._session: aiohttp.ClientSession | None = None

    async def job(self, target: DashboardTarget) -> JobInfo | None:
        code, body = await self.call("GET", target, f"/api/jobs/{target.submission_id}")
        if code == 404:
            return None
        if code != 200:
            raise DashboardError(f"the dashboard at {target.address} answered {code} to a status request")
        return read_job(body, target.address)

    async def submit(self, target: DashboardTarget) -> None:
        code, body = await self.call("POST", target, "/api/jobs/", target.body)
        if (code == 500 and b"already exists" in body) or b"different submission_id" in body:
            return
        if code != 200:
            raise DashboardError(f"the dashboard refused the job with {code}: {body[:300].decode(errors='replace')}")

    async def stop(self, target: DashboardTarget) -> None:
        code, _ = await self.call("POST", target, f"/api/jobs/{target.submission_id}/stop")
        if code not in (200, 404):
            raise DashboardError(f"the dashboard at {target.address} answered {code} to a stop request")

    async def close(self) -> None:
        if self._session is not None:
            await self._session.close()
            self._session = None

    async def call(self, method: str, target: DashboardTarget, path: str, body: bytes = b"") -> tuple[int, bytes]:
        import aiohttp  # loaded with the first question: an operator of clusters alone asks none

        if self._session is None:
            # One connection for each question: heads go, and what stayed open would be to another's address by then.
            connector = aiohttp.TCPConnector(limit=64, force_close=True)
            self._session = aiohttp.ClientSession(connector=connector, trust_env=False)
        headers = {"accept": "application/json"}
        if body:
            headers["content-type"] = "application/json"
        if target.token:
            headers["x-ray-authorization"] = f"Bearer {target.token}"
        try:
            async with self._session.request(
                method,
                f"http://{target.address}{path}",
                data=body or None,
                headers=headers,
                timeout=aiohttp.ClientTimeout(total=self._seconds),
                allow_redirects=False,
            ) as answer:
                content = await answer.content.read(LARGEST_ANSWER + 1)
                while not answer.content.at_eof() and len(content) <= LARGEST_ANSWER:
                    content += await answer.content.read(LARGEST_ANSWER + 1 - len(content))
        except (aiohttp.ClientError, TimeoutError, OSError, ValueError) as error:
            why = str(error) or "timeout"  # of a timeout the text is empty
            raise DashboardError(f"the dashboard at {target.address} does not answer: {why}") from error
        if len(content) > LARGEST_ANSWER:
            raise DashboardError(f"the dashboard at {target.address} answers with more than {LARGEST_ANSWER} bytes")
        if 300 <= answer.status < 400:
            raise DashboardError(f"the dashboard at {target.address} redirects, which is refused")
        return answer.status, content


def read_job(body: bytes, address: str) -> JobInfo:
    """A job record, believed only as far as it makes sense."""
    try:
        found = msgspec.json.decode(body, type=JobInfo)
    except msgspec.MsgspecError as error:
        raise DashboardError(f"the dashboard at {address} sent no job record: {error}") from error
    if found.status not in STATES:
        raise DashboardError(
            f"the dashboard at {address} names a job status that does not exist: {found.status[:40]!r}"
        )
    return msgspec.structs.replace(found, message=found.message[:2000])


def checked_address(host: str, port: int) -> str:
    """`host:port` to call, or DashboardError for a host that is no cluster's (link-local, loopback names, odd text)."""
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        if not _HOST.fullmatch(host) or not host.partition(".svc.")[2]:
            raise DashboardError(f"{host[:80]!r} is not the name of a head Service") from None
        return f"{host}:{port}"
    if address.is_link_local or address.is_multicast or address.is_unspecified:
        raise DashboardError(f"{host} is not an address of a pod")
    return f"[{host}]:{port}" if address.version == 6 else f"{host}:{port}"


def times(info: JobInfo) -> Json:
    """Start and end in microseconds, where Ray gave them."""
    found: Json = {}
    if info.start_time:
        found["startTime"] = info.start_time * 1000
    if info.end_time:
        found["endTime"] = info.end_time * 1000
    return found
