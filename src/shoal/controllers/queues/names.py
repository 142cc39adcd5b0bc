"""Names of what we create: fixed by what they are made for, so that creating twice is harmless.

As Kueue: Workloads carry a digest of their job's identity, ProvisioningRequests the workload, the check and the
attempt. One rule is ours: a name that is too long loses letters in front of the attempt, never the attempt itself.
"""

from __future__ import annotations

import hashlib
import re

LONGEST = 253
DIGEST = 5


def workload_name(kind: str, group: str, name: str, uid: str, extra: str = "") -> str:
    """The name of the Workload of one job; `uid` keeps apart jobs that had the same name one after the other."""
    identity = "\n".join([kind, group, name, uid, *([extra] if extra else [])])
    prefix = f"{kind.lower()}-{name}"[: LONGEST - DIGEST - 1]
    return f"{prefix}-{_digest(identity)}"


def request_name(workload: str, check: str, attempt: int) -> str:
    """`<workload>-<check>-<attempt>`; a long one is cut in front of the attempt, which stays readable."""
    return f"{request_prefix(workload, check)}{attempt}"


def request_prefix(workload: str, check: str) -> str:
    """All requests of one workload and check begin so; room for seven digits of attempts is left."""
    return f"{_fitted(f'{workload}-{check}', LONGEST - 8)}-"


def attempt_of(name: str, workload: str, check: str) -> int:
    """The attempt that a request's name tells; 0 for a name that another client chose."""
    found = re.fullmatch(re.escape(request_prefix(workload, check)) + r"([1-9][0-9]{0,6})", name)
    return int(found[1]) if found else 0


def template_name(request: str, pod_set: str) -> str:
    return _fitted(f"ppt-{request}-{pod_set}", LONGEST)


def _fitted(text: str, longest: int) -> str:
    """The text itself, or its beginning and a digest of the whole where it is too long."""
    return text if len(text) <= longest else f"{text[: longest - DIGEST - 1]}-{_digest(text)}"


def _digest(text: str) -> str:
    return hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest()[:DIGEST]
