"""The Services, the Ingress and the Route of a Ray cluster. Pure; called by the reconcilers of all Ray kinds."""

from __future__ import annotations

from typing import Any

from shoal.api.gang import PREFIX
from shoal.api.labels import LAST_APPLIED
from shoal.api.meta import Json
from shoal.controllers.ray import names, view
from shoal.controllers.ray.settings import RaySettings

DEFAULT_PORTS = {"client": 10001, "dashboard": 8265, "gcs-server": 6379, "metrics": 8080, "serve": 8000}


def head_service(cluster: Json, settings: RaySettings) -> Json:
    """The head's Service: headless by default, so that its name resolves before the head is ready."""
    labels = _head_labels(cluster)
    given = view.clone(view.head(cluster).get("headService") or {})
    given_metadata, spec = given.get("metadata") or {}, given.get("spec") or {}
    annotations = {
        **(given_metadata.get("annotations") or {}),
        **(view.spec(cluster).get("headServiceAnnotations") or {}),
    }
    metadata: Json = {
        "name": view.head_service_name(cluster),
        "namespace": view.namespace(cluster),
        "labels": {**(given_metadata.get("labels") or {}), **labels},
        "annotations": annotations,
        "ownerReferences": [view.owner_reference(cluster, "ray.io/v1", "RayCluster")],
    }
    kind = spec.get("type") or view.head(cluster).get("serviceType") or "ClusterIP"
    own_names = {port.get("name") for port in spec.get("ports") or []}
    ports = [*(spec.get("ports") or []), *(port for port in _head_ports(cluster) if port["name"] not in own_names)]
    spec.update({"type": kind, "selector": dict(labels), "ports": ports})
    if not given and kind == "ClusterIP" and not settings.head_cluster_ip:
        spec.update({"clusterIP": "None", "publishNotReadyAddresses": True})
    return {"apiVersion": "v1", "kind": "Service", "metadata": metadata, "spec": spec}


def headless_service(cluster: Json) -> Json:
    """Lets the hosts of a multi-host replica find each other by name."""
    name = view.name(cluster)
    metadata = _metadata(cluster, names.headless_service(name), {names.HEADLESS_WORKERS: name})
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": metadata,
        "spec": {
            "type": "ClusterIP",
            "clusterIP": "None",
            "publishNotReadyAddresses": True,
            "selector": {names.CLUSTER: name, names.NODE_TYPE: names.WORKER},
        },
    }


def wants_headless_service(cluster: Json) -> bool:
    return any(view.hosts(group) > 1 for group in view.groups(cluster))


def serve_service(cluster: Json) -> Json | None:
    """The Service for Ray Serve, or None when no port of the head is Serve's."""
    name = view.name(cluster)
    ports = serve_ports(cluster)
    if not ports:
        return None
    labels = {
        names.ORIGIN_NAME: name,
        names.ORIGIN_KIND: "RayCluster",
        names.SERVE: f"{name}-serve",
    }
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": _metadata(cluster, names.serve_service(name), labels),
        "spec": {
            "type": view.head(cluster).get("serviceType") or "ClusterIP",
            "selector": {names.CLUSTER: name},
            "ports": ports,
        },
    }


def serve_ports(cluster: Json) -> list[Json]:
    """Ports of the head that are Serve's: `serve` and `serve-…`."""
    return [
        {"name": port["name"], "port": port["port"]}
        for port in _head_ports(cluster)
        if port["name"] == "serve" or port["name"].startswith("serve-")
    ]


def wants_serve_service(cluster: Json) -> bool:
    return view.annotations_of(cluster).get(names.SERVE_SERVICE, "").lower() == "true"


def ingress(cluster: Json) -> Json:
    """One rule to the dashboard. The cluster's annotations are copied, its class becomes the Ingress's."""
    name = view.name(cluster)
    options = view.head(cluster).get("ingressOptions") or {}
    annotations = _entrance_annotations(cluster)
    ingress_class = annotations.pop(names.INGRESS_CLASS, None)
    backend = {"service": {"name": view.head_service_name(cluster), "port": {"number": view.dashboard_port(cluster)}}}
    path = {"path": options.get("path") or "/", "pathType": options.get("pathType") or "Prefix", "backend": backend}
    rule: Json = {"http": {"paths": [path]}}
    if options.get("host"):
        rule["host"] = options["host"]
    spec: Json = {"rules": [rule]}
    if ingress_class:
        spec["ingressClassName"] = ingress_class
    if options.get("tls"):
        spec["tls"] = view.clone(options["tls"])
    metadata = _metadata(cluster, names.ingress(name), _entrance_labels(cluster))
    metadata["annotations"] = annotations
    return {"apiVersion": "networking.k8s.io/v1", "kind": "Ingress", "metadata": metadata, "spec": spec}


