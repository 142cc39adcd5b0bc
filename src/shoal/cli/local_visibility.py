"""Kueue's visibility API on one machine: the embedded API server asks the queue controller beside it.

On any other cluster such a group is another server's; here the API server itself answers its paths, with the rights
of the user that asks.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from shoal.api.kind import Key
from shoal.controllers.queues import visibility
from shoal.kube.transport import Request, Response
from shoal.local.apiserver.primitives.status import method_not_allowed, no_such_resource, not_found, unavailable
from shoal.local.apiserver.requests.call import object_answer
from shoal.local.apiserver.requests.route import Route

if TYPE_CHECKING:
    from shoal.controllers.queues.visibility import PendingWorkloads


class LocalVisibility:
    """Answers for the controller that `follow` names; 503 while there is none."""

    def __init__(self) -> None:
        self._pending: PendingWorkloads | None = None

    def follow(self, pending: PendingWorkloads) -> None:
        self._pending = pending

    async def answer(self, request: Request, route: Route | None) -> Response:
        if request.method not in ("GET", "HEAD"):
            raise method_not_allowed()
        if route is None:
            return object_answer(_document(request.path))
        if route.version not in visibility.VERSIONS or route.subresource != visibility.SUBRESOURCE or route.rest:
            raise no_such_resource()
        if self._pending is None:
            raise unavailable("the queue controller is being started")
        match route.plural:
            case "clusterqueues":
                found = self._pending.of_cluster_queue(route.name, request.query)
            case "localqueues":
                found = self._pending.of_local_queue(Key(route.namespace, route.name), request.query)
            case _:
                raise no_such_resource()
        if found is None:
            raise not_found(visibility.GROUP, route.plural, route.name)
        return object_answer(visibility.summary(route.version, found))


def _document(path: str) -> dict[str, object]:
    version = path.rstrip("/").rpartition("/")[2]
    if version in visibility.VERSIONS:
        return visibility.discovery(version)
    versions = [{"groupVersion": f"{visibility.GROUP}/{one}", "version": one} for one in reversed(visibility.VERSIONS)]
    return {
        "kind": "APIGroup",
        "apiVersion": "v1",
        "name": visibility.GROUP,
        "versions": versions,
        "preferredVersion": versions[0],
    }
