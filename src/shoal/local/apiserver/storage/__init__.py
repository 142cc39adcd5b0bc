"""Where objects live: a SQLite file that one process owns; every kind's objects and recent past in memory."""

from shoal.local.apiserver.storage.collection import Collection, StoredObject
from shoal.local.apiserver.storage.lock import StateBusy, StateLock
from shoal.local.apiserver.storage.store import Storage, Write, WriteFailed

__all__ = ["Collection", "StateBusy", "StateLock", "Storage", "StoredObject", "Write", "WriteFailed"]
