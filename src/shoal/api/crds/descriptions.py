"""What the fields that people write mean, in one sentence each: `kubectl explain` shows it.

By Struct and by the field's name in manifests. The generator of the CRDs puts them into the schemas; a Struct's own
docstring describes the whole of it.
"""

from __future__ import annotations

DESCRIPTIONS: dict[str, dict[str, str]] = {
    "AppWrapperSpec": {
        "priority": "Gangs of higher priority go first.",
        "priorityslope": "How much the priority grows with every second of waiting.",
        "resources": "The wrapped objects, as v1beta1 writes them.",
        "components": "The wrapped objects, as v1beta2 writes them.",
        "schedulingSpec": "How many pods must run, when it is requeued, and how often it is dispatched.",
        "suspend": "While true, nothing of it is created, and what runs is removed.",
        "managedBy": "Who runs it; anyone else leaves it alone.",
        "service": "A service that is created with it.",
        "selector": "Which pods count as its own, besides those that carry its label.",
    },
    "ClusterQueueSpec": {
        "resourceGroups": "Resources that are given out together, with their flavors and quotas.",
        "cohortName": "The cohort whose members lend each other what they do not use.",
        "queueingStrategy": "StrictFIFO: the head blocks those behind it. BestEffortFIFO: what fits may pass it.",
        "namespaceSelector": "Namespaces whose workloads may use this queue. Absent: none; empty: all.",
        "flavorFungibility": "Whether to try the next flavor before borrowing or preempting.",
        "preemption": "Which workloads may be preempted for one of this queue.",
        "admissionChecksStrategy": "Checks that a workload must pass after it got quota, by flavor.",
        "stopPolicy": "None: it admits. Hold: nothing new. HoldAndDrain: nothing new, and what runs is evicted.",
        "fairSharing": "The weight of this queue when the cohort is shared.",
        "admissionScope": "How usage orders the workloads of its local queues.",
        "concurrentAdmissionPolicy": "Whether a workload may be tried on several flavors at once.",
    },
    "ResourceQuota": {
        "name": "The resource, for example cpu.",
        "nominalQuota": "How much of it belongs to this queue.",
        "borrowingLimit": "How much more may be borrowed from the cohort; absent: all of it.",
        "lendingLimit": "How much of the nominal quota others may borrow; absent: all of it.",
    },
    "FlavorQuotas": {"name": "The ResourceFlavor.", "resources": "Quota of each covered resource in this flavor."},
    "ResourceGroup": {
        "coveredResources": "Resources that these flavors provide.",
        "flavors": "Flavors in the order in which they are tried.",
    },
    "Preemption": {
        "reclaimWithinCohort": "Which borrowers in the cohort are preempted to get back what is lent.",
        "withinClusterQueue": "Which workloads of the same queue are preempted.",
        "borrowWithinCohort": "Whether preemption may help to borrow.",
    },
    "LocalQueueSpec": {
        "clusterQueue": "The ClusterQueue that workloads of this queue are charged to.",
        "stopPolicy": "None: it admits. Hold: nothing new. HoldAndDrain: nothing new, and what runs is evicted.",
        "fairSharing": "The weight of this queue among those of its ClusterQueue.",
    },
    "CohortSpec": {
        "parentName": "The cohort above, whose quota this one may borrow.",
        "resourceGroups": "Quota that belongs to the cohort as a whole.",
        "fairSharing": "The weight of this cohort under its parent.",
    },
    "ResourceFlavorSpec": {
        "nodeLabels": "Labels of the nodes that make up this flavor; its pods get them as node selector.",
        "nodeTaints": "Taints of those nodes; only pods that tolerate them may use the flavor.",
        "tolerations": "Added to the pods that use this flavor.",
        "topologyName": "The Topology by which pods are placed close to each other.",
    },
    "QuotaSubtreeSpec": {
        "parent": "The node of the quota tree above these children.",
        "parentNamespace": "The namespace of the parent.",
        "children": "Nodes of the quota tree, each with what it may use.",
    },
    "RayClusterSpec": {
        "headGroupSpec": "The head of the cluster: one pod that schedules and keeps the state.",
        "workerGroupSpecs": "Groups of like workers.",
        "rayVersion": "The version of Ray that the images hold.",
        "enableInTreeAutoscaling": "Whether Ray's autoscaler runs beside the head and sizes the groups.",
        "autoscalerOptions": "How the autoscaler behaves, and its container.",
        "suspend": "While true, the cluster has no pods.",
        "managedBy": "Who runs it; anyone else leaves it alone.",
        "gcsFaultToleranceOptions": "Where the head keeps its state so that it survives a restart.",
        "headServiceAnnotations": "Annotations of the head's service.",
        "authOptions": "Whether clients need a token.",
        "upgradeStrategy": "What happens to running pods when the spec changes.",
    },
    "HeadGroup": {
        "rayStartParams": "Arguments of `ray start` on the head.",
        "serviceType": "The type of the head's service.",
    },
    "WorkerGroup": {
        "groupName": "The name of the group, unique in its cluster.",
        "replicas": "How many workers there are; the autoscaler writes it when it is on.",
        "minReplicas": "The fewest workers that the autoscaler leaves; also the gang that starts together.",
        "maxReplicas": "The most workers that the autoscaler asks for.",
        "numOfHosts": "Pods of one replica.",
        "rayStartParams": "Arguments of `ray start` on the workers.",
        "suspend": "While true, the group has no pods.",
        "scaleStrategy": "Which workers go first when the group shrinks.",
        "idleTimeoutSeconds": "After how long without work a worker may be removed.",
    },
    "RayJobSpec": {
        "entrypoint": "The command that is run on the cluster.",
        "rayClusterSpec": "The cluster that is made for this job.",
        "clusterSelector": "Labels of a running cluster to use instead.",
        "submissionMode": "K8sJobMode: by a Job. HTTPMode: by the operator. InteractiveMode: by the user.",
        "shutdownAfterJobFinishes": "Whether the cluster is deleted when the job has ended.",
        "ttlSecondsAfterFinished": "How long after its end the cluster, or the job, is deleted.",
        "backoffLimit": "How often the job is tried again with a new cluster.",
        "runtimeEnvYAML": "Ray's runtime environment: packages, variables, files.",
        "jobId": "The submission's id; made up when absent.",
        "suspend": "While true, the job waits and has no cluster.",
        "activeDeadlineSeconds": "After how long the job is stopped and has failed.",
        "entrypointNumCpus": "CPUs that the entry point itself takes on the head.",
        "entrypointNumGpus": "GPUs that the entry point itself takes on the head.",
    },
    "WorkloadSpec": {
        "podSets": "The pods that start together, by sort.",
        "queueName": "The LocalQueue that it waits in.",
        "priority": "Workloads of higher priority go first.",
        "priorityClassName": "The class that the priority came from.",
        "active": "While false it is evicted and not admitted.",
        "maximumExecutionTimeSeconds": "After how long it is stopped.",
    },
}
