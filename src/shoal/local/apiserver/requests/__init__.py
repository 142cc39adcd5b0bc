"""One request: its address, its user, its body, the objects that its selectors mean; and requests to webhooks."""

from shoal.local.apiserver.requests.call import Call, SubresourceView
from shoal.local.apiserver.requests.hooks import HookCaller
from shoal.local.apiserver.requests.route import RequestUser, Route
from shoal.local.apiserver.requests.selectors import Selection

__all__ = ["Call", "HookCaller", "RequestUser", "Route", "Selection", "SubresourceView"]
