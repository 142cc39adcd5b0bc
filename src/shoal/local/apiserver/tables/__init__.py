"""Objects as the table that `kubectl get` prints."""

from shoal.local.apiserver.tables.table import columns_of, row_of

__all__ = ["columns_of", "row_of"]
