"""Text of programs inside messages."""

from __future__ import annotations

import pytest

from shoal.api.log_text import headline, in_one_line, last_lines, without_codes

FROM_RAY = (
    "Job entrypoint command failed with exit code 1, last available logs (truncated to 20,000 chars):\n"
    "\x1b[36m(f pid=12)\x1b[0m starts\n"
    "  0%|   | 0/9\r 99%|###| 9/9\n"
    "Traceback (most recent call last):\n"
    "ValueError: no such column\n"
)


@pytest.mark.parametrize("text, line", [
    ("", ""),
    ("the head pod is gone", "the head pod is gone"),
    (FROM_RAY, "Job entrypoint command failed with exit code 1"),
    ("\x1b[31mred\x1b[0m and plain\nmore", "red and plain"),
    ("\n\n  second line\n", "second line"),
    ("\x1b]0;title\x07told", "told"),
    ("x" * 300, "x" * 199 + "…"),
])  # fmt: skip
def test_a_table_gets_one_line(text, line):
    assert headline(text) == line


def test_the_last_lines_are_kept_apart():
    assert last_lines(FROM_RAY) == [
        "(f pid=12) starts",
        " 99%|###| 9/9",
        "Traceback (most recent call last):",
        "ValueError: no such column",
    ]
    assert last_lines(FROM_RAY, most=1) == ["ValueError: no such column"]
    assert last_lines("the head pod is gone") == []


def test_an_event_is_one_line_without_codes():
    assert in_one_line("probe failed:\n\x1b[1mno answer\x1b[0m") == "probe failed: no answer"
    assert in_one_line("plain") == "plain"
    assert without_codes("a\x1b[2Kb") == "ab"
