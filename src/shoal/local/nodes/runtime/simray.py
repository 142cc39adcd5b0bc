"""A Ray head that is only its HTTP answers: health, job submit, status, logs and stop; Serve's are in `simserve.py`.

For simulated pods. Jobs last and end as the pod's annotations, or the job's own metadata, say; nothing is executed.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import re
from collections.abc import Callable
from typing import Any

import aiohttp
import msgspec
from aiohttp import web

from shoal.api.labels import RAY_NODE_TYPE
from shoal.api.meta import Json
from shoal.kube.clock import Clock
from shoal.local.nodes.runtime.simserve import SimulatedServe, proxy_port

log = logging.getLogger(__name__)

SIMULATION = "simulation.shoal.dev/"
"""Not our own prefix: controllers drop what users put under that one, and these are meant for pod templates too."""
JOB_SECONDS = SIMULATION + "job-seconds"
JOB_STATUS = SIMULATION + "job-status"
"""SUCCEEDED or FAILED."""
SERVE_STATUS = SIMULATION + "serve-status"
"""What becomes of Serve applications: RUNNING, or one of Serve's other states."""

DASHBOARD, AGENT = 8265, 52365

_SUBMIT = re.compile(r"ray job submit (.*?) -- (.*)")
_POLL = 0.3


class Submission(msgspec.Struct, frozen=True):
    """What a submitter's command line asks for."""

    host: str
    port: int
    name: str
    entrypoint: str


def submission(container: Json) -> Submission | None:
    """The `ray job submit` in a container's command, if there is one."""
    text = " ".join(str(word) for word in [*(container.get("command") or ()), *(container.get("args") or ())])
    found = _SUBMIT.search(text)
    if found is None:
        return None
    flags = found.group(1)
    address = re.search(r"--address[= ]'?(?:http://)?([\w.\-]+):(\d+)", flags)
    name = re.search(r"--submission-id[= ]'?([\w.\-]+)", flags)
    if address is None or name is None:
        return None
    return Submission(address.group(1), int(address.group(2)), name.group(1), found.group(2))


async def follow_job(wanted: Submission, resolve: Callable[[str], str | None], clock: Clock) -> int:
    """Submit to a simulated head and wait for the end, as the real command does; the exit code."""
    async with aiohttp.ClientSession() as session:
        sent = False
        while True:
            address = resolve(wanted.host)
            if address is not None:
                url = f"http://{address}:{wanted.port}/api/jobs/"
                with contextlib.suppress(aiohttp.ClientError, TimeoutError):
                    if not sent:
                        body = {"entrypoint": wanted.entrypoint, "submission_id": wanted.name}
                        async with session.post(url, json=body) as answer:  # an id that is known already is fine
                            sent = answer.status in (200, 500)
                    async with session.get(url + wanted.name) as answer:
                        found = await answer.json() if answer.status == 200 else {}
                        if found.get("status") in ("SUCCEEDED", "FAILED", "STOPPED"):
                            return 0 if found["status"] == "SUCCEEDED" else 1
            await clock.sleep(_POLL)


def is_head(pod: Json) -> bool:
    return (pod["metadata"].get("labels") or {}).get(RAY_NODE_TYPE) == "head"


