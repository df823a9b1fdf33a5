# SPDX-License-Identifier: MIT
"""npukit."""
