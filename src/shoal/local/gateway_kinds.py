"""The kinds of the Gateway API that one machine serves, where its users did not bring the published ones.

Every field is kept as it was written, and judged by the controller that reads it. Definitions that are there already
are never touched.
"""

from __future__ import annotations

from shoal.api.meta import Json

GROUP = "gateway.networking.k8s.io"


def gateway_crds() -> list[Json]:
    return [
        _crd("GatewayClass", "gatewayclasses", "gc", namespaced=False),
        _crd("Gateway", "gateways", "gtw"),
        _crd("HTTPRoute", "httproutes", ""),
    ]


def _crd(kind: str, plural: str, short: str, *, namespaced: bool = True) -> Json:
    names: Json = {"kind": kind, "listKind": f"{kind}List", "plural": plural, "singular": kind.lower()}
    if short:
        names["shortNames"] = [short]
    anything = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    version = {
        "name": "v1",
        "served": True,
        "storage": True,
        "subresources": {"status": {}},
        "schema": {
            "openAPIV3Schema": {"type": "object", "properties": {"spec": anything, "status": anything}},
        },
    }
    spec = {
        "group": GROUP,
        "names": names,
        "scope": "Namespaced" if namespaced else "Cluster",
        "versions": [version],
    }
    metadata = {
        "name": f"{plural}.{GROUP}",
        "annotations": {"api-approved.kubernetes.io": "unapproved, a part of the published definition"},
    }
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": metadata,
        "spec": spec,
    }
