"""`--set NAME=VALUE`: every setting of AppWrappers can be chosen, and a mistake is answered with what there is."""

from __future__ import annotations

import pytest

from shoal.cli import choices
from shoal.errors import BadInput


def test_settings_are_read_in_their_own_types() -> None:
    chosen = choices.read(
        [
            "bind-seconds=120",
            "pod_groups=true",
            "count_autoscaled_workers=maximum",
            "patience.retry_limit=5",
            "supply=fit",
        ]
    )
    found = choices.wrapper_settings({"supply": "aggregate", "preemption": True}, chosen)
    assert (found.bind_seconds, found.pod_groups, found.count_autoscaled_workers) == (120.0, True, "maximum")
    assert (found.patience.retry_limit, found.preemption, found.supply) == (5, True, "fit")


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("bind_seconds", "write NAME=VALUE"),
        ("bind=1", "there is no such setting; choose from backoff_seconds"),
        ("bind_seconds=soon", "bind_seconds"),
        ("quota=sometimes", "quota"),
        ("bind_seconds.more=1", "has no parts"),
        ("patience.tries=1", "choose from admission"),
    ],
)
def test_mistakes_are_answered_with_what_there_is(text: str, complaint: str) -> None:
    with pytest.raises(BadInput, match=complaint):
        choices.read([text])
