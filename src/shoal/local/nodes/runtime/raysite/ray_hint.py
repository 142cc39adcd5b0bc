"""What a program hears that connects to `ray://` of a pod without the cluster's token: the cure, not a timeout.

Ray's client tries its first call again and again while it is refused, and ends with "ray client connection timeout".
What it does show is an initialization that failed. So a first call without the token, which asks only whether a server
is there, is answered; the initialization after it fails with the cure; every other call is refused with the same words.
Installed by `sitecustomize` into Ray's own server of that port. Where Ray looks different inside, nothing is changed.
"""

from __future__ import annotations

import importlib
import importlib.machinery
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

__all__ = ["install"]

READING = 1.0
"""Seconds in which a client reads an answer."""
INTERCEPTOR = "ray._private.authentication.grpc_authentication_server_interceptor"


def install(hint: str) -> None:
    sys.meta_path.insert(0, _Interceptor(hint))  # type: ignore[arg-type]  # a finder, as far as one is needed


class _Interceptor:
    """Ray's check of tokens, once it is imported."""

    def __init__(self, hint: str) -> None:
        self.hint = hint

    def find_spec(self, name: str, path: Any = None, target: object = None) -> object:
        if name != INTERCEPTOR:
            return None
        sys.meta_path.remove(self)  # type: ignore[arg-type]
        spec = importlib.machinery.PathFinder.find_spec(name, path)
        if spec is None or spec.loader is None:
            return spec
        original = spec.loader.exec_module

        def execute(module: Any) -> None:
            original(module)
            if hasattr(module, "_wrap_sync_behavior") and hasattr(module, "_authenticate_request"):
                module._wrap_sync_behavior = wrapper(module._authenticate_request, self.hint)

        spec.loader.exec_module = execute  # type: ignore[method-assign]
        return spec


def wrapper(may: Callable[[Any], bool], hint: str) -> Callable[[Any], Any]:
    """In place of Ray's own: `may(metadata)` says whether a call has the token."""

    def wrap(behavior: Any) -> Any:
        def wrapped(asked: Any, context: Any) -> Any:
            return behavior(asked, context) if may(context.invocation_metadata()) else _answer(asked, context, hint)

        return None if behavior is None else wrapped

    return wrap


def _answer(asked: Any, context: Any, hint: str) -> Any:
    messages: Any = importlib.import_module("ray.core.generated.ray_client_pb2")
    if isinstance(asked, messages.ClusterInfoRequest) and asked.type == messages.ClusterInfoType.PING:
        return messages.ClusterInfoResponse(type=asked.type, json="{}")
    if hasattr(asked, "DESCRIPTOR"):
        return _refuse(context, hint)
    return _answers(asked, context, hint, messages)


def _answers(asked: Iterator[Any], context: Any, hint: str, messages: Any) -> Iterator[Any]:
    """To a stream of requests: that of the data, which begins with the initialization, or that of the logs."""
    first = next(asked, None)
    if isinstance(first, messages.DataRequest) and first.WhichOneof("type") == "init":
        answer = messages.DataResponse(init=messages.InitResponse(ok=False, msg=hint))
        answer.req_id = first.req_id
        yield answer
    elif not isinstance(first, messages.LogSettingsRequest):
        _refuse(context, hint)
    _let_it_read(context)


def _let_it_read(context: Any) -> None:
    """A client whose stream ends before it has read the answer shows the end, not the answer."""
    gone = threading.Event()
    context.add_callback(gone.set)
    gone.wait(READING)


def _refuse(context: Any, hint: str) -> None:
    grpc: Any = importlib.import_module("grpc")
    context.abort(grpc.StatusCode.FAILED_PRECONDITION, hint)  # Ray tries again for ever after UNAUTHENTICATED
