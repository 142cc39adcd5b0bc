"""CEL rules on custom kinds: when they run, what they see, and what a refusal says."""

from __future__ import annotations

import pytest

from shoal.local.apiserver.cel import types, values
from shoal.local.apiserver.cel.rules import compile_rules
from shoal.local.apiserver.cel.types import type_problems
from shoal.local.apiserver.schema.structural import Structural
from tests.faults import proven


def ruled(schema, *rules):
    return Structural({"type": "object", "properties": {"spec": {**schema, "x-kubernetes-validations": list(rules)}}})


def complaints(schema, value, *rules, old=None):
    before = None if old is None else {"spec": old}
    return [str(error) for error in ruled(schema, *rules).validate({"spec": value}, before)]


FREE = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}


def test_a_rule_refuses_with_its_message():
    rule = {"rule": "self.min <= self.max", "message": "min may not exceed max"}
    assert complaints(FREE, {"min": 1, "max": 2}, rule) == []
    assert complaints(FREE, {"min": 3, "max": 2}, rule) == ["spec: Invalid value: min may not exceed max"]


def test_without_a_message_the_rule_itself_is_shown_and_scalars_show_their_value():
    assert complaints({"type": "integer"}, 3, {"rule": "self % 2 == 0"}) == [
        "spec: Invalid value: 3: failed rule: self % 2 == 0"
    ]


def test_message_expression_field_path_and_reason():
    rule = {
        "rule": "self.a < self.b",
        "messageExpression": "'a is ' + string(self.a)",
        "fieldPath": ".a",
        "reason": "FieldValueForbidden",
    }
    [error] = ruled(FREE, rule).validate({"spec": {"a": 5, "b": 1}})
    assert (error.path, error.type, error.message) == ("spec.a", "Forbidden", "Forbidden: a is 5")
    broken = {"rule": "false", "messageExpression": "self.missing", "message": "fixed"}
    assert complaints(FREE, {}, broken) == ["spec: Invalid value: fixed"]


def test_transition_rules_need_an_old_value():
    rule = {"rule": "self == oldSelf", "message": "is immutable"}
    schema = {"type": "string"}
    assert complaints(schema, "a", rule) == []
    assert complaints(schema, "b", rule, old="a") == ['spec: Invalid value: "b": is immutable']
    assert complaints(schema, "a", rule, old="a") == []


def test_optional_old_self_runs_on_create_too():
    rule = {"rule": "oldSelf.hasValue() ? self >= oldSelf.value() : self == 0", "optionalOldSelf": True}
    assert complaints({"type": "integer"}, 0, rule) == []
    assert len(complaints({"type": "integer"}, 1, rule)) == 1
    assert complaints({"type": "integer"}, 5, rule, old=4) == []
    assert len(complaints({"type": "integer"}, 3, rule, old=4)) == 1


def test_old_items_are_found_by_their_keys():
    schema = Structural(
        {
            "type": "object",
            "properties": {
                "spec": {
                    "type": "array",
                    "x-kubernetes-list-type": "map",
                    "x-kubernetes-list-map-keys": ["name"],
                    "items": {
                        "type": "object",
                        "properties": {
                            "name": {"type": "string"},
                            "size": {
                                "type": "integer",
                                "x-kubernetes-validations": [{"rule": "self >= oldSelf", "message": "only grows"}],
                            },
                        },
                    },
                }
            },
        }
    )
    old = {"spec": [{"name": "a", "size": 1}, {"name": "b", "size": 5}]}
    assert schema.validate({"spec": [{"name": "b", "size": 6}, {"name": "a", "size": 1}]}, old) == []
    [error] = schema.validate({"spec": [{"name": "b", "size": 4}]}, old)
    assert str(error) == "spec[0].size: Invalid value: 4: only grows"


def test_a_value_that_did_not_change_is_not_judged_again():
    rule = {"rule": "self.a > 10"}
    assert complaints(FREE, {"a": 1}, rule, old={"a": 1}) == []
    assert len(complaints(FREE, {"a": 2}, rule, old={"a": 1})) == 1


