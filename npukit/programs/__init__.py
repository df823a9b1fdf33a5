# SPDX-License-Identifier: MIT
"""What an NPU executes, built and read without a device. One package per family of hardware."""
