"""Gangs as the commands see them: which kinds there are, and what each tells of itself in one word and one line.

Shared by `shoal get` and `shoal why`. Reads what the controllers wrote and decides nothing.
"""

from __future__ import annotations

from shoal.api import kinds, ray_gang
from shoal.api.kind import Kind
from shoal.api.kueue_told import ended_at as workload_ended_at
from shoal.api.kueue_told import ran, told
from shoal.api.log_text import headline
from shoal.api.meta import Json
from shoal.api.pod_told import why_pending
from shoal.errors import ShoalError

KINDS = (kinds.APP_WRAPPER, kinds.APP_WRAPPER_LEGACY, kinds.RAY_JOB, kinds.RAY_CLUSTER, kinds.RAY)
QUEUED = (kinds.JOB,)
"""Kinds that are gangs only where they name a queue."""
WAITING = (kinds.JOB_SET, kinds.TRAIN_JOB, kinds.RAY_SERVICE, kinds.WORKLOAD, kinds.POD)
"""Further kinds that can wait and may be asked about, with or without a queue; the commands that change gangs do not
look for them."""
LONGEST_REASON = 1000
"""Of what a controller of ours wrote; it is one line, or the first of several."""
WRAPPERS = (kinds.APP_WRAPPER, kinds.APP_WRAPPER_LEGACY)
SHORT_NAMES = {"aw": "appwrapper", "wl": "workload", "po": "pod"}


def is_wrapper(kind: Kind) -> bool:
    return kind in WRAPPERS


def is_known(kind: Kind) -> bool:
    """Do these commands know its status? Kinds of jobs that other packages bring are told by their Workloads."""
    return kind in KINDS or kind in QUEUED


def kinds_called(word: str, others: tuple[Kind, ...] = ()) -> tuple[Kind, ...]:
    """Kinds by the names that kubectl takes: `appwrapper`, `aw`, `rayclusters`, `rayjob.ray.io`, `wl`."""
    wanted, every = word.lower().partition(".")[0], tuple(dict.fromkeys((*KINDS, *QUEUED, *others)))
    short = SHORT_NAMES.get(wanted, wanted)
    found = tuple(one for one in every if short in (one.kind.lower(), one.plural))
    if not found:
        known = ", ".join(dict.fromkeys(one.kind.lower() for one in every))
        raise ShoalError(f"{word} is no kind of gang; choose from {known}")
    return found


def owner(obj: Json) -> Json | None:
    """The controller of this object."""
    references = obj["metadata"].get("ownerReferences") or ()
    return next((reference for reference in references if reference.get("controller")), None)


def state_of(kind: Kind, obj: Json) -> tuple[str, str]:
    """State and reason, from what the object's own controller wrote; of a log in it, not a line."""
    state, reason = _told(kind, obj)
    return state, headline(reason, LONGEST_REASON)


def _told(kind: Kind, obj: Json) -> tuple[str, str]:
    status, spec = obj.get("status") or {}, obj.get("spec") or {}
    match kind.kind:
        case "AppWrapper":
            return status.get("state") or status.get("phase") or "New", str(status.get("message") or _pending(status))
        case "RayJob":
            state = status.get("jobDeploymentStatus") or ("Suspended" if spec.get("suspend") else "New")
            return state, str(ray_gang.why_waiting(obj) or status.get("message") or status.get("reason") or "")
        case "RayCluster":
            state = status.get("state") or ("suspended" if spec.get("suspend") else "starting")
            if state == "starting" and (why := ray_gang.why_waiting(obj)):
                return "waiting", why
            if state == "ready" and (lacks := _lacks(spec, status)):
                return "Incomplete", lacks
            return state, str(status.get("reason") or "")
        case "Job" if status.get("active"):
            active, ready = int(status["active"]), int(status.get("ready") or 0)
            if "ready" in status and ready < active:
                return "Starting", f"{active - ready} of {active} pods are not ready"
            return "Running", ""
        case "Pod":
            return str(status.get("phase") or "Pending"), why_pending(status, spec) or str(status.get("message") or "")
        case "JobSet" if not status.get("terminalState"):
            active = sum(int(one.get("active") or 0) for one in status.get("replicatedJobsStatus") or ())
            return ("Running" if active else "Suspended" if spec.get("suspend") else "New"), ""
        case "TrainJob" if not ended_at(kind, obj):
            active = sum(int(one.get("active") or 0) for one in status.get("jobsStatus") or ())
            return ("Running" if active else "Suspended" if spec.get("suspend") else "New"), ""
        case "RayService":
            return str(status.get("serviceStatus") or "New"), _unserved(status)
        case "Workload":
            return told(obj) or ran(obj)
    conditions = [one for one in status.get("conditions") or [] if one.get("status") == "True"]
    return (str(conditions[-1].get("type")) if conditions else "New"), ""


