"""Of all unit tests: a property is judged by what is found, not by how long a loaded machine takes over an example."""

from __future__ import annotations

from hypothesis import HealthCheck, settings

settings.register_profile("patient", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("patient")
