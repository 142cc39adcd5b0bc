"""What stands between a request and all that is stored: does the address exist, has it this verb, may this user.

`Server` calls `authorize` and then `check` for every request about a resource, before anything looks at the body or at
an object. What is not in these tables is refused: a new subresource has no verb until it gets one here.
"""

from __future__ import annotations

from shoal.kube.transport import Request
from shoal.local.apiserver.auth.authorization import MASTERS, Action, Authorizer, denied
from shoal.local.apiserver.primitives.status import (
    Refused,
    bad_request,
    forbidden,
    method_not_allowed,
    no_such_resource,
    page_not_found,
)
from shoal.local.apiserver.requests.call import Call
from shoal.local.apiserver.requests.field_selectors import selected_name
from shoal.local.apiserver.requests.route import RequestUser, Route

_CONNECTIONS = frozenset(("exec", "attach", "portforward"))
_PART = ("get", "patch", "update")
SUBRESOURCE_VERBS: dict[str, tuple[str, ...]] = {
    "status": _PART,
    "scale": _PART,
    "log": ("get",),
    "binding": ("create",),
    "eviction": ("create",),
    "token": ("create",),
    "finalize": ("update",),
    "exec": ("create", "get"),
    "attach": ("create", "get"),
    "portforward": ("create", "get"),
    "ephemeralcontainers": _PART,
    "resize": _PART,
}


def authorize(authorizer: Authorizer, user: RequestUser, route: Route, request: Request) -> None:
    """Refuse what no rule allows this user."""
    if MASTERS in user.groups:
        return
    verb = "create" if route.subresource in _CONNECTIONS else route.verb  # a GET opens them, but it is no reading
    name = route.name
    if not name and verb in ("list", "watch", "deletecollection"):
        name = selected_name(request.query.get("fieldSelector", ""))
    require(authorizer, user, Action(verb, route.group, route.plural, route.subresource, route.namespace, name))


def require(authorizer: Authorizer, user: RequestUser, action: Action) -> None:
    if not authorizer.allowed(user, action):
        raise forbidden(action.group, action.resource, action.name, denied(user, action))


def require_create(authorizer: Authorizer, call: Call) -> None:
    """What is about to be made by an update or an apply takes the right that a POST would have taken."""
    route = call.route
    require(authorizer, call.user, Action("create", route.group, route.plural, "", route.namespace, route.name))


def check(call: Call) -> None:
    """The scope, the subresource and the verb must exist for this resource."""
    route, resource = call.route, call.resource
    _check_scope(call)
    if route.subresource:
        _check_subresource(call)
        return
    made = resource.custom and route.verb == "create"  # whether its definition is going, the writer says
    if not made and (route.verb not in resource.verbs or (route.verb in ("update", "patch") and not route.name)):
        raise method_not_allowed()
    if route.verb == "create" and route.name:
        raise method_not_allowed()
    if route.verb == "watch" and call.request.method not in ("GET", "HEAD"):
        raise method_not_allowed()


def _check_scope(call: Call) -> None:
    """A namespace in the path is for kinds that have one; of the others it would decide rights over all of them."""
    route, resource = call.route, call.resource
    if not resource.namespaced:
        if route.placed:
            raise page_not_found() if resource.custom else no_such_resource()
        return
    if not route.namespace and (route.name or route.verb in ("create", "deletecollection")):
        if resource.custom:
            raise page_not_found()
        raise no_such_resource() if route.name or resource.plural == "bindings" else method_not_allowed()


def _check_subresource(call: Call) -> None:
    """Each has its own verbs: none is a way to create, delete or list the objects themselves."""
    route, resource = call.route, call.resource
    if route.rest or route.subresource not in resource.subresources_of(call.version):
        if resource.custom:
            details = {"name": route.name, "group": route.group, "kind": route.plural}
            raise Refused(404, "NotFound", no_such_resource().message, details=details)
        raise no_such_resource()
    if route.verb == "watch" and route.name:
        raise no_such_resource()
    verb = {"list": "get", "watch": "get", "deletecollection": "delete"}.get(route.verb, route.verb)
    if verb not in SUBRESOURCE_VERBS[route.subresource]:
        raise method_not_allowed()
    if not route.name:
        raise bad_request("name must be provided")
