# SPDX-License-Identifier: MIT
"""What a program says to the kernel: recorded, shown, summed up, and said again."""
