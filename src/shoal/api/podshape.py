"""The field names of a pod template, so that a misspelt one is reported although our CRDs leave templates open.

Only names, as of Kubernetes 1.36: `check` says which keys no Kubernetes type has. Values are the server's business. A
field that is new in Kubernetes is added here by hand; until then it is reported as unknown and still stored.
"""

from __future__ import annotations

from typing import Any

from shoal.api.problems import FieldError

# name -> fields; a field may carry the shape of its value: "env:[]EnvVar". Fields without one are not looked into.
_TEXT = {
    "PodTemplateSpec": "metadata:Metadata spec:PodSpec",
    "Metadata": "name generateName namespace labels annotations creationTimestamp finalizers ownerReferences uid "
    "resourceVersion generation selfLink managedFields deletionTimestamp deletionGracePeriodSeconds",
    "PodSpec": "activeDeadlineSeconds affinity:Affinity automountServiceAccountToken containers:[]Container "
    "dnsConfig:DnsConfig dnsPolicy enableServiceLinks ephemeralContainers hostAliases hostIPC hostNetwork hostPID "
    "hostUsers hostname hostnameOverride imagePullSecrets:[]Named initContainers:[]Container nodeName nodeSelector os "
    "overhead preemptionPolicy priority priorityClassName readinessGates resourceClaims resources:ResourceRequirements "
    "restartPolicy runtimeClassName schedulerName schedulingGates:[]Named securityContext serviceAccount "
    "serviceAccountName setHostnameAsFQDN shareProcessNamespace subdomain terminationGracePeriodSeconds "
    "tolerations:[]Toleration topologySpreadConstraints:[]TopologySpread volumes:[]Volume workloadRef schedulingGroup",
    "Container": "args command env:[]EnvVar envFrom:[]EnvFrom image imagePullPolicy lifecycle:Lifecycle "
    "livenessProbe:Probe name ports:[]ContainerPort readinessProbe:Probe resizePolicy resources:ResourceRequirements "
    "restartPolicy restartPolicyRules securityContext:SecurityContext startupProbe:Probe stdin stdinOnce "
    "terminationMessagePath terminationMessagePolicy tty volumeDevices volumeMounts:[]VolumeMount workingDir",
    "ResourceRequirements": "requests limits claims",
    "EnvVar": "name value valueFrom:EnvVarSource",
    "EnvVarSource": "fieldRef resourceFieldRef configMapKeyRef secretKeyRef fileKeyRef",
    "EnvFrom": "prefix configMapRef secretRef",
    "ContainerPort": "containerPort hostIP hostPort name protocol",
    "VolumeMount": "mountPath mountPropagation name readOnly recursiveReadOnly subPath subPathExpr",
    "Probe": "exec failureThreshold grpc httpGet initialDelaySeconds periodSeconds successThreshold tcpSocket "
    "terminationGracePeriodSeconds timeoutSeconds",
    "Lifecycle": "postStart:LifecycleHandler preStop:LifecycleHandler stopSignal",
    "LifecycleHandler": "exec httpGet sleep tcpSocket",
    "SecurityContext": "allowPrivilegeEscalation appArmorProfile capabilities privileged procMount "
    "readOnlyRootFilesystem runAsGroup runAsNonRoot runAsUser seLinuxOptions seccompProfile windowsOptions",
    "Toleration": "effect key operator tolerationSeconds value",
    "TopologySpread": "labelSelector matchLabelKeys maxSkew minDomains nodeAffinityPolicy nodeTaintsPolicy topologyKey "
    "whenUnsatisfiable",
    "Affinity": "nodeAffinity:Preferences podAffinity:Preferences podAntiAffinity:Preferences",
    "Preferences": "preferredDuringSchedulingIgnoredDuringExecution requiredDuringSchedulingIgnoredDuringExecution",
    "DnsConfig": "nameservers options searches",
    "Named": "name",
    "Volume": "name awsElasticBlockStore azureDisk azureFile cephfs cinder configMap csi downwardAPI emptyDir "
    "ephemeral fc flexVolume flocker gcePersistentDisk gitRepo glusterfs hostPath image iscsi nfs "
    "persistentVolumeClaim photonPersistentDisk portworxVolume projected quobyte rbd scaleIO secret storageos "
    "vsphereVolume",
}


def _parsed(text: str) -> dict[str, str]:
    return {name: shape for name, _, shape in (word.partition(":") for word in text.split())}


_SHAPES = {name: _parsed(text) for name, text in _TEXT.items()}


def check(value: Any, shape: str, path: str) -> list[FieldError]:
    """Every key below `value` that the named shape does not have, and lists or objects in each other's place."""
    if value is None:
        return []
    if shape.startswith("[]"):
        if not isinstance(value, list):
            return [FieldError(path, "must be a list")]
        return [error for index, item in enumerate(value) for error in check(item, shape[2:], f"{path}[{index}]")]
    if not isinstance(value, dict):
        return [FieldError(path, "must be an object")]
    fields = _SHAPES[shape]
    errors: list[FieldError] = []
    for name, item in value.items():
        if name not in fields:
            errors.append(FieldError(f"{path}.{name}", f'unknown field "{path}.{name}"', "Unknown"))
        elif fields[name]:
            errors += check(item, fields[name], f"{path}.{name}")
    return errors
