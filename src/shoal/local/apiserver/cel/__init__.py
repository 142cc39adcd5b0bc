"""CEL as Kubernetes has it: rules of custom kinds and `matchConditions` of webhooks, each within its cost."""

from shoal.local.apiserver.cel.match_conditions import matches
from shoal.local.apiserver.cel.rules import CelRules, compile_rules

__all__ = ["CelRules", "compile_rules", "matches"]
