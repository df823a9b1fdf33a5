# SPDX-License-Identifier: MIT
"""The C device model of the RK3588 NPU core, as npukit.sim.rk3588 needs it."""

from cpython.buffer cimport (
    PyBUF_SIMPLE, PyBUF_WRITABLE, PyBuffer_Release, PyObject_CheckBuffer, PyObject_GetBuffer,
)
from cpython.ref cimport Py_DECREF, Py_INCREF
from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t

from npukit.c_cpu cimport (
    NPUKIT_AVX512_VNNI,
    npukit_simd,
    npukit_simd_available,
    npukit_simd_level,
    npukit_simd_name,
    npukit_simd_set,
)


cdef extern from "rk3588.h" nogil:
    enum npu_kind:
        NPU_OK
        NPU_NO_MEMORY
    uint32_t NPU_NO_FIELD
    int64_t NPU_NO_IOVA

    struct npu_fault:
        npu_kind kind
        uint32_t field
        int64_t value
        int64_t iova
        char *text

    struct npu_space
    enum npu_map_result:
        NPU_MAPPED
        NPU_MAP_OVERLAP
    npu_space *npu_space_new()
    void npu_space_free(npu_space *space, void (*release)(void *owner) noexcept)
    npu_map_result npu_space_map(npu_space *space, uint64_t iova, uint64_t size, uint8_t *data,
                                 int writable, void *owner)
    void *npu_space_unmap(npu_space *space, uint64_t iova)
    void npu_space_enter(npu_space *space)
    void npu_space_leave(npu_space *space)

    struct npu:
        pass
    struct npu_run:
        uint32_t iova, amount
        int tasks
        uint32_t int_mask
        int threads
        int meets
        int64_t budget
        uint32_t raw_status
        int tasks_done
        uint32_t next_iova, next_amount
        npu_fault fault
    int npu_init(npu *core, const uint32_t *masks)
    void npu_destroy(npu *core)
    void npu_reset(npu *core)
    int npu_write_register(npu *core, uint32_t offset, uint32_t value)
    int npu_read_register(const npu *core, uint32_t offset, uint32_t *value)
    int npu_execute(npu *core, const npu_space *space, npu_run *run)


# In the order of enum npu_kind.
_KINDS = (
    "", "command", "illegal", "unsupported", "inconsistent", "access", "timed out", "",
)

_REGISTER_WORDS = 0x10000 // 4


def simd_available():
    """The names of the SIMD variants that this processor has, slowest first."""
    levels = npukit_simd_available()
    return [
        npukit_simd_name(<npukit_simd>level).decode()
        for level in range(NPUKIT_AVX512_VNNI + 1)
        if levels >> level & 1
    ]


def simd_level():
    """The name of the variant in use."""
    return npukit_simd_name(npukit_simd_level()).decode()


def simd_set(str name):
    """Use the variant `name` from now on; ValueError when the processor lacks it."""
    for level in range(NPUKIT_AVX512_VNNI + 1):
        if npukit_simd_name(<npukit_simd>level).decode() == name:
            if npukit_simd_set(<npukit_simd>level) == 0:
                return
    raise ValueError(f"no SIMD variant {name!r} here; there are {simd_available()}")


cdef class _Mapping:
    """Keeps one mapped buffer exported."""

    cdef Py_buffer view
    cdef bint held, writable

    def __cinit__(self, buffer):
        if not PyObject_CheckBuffer(buffer):
            raise TypeError(f"a buffer is needed, not {type(buffer).__name__}")
        try:
            PyObject_GetBuffer(buffer, &self.view, PyBUF_WRITABLE)
            self.writable = True
        except (BufferError, ValueError):
            try:
                PyObject_GetBuffer(buffer, &self.view, PyBUF_SIMPLE)
            except (BufferError, ValueError) as error:
                raise ValueError(f"a C-contiguous buffer is needed: {error}") from None
        self.held = True

    def __dealloc__(self):
        if self.held:
            PyBuffer_Release(&self.view)


