"""The verbs: get, list and watch (`Reader`), create, update and patch (`Writer`), delete (`Deleter`), subresources."""

from shoal.local.apiserver.verbs.deleting import Deleter
from shoal.local.apiserver.verbs.reading import Reader
from shoal.local.apiserver.verbs.subresources import Subresources
from shoal.local.apiserver.verbs.system_writes import SystemWrites
from shoal.local.apiserver.verbs.writing import Writer

__all__ = ["Deleter", "Reader", "Subresources", "SystemWrites", "Writer"]
