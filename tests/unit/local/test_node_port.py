"""The node's own port, where only its head matters: what is not a request is refused, what is one is read whole."""

from __future__ import annotations

import pytest

from shoal.local.apiserver.primitives.status import Refused
from shoal.local.nodes.agent.kubelet import parse


def test_a_request_is_read_with_every_word_of_a_command() -> None:
    asked = parse(
        b"POST /exec/team/head%2D1/main?command=sh&command=-c&command=echo+hi&input=1&tty=0 HTTP/1.1\r\n"
        b"Host: node\r\nUpgrade: SPDY/3.1\r\n\r\n"
    )
    assert (asked.method, asked.path) == ("POST", ("exec", "team", "head-1", "main"))
    assert asked.query["command"] == ["sh", "-c", "echo hi"]
    assert (asked.flag("input"), asked.flag("tty"), asked.flag("error")) == (True, False, False)
    assert asked.headers["upgrade"] == "SPDY/3.1"


@pytest.mark.parametrize("text", ["-1", "many", "9" * 30, "١"])
def test_numbers_are_numbers(text: str) -> None:
    asked = parse(
        f"GET /containerLogs/a/b/c?tailLines={text.encode().decode('latin-1')} HTTP/1.1\r\n\r\n".encode("latin-1")
    )
    with pytest.raises(Refused, match="tailLines"):
        asked.number("tailLines")


@pytest.mark.parametrize(
    "head", [b"\r\n\r\n", b"\x16\x03\x01 what\r\n\r\n", b"GET / HTTP/2\r\n\r\n", b"GET / HTTP/1.1\r\nno colon\r\n\r\n"]
)
def test_what_is_no_request_is_refused(head: bytes) -> None:
    with pytest.raises(Refused):
        parse(head)
