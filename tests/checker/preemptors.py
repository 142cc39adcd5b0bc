"""What a gang sees of a preemptor in another namespace."""

from __future__ import annotations

import hashlib


def mark_of(uid: str) -> str:
    return f"sha256:{hashlib.sha256(uid.encode()).hexdigest()[:32]}"
