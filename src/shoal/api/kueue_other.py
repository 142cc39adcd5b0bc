"""Kueue's smaller kinds at v1beta2: Topology and the two of MultiKueue."""

from __future__ import annotations

from typing import Annotated, ClassVar

from shoal.api.fields import Conditions, Immutable, Rule
from shoal.api.meta import Object, Part

_DNS_NAME = r"[a-z0-9]([-a-z0-9]*[a-z0-9])?"
LABEL_KEY = rf"^({_DNS_NAME}(\.{_DNS_NAME})*/)?[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?$"


class TopologyLevel(Part):
    node_label: Annotated[str, Rule(required=True, min_length=1, max_length=316, pattern=LABEL_KEY)] = ""


class TopologySpec(Part):
    """Node labels from the widest domain to the narrowest."""

    levels: Annotated[
        tuple[TopologyLevel, ...],
        Rule(
            required=True,
            min_items=1,
            max_items=16,
            x_kubernetes_list_type="atomic",
            cel=(
                *Immutable,
                ("self.all(x, self.exists_one(y, x.nodeLabel == y.nodeLabel))", "must be unique"),
                (
                    "size(self.filter(i, size(self) > 1 && i.nodeLabel == 'kubernetes.io/hostname')) == 0 || "
                    "self[size(self) - 1].nodeLabel == 'kubernetes.io/hostname'",
                    "the kubernetes.io/hostname label can only be used at the lowest level of topology",
                ),
            ),
        ),
    ] = ()


class Topology(Object):
    spec: TopologySpec = TopologySpec()


class MultiKueueConfigSpec(Part):
    clusters: Annotated[
        tuple[Annotated[str, Rule(max_length=256)], ...],
        Rule(required=True, min_items=1, max_items=20, x_kubernetes_list_type="set"),
    ] = ()
    quota_management: Annotated[str, Rule(enum=["Manual", "Automated"])] | None = None


class MultiKueueConfig(Object):
    spec: MultiKueueConfigSpec = MultiKueueConfigSpec()


class KubeConfig(Part):
    location: Annotated[str, Rule(required=True, min_length=1, max_length=256)] = ""
    location_type: Annotated[str, Rule(enum=["Secret", "Path"], default="Secret")] = "Secret"


class ClusterProfileReference(Part):
    name: Annotated[str, Rule(required=True, max_length=253)] = ""


class ClusterSource(Part):
    rules: ClassVar = (
        (
            "has(self.kubeConfig) != has(self.clusterProfileRef)",
            "exactly one of kubeConfig or clusterProfileRef must be specified",
        ),
    )

    kube_config: KubeConfig | None = None
    cluster_profile_ref: ClusterProfileReference | None = None


class MultiKueueClusterSpec(Part):
    union_rules: ClassVar = (
        (
            "has(self.clusterSource) || has(self.kubeConfig) || has(self.clusterProfileRef)",
            "exactly one of kubeConfig or clusterProfileRef must be specified",
        ),
    )

    cluster_source: Annotated[ClusterSource, Rule(required=True)] = ClusterSource()


class MultiKueueClusterStatus(Part):
    conditions: Conditions | None = None


class MultiKueueCluster(Object):
    spec: MultiKueueClusterSpec = MultiKueueClusterSpec()
    status: MultiKueueClusterStatus = MultiKueueClusterStatus()
