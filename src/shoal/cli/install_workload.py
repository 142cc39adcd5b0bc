"""What runs of an installation: the controller's Deployment, the Services in front of it, and what guards them.

Pure, as `installation.py`, which puts these objects among the others. The pod runs as a user without rights on a file
system that it cannot write.
"""

from __future__ import annotations

from shoal.api.labels import APP_NAME, APP_PART_OF, HOSTNAME
from shoal.api.meta import Json
from shoal.cli import admission
from shoal.cli.install_values import Values, settings_of

NAME = admission.ACCOUNT
METRICS = "shoal-metrics"
HEALTH_PORT = 8081
PAGE, PAGE_PORT = "shoal-page", 8090
LABELS = {APP_NAME: "shoal", APP_PART_OF: "shoal"}
TOKEN_FILE = "/var/run/secrets/kubernetes.io/serviceaccount/token"
"""What Prometheus shows: the token of its own account."""
STATE = "/var/lib/shoal"
"""Where the pod may write."""
USER = 65532
"""Of the controller's process, here and in the image."""


def workload(namespace: str, values: Values) -> list[Json]:
    """In the order in which it is applied."""
    return [
        *([_webhook_service(namespace)] if values.webhooks else ()),
        _metrics_service(namespace),
        _deployment(namespace, values),
        *([_page_service(namespace)] if values.page_url else ()),
        *([_disruption_budget(namespace)] if values.pod_disruption_budget else ()),
        *([_network_policy(namespace, values)] if values.network_policy else ()),
        *([_service_monitor(namespace, values)] if values.service_monitor else ()),
    ]


def arguments(namespace: str, values: Values) -> list[str]:
    """What the container runs."""
    return [
        "shoal",
        "controller",
        *(["--webhooks"] if values.webhooks else ()),
        *(["--visibility"] if values.visibility else ()),
        *(["--open-metrics"] if values.open_metrics else ()),
        *([f"--page-port={PAGE_PORT}"] if values.page or values.page_url else ()),
        *([f"--page-url={values.page_url}"] if values.page_url else ()),
        *([f"--kube-api-qps={values.kube_api_qps:g}"] if values.kube_api_qps else ()),
        *([f"--kube-api-burst={values.kube_api_burst}"] if values.kube_api_burst else ()),
        *([f"--traces={values.traces_url}"] if values.traces_url else ()),
        *([f"--log-format={values.log_format}"] if values.log_format != "text" else ()),
        f"--health-port={HEALTH_PORT}",
        f"--namespace={namespace}",
        f"--only={','.join(values.only)}",
        *([f"--watch-namespace={','.join(values.namespaces)}"] if values.namespaces else ()),
        *([f"--webhook-secret={admission.ISSUED_SECRET}"] if values.certificates == "cert-manager" else ()),
        *(f"--notify-allow={one}" for one in values.notify_allow),
        *(f"--set={name}={value}" for name, value in settings_of(values).items()),
    ]


def labelled(api_version: str, kind: str, name: str, namespace: str | None) -> Json:
    """The beginning of an object of ours."""
    metadata: Json = {"name": name, "labels": LABELS}
    if namespace:
        metadata["namespace"] = namespace
    return {"apiVersion": api_version, "kind": kind, "metadata": metadata}


def _webhook_service(namespace: str) -> Json:
    port = {"name": "webhook", "port": 443, "targetPort": admission.PORT}
    return {
        **labelled("v1", "Service", admission.SERVICE, namespace),
        # a replica is ready once it was called, so it must be called before it is ready
        "spec": {"selector": LABELS, "ports": [port], "publishNotReadyAddresses": True},
    }


def _metrics_service(namespace: str) -> Json:
    port = {"name": "health", "port": HEALTH_PORT, "targetPort": "health"}
    made = labelled("v1", "Service", METRICS, namespace)
    labels = {**LABELS, "app.kubernetes.io/component": "metrics"}
    return {**made, "metadata": {**made["metadata"], "labels": labels}, "spec": {"selector": LABELS, "ports": [port]}}


def _page_service(namespace: str) -> Json:
    """A session is in the memory of one replica: a client keeps its own."""
    port = {"name": "page", "port": 80, "targetPort": PAGE_PORT}
    spec = {"selector": LABELS, "ports": [port], "sessionAffinity": "ClientIP"}
    return {**labelled("v1", "Service", PAGE, namespace), "spec": spec}


