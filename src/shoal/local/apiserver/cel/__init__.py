"""CEL as Kubernetes has it: rules of custom kinds and `matchConditions` of webhooks, each within its cost."""

from shoal.local.apiserver.cel.match_conditions import matches
from shoal.local.apiserver.cel.rules import Rules, compile_rules

__all__ = ["Rules", "compile_rules", "matches"]
