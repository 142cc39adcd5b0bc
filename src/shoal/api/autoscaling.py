"""ProvisioningRequest of autoscaling.x-k8s.io: a gang asks a node autoscaler for room, all of it or none."""

from __future__ import annotations

from typing import Annotated

from shoal.api.fields import Conditions, Immutable, Int32, Rule
from shoal.api.meta import Object, Part

CONSUME_ANNOTATION = "autoscaling.x-k8s.io/consume-provisioning-request"
CLASS_ANNOTATION = "autoscaling.x-k8s.io/provisioning-class-name"
# Clusters from before the v1 API used these; read, never written.
LEGACY_CONSUME_ANNOTATION = "cluster-autoscaler.kubernetes.io/consume-provisioning-request"
LEGACY_CLASS_ANNOTATION = "cluster-autoscaler.kubernetes.io/provisioning-class-name"

CHECK_CAPACITY = "check-capacity.autoscaling.x-k8s.io"
BEST_EFFORT_ATOMIC = "best-effort-atomic-scale-up.autoscaling.x-k8s.io"
QUEUED_PROVISIONING = "queued-provisioning.gke.io"

_SUBDOMAIN = r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$"


class TemplateReference(Part):
    name: Annotated[str, Rule(required=True, max_length=253)] = ""


class RequestedPodSet(Part):
    """`count` pods like the referenced PodTemplate."""

    pod_template_ref: Annotated[TemplateReference, Rule(required=True)] = TemplateReference()
    count: Annotated[Int32, Rule(required=True, minimum=1, maximum=16384)] = 0


class ProvisioningRequestSpec(Part):
    pod_sets: Annotated[
        tuple[RequestedPodSet, ...],
        Rule(required=True, min_items=1, max_items=32, x_kubernetes_list_type="atomic", cel=Immutable),
    ] = ()
    provisioning_class_name: Annotated[str, Rule(required=True, max_length=253, pattern=_SUBDOMAIN, cel=Immutable)] = ""
    parameters: (
        Annotated[
            dict[str, Annotated[str, Rule(max_length=255)]],
            Rule(max_properties=100, cel=Immutable),
        ]
        | None
    ) = None


class ProvisioningRequestStatus(Part):
    """`conditions` types: Accepted, Provisioned, Failed, BookingExpired, CapacityRevoked."""

    conditions: Conditions | None = None
    provisioning_class_details: (
        Annotated[dict[str, Annotated[str, Rule(max_length=32768)]], Rule(max_properties=64)] | None
    ) = None


class ProvisioningRequest(Object):
    spec: Annotated[ProvisioningRequestSpec, Rule(required=True)] = ProvisioningRequestSpec()
    status: ProvisioningRequestStatus = ProvisioningRequestStatus()