def test_a_rule_that_cannot_be_evaluated_refuses_and_says_why():
    [message] = complaints(FREE, {}, {"rule": "self.absent > 1"})
    assert message == 'spec: Invalid value: "object": no such key: absent evaluating rule: self.absent > 1'
    [message] = complaints(FREE, {"a": "x"}, {"rule": "self.a + 1 == 2"})
    assert "no such overload" in message
    many = {"l": list(range(400))}
    [message] = complaints(FREE, many, {"rule": "self.l.all(x, self.l.all(y, self.l.all(z, z < 400)))"})
    assert "budget" in message


def test_rules_wait_until_the_schema_is_satisfied():
    schema = {"type": "object", "required": ["a"], "properties": {"a": {"type": "integer"}}}
    found = complaints(schema, {}, {"rule": "self.a > 1"})
    assert found[0] == "spec.a: Required value"
    assert "were not checked because the object was invalid" in found[1]
    assert len(found) == 2


def test_rules_that_do_not_compile_are_problems_of_the_definition():
    rules = compile_rules(
        {
            "type": "object",
            "properties": {
                "spec": {
                    "type": "object",
                    "x-kubernetes-validations": [{"rule": "self.a >"}, {"rule": "true"}, {"rule": "nobody == 1"}],
                }
            },
        }
    )
    assert [problem.path for problem in rules.problems] == [
        "properties[spec].x-kubernetes-validations[0].rule",
        "properties[spec].x-kubernetes-validations[2].rule",
    ]
    assert "Syntax error" in rules.problems[0].message
    assert "undeclared reference to 'nobody'" in rules.problems[1].message
    assert compile_rules({"type": "object"}) is None


def test_names_that_are_no_identifiers_are_escaped_and_formats_are_values():
    schema = {
        "type": "object",
        "properties": {
            "ray-version": {"type": "string"},
            "if": {"type": "integer"},
            "when": {"type": "string", "format": "date-time"},
            "wait": {"type": "string", "format": "duration"},
            "share": {"type": "number"},
        },
    }
    value = {"ray-version": "2.9", "if": 1, "when": "2024-01-01T00:00:00Z", "wait": "90s", "share": 1}
    for rule in (
        "self.ray__dash__version == '2.9'",
        "self.__if__ == 1",
        "self.share * 2.0 == 2.0",
        "self.when > timestamp('2023-01-01T00:00:00Z')",
        "self.wait > duration('1m')",
        "self.when.getFullYear() == 2024",
    ):
        assert complaints(schema, value, {"rule": rule}) == []


def one_spelling(monkeypatch):
    both = values.spellings
    for module in (values, types):
        monkeypatch.setattr(module, "spellings", lambda name: both(name)[:1])


@proven(without=one_spelling)
def test_f772_a_rule_may_read_a_field_whose_name_is_a_word_of_cel():
    """F772: a rule reads `metadata.namespace`, as JobSet's does: a word that CEL keeps for itself. Holds: as in
    Kubernetes it is read, and the definition is taken."""
    claim = {"type": "object", "properties": {"metadata": {"properties": {"namespace": {"type": "string"}}}}}
    claim["properties"]["metadata"]["type"] = "object"
    schema = {"type": "object", "properties": {"templates": {"type": "array", "items": claim}}}
    rule = {"rule": "self.templates.all(t, !has(t.metadata.namespace) || size(t.metadata.namespace) == 0)"}
    assert list(type_problems({**schema, "x-kubernetes-validations": [rule]})) == []
    assert complaints(schema, {"templates": [{"metadata": {}}]}, rule) == []
    [refused] = complaints(schema, {"templates": [{"metadata": {"namespace": "other"}}]}, rule)
    assert "failed rule" in refused
    escaped = {"rule": "self.templates.all(t, t.metadata.__namespace__ == 'other')"}
    assert complaints(schema, {"templates": [{"metadata": {"namespace": "other"}}]}, escaped) == []


def test_root_rules_see_the_name_and_nothing_else_of_metadata():
    schema = Structural(
        {
            "type": "object",
            "x-kubernetes-validations": [
                {"rule": "self.metadata.name.startsWith('ok-')", "message": "name"},
                {"rule": "!has(self.metadata.labels)", "message": "labels"},
            ],
        }
    )
    assert schema.validate({"metadata": {"name": "ok-1", "labels": {"a": "b"}}}) == []
    assert [str(e) for e in schema.validate({"metadata": {"name": "x"}})] == ["<nil>: Invalid value: name"]