class SimulatedRay:
    """The dashboard and the agent's health of one simulated head."""

    def __init__(self, pod: Json, address: str, clock: Clock) -> None:
        self._annotations: dict[str, str] = pod["metadata"].get("annotations") or {}
        self._address = address
        self._clock = clock
        self._jobs: dict[str, Json] = {}
        self._ends: dict[str, asyncio.Task[None]] = {}
        self._serve = SimulatedServe(self._annotations.get(SERVE_STATUS, ""))
        self._serve_port = proxy_port(pod)
        self._runners: list[web.AppRunner] = []
        self._closing: asyncio.Task[None] | None = None

    async def start(self) -> None:
        dashboard = [
            web.get("/api/version", self._version),
            web.get("/api/gcs_healthz", self._healthy),
            web.get("/api/local_raylet_healthz", self._healthy),
            web.get("/api/healthz", self._healthy),
            web.post("/api/jobs/", self._submit),
            web.get("/api/jobs/", self._list),
            web.get("/api/jobs/{id}", self._get),
            web.get("/api/jobs/{id}/logs", self._logs),
            web.post("/api/jobs/{id}/stop", self._stop),
            web.delete("/api/jobs/{id}", self._delete),
        ]
        await self._listen([*dashboard, *self._serve.of_the_dashboard()], DASHBOARD, AGENT)
        await self._listen(self._serve.of_the_proxy(), self._serve_port)

    async def _listen(self, routes: list[web.RouteDef], *ports: int) -> None:
        application = web.Application()
        application.add_routes(routes)
        runner = web.AppRunner(application, access_log=None)
        self._runners.append(runner)
        await runner.setup()
        for port in ports:
            try:
                await web.TCPSite(runner, self._address, port).start()
            except OSError as error:
                log.warning("a simulated Ray head cannot listen on %s:%d: %s", self._address, port, error)

    def close_soon(self) -> None:
        self._closing = asyncio.create_task(self.stop())

    async def stop(self) -> None:
        for task in self._ends.values():
            task.cancel()
        runners, self._runners = self._runners, []
        for runner in runners:
            await runner.cleanup()

    async def _healthy(self, request: web.Request) -> web.Response:
        return web.Response(text="success")

    async def _version(self, request: web.Request) -> web.Response:
        return web.json_response(
            {"version": "4", "ray_version": "simulated", "ray_commit": "", "session_name": "simulated"}
        )

    async def _submit(self, request: web.Request) -> web.Response:
        with contextlib.suppress(ValueError):
            body = await request.json()
            if isinstance(body, dict) and body.get("entrypoint"):
                return self._accept(body)
        return web.Response(status=400, text="a job needs an entrypoint")

    def _accept(self, body: Json) -> web.Response:
        name = str(body.get("submission_id") or f"raysubmit_{len(self._jobs):016d}")
        if name in self._jobs:
            return web.Response(status=500, text=f"Job with submission_id {name} already exists.")
        metadata = body.get("metadata") or {}
        self._jobs[name] = {
            "type": "SUBMISSION",
            "job_id": None,
            "submission_id": name,
            "status": "RUNNING",
            "entrypoint": body["entrypoint"],
            "message": "Job is currently running.",
            "error_type": None,
            "start_time": self._clock.now() // 1000,
            "end_time": None,
            "metadata": metadata,
            "runtime_env": body.get("runtime_env") or {},
            "driver_exit_code": None,
        }
        self._ends[name] = asyncio.create_task(self._end(name, metadata))
        return web.json_response({"job_id": name, "submission_id": name})

    async def _end(self, name: str, metadata: Json) -> None:
        seconds = _number(metadata.get(JOB_SECONDS) or self._annotations.get(JOB_SECONDS), 1.0)
        status = str(metadata.get(JOB_STATUS) or self._annotations.get(JOB_STATUS) or "SUCCEEDED")
        await self._clock.sleep(seconds)
        self._finish(name, status if status in ("SUCCEEDED", "FAILED") else "SUCCEEDED")

    def _finish(self, name: str, status: str) -> None:
        message = {"SUCCEEDED": "Job finished successfully.", "STOPPED": "Job was intentionally stopped."}
        self._jobs[name].update(
            status=status,
            end_time=self._clock.now() // 1000,
            message=message.get(status, "Job entrypoint command failed with exit code 1"),
            driver_exit_code=0 if status == "SUCCEEDED" else 1,
        )

    async def _list(self, request: web.Request) -> web.Response:
        return web.json_response(list(self._jobs.values()))

    async def _get(self, request: web.Request) -> web.Response:
        return web.json_response(self._found(request))

    async def _logs(self, request: web.Request) -> web.Response:
        self._found(request)
        return web.json_response({"logs": "this job is simulated\n"})

    async def _stop(self, request: web.Request) -> web.Response:
        job = self._found(request)
        if job["status"] == "RUNNING":
            self._ends[job["submission_id"]].cancel()
            self._finish(job["submission_id"], "STOPPED")
        return web.json_response({"stopped": True})

    async def _delete(self, request: web.Request) -> web.Response:
        job = self._found(request)
        if job["status"] == "RUNNING":
            return web.Response(status=500, text="a running job cannot be deleted")
        del self._jobs[job["submission_id"]]
        return web.json_response({"deleted": True})

    def _found(self, request: web.Request) -> Json:
        job = self._jobs.get(request.match_info["id"])
        if job is None:
            raise web.HTTPNotFound(text=f"Job {request.match_info['id']} does not exist")
        return job


def _number(text: Any, default: float) -> float:
    try:
        return max(0.0, float(text))
    except (TypeError, ValueError):
        return default