def _pending(status: Json) -> str:
    """Which pods of a running AppWrapper have no node, as its controller has listed them."""
    listed = [one for one in status.get("pendingpodconditions") or () if isinstance(one, dict)]
    if not listed or status.get("state") != "Running":
        return ""
    every = sum(int(status.get(name) or 0) for name in ("pending", "running", "Succeeded", "failed"))
    said = [str(one.get("message") or "") for one in listed[0].get("conditions") or ()]
    return f"{len(listed)} of {every} pods have no node: {listed[0].get('podname', '')}: {'; '.join(said)}"


def _unserved(status: Json) -> str:
    """Why a RayService does not serve, or what the upgrade of one that does waits for."""
    found = {str(one.get("type")): one for one in status.get("conditions") or ()}
    for name, value in (("UpgradeInProgress", "True"), ("Ready", "False")):
        if (one := found.get(name)) and one.get("status") == value:
            return str(one.get("message") or "")
    return ""


def _lacks(spec: Json, status: Json) -> str:
    """What a Ray cluster lacks that was ready once: its operator, as KubeRay, says `ready` for ever after. Of one that
    Ray's autoscaler sizes, workers come and go."""
    head: Json = next((one for one in status.get("conditions") or () if one.get("type") == "HeadPodReady"), {})
    wanted, there = (int(status.get(f"{name}WorkerReplicas") or 0) for name in ("desired", "ready"))
    parts = ["its head is not ready"] if head.get("status") == "False" else []
    if there < wanted and "readyWorkerReplicas" in status and not spec.get("enableInTreeAutoscaling"):
        parts.append(f"{wanted - there} of {wanted} workers are not ready")
    return " and ".join(parts)


def has_failed(kind: Kind, obj: Json) -> bool:
    status = obj.get("status") or {}
    if "Failed" in (status.get("jobDeploymentStatus"), status.get("state"), status.get("phase")):
        return True
    return any(one.get("type") == "Failed" and one.get("status") == "True" for one in status.get("conditions") or ())


def has_failed_pods(obj: Json) -> bool:
    """Is it an AppWrapper that still runs, and of whose pods some failed?"""
    told = (obj.get("status") or {}).get("conditions") or ()
    return any(one.get("reason") == "FoundFailedPods" and one.get("status") == "True" for one in told)


def ended_at(kind: Kind, obj: Json) -> str:
    """When it ended; empty while it has not."""
    status = obj.get("status") or {}
    match kind.kind:
        case "AppWrapper":
            ended = (status.get("state") or status.get("phase")) in ("Completed", "Succeeded", "Failed", "Deleted")
        case "RayJob":
            if status.get("jobDeploymentStatus") in ("Complete", "Failed", "ValidationFailed"):
                return str(status.get("endTime") or _newest(status) or obj["metadata"]["creationTimestamp"])
            ended = False
        case "Pod":
            ended = status.get("phase") in ("Succeeded", "Failed")
        case "Workload":
            return workload_ended_at(obj)
        case "Job" | "JobSet" | "TrainJob":
            conditions = status.get("conditions") or ()
            ended = any(
                one.get("type") in ("Complete", "Completed", "Failed") and one.get("status") == "True"
                for one in conditions
            )
        case _:
            ended = False
    return _newest(status) if ended else ""


def _newest(status: Json) -> str:
    times = [
        str(one.get("lastTransitionMicroTime") or one.get("lastTransitionTime") or "")
        for one in status.get("conditions") or ()
    ]
    return max(times, default="")
