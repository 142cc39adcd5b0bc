"""Defaults, pruning, validation and field ownership, for built-in and custom kinds alike.

The one place where the writing verbs meet the schema, the field rules and the ownership of fields; it words what those
find as Kubernetes does.
"""

from __future__ import annotations

from shoal.api.meta import Json
from shoal.api.times import seconds_text
from shoal.kube.clock import Clock
from shoal.local.apiserver.kinds import defaults
from shoal.local.apiserver.kinds.objects import drop_unknown_metadata
from shoal.local.apiserver.patch import managed_fields
from shoal.local.apiserver.patch.errors import PatchError
from shoal.local.apiserver.primitives.field_errors import InvalidField
from shoal.local.apiserver.primitives.field_errors import invalid as invalid_field
from shoal.local.apiserver.primitives.status import Refused, bad_request, cause, invalid
from shoal.local.apiserver.requests.call import Call
from shoal.local.apiserver.requests.repeats import repeated_fields
from shoal.local.apiserver.requests.route import truth
from shoal.local.apiserver.validation import built_in, decoding


class Checks:
    def __init__(self, clock: Clock) -> None:
        self.clock = clock

    def look_for_repeats(self, call: Call) -> None:
        """Fields that are given twice are told or refused with those that are not known, for clients that ask."""
        if call.request.query.get("fieldValidation") in ("Strict", "Warn"):
            call.faults += repeated_fields(call.request.body) if call.repeats is None else call.repeats

    def check_applied_repeats(self, call: Call) -> None:
        """An applied configuration has words of its own for them."""
        self.look_for_repeats(call)
        if not call.faults:
            return
        words = "error converting YAML to JSON: yaml: unmarshal errors:\n  " + "\n  ".join(call.faults)
        if call.request.query.get("fieldValidation") == "Strict":
            raise bad_request(f"error strict decoding YAML: {words}")
        call.warnings.append(words)
        call.faults.clear()

    def shape(self, call: Call, obj: Json) -> None:
        """Refuse values of the wrong type, drop what the kind does not know."""
        faults = [*(f'unknown field "{path}"' for path in self._drop_unknown(call, obj)), *call.faults]
        if faults:
            self._report(call, faults)

    def settle(self, call: Call, obj: Json) -> None:
        """Once more, for what a webhook made of an object: no warning is given, for no client wrote that."""
        self._drop_unknown(call, obj)
        self.default(call, obj)

    def _drop_unknown(self, call: Call, obj: Json) -> list[str]:
        schema = call.version.schema
        if schema is not None:
            return schema.prune(obj) + drop_unknown_metadata(obj["metadata"])
        try:
            return decoding.decode(call.version.kind, obj)
        except PatchError as error:
            raise Refused(error.code, error.reason, error.message) from None

    def default(self, call: Call, obj: Json) -> None:
        """Fill in what the kind promises."""
        schema = call.version.schema
        if schema is not None:
            schema.default(obj)
        else:
            defaults.default(call.version.kind, obj)

    def _report(self, call: Call, words: list[str]) -> None:
        match call.request.query.get("fieldValidation", "Warn"):
            case "Strict":
                raise bad_request(
                    f'{call.resource.kind} in version "{call.version.name}" cannot be handled as a '
                    f"{call.resource.kind}: strict decoding error: {', '.join(words)}"
                )
            case "Ignore":
                pass
            case _:
                call.warnings += words

    def check_options(self, call: Call) -> None:
        """The query of a write, before anything is done."""
        asked = call.request.query.get("fieldValidation", "")
        if asked not in ("", "Strict", "Warn", "Ignore"):
            raise invalid(
                "meta.k8s.io",
                "CreateOptions" if call.route.verb == "create" else "PatchOptions",
                "",
                [
                    cause(
                        "FieldValueNotSupported",
                        f'Unsupported value: "{asked[:80]}": supported values: "", "Ignore", "Strict", "Warn"',
                        "fieldValidation",
                    )
                ],
            )

    def validate(self, call: Call, obj: Json, old: Json | None) -> None:
        """Raises Invalid with every fault found."""
        errors: list[InvalidField] = built_in.validate(call.version.kind, obj, old, subresource=call.route.subresource)
        if call.version.schema is not None:
            errors += call.version.schema.validate(obj, old, status_only=call.route.subresource == "status")
            errors += scale_errors(call.version.scale, obj)
        if errors:
            raise invalid(
                call.resource.group,
                call.resource.kind,
                obj["metadata"].get("name", ""),
                [error.cause for error in errors],
            )

    def own(self, call: Call, old: Json | None, new: Json) -> None:
        """Record who wrote which fields, for every write but apply, which does so itself."""
        subresource = call.owned_as
        status = (
            new.pop("status", None) if old is None and call.version.status else None
        )  # the first status has no manager
        managed_fields.track(
            call.version.shape,
            old,
            new,
            call.manager,
            now=seconds_text(self.clock.now()),
            api_version=call.version.kind.api_version,
            subresource=subresource,
        )
        if status is not None:
            new["status"] = status

    def applied(self, call: Call, old: Json | None, config: Json) -> Json:
        """The object that results from applying a configuration. Raises PatchError."""
        return managed_fields.apply(
            call.version.shape,
            old,
            config,
            call.manager,
            now=seconds_text(self.clock.now()),
            api_version=call.version.kind.api_version,
            force=truth(call.request.query.get("force", "")),
            subresource=call.route.subresource,
            separate_status=call.version.status,
        )


def scale_errors(paths: Json | None, obj: Json) -> list[InvalidField]:
    """Where a kind can be scaled, its number of replicas is a whole number."""
    path = str((paths or {}).get("specReplicasPath") or "")
    found: object = obj
    for step in path.split(".")[1:]:
        if type(found) is not dict:
            return [invalid_field(path, 0, f"{path} accessor error: {found} is of the type {_go_type(found)}, "
                                           "expected map[string]interface{}")]  # fmt: skip
        found = found.get(step)
        if found is None:
            return []
    if not path or type(found) is int:
        return []
    shown = f"{found:g}" if type(found) is float else found
    return [invalid_field(path, 0, f"{path} accessor error: {shown} is of the type {_go_type(found)}, expected int64")]


def _go_type(value: object) -> str:
    names = {str: "string", float: "float64", bool: "bool", list: "[]interface {}", dict: "map[string]interface {}"}
    return names.get(type(value), "int64")