cdef void _release(void *owner) noexcept with gil:
    Py_DECREF(<object>owner)


cdef class AddressSpace:
    cdef npu_space *space

    def __cinit__(self):
        self.space = npu_space_new()
        if self.space == NULL:
            raise MemoryError

    def __dealloc__(self):
        npu_space_free(self.space, _release)

    def map(self, iova, buffer):
        cdef _Mapping mapping = _Mapping(buffer)
        cdef uint64_t start, size = <uint64_t>mapping.view.len
        cdef uint8_t *data = <uint8_t *>mapping.view.buf
        cdef int writable = mapping.writable
        cdef npu_map_result result
        if size == 0:
            raise ValueError("an empty buffer cannot be mapped")
        if not 0 <= iova <= (1 << 32) - size:
            raise ValueError(f"{size} bytes at {iova:#x} do not fit into a space of 4 GiB")
        start = iova
        with nogil:
            result = npu_space_map(self.space, start, size, data, writable, <void *>mapping)
        if result == NPU_MAP_OVERLAP:
            raise ValueError(f"{size} bytes at {iova:#x} overlap a mapping")
        if result != NPU_MAPPED:
            raise MemoryError
        Py_INCREF(mapping)

    def unmap(self, iova):
        cdef uint64_t start
        cdef void *owner = NULL
        if 0 <= iova < 1 << 32:
            start = iova
            with nogil:
                owner = npu_space_unmap(self.space, start)
        if owner == NULL:
            raise ValueError(f"no mapping starts at {iova:#x}")
        Py_DECREF(<object>owner)


cdef class Core:
    cdef npu state
    cdef const uint32_t[::1] masks
    cdef bint busy

    def __cinit__(self, const uint32_t[::1] masks):
        if masks.shape[0] != _REGISTER_WORDS:
            raise ValueError(f"{_REGISTER_WORDS} masks are needed")
        self.masks = masks
        if npu_init(&self.state, &masks[0]):
            raise MemoryError

    def __dealloc__(self):
        npu_destroy(&self.state)

    cdef _check_idle(self):
        if self.busy:
            raise RuntimeError("this Npu is running in another thread")

    def reset(self):
        self._check_idle()
        npu_reset(&self.state)

    def write_register(self, uint32_t offset, uint32_t value):
        self._check_idle()
        return npu_write_register(&self.state, offset, value) == 0

    def read_register(self, uint32_t offset):
        cdef uint32_t value
        self._check_idle()
        if npu_read_register(&self.state, offset, &value):
            return None
        return value

    def run(self, AddressSpace space not None, uint32_t iova, uint32_t amount, int tasks,
            uint32_t int_mask, int threads, bint meets, int64_t budget):
        cdef npu_run run
        cdef int failed
        self._check_idle()
        run.iova = iova
        run.amount = amount
        run.tasks = tasks
        run.int_mask = int_mask
        run.threads = threads
        run.meets = meets
        run.budget = budget
        self.busy = True
        with nogil:
            npu_space_enter(space.space)
            failed = npu_execute(&self.state, space.space, &run)
            npu_space_leave(space.space)
        self.busy = False
        if not failed:
            link = (run.next_iova, run.next_amount) if run.next_iova else None
            return run.raw_status, run.tasks_done, None, link
        if run.fault.kind == NPU_NO_MEMORY:
            raise MemoryError
        field = None
        if run.fault.field != NPU_NO_FIELD:
            field = (run.fault.field >> 16, run.fault.field >> 8 & 255, run.fault.field & 255)
        return run.raw_status, run.tasks_done, (
            _KINDS[<int>run.fault.kind],
            field,
            run.fault.value,
            run.fault.iova if run.fault.iova != NPU_NO_IOVA else None,
            run.fault.text.decode(),
        ), None
