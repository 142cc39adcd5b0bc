"""CEL rules of custom kinds (`x-kubernetes-validations`): compiled once per CRD version, run on every write.

`schema.Structural` calls `compile_rules` and then `CelRules.check`. A rule sees its own part of the object as `self`
and, on an update, what was there before as `oldSelf`. The CEL library is imported only when a schema has rules. A
rule that fails to evaluate refuses the write; it never ends the request.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import cache
from typing import Any

import msgspec

from shoal.errors import BadInput
from shoal.local.apiserver.cel.cost import Budget, measure, weigh
from shoal.local.apiserver.cel.formats import rewritten
from shoal.local.apiserver.cel.values import Adapt, adapter
from shoal.local.apiserver.primitives.field_errors import InvalidField, MapKey, Path, shown, text, tokens

Json = dict[str, Any]
_Node = Callable[[Any, Any, Path, list[InvalidField], Budget], None]

_ABSENT = object()
_LONGEST_MESSAGE = 5120
_LITERAL = re.compile(r"""r?("([^"\\]|\\.)*"|'([^'\\]|\\.)*')""")
TAIL = re.compile(r"^[A-Z_]+: |\s*\[[A-Z_]+\]$")
_REASONS = {"FieldValueForbidden": "Forbidden", "FieldValueRequired": "Required", "FieldValueDuplicate": "Duplicate"}


class Problem(msgspec.Struct, frozen=True):
    """A rule that cannot be compiled: where in the schema, which expression, and what the compiler said."""

    path: str
    expression: str
    message: str


class CelRules:
    """All rules of one schema, ready to run."""

    def __init__(self, root: _Node, problems: list[Problem]) -> None:
        self._root = root
        self.problems = problems

    def check(self, obj: Json, old: Json | None) -> list[InvalidField]:
        """Run every rule that applies. A value that did not change since `old` is judged by transition rules only."""
        errors: list[InvalidField] = []
        budget = Budget()
        try:
            self._root(obj, _ABSENT if old is None else old, None, errors, budget)
        except _Spent as spent:
            errors.append(
                InvalidField(text(spent.path), "Invalid", f"Invalid value: {spent.words}", tokens(spent.path))
            )
        return errors


def compile_rules(schema: Json) -> CelRules | None:
    """The rules of a schema, or None where it has none."""
    if not _has_rules(schema):
        return None
    problems: list[Problem] = []
    root = _compile(schema, "", problems, root=True)
    return CelRules(root or _nothing, problems)


def _has_rules(schema: Json) -> bool:
    return bool(schema.get("x-kubernetes-validations")) or any(_has_rules(child) for _, child in children(schema))


def children(schema: Json) -> list[tuple[str, Json]]:
    """The schemas below one, with what to call them."""
    inner = [(f"properties[{name}]", child) for name, child in (schema.get("properties") or {}).items()]
    inner += [(name, schema.get(name)) for name in ("items", "additionalProperties")]
    return [(name, child) for name, child in inner if isinstance(child, dict)]


def _nothing(value: Any, old: Any, path: Path, errors: list[InvalidField], budget: Budget) -> None:
    return None


# --- the walk


def _compile(schema: Json, where: str, problems: list[Problem], *, root: bool) -> _Node | None:
    here = f"{where}.x-kubernetes-validations" if where else "x-kubernetes-validations"
    rules = [
        rule
        for index, written in enumerate(schema.get("x-kubernetes-validations") or ())
        if (rule := _Rule.compiled(written, f"{here}[{index}]", problems)) is not None
    ]
    adapt = adapter(schema, root=root) if rules else None
    members = {
        name: node
        for name, child in (schema.get("properties") or {}).items()
        if (node := _compile(child, _join(where, f"properties[{name}]"), problems, root=False)) is not None
    }
    rest = schema.get("additionalProperties")
    others = (
        _compile(rest, _join(where, "additionalProperties"), problems, root=False) if isinstance(rest, dict) else None
    )
    items = schema.get("items")
    each = _compile(items, _join(where, "items"), problems, root=False) if isinstance(items, dict) else None
    if not rules and not members and others is None and each is None:
        return None
    keys = tuple(schema.get("x-kubernetes-list-map-keys") or ())
    steady = [rule for rule in rules if rule.uses_old]
    kind = "object" if root else str(schema.get("type") or "")

    def check(value: Any, old: Any, path: Path, errors: list[InvalidField], budget: Budget) -> None:
        if value is None:
            return
        unchanged = old is not _ABSENT and value == old
        run = steady if unchanged else rules
        if run:
            _run(run, adapt, value, old, path, kind, errors, budget)
        if type(value) is dict:
            for name, node in members.items():
                if name in value:
                    node(value[name], _member(old, name), (path, name), errors, budget)
            if others is not None:
                for name, item in value.items():
                    others(item, _member(old, name), (path, MapKey(name)), errors, budget)
        elif type(value) is list and each is not None:
            before = _by_keys(old, keys)
            for index, item in enumerate(value):
                each(item, before.get(_key(item, keys), _ABSENT), (path, index), errors, budget)

    return check