@pytest.mark.parametrize(
    "rule",
    [
        "quantity('1Gi').isGreaterThan(quantity('1000Mi'))",
        "quantity('500m').add(quantity('500m')) == quantity('1')",
        "quantity('2').sub(1).asInteger() == 1",
        "quantity('1500m').compareTo(quantity('1.5')) == 0 && !quantity('1500m').isInteger()",
        "isQuantity('10Ki') && !isQuantity('ten')",
        "url('https://a.example:8443/p?x=1').getPort() == '8443'",
        "url('https://a.example:8443/p?x=1').getHost() == 'a.example:8443'",
        "isURL('https://a.example') && !isURL('not a url')",
        "ip('10.0.0.1').family() == 4 && !ip('10.0.0.1').isLoopback() && string(ip('10.0.0.1')) == '10.0.0.1'",
        "isIP('::1') && ip.isCanonical('::1') && !ip.isCanonical('0:0::1')",
        "cidr('10.0.0.0/8').containsIP('10.1.1.1') && cidr('10.0.0.0/8').containsCIDR('10.1.0.0/16')",
        "cidr('10.0.0.5/8').prefixLength() == 8 && cidr('10.0.0.5/8').ip() == ip('10.0.0.5')",
        "'abc123'.find('[0-9]+') == '123' && 'a1b2'.findAll('[0-9]') == ['1', '2']",
        "[1, 2, 3].isSorted() && [1, 2, 3].sum() == 6 && [3, 1].min() == 1 && [3, 1].max() == 3",
        "[1, 2, 1].indexOf(1) == 0 && [1, 2, 1].lastIndexOf(1) == 2 && 'abc'.indexOf('c') == 2",
        "semver('1.2.3').isLessThan(semver('1.10.0')) && semver('1.0.0-rc.1').isLessThan(semver('1.0.0'))",
        "sets.contains([1, 2], [1]) && sets.equivalent([1, 2], [2, 1, 1]) && !sets.intersects([1], [2])",
        "'%s-%d'.format(['a', 1]) == 'a-1' && 'A'.lowerAscii() == 'a' && 'a,b'.split(',').join('-') == 'a-b'",
        "self.?missing.orValue(3) == 3 && has(self.here)",
        "[3, 1, 2].sort() == [1, 2, 3] && [1, 1].distinct() == [1]",
    ],
)
def test_functions(rule):
    assert complaints(FREE, {"here": 1}, {"rule": rule}) == []


@pytest.mark.parametrize(
    "name, good, bad",
    [
        ("dns1123Label", "my-name", "My_Name"),
        ("dns1123Subdomain", "a.b-c", "a..b"),
        ("dns1035Label", "abc", "1abc"),
        ("qualifiedName", "example.com/Name", "a/b/c"),
        ("labelValue", "", "-x"),
        ("dns1123LabelPrefix", "name-", "-name"),
        ("uri", "https://example.com", "no url"),
        ("uuid", "123e4567-e89b-12d3-a456-426614174000", "123"),
        ("byte", "aGk=", "***"),
        ("date", "2024-02-29", "2023-02-30"),
        ("datetime", "2024-01-01T00:00:00Z", "yesterday"),
    ],
)
def test_formats(name, good, bad):
    rule = {"rule": f"!format.{name}().validate(self).hasValue()", "message": "no"}
    assert complaints({"type": "string"}, good, rule) == []
    assert complaints({"type": "string"}, bad, rule) == [f'spec: Invalid value: "{bad}": no']


def test_formats_by_name_and_their_words():
    rule = {"rule": """!format.named("dns1123Label").value().validate((self + ")").replace(')', '')).hasValue()"""}
    assert complaints({"type": "string"}, "ok", rule) == []
    words = {
        "rule": "!format.uuid().validate(self).hasValue()",
        "messageExpression": "format.uuid().validate(self).value()[0]",
    }
    assert complaints({"type": "string"}, "x", words) == ['spec: Invalid value: "x": invalid UUID']


@pytest.mark.parametrize(
    ("rule", "wrong"), [("1", True), ("'yes'", True), ("[self]", True), ("self.a", False), ("true", False)]
)
def test_a_rule_that_can_never_answer_yes_or_no_is_a_problem_of_the_definition(rule, wrong):
    written = {"rule": rule, "messageExpression": "'told'"}
    rules = compile_rules(
        {"type": "object", "properties": {"a": {"type": "boolean"}}, "x-kubernetes-validations": [written]}
    )
    assert [problem.message for problem in rules.problems] == (["must evaluate to a bool"] if wrong else [])


