"""Ray Serve of a simulated head: its applications on the dashboard, and a proxy that answers for them.

For `simray.py`, which listens. Every application is as the head's annotation says as soon as it is configured; nothing
is executed.
"""

from __future__ import annotations

from collections.abc import Iterable

from aiohttp import web

from shoal.api.meta import Json

_PATH = "/api/serve/applications/"
_PORT_NAME, _PORT = "serve", 8000
_STATUSES = ("RUNNING", "DEPLOYING", "DEPLOY_FAILED", "UNHEALTHY")
_OF_DEPLOYMENTS = {"RUNNING": "HEALTHY", "DEPLOYING": "UPDATING"}


class SimulatedServe:
    def __init__(self, status: str) -> None:
        self._status = status if status in _STATUSES else "RUNNING"
        self._applications: dict[str, Json] = {}

    def of_the_dashboard(self) -> list[web.RouteDef]:
        return [web.get(_PATH, self._read), web.put(_PATH, self._configure), web.delete(_PATH, self._end)]

    def of_the_proxy(self) -> list[web.RouteDef]:
        return [
            web.get("/-/healthz", self._healthy),
            web.get("/-/routes", self._routes),
            web.route("*", "/{path:.*}", self._serve),
        ]

    async def _read(self, request: web.Request) -> web.Response:
        return web.json_response({"applications": self._applications})

    async def _configure(self, request: web.Request) -> web.Response:
        try:
            written = (await request.json())["applications"]
            self._applications = {str(one["name"]): self._application(one) for one in written}
        except (ValueError, TypeError, KeyError) as error:
            return web.Response(status=400, text=f"applications, each with a name, are needed: {error!r}")
        return web.json_response({})

    async def _end(self, request: web.Request) -> web.Response:
        self._applications = {}
        return web.json_response({})

    def _application(self, written: Json) -> Json:
        status = _OF_DEPLOYMENTS.get(self._status, "UNHEALTHY")
        names = [str(one["name"]) for one in written.get("deployments") or ()]
        return {
            "name": str(written["name"]),
            "route_prefix": written.get("route_prefix", "/"),
            "status": self._status,
            "message": "",
            "deployments": {name: {"name": name, "status": status, "message": ""} for name in names},
        }

    async def _healthy(self, request: web.Request) -> web.Response:
        return web.Response(text="success")

    async def _routes(self, request: web.Request) -> web.Response:
        return web.json_response({one["route_prefix"]: name for name, one in self._running() if one["route_prefix"]})

    async def _serve(self, request: web.Request) -> web.Response:
        fitting = [
            (one["route_prefix"], name)
            for name, one in self._running()
            if one["route_prefix"] and f"{request.path}/".startswith(one["route_prefix"].rstrip("/") + "/")
        ]
        if not fitting:
            return web.Response(status=404, text=f"no application serves {request.path}\n")
        return web.Response(text=f"application {max(fitting)[1]} is simulated\n")

    def _running(self) -> Iterable[tuple[str, Json]]:
        return ((name, one) for name, one in self._applications.items() if one["status"] == "RUNNING")


def proxy_port(pod: Json) -> int:
    """The port that the head names `serve`."""
    named = (port for container in pod["spec"].get("containers") or () for port in container.get("ports") or ())
    return next((int(port["containerPort"]) for port in named if port.get("name") == _PORT_NAME), _PORT)
