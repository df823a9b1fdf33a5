# SPDX-License-Identifier: MIT
"""Programs for the RK3588 NPU: register map, assembler, disassembler and operations."""
