"""What the client accepts: plain JSON, YAML, a table for people, or metadata alone.

The verbs answer in JSON; this turns their answers, and each event of a watch, into the form that the Accept header
asks for.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any, Literal

import msgspec

from shoal.api.meta import Json
from shoal.kube.clock import Clock
from shoal.kube.transport import Response
from shoal.local.apiserver.primitives.status import not_acceptable
from shoal.local.apiserver.requests.body import to_yaml
from shoal.local.apiserver.requests.call import Answer, Call, StreamAnswer
from shoal.local.apiserver.tables.table import columns_of, row_of

Form = Literal["json", "yaml", "table", "metadata"]
OFFERED = ("application/json", "application/yaml")


class AnswerForm(msgspec.Struct, frozen=True):
    form: Form
    version: str = "v1"


PLAIN = AnswerForm("json")


def negotiate(accept: str, *, kept: bool = True) -> AnswerForm:
    """The first of the client's wishes that can be met. What is not `kept` has no metadata, and no table."""
    if accept in ("", "*/*", "application/json"):
        return PLAIN
    for wish in accept.split(","):
        media, *words = (part.strip() for part in wish.split(";"))
        given = dict(word.partition("=")[::2] for word in words)
        kind = given.get("as", "")
        if media not in ("application/json", "application/yaml", "*/*", "application/*"):
            continue
        if not kind:
            return AnswerForm("yaml") if media == "application/yaml" else PLAIN
        if (
            not kept
            or given.get("g") != "meta.k8s.io"
            or given.get("v") not in ("v1", "v1beta1")
            or media == "application/yaml"
        ):
            continue
        if kind == "Table":
            return AnswerForm("table", given["v"])
        if kind in ("PartialObjectMetadata", "PartialObjectMetadataList"):
            return AnswerForm("metadata", given["v"])
    raise not_acceptable(OFFERED)


class Presenter:
    def __init__(self, clock: Clock) -> None:
        self.clock = clock

    def present(self, call: Call, answer: Answer, wanted: AnswerForm) -> Answer:
        if isinstance(answer, Response):
            return self._whole(call, answer, wanted)
        if isinstance(answer, StreamAnswer) and call.route.verb == "watch":
            return StreamAnswer(self._events(call, answer.chunks, wanted), answer.headers, answer.status)
        return answer

    def _whole(self, call: Call, answer: Response, wanted: AnswerForm) -> Response:
        if not answer.body or not answer.headers.get("content-type", "").startswith("application/json"):
            return answer  # a log has one form only, and the answer to HEAD none
        if wanted.form == "yaml":
            return Response(answer.status, {**answer.headers, "content-type": "application/yaml"}, to_yaml(answer.body))
        found: Json = msgspec.json.decode(answer.body)
        if found.get("kind") == "Status" or call.route.subresource in ("scale", "token"):
            return answer
        is_list = call.route.verb in ("list", "deletecollection")
        items = found["items"] if is_list else [found]
        named = {"kind": call.version.kind.kind, "apiVersion": call.version.kind.api_version}
        items = [item if "kind" in item else {**named, **item} for item in items]
        if wanted.form == "table":
            table = self._table(call, items, wanted, first=True)
            own = {
                "resourceVersion": found["metadata"].get("resourceVersion", "")
            }  # a create that is only tried has none
            metadata = found["metadata"] if is_list else own
            return Response(answer.status, answer.headers, msgspec.json.encode({**table, "metadata": metadata}))
        shown = [_metadata_only(item, wanted) for item in items]
        body: Any = (
            shown[0]
            if not is_list
            else {
                "kind": "PartialObjectMetadataList",
                "apiVersion": f"meta.k8s.io/{wanted.version}",
                "metadata": found["metadata"],
                "items": shown,
            }
        )
        return Response(answer.status, answer.headers, msgspec.json.encode(body))

    async def _events(self, call: Call, chunks: AsyncIterator[bytes], wanted: AnswerForm) -> AsyncIterator[bytes]:
        first = True
        try:
            async for chunk in chunks:  # whole lines
                lines = []
                for line in chunk.splitlines():
                    event = msgspec.json.decode(line)
                    if event["type"] != "ERROR":
                        event["object"], first = self._shown(call, event, wanted, first), False
                    lines.append(msgspec.json.encode(event) + b"\n")
                yield b"".join(lines)
        finally:
            await chunks.aclose()  # type: ignore[attr-defined]  # a watch is always a generator

    def _shown(self, call: Call, event: Json, wanted: AnswerForm, first: bool) -> Json:
        obj: Json = event["object"]
        if wanted.form == "metadata":
            return _metadata_only(obj, wanted)
        if wanted.form != "table":
            return obj
        if event["type"] == "BOOKMARK":
            return {**self._table(call, [], wanted, first), "metadata": obj["metadata"]}
        return {
            **self._table(call, [obj], wanted, first),
            "metadata": {"resourceVersion": obj["metadata"]["resourceVersion"]},
        }

    def _table(self, call: Call, items: list[Json], wanted: AnswerForm, first: bool) -> Json:
        include = call.request.query.get("includeObject", "Metadata")
        now = self.clock.now()
        rows = []
        for item in items:
            row: Json = {"cells": row_of(call, item, now)}
            if include == "Object":
                row["object"] = item
            elif include != "None":
                row["object"] = _metadata_only(item, wanted)
            rows.append(row)
        columns = columns_of(call) if first else None
        return {
            "kind": "Table",
            "apiVersion": f"meta.k8s.io/{wanted.version}",
            "columnDefinitions": columns,
            "rows": rows,
        }


def _metadata_only(obj: Json, wanted: AnswerForm) -> Json:
    return {"kind": "PartialObjectMetadata", "apiVersion": f"meta.k8s.io/{wanted.version}", "metadata": obj["metadata"]}
