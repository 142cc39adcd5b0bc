"""Admission: built-in plugins, webhooks, quotas and limit ranges, after validation and before storage."""

from shoal.local.apiserver.admission.plugins import Admission
from shoal.local.apiserver.admission.quota_status import QuotaStatus
from shoal.local.apiserver.admission.webhooks import Webhooks

__all__ = ["Admission", "QuotaStatus", "Webhooks"]
