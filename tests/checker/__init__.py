"""Judges a history of requests: what must hold whatever happened meanwhile.

It knows the wire format and nothing of our code: no engine, no controllers, no client. `check` takes the entries of a
recorded history or of a real server's audit log and returns what was violated, with the entries that show it.
"""

from tests.checker.judge import CHECKS, assert_holds, check
from tests.checker.record import Record, Violation, from_audit, normalize

__all__ = ["CHECKS", "Record", "Violation", "assert_holds", "check", "from_audit", "normalize"]
