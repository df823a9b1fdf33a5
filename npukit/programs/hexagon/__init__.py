# SPDX-License-Identifier: MIT
"""What runs on a Hexagon DSP: interfaces in IDL, the packing of their calls, their clients."""
