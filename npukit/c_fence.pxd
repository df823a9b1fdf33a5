# SPDX-License-Identifier: MIT
"""csrc/fence.h"""

cdef extern from "fence.h" nogil:
    void npukit_fence()
