"""Its place makes the helpers beside it (`textbook`, `planted`) importable from every folder of tests."""

from hypothesis import HealthCheck, settings

# how long an example takes says more about the machine than about the code
settings.register_profile("fedfuse", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("fedfuse")