def _entrance_annotations(cluster: Json) -> dict[str, str]:
    """The cluster's own, by which users configure the router. What kubectl and Shoal note of the cluster itself says
    nothing of its entrance, and `kubectl apply` of that one would take out what was never in it."""
    found = view.annotations_of(cluster)
    return {name: text for name, text in found.items() if name != LAST_APPLIED and not name.startswith(PREFIX)}


def route(cluster: Json) -> Json:
    """What stands for the Ingress on OpenShift; without a host the router chooses one."""
    options = view.head(cluster).get("ingressOptions") or {}
    spec: Json = {
        "to": {"kind": "Service", "name": view.head_service_name(cluster), "weight": 100},
        "port": {"targetPort": view.dashboard_port(cluster)},
        "wildcardPolicy": "None",
    }
    spec.update({field: options[field] for field in ("host", "path") if options.get(field)})
    metadata = _metadata(cluster, names.route(view.name(cluster)), _entrance_labels(cluster))
    metadata["annotations"] = _entrance_annotations(cluster)
    return {"apiVersion": "route.openshift.io/v1", "kind": "Route", "metadata": metadata, "spec": spec}


def job_head_service(job: Json, cluster: Json, settings: RaySettings) -> Json:
    """The RayJob's own Service, pointing at the head of its current cluster."""
    service = head_service(cluster, settings)
    service["metadata"].update(
        {
            "name": names.head_service(view.name(job)),
            "ownerReferences": [view.owner_reference(job, "ray.io/v1", "RayJob")],
            "labels": {
                names.ORIGIN_NAME: view.name(job),
                names.ORIGIN_KIND: "RayJob",
                names.NODE_TYPE: names.HEAD,
                names.IDENTIFIER: names.identifier(view.name(job), names.HEAD),
                names.APP_NAME: names.APP,
                names.CREATED_BY: names.OPERATOR,
            },
        }
    )
    return service


def endpoints(service: Json) -> dict[str, str]:
    """Port name to where it is reached: the node port if there is one, else the target."""
    found: dict[str, str] = {}
    for port in (service.get("spec") or {}).get("ports") or []:
        target = port.get("nodePort") or port.get("targetPort") or port.get("port")
        found[str(port.get("name") or port.get("port"))] = str(target)
    return found


def _head_labels(cluster: Json) -> dict[str, str]:
    name = view.name(cluster)
    template_labels = ((view.head(cluster).get("template") or {}).get("metadata") or {}).get("labels") or {}
    return {
        names.CLUSTER: name,
        names.NODE_TYPE: names.HEAD,
        names.IDENTIFIER: names.identifier(name, names.HEAD),
        names.APP_NAME: template_labels.get(names.APP_NAME) or names.APP,
        names.CREATED_BY: names.OPERATOR,
    }


def _entrance_labels(cluster: Json) -> dict[str, str]:
    name = view.name(cluster)
    return {
        names.CLUSTER: name,
        names.IDENTIFIER: names.identifier(name, names.HEAD),
        names.APP_NAME: names.APP,
        names.CREATED_BY: names.OPERATOR,
    }


def _head_ports(cluster: Json) -> list[dict[str, Any]]:
    given = view.ray_container(view.head(cluster)).get("ports") or []
    if given:
        found = {str(port.get("name") or f"{port['containerPort']}-port"): int(port["containerPort"]) for port in given}
    else:
        found = dict(DEFAULT_PORTS)
    found.setdefault("metrics", DEFAULT_PORTS["metrics"])
    return [{"name": name, "port": port, "targetPort": port, "appProtocol": "tcp"} for name, port in found.items()]


def _metadata(cluster: Json, name: str, labels: dict[str, str]) -> Json:
    return {
        "name": name,
        "namespace": view.namespace(cluster),
        "labels": labels,
        "annotations": {},
        "ownerReferences": [view.owner_reference(cluster, "ray.io/v1", "RayCluster")],
    }
