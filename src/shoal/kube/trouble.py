"""Why something is not being read, in words that fit a condition or a log line: what is wrong and what to do."""

from __future__ import annotations

import msgspec

from shoal.api.kind import Key, Kind
from shoal.kube.errors import (
    ApiError,
    Forbidden,
    KubeError,
    NotFound,
    Overfull,
    SchemaTooOld,
    StaleList,
    TooManyRequests,
    Unauthorized,
)


class Trouble(msgspec.Struct, frozen=True):
    """`reason` is one CamelCase word; `key` names the object where it is one object's trouble."""

    reason: str
    message: str
    key: Key | None = None


def describe(error: KubeError, kind: Kind, namespace: str | None) -> Trouble:
    """What an error met while reading a kind means."""
    name = kind.resource
    scope = f" in namespace {namespace}" if namespace and kind.namespaced else ""
    match error:
        case NotFound():
            served = f"{name} ({kind.api_version}) is not served by the API server"
            return Trouble("KindNotInstalled", f"{served}. Install its CRD; it is picked up without a restart.")
        case Forbidden():
            wanted = f"may not list and watch {name}{scope}: grant the verbs list and watch on {name} to this account"
            return Trouble("Forbidden", f"{wanted}. The server says: {error}")
        case Unauthorized():
            refused = f"the API server does not accept our credentials while reading {name}: {error}"
            return Trouble("Unauthorized", f"{refused}. Renew the token or certificate.")
        case StaleList():
            return Trouble("StaleList", str(error))
        case SchemaTooOld():
            return Trouble("SchemaTooOld", str(error))
        case Overfull():
            return Trouble("TooMuch", str(error))
        case TooManyRequests():
            return Trouble("Throttled", f"the API server asks us to wait before reading {name}: {error}")
        case ApiError():
            return Trouble("ServerError", f"the API server answers {error.code} to reading {name}: {error}")
    return Trouble("Unreachable", f"cannot read {name}: {error}")
