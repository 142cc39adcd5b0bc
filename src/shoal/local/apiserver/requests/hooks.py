"""How the server calls out: one POST of JSON to a webhook, by URL or by service, with the CA that its owner gave.

Used for admission and for conversion. A service is reached through its endpoints, on this machine.
"""

from __future__ import annotations

import base64
import binascii
import ssl
from collections.abc import Callable
from functools import lru_cache
from typing import TYPE_CHECKING

import msgspec

from shoal.api.meta import Json
from shoal.errors import ShoalError
from shoal.local.apiserver.kinds.resources import Registry
from shoal.local.apiserver.requests.call import decoded

if TYPE_CHECKING:
    import aiohttp

MOST_ANSWER = 6 << 20


class HookUnreachable(ShoalError):
    """A webhook gave no usable answer."""


class HookCaller:
    """`resolve` may translate a service's address and port into where it listens on this machine."""

    def __init__(self, registry: Registry) -> None:
        self.registry = registry
        self.resolve: Callable[[str, int], tuple[str, int]] | None = None
        self._session: aiohttp.ClientSession | None = None
        self._asked = 0

    def question(self) -> str:
        """A name for the next question, which its answer must repeat."""
        self._asked += 1
        return f"shoal-{self._asked}"

    async def close(self) -> None:
        if self._session is not None:
            await self._session.close()
            self._session = None

    async def post(self, client: Json, body: Json, timeout: float) -> Json:
        import aiohttp  # most servers in one process call no webhook

        url, name, known_as = self._address(client)
        limited = {"timeout": f"{timeout:g}s"}  # told to the webhook, and seen in every complaint about it
        said = f'Post "{known_as}?timeout={timeout:g}s"'
        context = trusted(str(client.get("caBundle") or ""))
        if self._session is None:
            self._session = aiohttp.ClientSession(trust_env=False)
        limit = aiohttp.ClientTimeout(total=timeout)
        try:
            async with self._session.post(
                url,
                params=limited,
                data=msgspec.json.encode(body),
                ssl=context,
                timeout=limit,
                allow_redirects=False,
                server_hostname=name,
                headers={"Content-Type": "application/json", "Accept": "application/json, */*"},
            ) as answer:
                data = await answer.content.read(MOST_ANSWER)
                if answer.status != 200:
                    raise HookUnreachable(f"{said}: it answered {answer.status}")
            found = msgspec.json.decode(data)
        except TimeoutError:
            raise HookUnreachable(f"{said}: context deadline exceeded") from None
        except (aiohttp.ClientError, OSError, ssl.SSLError, msgspec.MsgspecError) as error:
            raise HookUnreachable(f"{said}: {error}") from None
        if type(found) is not dict:
            raise HookUnreachable(f"{said}: its answer is no object")
        return found

    def _address(self, client: Json) -> tuple[str, str | None, str]:
        """The URL to call, the name that the certificate must carry where it differs, and the URL as users know it."""
        if client.get("url"):
            url = str(client["url"])
            if not url.startswith("https://"):
                raise HookUnreachable(f"{url!r} is not an https address")
            return url, None, url
        service = client.get("service") or {}
        name, namespace = str(service.get("name", "")), str(service.get("namespace", ""))
        port, path = int(service.get("port") or 443), str(service.get("path") or "/")
        host, found = self._endpoint(name, namespace, port)
        server = f"{name}.{namespace}.svc"
        return f"https://{host}:{found}{path}", server, f"https://{server}:{port}{path}"

    def _endpoint(self, name: str, namespace: str, port: int) -> tuple[str, int]:
        endpoints = self.registry.find("", "endpoints")
        record = endpoints.collection.get(namespace, name) if endpoints is not None else None
        for subset in (decoded(record).get("subsets") or ()) if record is not None else ():
            for address in subset.get("addresses") or ():
                ports: list[Json] = subset.get("ports") or []
                found = next(
                    (one["port"] for one in ports if one.get("port") == self._target(name, namespace, port)), None
                )
                chosen = found or (ports[0]["port"] if len(ports) == 1 else port)
                where = (str(address["ip"]), int(chosen))
                return self.resolve(*where) if self.resolve is not None else where
        raise HookUnreachable(f'service "{namespace}/{name}" has no ready endpoint')

    def _target(self, name: str, namespace: str, port: int) -> object:
        services = self.registry.find("", "services")
        record = services.collection.get(namespace, name) if services is not None else None
        for one in ((decoded(record).get("spec") or {}).get("ports") or ()) if record is not None else ():
            if one.get("port") == port:
                return one.get("targetPort") or port
        return port


@lru_cache(maxsize=64)
def trusted(bundle: str) -> ssl.SSLContext:
    """Trust in the CA of a webhook's configuration, or else in the system's."""
    if not bundle:
        return ssl.create_default_context()
    try:
        return ssl.create_default_context(cadata=base64.b64decode(bundle, validate=True).decode())
    except (binascii.Error, UnicodeDecodeError, ssl.SSLError) as error:
        raise HookUnreachable(f"its caBundle cannot be read: {error}") from None