def _join(where: str, part: str) -> str:
    return f"{where}.{part}" if where else part


def _member(old: Any, name: str) -> Any:
    found = old.get(name, _ABSENT) if type(old) is dict else _ABSENT
    return _ABSENT if found is None else found


def _by_keys(old: Any, keys: tuple[str, ...]) -> dict[bytes, Any]:
    """The items of the old list by their keys. Lists without map keys have no memory."""
    if not keys or type(old) is not list:
        return {}
    return {_key(item, keys): item for item in reversed(old) if type(item) is dict}


def _key(item: Any, keys: tuple[str, ...]) -> bytes:
    return msgspec.json.encode([item.get(key) for key in keys]) if type(item) is dict and keys else b""


# --- one rule


class _Rule:
    """One compiled rule and what to say when it fails."""

    def __init__(self, written: Json, expression: Any, unset: Any, message: Any) -> None:
        self.source = str(written["rule"]).strip()
        self.message = str(written.get("message") or "").strip()
        self.field_path = str(written.get("fieldPath") or "")
        self.reason = _REASONS.get(str(written.get("reason") or ""), "Invalid")
        self.optional_old = bool(written.get("optionalOldSelf"))
        self.uses_old = self.optional_old or uses_old(self.source)
        self.expression = expression
        self.unset = unset  # the same rule for when there is no old value, where it says that it can do without
        self.message_expression = message
        self.weight = weigh(f"{self.source} {written.get('messageExpression') or ''}")

    @classmethod
    def compiled(cls, written: Json, where: str, problems: list[Problem]) -> _Rule | None:
        source = str(written.get("rule") or "").strip()
        if not source:
            problems.append(Problem(f"{where}.rule", "", ""))
            return None
        unset = None
        if written.get("optionalOldSelf"):
            expression = _compiled(
                f"cel.bind(oldSelf, optional.of(previous), {source})", f"{where}.rule", problems, source
            )
            unset = _compiled(f"cel.bind(oldSelf, optional.none(), {source})", f"{where}.rule", [], source)
        else:
            expression = _compiled(source, f"{where}.rule", problems, source)
        message = str(written.get("messageExpression") or "")
        built = None
        if message:
            bound = f"cel.bind(oldSelf, optional.of(previous), {message})" if unset is not None else message
            built = _compiled(bound, f"{where}.messageExpression", problems, message)
        return cls(written, expression, unset, built) if expression is not None else None


_PLAIN_TYPES = frozenset(("BOOL", "INT", "UINT", "DOUBLE", "STRING", "BYTES", "LIST", "MAP", "TIMESTAMP", "DURATION"))


def _compiled(source: str, where: str, problems: list[Problem], written: str) -> Any:
    try:
        found = _untyped().compile(rewritten(source))
    except RuntimeError as error:  # the library's word for a rule that does not parse or check
        problems.append(Problem(where, written, f"compilation failed: {TAIL.sub('', str(error))}"))
        return None
    wanted = "STRING" if where.endswith("messageExpression") else "BOOL"
    kind = found.return_type().name().partition("<")[0]
    if kind in _PLAIN_TYPES - {wanted}:  # of most rules nothing is known before they run
        problems.append(Problem(where, written, f"must evaluate to a {wanted.lower()}"))
        return None
    return found


def uses_old(source: str) -> bool:
    return re.search(r"\boldSelf\b", _LITERAL.sub("''", source)) is not None


