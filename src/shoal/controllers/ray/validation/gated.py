"""Checks of what a Ray cluster may ask for only where the operator was started with a feature gate.

Called by `cluster_rules`. Pure: a cluster in, sentences out.
"""

from __future__ import annotations

from collections.abc import Iterator

from shoal.api.meta import Json
from shoal.controllers.ray import names, view
from shoal.controllers.ray.pods.history import problems_of_history
from shoal.controllers.ray.pods.tls import problems_of_tls
from shoal.controllers.ray.settings import HISTORY_SERVER, MUTUAL_TLS, NETWORK_POLICY, RaySettings
from shoal.controllers.ray.validation.extras import needs_gate, problems_of_network_policy
from shoal.controllers.ray.validation.resize import problems_of_resize

_GATED = (
    ("networkPolicy", NETWORK_POLICY, problems_of_network_policy),
    ("tlsOptions", MUTUAL_TLS, problems_of_tls),
    ("historyServerOptions", HISTORY_SERVER, problems_of_history),
)


def problems_of_gated(cluster: Json, settings: RaySettings) -> Iterator[str]:
    spec = view.spec(cluster)
    for field, gate, problems in _GATED:
        if spec.get(field) is None:
            continue
        if not settings.gate(gate):
            yield f"spec.{field} {needs_gate(gate)}"
        else:
            yield from problems(cluster)
    if view.annotations_of(cluster).get(names.RESIZE):
        yield from problems_of_resize(cluster, settings)
