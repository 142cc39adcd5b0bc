"""The aggregated API through which an installed hub answers for its members: its names, for those who serve and ask.

Below `/apis/GROUP/VERSION/clusters/NAME/proxy` stands what the API server of the member NAME would answer. It has no
objects of its own.
"""

from __future__ import annotations

from shoal.api.meta import Json

GROUP, VERSION = "members.shoal.dev", "v1alpha1"
PLURAL, PROXY = "clusters", "proxy"


def discovery() -> Json:
    """What the group serves, as an API server tells it."""
    resource = {"namespaced": False, "kind": "MemberProxy", "verbs": ["get", "create"]}
    return {
        "kind": "APIResourceList",
        "apiVersion": "v1",
        "groupVersion": f"{GROUP}/{VERSION}",
        "resources": [{**resource, "name": f"{PLURAL}/{PROXY}", "singularName": ""}],
    }