SHAPES = {
    "type": "object",
    "properties": {
        "size": {"type": "integer"},
        "share": {"type": "number"},
        "name": {"type": "string"},
        "names": {"type": "array", "items": {"type": "string"}},
        "matrix": {"type": "array", "items": {"type": "array", "items": {"type": "integer"}}},
        "labels": {"type": "object", "additionalProperties": {"type": "string"}},
        "port": {"x-kubernetes-int-or-string": True},
        "when": {"type": "string", "format": "date-time"},
        "part": {"type": "object", "properties": {"a-b": {"type": "boolean"}, "in": {"type": "integer"}}},
        "open": {"type": "object", "x-kubernetes-preserve-unknown-fields": True},
    },
}


@pytest.mark.parametrize(
    "rule",
    [
        "self.size > 1 && self.share < 0.5 && self.name.startsWith('a')",
        "self.names.all(n, n != '') && self.names.exists_one(n, n == self.name) && size(self.names) < 3",
        "self.matrix.all(row, row.all(cell, cell > 0))",
        "'a' in self.labels && self.labels['a'] == 'b' && self.labels.all(k, k.size() < 9)",
        "self.port == 80 || self.port == 'http'",
        "self.size < 1.5 && self.share > 1",
        "self.when > timestamp('2024-01-01T00:00:00Z')",
        "self.part.a__dash__b || self.part.__in__ == 3",
        "has(self.part) && has(self.open) && self.?name.orValue('') == ''",
        "self == oldSelf && self.names.isSorted() && quantity(self.name).isGreaterThan(quantity('1'))",
    ],
)
def test_rules_that_fit_their_schema(rule):
    assert list(type_problems({**SHAPES, "x-kubernetes-validations": [{"rule": rule}]})) == []


@pytest.mark.parametrize(
    "rule, words",
    [
        ("self.size == 'a'", "ERROR: <input>:1:11: found no matching overload for '_==_' applied to '(int, string)'"),
        ("self.names.all(n, n > 1)", "found no matching overload for '_>_' applied to '(string, int)'"),
        ("self.labels['a'] == 1", "found no matching overload for '_==_' applied to '(string, int)'"),
        ("self.part.c", "undefined field 'c'"),
        ("self.open.anything == 1", "undefined field 'anything'"),
        ("self.size in self.names", "found no matching overload for '@in' applied to '(int, list(string))'"),
        ("self.size + 1", "cel expression must evaluate to a bool"),
    ],
)
def test_rules_that_do_not_fit_their_schema_are_refused_with_the_definition(rule, words):
    [problem] = type_problems({**SHAPES, "x-kubernetes-validations": [{"rule": rule}]})
    assert problem.path == "x-kubernetes-validations[0].rule"
    assert words in problem.message


def test_the_root_of_an_object_has_its_name_and_an_old_value_needs_a_place_that_stays():
    named = {"type": "object", "x-kubernetes-validations": [{"rule": "self.metadata.name.size() < 9"}]}
    assert list(type_problems(named)) == []
    old = {"type": "integer", "x-kubernetes-validations": [{"rule": "self == oldSelf"}]}
    [problem] = type_problems({"type": "object", "properties": {"list": {"type": "array", "items": old}}})
    assert problem.message.endswith("uncorrelatable portion of the schema within properties[list]")
    unused = [{"rule": "true", "optionalOldSelf": True}]
    [problem] = type_problems({"type": "object", "x-kubernetes-validations": unused})
    assert (problem.path, problem.message) == (
        "x-kubernetes-validations[0].optionalOldSelf",
        "may not be set if oldSelf is not used in rule",
    )
    for more, place in (
        ({"fieldPath": ".size"}, None),
        ({"fieldPath": ".none"}, "fieldPath"),
        ({"reason": "X"}, "reason"),
    ):
        found = type_problems({**SHAPES, "x-kubernetes-validations": [{"rule": "self.size > 1", **more}]})
        assert [problem.path.rpartition(".")[2] for problem in found] == ([place] if place else [])
    optional = [{"rule": "oldSelf.hasValue() ? self.size == oldSelf.value().name : true", "optionalOldSelf": True}]
    [problem] = type_problems({**SHAPES, "x-kubernetes-validations": optional})
    assert "<input>:1:32: found no matching overload" in problem.message
