# SPDX-License-Identifier: MIT
"""How hypothesis runs here.

No test fails for being slow, since machines are shared; and a fixture is mostly a device, which all
examples of a test are meant to use.
"""

from hypothesis import HealthCheck, settings

settings.register_profile(
    "npukit",
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
    print_blob=True,
)
settings.load_profile("npukit")
