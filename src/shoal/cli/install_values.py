"""What an administrator may choose about an installation: the values of the chart, and of `shoal install --values`.

One list for both: `charts/shoal/values.yaml` and its schema are written from here (`make chart`), and the defaults are
these. Read once at the entry point; a name that does not exist is refused.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import msgspec

from shoal.api.meta import Json
from shoal.errors import BadInput

PARTS = ("appwrapper", "queues", "ray")


class Values(msgspec.Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True):
    """In the order in which values.yaml shows them; the texts are its comments."""

    image: Annotated[str, msgspec.Meta(description="Image with the shoal command. Required.")] = ""
    image_pull_policy: Annotated[str, msgspec.Meta(description="Empty: as Kubernetes chooses.")] = ""
    image_pull_secrets: Annotated[
        tuple[Json, ...], msgspec.Meta(description="Secrets for the registry, as - name: NAME.")
    ] = ()
    replicas: Annotated[int, msgspec.Meta(ge=0, description="Controller pods: one leads, the others stand by.")] = 2
    only: Annotated[
        tuple[str, ...],
        msgspec.Meta(
            min_length=1,
            description="Parts to run. Leave out ray where KubeRay runs, queues where Kueue runs; "
            "add clusters for the hub of several clusters.",
        ),
    ] = PARTS
    namespaces: Annotated[
        tuple[str, ...],
        msgspec.Meta(
            description="Namespaces that Shoal looks after; they must exist. Its rights to write and to read Secrets "
            "end there, and webhooks hear of nothing else. Empty: all namespaces."
        ),
    ] = ()
    settings: Annotated[
        dict[str, str | bool],
        msgspec.Meta(description="Settings of the controllers, as shoal controller --set NAME=VALUE takes them."),
    ] = {}
    history_secret: Annotated[
        str,
        msgspec.Meta(
            description="Secret whose key url is the PostgreSQL address of the history, as postgresql://USER:PASSWORD@"
            "HOST/DATABASE. Empty: SQLite in the pod, which ends with it."
        ),
    ] = ""
    notify_allow: Annotated[
        tuple[str, ...],
        msgspec.Meta(description="Addresses below which notices about gangs may be sent. Needs notifySecret."),
    ] = ()
    notify_secret: Annotated[
        str, msgspec.Meta(description="Secret whose key key signs notices, at least 16 bytes.")
    ] = ""
    legacy: Annotated[bool, msgspec.Meta(description="Also the legacy groups mcad.ibm.com and ibm.com.")] = False
    webhooks: Annotated[
        bool,
        msgspec.Meta(description="Admission webhooks. Without them only AppWrappers of trust_unstamped=true start."),
    ] = True
    certificates: Annotated[
        Literal["own", "cert-manager"],
        msgspec.Meta(
            description="Of the webhooks: own, kept by the controller, or of a cert-manager that is installed already."
        ),
    ] = "own"
    certificate_issuer: Annotated[
        dict[str, str],
        msgspec.Meta(
            description="Issuer of cert-manager's certificate, as kind: ClusterIssuer and name: NAME. Empty: an Issuer "
            "of its own that signs this certificate alone."
        ),
    ] = {}
    webhook_url: Annotated[
        str, msgspec.Meta(description="URL of a controller outside the cluster. Empty: through the Service.")
    ] = ""
    visibility: Annotated[
        bool,
        msgspec.Meta(
            description="Kueue's visibility API (positions in queues, for kueuectl and KueueViz) as an aggregated API. "
            "Needs webhooks and queues; in the chart not with webhookUrl. While no controller answers it, the API "
            "server cannot say which kinds it has, and namespaces are not deleted."
        ),
    ] = False
    open_metrics: Annotated[
        bool,
        msgspec.Meta(description="Serve metrics without a token. Default: to users that may get /metrics."),
    ] = False
    page: Annotated[
        bool,
        msgspec.Meta(
            description="Serve the page on the pod's loopback, for kubectl port-forward and shoal open --url."
        ),
    ] = False
    page_url: Annotated[
        str,
        msgspec.Meta(
            description="https://HOST of a proxy that ends TLS and serves the page from the Service shoal-page."
        ),
    ] = ""
    kube_api_qps: Annotated[
        float,
        msgspec.Meta(
            ge=0, description="Requests a second that the leader sends to the API server; 0: as many as it needs."
        ),
    ] = 0
    kube_api_burst: Annotated[
        int, msgspec.Meta(ge=0, description="Requests that it sends at once after a rest; 0: twice kubeApiQps.")
    ] = 0
    traces_url: Annotated[
        str,
        msgspec.Meta(
            description="Collector of OpenTelemetry traces, by OTLP over HTTP, as http://HOST:4318. Empty: none."
        ),
    ] = ""
    log_format: Annotated[
        Literal["text", "json"], msgspec.Meta(description="Lines for people, or one JSON object a line.")
    ] = "text"
    resources: Annotated[Json, msgspec.Meta(description="Of the controller's container.")] = msgspec.field(
        default_factory=lambda: {"requests": {"cpu": "100m", "memory": "256Mi"}, "limits": {"memory": "1Gi"}}
    )
    priority_class_name: Annotated[
        str, msgspec.Meta(description="Such as system-cluster-critical; empty for none.")
    ] = ""
    node_selector: Annotated[dict[str, str], msgspec.Meta(description="Labels of nodes for the controller.")] = {}
    tolerations: Annotated[tuple[Json, ...], msgspec.Meta(description="Taints that the controller tolerates.")] = ()
    affinity: Annotated[Json, msgspec.Meta(description="Affinity of the controller's pods.")] = {}
    topology_spread: Annotated[bool, msgspec.Meta(description="Spread the replicas over nodes.")] = True
    pod_disruption_budget: Annotated[bool, msgspec.Meta(description="Keep one replica while nodes are drained.")] = True
    network_policy: Annotated[
        bool,
        msgspec.Meta(description="Let only calls of webhooks, probes and metrics in."),
    ] = False
    flow_control: Annotated[
        bool,
        msgspec.Meta(
            description="FlowSchemas and a PriorityLevelConfiguration of its own: other clients do not hold up the "
            "controller, nor it them; its lease goes with the cluster's leader elections."
        ),
    ] = True
    service_monitor: Annotated[
        bool, msgspec.Meta(description="A ServiceMonitor for the Prometheus operator, whose CRD must be installed.")
    ] = False


def settings_of(values: Values) -> dict[str, str]:
    """As `--set` takes them."""
    return {
        name: str(value).lower() if isinstance(value, bool) else value
        for name, value in sorted(values.settings.items())
    }


def read(path: Path) -> Values:
    """The values of a file, YAML or JSON, laid over the defaults as Helm does it."""
    try:
        given = msgspec.yaml.decode(path.read_bytes()) or {}
        return msgspec.convert(
            _over(msgspec.to_builtins(Values()), given) if isinstance(given, dict) else given, Values
        )
    except OSError as error:
        raise BadInput(f"--values {path}: {error.strerror}") from None
    except (msgspec.ValidationError, msgspec.DecodeError) as error:
        raise BadInput(f"--values {path}: {error}; charts/shoal/values.yaml lists what there is") from None


def _over(below: Json, above: Json) -> Json:
    """Maps are merged, null takes a value away, everything else is replaced."""
    merged = {
        name: _over(below[name], value) if isinstance(value, dict) and isinstance(below.get(name), dict) else value
        for name, value in above.items()
    }
    return {name: value for name, value in {**below, **merged}.items() if value is not None}
