"""The verbs: get, list and watch; create, update and patch; delete; and subresources."""

from shoal.local.apiserver.verbs.deleting import DeleteVerbs
from shoal.local.apiserver.verbs.reading import ReadVerbs
from shoal.local.apiserver.verbs.subresources import Subresources
from shoal.local.apiserver.verbs.system_writes import SystemWrites
from shoal.local.apiserver.verbs.writing import WriteVerbs

__all__ = ["DeleteVerbs", "ReadVerbs", "Subresources", "SystemWrites", "WriteVerbs"]