def _deployment(namespace: str, values: Values) -> Json:
    container = {
        "name": "controller",
        "image": values.image,
        **({"imagePullPolicy": values.image_pull_policy} if values.image_pull_policy else {}),
        "command": arguments(namespace, values),
        "ports": [
            {"name": "webhook", "containerPort": admission.PORT},
            {"name": "health", "containerPort": HEALTH_PORT},
        ],
        "livenessProbe": {"httpGet": {"path": "/healthz", "port": "health"}, "periodSeconds": 10},
        "readinessProbe": {"httpGet": {"path": "/readyz", "port": "health"}, "periodSeconds": 5},
        "resources": values.resources,
        "env": [_history(values), *_notify_key(values), *_pod_address(values)],
        "volumeMounts": [{"name": "state", "mountPath": STATE}],
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        },
    }
    chosen: Json = {
        "imagePullSecrets": values.image_pull_secrets,
        "priorityClassName": values.priority_class_name,
        "nodeSelector": values.node_selector,
        "tolerations": values.tolerations,
        "affinity": values.affinity,
    }
    spread = {
        "maxSkew": 1,
        "topologyKey": HOSTNAME,
        "whenUnsatisfiable": "ScheduleAnyway",
        "labelSelector": {"matchLabels": LABELS},
    }
    pod = {
        "serviceAccountName": NAME,
        "securityContext": {"runAsNonRoot": True, "runAsUser": USER, "seccompProfile": {"type": "RuntimeDefault"}},
        "terminationGracePeriodSeconds": 20,
        **{name: value for name, value in chosen.items() if value},
        **({"topologySpreadConstraints": [spread]} if values.topology_spread else {}),
        "containers": [container],
        "volumes": [{"name": "state", "emptyDir": {"sizeLimit": "1Gi"}}],
    }
    spec = {
        "replicas": values.replicas,
        "selector": {"matchLabels": LABELS},
        "template": {"metadata": {"labels": LABELS}, "spec": pod},
    }
    return {**labelled("apps/v1", "Deployment", NAME, namespace), "spec": spec}


def _history(values: Values) -> Json:
    """An address with a password comes from its Secret; arguments can be read by all."""
    name = "SHOAL_HISTORY"
    if values.history_secret:
        return {"name": name, "valueFrom": {"secretKeyRef": {"name": values.history_secret, "key": "url"}}}
    return {"name": name, "value": f"sqlite:///{STATE}/history.db"}


def _notify_key(values: Values) -> list[Json]:
    reference = {"name": values.notify_secret, "key": "key"}
    return [{"name": "SHOAL_NOTIFY_KEY", "valueFrom": {"secretKeyRef": reference}}] if values.notify_secret else []


def _pod_address(values: Values) -> list[Json]:
    """The leader is the endpoint of the visibility API."""
    reference = {"fieldRef": {"fieldPath": "status.podIP"}}
    return [{"name": "POD_IP", "valueFrom": reference}] if values.visibility else []


def _disruption_budget(namespace: str) -> Json:
    spec = {"maxUnavailable": 1, "selector": {"matchLabels": LABELS}}
    return {**labelled("policy/v1", "PodDisruptionBudget", NAME, namespace), "spec": spec}


def _network_policy(namespace: str, values: Values) -> Json:
    """The page is let in where a proxy serves it; on loopback it needs no way in."""
    numbers = (admission.PORT, HEALTH_PORT, *([PAGE_PORT] if values.page_url else ()))
    ports = [{"protocol": "TCP", "port": port} for port in numbers]
    spec = {"podSelector": {"matchLabels": LABELS}, "policyTypes": ["Ingress"], "ingress": [{"ports": ports}]}
    return {**labelled("networking.k8s.io/v1", "NetworkPolicy", NAME, namespace), "spec": spec}


def _service_monitor(namespace: str, values: Values) -> Json:
    selector = {"matchLabels": {**LABELS, "app.kubernetes.io/component": "metrics"}}
    shown = {} if values.open_metrics else {"bearerTokenFile": TOKEN_FILE}
    spec = {"selector": selector, "endpoints": [{"port": "health", "path": "/metrics", **shown}]}
    return {**labelled("monitoring.coreos.com/v1", "ServiceMonitor", NAME, namespace), "spec": spec}
