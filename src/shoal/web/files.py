"""The page's own files, as they lie in `static`: read once, served by name, told apart by a tag of their content.

The one script that stands in the page itself is named by its hash: it loads the page again when another file failed.
"""

from __future__ import annotations

import base64
import hashlib
import re
from functools import cache
from pathlib import Path

from aiohttp import web

STATIC = Path(__file__).parent / "static"
TYPES = {".html": "text/html", ".js": "text/javascript", ".css": "text/css", ".svg": "image/svg+xml"}


@cache
def contents() -> dict[str, tuple[bytes, str, str]]:
    """Name to content, type and tag."""
    found = {}
    for path in sorted(STATIC.iterdir()):
        if path.suffix in TYPES:
            data = path.read_bytes()
            found[path.name] = (data, TYPES[path.suffix], f'"{hashlib.sha256(data).hexdigest()[:32]}"')
    return found


@cache
def inline_scripts() -> tuple[str, ...]:
    """The scripts within the page as a Content-Security-Policy names them."""
    found = re.findall(rb"<script>(.*?)</script>", contents()["index.html"][0], re.DOTALL)
    return tuple(f"'sha256-{base64.b64encode(hashlib.sha256(one).digest()).decode()}'" for one in found)


async def index(request: web.Request) -> web.Response:
    return _answer(request, "index.html")


async def one(request: web.Request) -> web.Response:
    return _answer(request, request.match_info["name"])


def _answer(request: web.Request, name: str) -> web.Response:
    if name not in contents():
        raise web.HTTPNotFound(reason="there is no such page")
    data, kind, tag = contents()[name]
    headers = {"ETag": tag, "Cache-Control": "no-cache"}
    if request.headers.get("If-None-Match") == tag:
        return web.Response(status=304, headers=headers)
    return web.Response(body=data, content_type=kind, charset="utf-8", headers=headers)
