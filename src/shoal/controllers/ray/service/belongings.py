"""What a RayService has: its RayCluster, the two Services, and Gateway and route of an incremental upgrade. Pure."""

from __future__ import annotations

from shoal.api.labels import LAST_APPLIED
from shoal.api.meta import Json
from shoal.controllers.ray import names, services, view
from shoal.controllers.ray.service.spec_changes import cluster_config, config_hash
from shoal.controllers.ray.service.upgrade_strategy import is_incremental, step_options
from shoal.controllers.ray.settings import RaySettings
from shoal.errors import BadInput

KIND = "RayService"
GATEWAY_API = "gateway.networking.k8s.io/v1"
NO_SERVE_PORT = "Please specify a port named 'serve' in the Ray head container, or set spec.serveService"


def origin_labels(service: Json) -> dict[str, str]:
    return {names.ORIGIN_NAME: view.name(service), names.ORIGIN_KIND: KIND}


def cluster_of(service: Json, name: str, settings: RaySettings, *, active_cluster: str = "") -> Json:
    """The RayCluster of that name. Beside an active one an incremental upgrade begins without replicas of its own."""
    spec = view.clone(cluster_config(service))
    if active_cluster and is_incremental(service, settings):
        for group in spec.get("workerGroupSpecs") or []:
            group.pop("replicas", None)
    return {
        "apiVersion": "ray.io/v1",
        "kind": "RayCluster",
        "metadata": {
            "name": name,
            "namespace": view.namespace(service),
            "labels": {**view.labels(service), **origin_labels(service)},
            "annotations": cluster_annotations(service, settings),
            "ownerReferences": [view.owner_reference(service, "ray.io/v1", KIND)],
        },
        "spec": spec,
    }


def cluster_annotations(service: Json, settings: RaySettings) -> dict[str, str]:
    config = cluster_config(service)
    return {
        **{key: value for key, value in view.annotations_of(service).items() if key != LAST_APPLIED},
        names.CONFIG_HASH: config_hash(config),
        names.NUM_WORKER_GROUPS: str(len(config.get("workerGroupSpecs") or [])),
        names.OPERATOR_VERSION: settings.version,
    }


def head_service(service: Json, cluster_name: str, settings: RaySettings) -> Json:
    """`<service>-head-svc`: leads to the head of the cluster that serves."""
    made = services.head_service(_as_cluster(service, cluster_name), settings)
    given = (view.head(_as_cluster(service, cluster_name)).get("headService") or {}).get("metadata") or {}
    made["metadata"].update(
        {
            "name": names.head_service(view.name(service)),
            "labels": {
                **origin_labels(service),
                names.NODE_TYPE: names.HEAD,
                names.IDENTIFIER: names.identifier(view.name(service), names.HEAD),
            },
            "annotations": dict(given.get("annotations") or {}),
            "ownerReferences": [view.owner_reference(service, "ray.io/v1", KIND)],
        }
    )
    return made


def serve_service_name(service: Json, cluster_name: str, settings: RaySettings) -> str:
    if is_incremental(service, settings):
        return names.serve_service(cluster_name)
    given = ((view.spec(service).get("serveService") or {}).get("metadata") or {}).get("name")
    return str(given or names.serve_service(view.name(service)))


def serve_service(service: Json, cluster: Json, settings: RaySettings) -> Json:
    """The Service for requests: the RayService's own, or, with incremental upgrades, one of each cluster."""
    per_cluster = is_incremental(service, settings)
    name = view.name(cluster)
    shape = _as_cluster(service, name)
    base = {} if per_cluster else view.clone(view.spec(service).get("serveService") or {})
    spec, given = base.get("spec") or {}, base.get("metadata") or {}
    ports = _served_ports(services.serve_ports(shape), spec.get("ports") or [])
    if not ports and not base:
        raise BadInput(NO_SERVE_PORT)
    called = name if per_cluster else view.name(service)
    owner = (cluster, "RayCluster") if per_cluster else (service, KIND)
    kind = spec.get("type") or view.head(shape).get("serviceType") or "ClusterIP"
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {
            "name": serve_service_name(service, name, settings),
            "namespace": view.namespace(service),
            "labels": {
                **(given.get("labels") or {}),
                names.ORIGIN_NAME: called,
                names.ORIGIN_KIND: KIND,
                names.SERVE: names.checked_label(f"{called}-serve"),
            },
            "annotations": dict(given.get("annotations") or {}),
            "ownerReferences": [view.owner_reference(owner[0], "ray.io/v1", owner[1])],
        },
        "spec": {
            **spec,
            "type": kind,
            "selector": {names.CLUSTER: name, names.SERVE: "true"},
            "ports": ports,
        },
    }


def gateway(service: Json) -> Json:
    return {
        "apiVersion": GATEWAY_API,
        "kind": "Gateway",
        "metadata": _own_metadata(service, gateway_name(service)),
        "spec": {
            "gatewayClassName": step_options(service).gateway_class,
            "listeners": [{"name": "http", "protocol": "HTTP", "port": 80}],
        },
    }


def http_route(service: Json, weights: dict[str, int]) -> Json:
    """One rule: everything, to each cluster by its weight."""
    container = view.ray_container(cluster_config(service).get("headGroupSpec") or {})
    port = view.container_port(container, "serve", 8000)
    backends = [
        {"name": names.serve_service(cluster), "namespace": view.namespace(service), "port": port, "weight": weight}
        for cluster, weight in weights.items()
    ]
    match = {"path": {"type": "PathPrefix", "value": "/"}}
    return {
        "apiVersion": GATEWAY_API,
        "kind": "HTTPRoute",
        "metadata": _own_metadata(service, route_name(service)),
        "spec": {
            "parentRefs": [{"name": gateway_name(service), "namespace": view.namespace(service)}],
            "rules": [{"matches": [match], "backendRefs": backends}],
        },
    }


def gateway_name(service: Json) -> str:
    return f"{view.name(service)}-gateway"


def route_name(service: Json) -> str:
    return f"{view.name(service)}-httproute"


def _own_metadata(service: Json, name: str) -> Json:
    return {
        "name": name,
        "namespace": view.namespace(service),
        "labels": origin_labels(service),
        "ownerReferences": [view.owner_reference(service, "ray.io/v1", KIND)],
    }


def _as_cluster(service: Json, name: str) -> Json:
    return {"metadata": {"name": name, "namespace": view.namespace(service)}, "spec": cluster_config(service)}


def _served_ports(detected: list[Json], given: list[Json]) -> list[Json]:
    """A port of Serve takes the user's definition of that name, which leads to Serve unless it says otherwise."""
    if not detected:
        return given
    own = {port.get("name"): port for port in given}
    return [{"targetPort": port["port"], **own[port["name"]]} if port["name"] in own else port for port in detected]
