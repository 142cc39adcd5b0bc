"""The marks that tie a pod to its gang, written by the controllers and read by the scheduler.

A gang is bound whole or not at all: the scheduler holds pods that carry these annotations until `SIZE` of them exist
and all can be placed. They are ours alone; values that a user put there are dropped before we write.
"""

PREFIX = "shoal.dev/"

GANG_NAME = PREFIX + "gang-name"
"""Kind, namespace and name of the gang, for people: `AppWrapper/default/train`."""

GANG_UID = PREFIX + "gang-uid"
"""UID of the object that was admitted. The scheduler groups by this, never by name."""

GANG_SIZE = PREFIX + "gang-size"
"""How many pods belong to the gang at its start, as a decimal number."""

NODE_PIN = PREFIX + "planned-node"
"""The node that the plan chose for this pod, when pinning is on."""

GROWTH = PREFIX + "growth"
"""Annotation and scheduling gate of a pod that an operator makes for a gang that runs already: the gate is opened where
the pod takes the place of one that is gone, or quota has room for one more."""

LEAVES_FOR = PREFIX + "leaves-for"
"""Annotation of a pod that has to leave because another gang needs what it takes: the UID of that gang, `@`, and the
moment at which the pod is deleted at the latest. Only pods that an elastic gang has beyond its admission have it."""

DRAIN_SECONDS = PREFIX + "drain-seconds"
"""Annotation of a ClusterQueue: how long workers of its Ray clusters have between Ray being told that they go and their
end; 0: they go at once, as with Kueue."""

VICTIMS = PREFIX + "victims"
"""Annotation of a ClusterQueue: `least-loss` where, of the gangs that may be evicted for one of its own, those leave
first that lose least. Without it Kueue's order counts."""

SAVED_AT = PREFIX + "checkpointed-at"
"""Annotation of a queued job: the moment at which it last saved its work, as RFC 3339; what it did before that is not
lost when it is preempted."""

BACKFILL = PREFIX + "backfill"
"""Annotation of a ClusterQueue with `StrictFIFO`: `true` where gangs behind its front may have what it waits for, until
it can start."""

DRAINABLE = PREFIX + "drainable"
"""Annotation of a queued job: `true` where it may be stopped at any moment without much loss, so that it may
backfill."""

SUPPLY = PREFIX + "supply"
"""`fit` or `aggregate` on an AppWrapper: how its supply is judged."""

CREATED_BY = PREFIX + "created-by"
"""User, uid, groups and extra of the creator as JSON; only admission may write it."""

SUBMITTED_BY = PREFIX + "submitted-by"
"""Name of the user who created a queued job or a Ray object, as admission recorded it; for people and for history."""

NOTIFY = PREFIX + "notify"
"""Annotation of a gang or a LocalQueue: an address that gets a notice when it starts, ends or is preempted."""

USER_USAGE = PREFIX + "user-usage"
"""On a LocalQueue whose users share it by usage: what each had lately, by user and resource, as JSON. As old as
`status.fairSharing.admissionFairSharingStatus.lastUpdate`."""

ASKED = PREFIX + "asked"
"""On an AppWrapper, by a client that asks why it waits: the controller looks again and repeats this in its answer."""

PREEMPTED_FOR = PREFIX + "preempted-for"
"""Annotation of an evicted Workload: the gang that it makes way for (its UID, or its mark where it is in another
namespace), `@`, and the moment of that eviction as its condition has it. What is said of another eviction does not
count."""
