# SPDX-License-Identifier: MIT
"""AMD XDNA: containers (xclbin), instruction streams, packets, programs and kernels."""
