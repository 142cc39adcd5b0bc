"""What commands print of logs, and templates of `-o jsonpath`."""

from __future__ import annotations

import io

import pytest

from shoal.api.kueue_told import brief
from shoal.cli import show, telling, templates
from shoal.errors import BadInput
from shoal.sdk.logs import LogSource
from tests.faults import proven

ONE, TWO = LogSource("a-1", "c", "u1", True, False), LogSource("b-2", "c", "u2", True, False)


def sends_everything(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(telling, "visible", lambda data: data)


@proven(without=sends_everything)
def test_f250_a_log_cannot_drive_the_terminal() -> None:
    """F250: a pod writes terminal escapes into its log (title, clipboard, cursor, a carriage return that hides a line),
    and a user reads it with shoal logs or submit. Holds: at a terminal they are shown as text; colours stay; files and
    pipes get the bytes as they are."""
    nasty = b"\x1b]0;title\x07\x1b]52;c;ZXZpbA==\x07\x1b[2Jgood\revil \x1b[31mred\x1b[0m\xc2\x9b6n\n"
    seen, piped = io.BytesIO(), io.BytesIO()
    telling.LogWriter(out=seen, terminal=True).write(ONE, nasty)
    telling.LogWriter(out=piped, terminal=False).write(ONE, nasty)
    assert piped.getvalue() == nasty
    text = seen.getvalue().decode()
    assert "\\x1b]0;title\\x07" in text and "good\nevil \x1b[31mred\x1b[0m\\x9b6n\n" in text
    assert text.replace("\x1b[31m", "").replace("\x1b[0m", "").isprintable() is False  # newlines alone
    assert all(char == "\n" or char.isprintable() for char in text.replace("\x1b[31m", "").replace("\x1b[0m", ""))


def test_lines_of_several_pods_are_whole_and_named() -> None:
    out = io.BytesIO()
    writer = telling.LogWriter(named=True, out=out, terminal=False)
    writer.write(ONE, b"first li")
    writer.write(TWO, b"other\n")
    writer.write(ONE, b"ne\nrest")
    writer.close()
    assert out.getvalue().decode().splitlines() == ["[b-2] other", "[a-1] first line", "[a-1] rest"]


ROWS = {"items": [{"name": "a", "n": 1}, {"name": "b", "n": 2}]}


@pytest.mark.parametrize(
    "template, text",
    [
        ("{.items[*].name}", "a b"),
        (".items[0].name", "a"),
        ("{range .items[*]}{.name}={.n}{'\\n'}{end}", "a=1\\nb=2\\n"),
        ('{range .items[*]}{.name}{"\\n"}{end}end', "a\nb\nend"),
        ("{.items[?(@.n==2)].name}", "b"),
        ("{.none}", ""),
        ("{range .none[*]}{.x}{end}!", "!"),
    ],
)
def test_templates_read_as_kubectl_reads_them(template: str, text: str) -> None:
    assert templates.rendered(template, ROWS) == text


@pytest.mark.parametrize("template", ["{.a", "{range .items[*]}{.a}", "{.a}{end}"])
def test_a_template_that_cannot_be_read_is_refused(template: str) -> None:
    with pytest.raises(BadInput):
        templates.rendered(template, ROWS)


@pytest.mark.parametrize(
    "text, shown",
    [
        ("2 cpu, 1953125Ki memory", "2 cpu, 2G memory"),
        ("8118372Ki", "7.7Gi"),
        ("512Ki and 2Gi", "512Ki and 2Gi"),
        ("pod-1953125Ki", "pod-1953125Ki"),  # a name
    ],
)
def test_memory_is_shown_in_the_unit_of_its_size(text: str, shown: str) -> None:
    assert show.sized(text) == shown


SET, SHORT = "couldn't assign flavors to pod set", "insufficient unused quota for"


@pytest.mark.parametrize(
    ("reason", "said"),
    [
        (
            f"{SET} head: {SHORT} cpu in flavor main, 500m more needed, {SHORT} memory in flavor main, 200Mi more "
            f"needed; {SET} workers: {SHORT} cpu in flavor main, 2 more needed",
            "2 cpu, 200Mi memory more needed in flavor main",
        ),
        (
            f"{SET} main: {SHORT} cpu in flavor a, 1 more needed, {SHORT} cpu in flavor b, 3 more needed",
            "1 cpu more needed in flavor a; 3 cpu more needed in flavor b",
        ),
    ],
)
def test_a_table_says_in_short_what_quota_is_missing(reason: str, said: str) -> None:
    assert brief(reason) == said


@pytest.mark.parametrize(
    "reason",
    [
        "3 cpu needed, 1 free",
        "",
        f"{SET} a: {SHORT} cpu in flavor a, 1 more needed; {SET} b: resource memory unavailable in ClusterQueue",
        f"{SET} a: {SHORT} cpu in flavor a, 1 more needed; not before 2026-01-01T00:00:00Z",
    ],
)
def test_what_a_short_sentence_would_leave_out_is_said_whole(reason: str) -> None:
    assert brief(reason) == reason
