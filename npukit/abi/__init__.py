# SPDX-License-Identifier: MIT
"""What each kernel header says, one module per header: constants, structures, requests."""
