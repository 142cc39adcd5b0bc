"""The words of a text, as the standard library's splitter gives them, however long the text."""

from __future__ import annotations

import shlex
import time

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from shoal.controllers.ray import shell_text
from shoal.errors import BadInput


def verdict(split, text):
    try:
        return split(text)
    except (ValueError, BadInput) as error:
        return str(error)


@settings(max_examples=400, deadline=None)
@given(st.text(alphabet="ab= \t\r\n'\"\\;&|<>()$#é", max_size=30))
@example("a '' b")
@example('"x\\y" "\\"" "\\\\"')
@example("a\\")
@example('"a\\')
@example("it's")
def test_the_words_are_those_of_the_standard_splitter(text):
    assert verdict(lambda one: shell_text.read(one).words, text) == verdict(shlex.split, text)


@pytest.mark.parametrize(
    "text, more",
    [
        ("python train.py --epochs 3", False),
        ("python -c 'a; b'", False),
        ('python -c "a\nb"', False),
        ("echo a\\;b", False),
        ("a;b", True),
        ("a && b", True),
        ("run&", True),
        ("echo hi >log", True),
        ("echo one\necho two", True),  # a line is a command of its own
    ],
)
def test_operators_count_outside_quotes(text, more):
    assert shell_text.read(text).has_operators is more


@pytest.mark.parametrize("text", ["x" * 4_000_000, "'" + "x" * 4_000_000 + "'", '"' + '\\"x' * 500_000 + '"'])
def test_megabytes_take_no_time_to_speak_of(text):
    began = time.process_time()
    assert len(shell_text.read(text).words) == 1
    assert time.process_time() - began < 5.0  # the square would be hours
