"""The kinds of the Gateway API that one machine serves, where its users did not bring the published ones.

Every field is kept as it was written, and judged by the controller that reads it. Definitions that are there already
are never touched.
"""

from __future__ import annotations

from shoal.api.meta import Json

GROUP = "gateway.networking.k8s.io"
_AGE = ("Age", "date", ".metadata.creationTimestamp")
_ACCEPTED = ("Accepted", "string", '.status.conditions[?(@.type=="Accepted")].status')
_PROGRAMMED = ("Programmed", "string", '.status.conditions[?(@.type=="Programmed")].status')
_CLASS, _ADDRESS = ("Class", "string", ".spec.gatewayClassName"), ("Address", "string", ".status.addresses[*].value")
_CONTROLLER, _HOSTS = ("Controller", "string", ".spec.controllerName"), ("Hostnames", "string", ".spec.hostnames")


def gateway_crds() -> list[Json]:
    return [
        _crd("GatewayClass", "gatewayclasses", "gc", _CONTROLLER, _ACCEPTED, namespaced=False),
        _crd("Gateway", "gateways", "gtw", _CLASS, _ADDRESS, _PROGRAMMED),
        _crd("HTTPRoute", "httproutes", "", _HOSTS),
    ]


def _crd(kind: str, plural: str, short: str, *columns: tuple[str, str, str], namespaced: bool = True) -> Json:
    names: Json = {"kind": kind, "listKind": f"{kind}List", "plural": plural, "singular": kind.lower()}
    if short:
        names["shortNames"] = [short]
    anything = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    version = {
        "name": "v1",
        "served": True,
        "storage": True,
        "subresources": {"status": {}},
        "additionalPrinterColumns": [
            {"name": name, "type": written, "jsonPath": path} for name, written, path in (*columns, _AGE)
        ],
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
