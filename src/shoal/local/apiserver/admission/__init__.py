"""Admission: built-in plugins, webhooks, quotas and limit ranges, after validation and before storage."""

from shoal.local.apiserver.admission.plugins import AdmissionPlugins
from shoal.local.apiserver.admission.quota_status import QuotaUsage
from shoal.local.apiserver.admission.webhooks import Webhooks

__all__ = ["AdmissionPlugins", "QuotaUsage", "Webhooks"]
