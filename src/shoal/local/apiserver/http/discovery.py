"""What the server serves, told to clients: /api, /apis, the aggregated form, and /version.

Built from the registry and kept until the registry changes.
"""

from __future__ import annotations

from typing import Any

from shoal.api.meta import Json
from shoal.local.apiserver.auth.gate import SUBRESOURCE_VERBS
from shoal.local.apiserver.kinds.resources import SPOKEN_GROUP, Registry, Resource, ServedVersion

KUBERNETES_VERSION = {
    "major": "1",
    "minor": "36",
    "gitVersion": "v1.36.4+shoal",
    "gitCommit": "",
    "gitTreeState": "clean",
    "buildDate": "2026-01-01T00:00:00Z",
    "goVersion": "",
    "compiler": "",
    "platform": "",
    "emulationMajor": "1",
    "emulationMinor": "36",
    "minCompatibilityMajor": "1",
    "minCompatibilityMinor": "35",
}
AGGREGATED = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList"
AGGREGATED_BETA = "application/json;g=apidiscovery.k8s.io;v=v2beta1;as=APIGroupDiscoveryList"


class DiscoveryDocuments:
    def __init__(self, registry: Registry) -> None:
        self.registry = registry

    def answer(self, path: str, accept: str) -> tuple[Json, str] | None:
        """The document for a path and its content type; None when there is none."""
        parts = [part for part in path.split("/") if part]
        if parts in (["api"], ["apis"]):
            for form in (AGGREGATED, AGGREGATED_BETA):
                if form in accept.replace(" ", ""):
                    return self._aggregated(parts[0] == "api", form.split(";")[2][2:]), form
            return (self._core() if parts == ["api"] else self._groups()), "application/json"
        if len(parts) == 2 and parts[0] == "apis":
            versions = self.registry.groups().get(parts[1]) if parts[1] else None
            return (
                None
                if versions is None
                else ({"kind": "APIGroup", "apiVersion": "v1", **self._group(parts[1], versions)}, "application/json")
            )
        group, version = (
            ("", parts[1])
            if len(parts) == 2 and parts[0] == "api"
            else ((parts[1], parts[2]) if len(parts) == 3 and parts[0] == "apis" else ("", ""))
        )
        if version not in self.registry.groups().get(group, ()):
            return None
        return self._resources(group, version), "application/json"

    def _core(self) -> Json:
        return {
            "kind": "APIVersions",
            "versions": ["v1"],
            "serverAddressByClientCIDRs": [{"clientCIDR": "0.0.0.0/0", "serverAddress": "127.0.0.1"}],
        }

    def _groups(self) -> Json:
        return {
            "kind": "APIGroupList",
            "apiVersion": "v1",
            "groups": [self._group(group, versions) for group, versions in self.registry.groups().items() if group],
        }

    def _group(self, group: str, versions: list[str]) -> Json:
        shown = [{"groupVersion": f"{group}/{version}", "version": version} for version in versions]
        return {"name": group, "versions": shown, "preferredVersion": shown[0]}

    def _resources(self, group: str, version: str) -> Json:
        found: list[Json] = []
        for resource, served in self._served(group, version):
            entry: Json = {
                "name": resource.plural,
                "singularName": resource.singular,
                "namespaced": resource.namespaced,
                "kind": resource.kind,
                "verbs": list(resource.verbs),
            }
            if resource.short_names:
                entry["shortNames"] = list(resource.short_names)
            if resource.categories:
                entry["categories"] = list(resource.categories)
            found.append(entry)
            for name, spoken in resource.subresources_of(served).items():
                part: Json = {
                    "name": f"{resource.plural}/{name}",
                    "singularName": "",
                    "namespaced": resource.namespaced,
                    "kind": spoken,
                    "verbs": list(SUBRESOURCE_VERBS[name]),
                }
                if spoken in SPOKEN_GROUP:
                    part["group"], part["version"] = SPOKEN_GROUP[spoken]
                found.append(part)
        return {
            "kind": "APIResourceList",
            "apiVersion": "v1",
            "groupVersion": f"{group}/{version}" if group else version,
            "resources": found,
        }

    def _served(self, group: str, version: str) -> list[tuple[Resource, ServedVersion]]:
        return [
            (resource, resource.versions[version])
            for resource in self.registry.all()
            if resource.group == group and version in resource.versions and resource.versions[version].served
        ]

    def _aggregated(self, core: bool, version: str) -> Json:
        items = []
        for group, versions in self.registry.groups().items():
            if bool(group) == core:
                continue
            items.append(
                {
                    "metadata": {"name": group, "creationTimestamp": None} if group else {"creationTimestamp": None},
                    "versions": [
                        {
                            "version": one,
                            "freshness": "Current",
                            "resources": [
                                _described(resource, served) for resource, served in self._served(group, one)
                            ],
                        }
                        for one in versions
                    ],
                }
            )
        return {
            "kind": "APIGroupDiscoveryList",
            "apiVersion": f"apidiscovery.k8s.io/{version}",
            "metadata": {},
            "items": items,
        }


def _described(resource: Resource, served: ServedVersion) -> Json:
    kind = served.kind
    entry: dict[str, Any] = {
        "resource": resource.plural,
        "responseKind": {"group": kind.group, "version": kind.version, "kind": kind.kind},
        "scope": "Namespaced" if resource.namespaced else "Cluster",
        "singularResource": resource.singular,
        "verbs": list(resource.verbs),
    }
    if resource.short_names:
        entry["shortNames"] = list(resource.short_names)
    if resource.categories:
        entry["categories"] = list(resource.categories)
    subresources = []
    for name, spoken in resource.subresources_of(served).items():
        group, version = SPOKEN_GROUP.get(spoken, (kind.group, kind.version))
        subresources.append(
            {
                "subresource": name,
                "responseKind": {"group": group, "version": version, "kind": spoken},
                "verbs": list(SUBRESOURCE_VERBS[name]),
            }
        )
    if subresources:
        entry["subresources"] = subresources
    return entry
