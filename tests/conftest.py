# SPDX-License-Identifier: MIT
"""How hypothesis runs here: no test fails for being slow, since machines are shared."""

from hypothesis import HealthCheck, settings

settings.register_profile(
    "npukit", deadline=None, suppress_health_check=[HealthCheck.too_slow], print_blob=True
)
settings.load_profile("npukit")