class _Spent(Exception):
    """Nothing is left to run another rule with."""

    def __init__(self, words: str, path: Path) -> None:
        super().__init__(words)
        self.words = words
        self.path = path


def _run(
    rules: list[_Rule],
    adapt: Adapt | None,
    value: Any,
    old: Any,
    path: Path,
    kind: str,
    errors: list[InvalidField],
    budget: Budget,
) -> None:
    size = measure(value if old is _ABSENT else [value, old])
    data: Json = {"self": value if adapt is None else adapt(value)}
    if old is not _ABSENT:
        data["oldSelf"] = data["previous"] = old if adapt is None else adapt(old)
    for rule in rules:
        expression = rule.expression
        if rule.uses_old and old is _ABSENT:
            if rule.unset is None:
                continue
            expression = rule.unset
        words = budget.spend(rule.weight, size)
        if words:
            raise _Spent(f"{shown(kind)}: {words}: {rule.source}", path)
        try:
            result = expression.eval(data=data)
            outcome, failed = result.value(), result.type().name() == "ERROR"
        except RuntimeError as error:  # the iteration budget
            outcome, failed = error, True
        if failed:
            detail = f"{_plain_error(str(outcome))} evaluating rule: {rule.source}"
            errors.append(InvalidField(text(path), "Invalid", f"Invalid value: {shown(kind)}: {detail}", tokens(path)))
        elif outcome is not True:
            errors.append(_refusal(rule, data, value, path, kind))


def _refusal(rule: _Rule, data: Json, value: Any, path: Path, kind: str) -> InvalidField:
    detail = _built_message(rule, data) or rule.message or f"failed rule: {rule.source}"
    where = text(path)
    if rule.field_path:
        below = re.sub(r"\['([^']*)'\]", r".\1", rule.field_path).lstrip(".")
        where = below if path is None else f"{where}.{below}"
    if rule.reason == "Forbidden":
        return InvalidField(where, "Forbidden", f"Forbidden: {detail}", tokens(path))
    if rule.reason == "Required":
        return InvalidField(where, "Required", f"Required value: {detail}", tokens(path))
    words = "Duplicate value" if rule.reason == "Duplicate" else "Invalid value"
    if kind not in ("object", "array"):
        words += f": {shown(value)}"
    if rule.reason == "Duplicate":
        return InvalidField(where, "Duplicate", words, tokens(path))
    return InvalidField(where, "Invalid", f"{words}: {detail}", tokens(path))


def _built_message(rule: _Rule, data: Json) -> str:
    """The message expression's text, or nothing where it fails: the fixed message then stands in."""
    if rule.message_expression is None:
        return ""
    try:
        found = rule.message_expression.eval(data=data)
    except RuntimeError:
        return ""
    message = found.value().strip() if found.type().name() == "STRING" else ""
    return message if len(message) <= _LONGEST_MESSAGE and "\n" not in message else ""


def _plain_error(message: str) -> str:
    missing = re.search(r'Key not found in map : "?([^"]*)"?', message)
    if missing:
        return f"no such key: {missing[1]}"
    if "No matching overloads" in message:
        return "'no such overload': call arguments did not match a supported operator, function or macro signature"
    return TAIL.sub("", message)


@cache
def _untyped() -> Any:
    return environment("self", "oldSelf", "previous")


def environment(*names: str, type_: Any = None, pool: Any = None) -> Any:
    """Where expressions are compiled that read these names, which are all of this type, or of any."""
    try:
        from cel_expr_python import cel
    except ImportError:
        raise BadInput(
            "rules and conditions in CEL need the CEL library; install it with: pip install 'shoal-ray[local]'"
        ) from None
    known = dict.fromkeys(names, cel.Type.DYN if type_ is None else type_)
    return cel.NewEnv(descriptor_pool=pool, variables=known, extensions=list(_extensions()))


@cache
def _extensions() -> tuple[Any, ...]:
    from cel_expr_python import cel
    from cel_expr_python.ext import ext_bindings, ext_encoders, ext_math, ext_optional, ext_strings

    from shoal.local.apiserver.cel.functions import extension

    return (
        ext_strings.ExtStrings(), ext_math.ExtMath(), ext_optional.ExtOptional(), ext_bindings.ExtBindings(),
        ext_encoders.ExtEncoders(), extension(cel),
    )  # fmt: skip
