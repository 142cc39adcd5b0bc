"""Nodes of the one-machine cluster: `agent` serves them, `runtime` runs their pods, `sandbox` keeps the pods apart."""
