# SPDX-License-Identifier: MIT
"""csrc/regcmd.h"""

cdef extern from "regcmd.h" nogil:
    void npukit_encode_regcmds(void *words, const void *target, const void *value,
                               const void *reg, size_t count)
    void npukit_decode_regcmds(void *target, void *value, void *reg, const void *words,
                               size_t count)
