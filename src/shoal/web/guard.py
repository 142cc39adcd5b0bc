"""What keeps other web pages out: the Host, Origin and Sec-Fetch-Site of a request, and the headers of every answer.

A page of another site can make a browser send requests here, also under a name of its own that points at this address,
but it cannot hide that name. Ray's dashboards (`/ray/`) are code of the gangs' owners: they get an origin of their own.
"""

from __future__ import annotations

from collections.abc import Collection

from aiohttp import web

from shoal.web.files import inline_scripts

POLICY = "; ".join(
    (
        "default-src 'none'",
        " ".join(("script-src 'self'", *inline_scripts())),
        "style-src 'self'",
        "img-src 'self'",
        "connect-src 'self'",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
        "require-trusted-types-for 'script'",
        "trusted-types 'none'",
    )
)
"""For our own pages: nothing from elsewhere, nothing inline but what is ours, no text that becomes code."""
FOREIGN = "/ray/"
"""Below it are answers of Ray's dashboards."""
FOREIGN_POLICY = "sandbox allow-scripts allow-forms allow-downloads; frame-ancestors 'none'"
"""Without allow-same-origin: what a dashboard runs has no origin, no cookie and no storage of ours."""
HEADERS = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), microphone=(), geolocation=()",
}


def refusal(request: web.BaseRequest, origins: Collection[str]) -> str:
    """Why this request is not answered; empty where it may be."""
    host = request.headers.get("Host", "")
    if not any(origin.partition("://")[2] == host.lower() for origin in origins):
        return f"host {host[:80]!r} is not served here; use the address that `shoal open` prints"
    if request.path.startswith(FOREIGN):
        return ""  # an opaque origin names itself null; the capability in the path is what counts
    origin = request.headers.get("Origin")
    if origin is not None and origin.lower() not in origins:
        return "requests from other web pages are not served"
    site = request.headers.get("Sec-Fetch-Site", "none")
    if site not in ("same-origin", "none") and not _is_link(request):
        return "requests from other web pages are not served"
    return ""


def _is_link(request: web.BaseRequest) -> bool:
    """A link from elsewhere may lead to the page; it is of no use without the key, and nothing changes by it."""
    return request.method == "GET" and request.headers.get("Sec-Fetch-Mode") == "navigate"


def put_headers(request: web.BaseRequest, response: web.StreamResponse) -> None:
    """On every answer, the refusals included."""
    for name, value in HEADERS.items():
        if not (request.path.startswith(FOREIGN) and name.startswith("Cross-Origin")):
            response.headers.setdefault(name, value)
    response.headers.setdefault("Cache-Control", "no-store")
