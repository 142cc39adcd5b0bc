"""What can go wrong between us and an API server, as types that callers can match.

`ApiError` is the server's own refusal and carries its Status. `Unsent` and `Unknown` are the transport's: the
difference decides whether a write may be repeated.
"""

from __future__ import annotations

from typing import Any

from shoal.errors import ShoalError


class KubeError(ShoalError):
    """Anything that went wrong on the way to or at the API server."""


class Unsent(KubeError):
    """The request did not reach the server (connection refused, name not found, TLS refused). Safe to repeat."""


class Unknown(KubeError):
    """The request may or may not have been carried out (cut, timeout). Read before repeating a write."""


class SchemaTooOld(KubeError):
    """The server would drop fields of this kind that we depend on."""


class StaleList(KubeError):
    """A list older than what the server already told us."""


class Overfull(KubeError):
    """A server has more objects of a kind than are kept of it."""


class LeaseLost(Unsent):
    """The write was kept back: its lease term has ended or may have. Do not repeat it."""


class ApiError(KubeError):
    """The server answered with an error. `status` is its Status object where it sent one."""

    def __init__(
        self,
        code: int,
        reason: str,
        message: str,
        status: dict[str, Any] | None = None,
        retry_after: float | None = None,
    ) -> None:
        super().__init__(message)
        self.code = code
        self.reason = reason
        self.message = message
        self.status = status or {}
        self.retry_after = retry_after

    @property
    def causes(self) -> list[dict[str, Any]]:
        """Field errors of an Invalid answer."""
        found = (self.status.get("details") or {}).get("causes") or []
        return list(found)


class BadRequest(ApiError):
    pass


class Unauthorized(ApiError):
    pass


class Forbidden(ApiError):
    pass


class NotFound(ApiError):
    pass


class Conflict(ApiError):
    """409 with reason Conflict: the resourceVersion or a precondition did not hold. Reread."""


class AlreadyExists(ApiError):
    """409 with reason AlreadyExists."""


class Gone(ApiError):
    """410: the resourceVersion is older than the history. Relist."""


class Invalid(ApiError):
    """422: validation refused the object; `causes` names the fields."""


class TooManyRequests(ApiError):
    pass


class ServerError(ApiError):
    """500 and above."""


_BY_CODE: dict[int, type[ApiError]] = {
    400: BadRequest,
    401: Unauthorized,
    403: Forbidden,
    404: NotFound,
    409: Conflict,
    410: Gone,
    422: Invalid,
    429: TooManyRequests,
}


def from_status(code: int, status: dict[str, Any], retry_after: float | None = None) -> ApiError:
    """The typed error for a server's answer."""
    reason = str(status.get("reason") or "")
    message = str(status.get("message") or f"the server answered {code} {reason}".rstrip())
    if code == 409 and reason == "AlreadyExists":
        return AlreadyExists(code, reason, message, status, retry_after)
    family = _BY_CODE.get(code) or (ServerError if code >= 500 else ApiError)
    return family(code, reason, message, status, retry_after)
