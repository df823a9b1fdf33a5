# SPDX-License-Identifier: MIT
"""The hot path: raw ioctl and mmap, copies, layout packing, register command words.

_fast.pyi holds the documentation.
"""

cimport cython
cimport numpy as cnp
from cpython.buffer cimport (
    PyBUF_SIMPLE,
    PyBUF_WRITABLE,
    PyBuffer_FillInfo,
    PyBuffer_IsContiguous,
    PyBuffer_Release,
    PyObject_GetBuffer,
)
from cpython.long cimport (
    PyLong_AsLongAndOverflow,
    PyLong_AsUnsignedLong,
    PyLong_Check,
    PyLong_CheckExact,
)
from cpython.memoryview cimport PyMemoryView_GET_BUFFER
from cpython.number cimport PyIndex_Check, PyNumber_Index
from cpython.ref cimport Py_INCREF
from libc.errno cimport errno
from libc.stdint cimport int64_t, uint64_t, uintptr_t
from libc.string cimport memcpy, memset, strerror
from posix cimport mman
from posix.unistd cimport _SC_PAGESIZE, sysconf

from npukit.c_copy cimport (
    NPUKIT_COPY_BANDS,
    NPUKIT_COPY_STRATEGIES,
    npukit_copy,
    npukit_copy_2d,
    npukit_copy_band,
    npukit_copy_plan,
    npukit_copy_rate,
    npukit_copy_set_plan,
    npukit_copy_strategy,
    npukit_copy_with,
)
from npukit.c_cpu cimport (
    NPUKIT_AVX512_VNNI,
    npukit_simd,
    npukit_simd_available,
    npukit_simd_level,
    npukit_simd_name,
    npukit_simd_set,
)
from npukit.c_fence cimport npukit_fence
from npukit.c_numpy cimport PyArray_NewFromDescr, PyArray_Type
from npukit.c_pack cimport (
    NPUKIT_ATOM,
    npukit_pack_nc1hwc2,
    npukit_pack_nhwc,
    npukit_pack_weights,
    npukit_unpack_nc1hwc2,
    npukit_unpack_nhwc,
    npukit_unpack_weights,
)
from npukit.c_regcmd cimport npukit_decode_regcmds, npukit_encode_regcmds
from npukit.c_syscall cimport SYS_ioctl, syscall

cnp.import_array()

# Releasing the GIL costs about 60 ns, as much as copying this many bytes does.
cdef enum:
    WORTH_RELEASING = 32768

PAGE_SIZE = sysconf(_SC_PAGESIZE)
PROT_NONE = mman.PROT_NONE
PROT_READ = mman.PROT_READ
PROT_WRITE = mman.PROT_WRITE
PROT_EXEC = mman.PROT_EXEC
MAP_SHARED = mman.MAP_SHARED
MAP_PRIVATE = mman.MAP_PRIVATE
MAP_ANONYMOUS = mman.MAP_ANONYMOUS
MAP_POPULATE = mman.MAP_POPULATE
MAP_NORESERVE = mman.MAP_NORESERVE
MAP_LOCKED = mman.MAP_LOCKED


# ---- Buffers ------------------------------------------------------------------------------------


cdef int _acquire(object owner, Py_buffer *view, bint writable) except -1:
    """The C-contiguous bytes of any buffer, for the length of a call that holds `owner`.

    Of an array we take the pointer: numpy's own export costs several times the rest of a call, and
    holds no more than the reference that the caller has anyway.
    """
    cdef cnp.ndarray array
    if not cnp.PyArray_Check(owner):
        return PyObject_GetBuffer(owner, view, PyBUF_WRITABLE if writable else PyBUF_SIMPLE)
    array = owner
    if cnp.PyArray_TYPE(array) >= cnp.NPY_OBJECT and array.dtype.hasobject:
        raise TypeError("an array of Python objects has no bytes for others")
    if not cnp.PyArray_IS_C_CONTIGUOUS(array):
        raise BufferError("the array is not C-contiguous")
    if writable and not cnp.PyArray_ISWRITEABLE(array):
        raise BufferError("the array is read-only")
    return PyBuffer_FillInfo(
        view, None, cnp.PyArray_DATA(array), cnp.PyArray_NBYTES(array), False, PyBUF_SIMPLE
    )


cdef cnp.ndarray _output(object out, tuple shape, object dtype):
    """A new array, or one over the memory of `out`."""
    cdef cnp.npy_intp extents[4]
    cdef cnp.npy_intp wanted = dtype.itemsize
    cdef int ndim = 0
    cdef void *data = NULL
    cdef Py_buffer *buffer
    cdef cnp.ndarray array
    view = None
    for extent in shape:
        extents[ndim] = extent
        ndim += 1
    if out is not None:
        # A memoryview as the array's base is what keeps a mapping from being unmapped under it.
        view = memoryview(out)
        buffer = PyMemoryView_GET_BUFFER(view)
        for extent in shape:
            wanted *= extent
        if buffer.readonly:
            raise BufferError("out is read-only")
        if not PyBuffer_IsContiguous(buffer, b"C"):
            raise BufferError("out is not C-contiguous")
        if buffer.len != wanted:
            raise ValueError(f"out holds {buffer.len} bytes, not the {wanted} of {dtype} {shape}")
        data = buffer.buf
    Py_INCREF(dtype)
    array = PyArray_NewFromDescr(
        &PyArray_Type, <cnp.PyArray_Descr *>dtype, ndim, extents, NULL, data,
        cnp.NPY_ARRAY_CARRAY if data != NULL else 0, NULL,
    )
    if out is not None:
        cnp.set_array_base(array, view)
    return array


cdef int _apart(cnp.ndarray out, const void *src, uintptr_t size) except -1:
    """The kernels write while they read, so an `out` over the source would spoil it."""
    cdef uintptr_t out_begin = <uintptr_t>cnp.PyArray_DATA(out), src_begin = <uintptr_t>src
    if out_begin < src_begin + size and src_begin < out_begin + cnp.PyArray_NBYTES(out):
        raise ValueError("out overlaps the source")
    return 0


# ---- ioctl --------------------------------------------------------------------------------------


cdef unsigned long _word(object number) except? 0xFEED:
    """An int as the kernel takes it: an address, or a value of either sign."""
    cdef int overflow
    cdef long word = PyLong_AsLongAndOverflow(number, &overflow)
    return PyLong_AsUnsignedLong(number) if overflow else <unsigned long>word


def ioctl(int fd, unsigned int request, object arg=None):
    """ioctl(2): (result, errno), whatever they are."""
    cdef Py_buffer view
    cdef bint held = False
    cdef unsigned long word
    cdef long result
    cdef int error
    if PyLong_Check(arg):
        word = _word(arg)
    elif arg is None:
        word = 0
    elif PyIndex_Check(arg) and not cnp.PyArray_Check(arg):
        word = _word(PyNumber_Index(arg))
    else:
        _acquire(arg, &view, False)
        held = True
        word = <unsigned long>view.buf
    with nogil:
        result = syscall(SYS_ioctl, fd, request, word)
        error = errno if result == -1 else 0
    if held:
        PyBuffer_Release(&view)
    if result == 0:
        return 0, 0  # a constant, where any other tuple has to be made
    return result, error


cdef int _rows(cnp.ndarray array, str name, str kind) except -1:
    if array.descr.kind != ord(kind) or array.descr.itemsize != 8:
        raise TypeError(f"{name}: 64-bit {kind!r} items needed, not {array.dtype}")
    if cnp.PyArray_NDIM(array) != 2 or cnp.PyArray_DIM(array, 1) != 2:
        raise ValueError(f"{name}: shape (n, 2) needed, not {(<object>array).shape}")
    if not cnp.PyArray_ISCARRAY_RO(array):
        raise ValueError(f"{name}: a C-contiguous, aligned array in native byte order needed")
    return 0


def ioctl_many(
    int fd, cnp.ndarray calls not None, cnp.ndarray results not None, bint stop_on_error=False
):
    """Many ioctls on one fd; the number of calls made."""
    _rows(calls, "calls", "u")
    _rows(results, "results", "i")
    if not cnp.PyArray_ISWRITEABLE(results):
        raise BufferError("results is read-only")
    if cnp.PyArray_DIM(calls, 0) != cnp.PyArray_DIM(results, 0):
        raise ValueError(
            f"{cnp.PyArray_DIM(calls, 0)} calls, but {cnp.PyArray_DIM(results, 0)} results"
        )
    cdef const uint64_t *call = <const uint64_t *>cnp.PyArray_DATA(calls)
    cdef int64_t *result = <int64_t *>cnp.PyArray_DATA(results)
    cdef Py_ssize_t count = cnp.PyArray_DIM(calls, 0), made = 0
    with nogil:
        while made < count:
            result[2 * made] = syscall(SYS_ioctl, fd, call[2 * made], call[2 * made + 1])
            result[2 * made + 1] = errno if result[2 * made] == -1 else 0
            made += 1
            if stop_on_error and result[2 * made - 2] == -1:
                break
    return made


# ---- mmap ---------------------------------------------------------------------------------------


@cython.final
cdef class Mapping:
    """Memory mapped by mmap(), unmapped when it is closed and its last view is gone."""

    cdef object __weakref__
    cdef char *base
    cdef readonly size_t length
    cdef readonly bint closed
    cdef readonly Py_ssize_t views
    cdef int prot

    def __init__(self):
        raise TypeError("a Mapping comes from mmap()")

    def __dealloc__(self):
        self.unmap()

    cdef int unmap(self) noexcept:
        """0, or the errno of munmap(2)."""
        cdef char *base = self.base
        cdef int error = 0
        self.base = NULL
        if base != NULL:
            with nogil:
                if mman.munmap(base, self.length):
                    error = errno
        return error

    @property
    def address(self):
        return <uintptr_t>self.base

    def close(self):
        """No new views from now on; unmapped when the last one goes, at once if there is none."""
        cdef int error
        self.closed = True
        if self.views == 0:
            error = self.unmap()
            if error:
                raise OSError(error, strerror(error).decode())

    def __enter__(self):
        return self

    def __exit__(self, *exc_info):
        self.close()

    def __repr__(self):
        state = "closed, " if self.closed else ""
        return f"<Mapping {self.address:#x}, {self.length} bytes, {state}{self.views} views>"

    def __getbuffer__(self, Py_buffer *view, int flags):
        if self.closed:
            raise BufferError("the mapping is closed")
        if not self.prot & (mman.PROT_READ | mman.PROT_WRITE):
            raise BufferError("the mapping is neither readable nor writable")
        PyBuffer_FillInfo(
            view, self, self.base, self.length, not self.prot & mman.PROT_WRITE, flags
        )
        self.views += 1

    def __releasebuffer__(self, Py_buffer *view):
        self.views -= 1
        if self.closed and self.views == 0:
            self.unmap()


def mmap(
    int fd,
    size_t length,
    uint64_t offset=0,
    int prot=mman.PROT_READ | mman.PROT_WRITE,
    int flags=mman.MAP_SHARED,
):
    """mmap(2): a Mapping of `length` bytes; the kernel rounds up to its page."""
    cdef Mapping mapping = Mapping.__new__(Mapping)
    cdef void *base
    cdef int error = 0
    with nogil:
        base = mman.mmap(NULL, length, prot, flags, fd, <mman.off_t>offset)
        if base == mman.MAP_FAILED:
            error = errno
    if error:
        raise OSError(error, strerror(error).decode())
    mapping.base = <char *>base
    mapping.length = length
    mapping.prot = prot
    return mapping


def munmap(Mapping mapping not None):
    """mapping.close()"""
    mapping.close()


def fence():
    npukit_fence()


# ---- Copies -------------------------------------------------------------------------------------

cdef tuple STRATEGIES = ("plain", "stream", "threads", "stream+threads")  # enum order of copy.h


cdef npukit_copy_strategy _strategy(object name) except? <npukit_copy_strategy>0:
    if name not in STRATEGIES:
        raise ValueError(f"strategy {name!r} is none of {', '.join(STRATEGIES)}")
    return <npukit_copy_strategy><int>STRATEGIES.index(name)


def copy(object dst, object src, object strategy=None):
    """Copy the bytes of one buffer to another of the same length."""
    cdef Py_buffer to, source
    cdef npukit_copy_strategy chosen = <npukit_copy_strategy>0
    cdef bint by_plan = strategy is None
    if not by_plan:
        chosen = _strategy(strategy)
    _acquire(dst, &to, True)
    try:
        _acquire(src, &source, False)
        try:
            if to.len != source.len:
                raise ValueError(f"dst holds {to.len} bytes, src {source.len}")
            if not by_plan:
                with nogil:
                    npukit_copy_with(chosen, to.buf, source.buf, to.len)
            elif to.len < WORTH_RELEASING:
                npukit_copy(to.buf, source.buf, to.len)
            else:
                with nogil:
                    npukit_copy(to.buf, source.buf, to.len)
        finally:
            PyBuffer_Release(&source)
    finally:
        PyBuffer_Release(&to)


cdef int _rows_fit(str name, object rows, object row_bytes, object pitch, object size) except -1:
    if rows < 0 or row_bytes < 0 or pitch < row_bytes:
        raise ValueError(f"{name}: {rows} rows of {row_bytes} bytes with a pitch of {pitch}")
    needed = (rows - 1) * pitch + row_bytes if rows and row_bytes else 0
    if needed > size:
        raise ValueError(
            f"{name} holds {size} bytes, not the {needed} of {rows} rows of {row_bytes} bytes "
            f"with a pitch of {pitch}"
        )
    return 0


def copy_2d(
    object dst, object src, object rows, object row_bytes, object dst_pitch, object src_pitch
):
    """Copy rows between buffers whose rows lie `pitch` bytes apart."""
    cdef Py_buffer to, source
    cdef size_t count, length, to_pitch, source_pitch
    _acquire(dst, &to, True)
    try:
        _acquire(src, &source, False)
        try:
            _rows_fit("dst", rows, row_bytes, dst_pitch, to.len)
            _rows_fit("src", rows, row_bytes, src_pitch, source.len)
            if rows and row_bytes:
                count, length = rows, row_bytes
                # The pitch of a single row is never used, and may be anything.
                to_pitch, source_pitch = (dst_pitch, src_pitch) if rows > 1 else (length, length)
                with nogil:
                    npukit_copy_2d(to.buf, source.buf, count, length, to_pitch, source_pitch)
        finally:
            PyBuffer_Release(&source)
    finally:
        PyBuffer_Release(&to)


def copy_plan():
    """The strategy of each band of sizes and what was measured, or None before that."""
    cdef int band
    cdef int strategy
    plan = {}
    for band in range(NPUKIT_COPY_BANDS):
        strategy = npukit_copy_plan(band)
        if strategy < 0:
            return None
        rates = {
            STRATEGIES[i]: npukit_copy_rate(band, <npukit_copy_strategy>i)
            for i in range(NPUKIT_COPY_STRATEGIES)
            if npukit_copy_rate(band, <npukit_copy_strategy>i)
        }
        plan[npukit_copy_band[band]] = STRATEGIES[strategy], rates
    return plan


def set_copy_plan(object plan):
    """Use these strategies from now on; None: measure at the next large copy."""
    cdef npukit_copy_strategy strategies[NPUKIT_COPY_BANDS]
    cdef int band
    if plan is None:
        npukit_copy_set_plan(NULL)
        return
    sizes = [npukit_copy_band[band] for band in range(NPUKIT_COPY_BANDS)]
    if isinstance(plan, str):
        plan = dict.fromkeys(sizes, plan)
    if set(plan) != set(sizes):
        raise ValueError(f"a plan has a strategy for each of the sizes {sizes}, not {list(plan)}")
    for band in range(NPUKIT_COPY_BANDS):
        strategies[band] = _strategy(plan[sizes[band]])
    npukit_copy_set_plan(strategies)


# ---- Layouts ------------------------------------------------------------------------------------


cdef int _tensor(cnp.ndarray src, int least, int most, int widest) except -1:
    """Refuse what the kernels cannot take: dimensions, itemsize, strides."""
    if not least <= cnp.PyArray_NDIM(src) <= most:
        wanted = f"{least}" if least == most else f"{least} or {most}"
        raise ValueError(f"src: {wanted} dimensions needed, not shape {(<object>src).shape}")
    if src.descr.itemsize not in (1, 2, 4) or src.descr.itemsize > widest:
        sizes = "1 or 2" if widest == 2 else "1, 2 or 4"
        raise TypeError(f"src: items of {sizes} bytes needed, not {src.dtype}")
    if not cnp.PyArray_IS_C_CONTIGUOUS(src):
        raise ValueError("src: a C-contiguous array needed (numpy.ascontiguousarray makes one)")
    return 0


cdef int _element(char *element, object fill, object dtype) except -1:
    """The bytes of `fill` as one item; numpy says when it does not fit."""
    cdef cnp.npy_intp size = dtype.itemsize
    cdef cnp.ndarray item
    if PyLong_CheckExact(fill) and fill == 0:
        memset(element, 0, size)
        return 0
    item = cnp.PyArray_SimpleNew(1, &size, cnp.NPY_UINT8)
    item.view(dtype)[0] = fill
    memcpy(element, cnp.PyArray_DATA(item), size)
    return 0


cdef object _ceil_div(object a, object b):
    return -(-a // b)


cdef int _channels(object channels, object c1, object c2) except -1:
    if channels < 0 or _ceil_div(channels, c2) != c1:
        raise ValueError(f"{channels} channels do not make {c1} groups of {c2}")
    return 0


def pack_nc1hwc2(cnp.ndarray src not None, object fill=0, object out=None):
    """(C, H, W) to (C1, H, W, C2)."""
    cdef char element[4]
    _tensor(src, 3, 3, 4)
    _element(element, fill, src.dtype)
    c, h, w = (<object>src).shape
    cdef size_t channels = c, plane = h * w, itemsize = src.descr.itemsize
    c2 = NPUKIT_ATOM // itemsize
    cdef cnp.ndarray packed = _output(out, (_ceil_div(c, c2), h, w, c2), src.dtype)
    _apart(packed, cnp.PyArray_DATA(src), cnp.PyArray_NBYTES(src))
    with nogil:
        npukit_pack_nc1hwc2(
            cnp.PyArray_DATA(packed), cnp.PyArray_DATA(src), channels, plane, itemsize, element
        )
    return packed


def unpack_nc1hwc2(cnp.ndarray src not None, object channels, object out=None):
    """(C1, H, W, C2) to (channels, H, W)."""
    _tensor(src, 4, 4, 4)
    c1, h, w, c2 = (<object>src).shape
    cdef size_t plane = h * w, itemsize = src.descr.itemsize, count
    if c2 * itemsize != NPUKIT_ATOM:
        raise ValueError(f"src: C2 = {NPUKIT_ATOM // itemsize} needed for {src.dtype}, not {c2}")
    _channels(channels, c1, c2)
    count = channels
    cdef cnp.ndarray planar = _output(out, (channels, h, w), src.dtype)
    _apart(planar, cnp.PyArray_DATA(src), cnp.PyArray_NBYTES(src))
    with nogil:
        npukit_unpack_nc1hwc2(
            cnp.PyArray_DATA(planar), cnp.PyArray_DATA(src), count, plane, itemsize
        )
    return planar


def pack_nhwc(cnp.ndarray src not None, object fill=0, object out=None):
    """(H, W, C) to (C1, H, W, C2), or (M, K) to (K1, M, C2)."""
    cdef char element[4]
    cdef size_t plane = 1, itemsize, channels
    _tensor(src, 2, 3, 4)
    _element(element, fill, src.dtype)
    *pixels, c = (<object>src).shape
    for extent in pixels:
        plane *= extent
    channels, itemsize = c, src.descr.itemsize
    c2 = NPUKIT_ATOM // itemsize
    cdef cnp.ndarray packed = _output(out, (_ceil_div(c, c2), *pixels, c2), src.dtype)
    _apart(packed, cnp.PyArray_DATA(src), cnp.PyArray_NBYTES(src))
    with nogil:
        npukit_pack_nhwc(
            cnp.PyArray_DATA(packed), cnp.PyArray_DATA(src), channels, plane, itemsize, element
        )
    return packed


def unpack_nhwc(cnp.ndarray src not None, object channels, object out=None):
    """(C1, H, W, C2) to (H, W, channels), or (K1, M, C2) to (M, channels)."""
    cdef size_t plane = 1, itemsize, count
    _tensor(src, 3, 4, 4)
    c1, *pixels, c2 = (<object>src).shape
    for extent in pixels:
        plane *= extent
    itemsize = src.descr.itemsize
    if c2 * itemsize != NPUKIT_ATOM:
        raise ValueError(f"src: C2 = {NPUKIT_ATOM // itemsize} needed for {src.dtype}, not {c2}")
    _channels(channels, c1, c2)
    count = channels
    cdef cnp.ndarray rows = _output(out, (*pixels, channels), src.dtype)
    _apart(rows, cnp.PyArray_DATA(src), cnp.PyArray_NBYTES(src))
    with nogil:
        npukit_unpack_nhwc(cnp.PyArray_DATA(rows), cnp.PyArray_DATA(src), count, plane, itemsize)
    return rows


cdef object _taps(tuple shape):
    """Kernel height * width of (N, K) or (N, KH, KW, K)."""
    if len(shape) == 2:
        return 1
    if len(shape) == 4:
        return shape[1] * shape[2]
    raise ValueError(f"(N, K) or (N, KH, KW, K) needed, not shape {shape}")


def pack_weights(cnp.ndarray src not None, object fill=0, object out=None):
    """(N, K) or (N, KH, KW, K) to the order in which the RK3588 fetches weights."""
    cdef char element[4]
    _tensor(src, 2, 4, 2)
    _element(element, fill, src.dtype)
    shape = (<object>src).shape
    cdef size_t taps = _taps(shape), kernels = shape[0], channels = shape[-1]
    cdef size_t itemsize = src.descr.itemsize
    c2 = NPUKIT_ATOM // itemsize
    items = kernels * taps * (_ceil_div(shape[-1], c2) * c2)
    cdef cnp.ndarray packed = _output(out, (items,), src.dtype)
    _apart(packed, cnp.PyArray_DATA(src), cnp.PyArray_NBYTES(src))
    with nogil:
        npukit_pack_weights(
            cnp.PyArray_DATA(packed), cnp.PyArray_DATA(src), kernels, taps, channels, itemsize,
            element,
        )
    return packed


def unpack_weights(cnp.ndarray src not None, object shape, object out=None):
    """The order of pack_weights() back to `shape`."""
    _tensor(src, 1, 1, 2)
    shape = tuple(shape)
    if any([extent < 0 for extent in shape]):
        raise ValueError(f"negative extent in {shape}")
    cdef size_t taps = _taps(shape), kernels = shape[0], channels = shape[-1]
    cdef size_t itemsize = src.descr.itemsize
    c2 = NPUKIT_ATOM // itemsize
    items = kernels * taps * (_ceil_div(shape[-1], c2) * c2)
    if cnp.PyArray_SIZE(src) != items:
        raise ValueError(f"src: {items} items needed for {shape}, not {cnp.PyArray_SIZE(src)}")
    cdef cnp.ndarray tensor = _output(out, shape, src.dtype)
    _apart(tensor, cnp.PyArray_DATA(src), cnp.PyArray_NBYTES(src))
    with nogil:
        npukit_unpack_weights(
            cnp.PyArray_DATA(tensor), cnp.PyArray_DATA(src), kernels, taps, channels, itemsize
        )
    return tensor


# ---- Register command words ---------------------------------------------------------------------


cdef cnp.ndarray _field(object values, int typenum, object largest, str name):
    """`values` as an array that C may read, of the field's own type; nothing is cut off."""
    cdef cnp.ndarray array = cnp.PyArray_FROM_O(values)
    if cnp.PyArray_NDIM(array) > 1:
        raise ValueError(f"{name}: one dimension at most, not shape {(<object>array).shape}")
    if cnp.PyArray_TYPE(array) == typenum and cnp.PyArray_ISCARRAY_RO(array):
        return array
    if cnp.PyArray_SIZE(array):
        if array.dtype.kind == "O":
            for item in array.flat:
                PyNumber_Index(item)
        elif array.dtype.kind not in "iu":
            raise TypeError(f"{name}: integers needed, not {array.dtype}")
        wrong = (array < 0) | (array > largest)
        if wrong.any():
            i = wrong.argmax()
            raise ValueError(f"{name}[{i}] = {array.flat[i]} is not in 0..{largest:#x}")
    return cnp.PyArray_FROM_OTF(
        array, typenum, cnp.NPY_ARRAY_IN_ARRAY | cnp.NPY_ARRAY_FORCECAST
    )


cdef cnp.ndarray _spread(cnp.ndarray field, cnp.npy_intp count):
    """A scalar stands for every word."""
    if cnp.PyArray_NDIM(field):
        return field
    cdef cnp.ndarray array = cnp.PyArray_SimpleNew(1, &count, cnp.PyArray_TYPE(field))
    array[...] = field
    return array


def encode_regcmds(object target, object value, object register, object out=None):
    """Words of target << 48 | value << 16 | register."""
    cdef cnp.ndarray targets = _field(target, cnp.NPY_UINT16, 0xFFFF, "target")
    cdef cnp.ndarray values = _field(value, cnp.NPY_UINT32, 0xFFFFFFFF, "value")
    cdef cnp.ndarray registers = _field(register, cnp.NPY_UINT16, 0xFFFF, "register")
    cdef cnp.ndarray words
    cdef cnp.npy_intp count = 1
    fields = (targets, values, registers)
    lengths = {cnp.PyArray_SIZE(field) for field in fields if cnp.PyArray_NDIM(field)}
    if len(lengths) > 1:
        raise ValueError(
            f"lengths differ: {cnp.PyArray_SIZE(targets)} targets, {cnp.PyArray_SIZE(values)} "
            f"values, {cnp.PyArray_SIZE(registers)} registers"
        )
    if lengths:
        count = lengths.pop()
    targets, values, registers = [_spread(field, count) for field in fields]
    words = _output(out, (count,), cnp.PyArray_DescrFromType(cnp.NPY_UINT64))
    _apart(words, cnp.PyArray_DATA(targets), cnp.PyArray_NBYTES(targets))
    _apart(words, cnp.PyArray_DATA(values), cnp.PyArray_NBYTES(values))
    _apart(words, cnp.PyArray_DATA(registers), cnp.PyArray_NBYTES(registers))
    with nogil:
        npukit_encode_regcmds(
            cnp.PyArray_DATA(words), cnp.PyArray_DATA(targets), cnp.PyArray_DATA(values),
            cnp.PyArray_DATA(registers), count,
        )
    return words


def decode_regcmds(object words, object out=None):
    """(target, value, register) of each word."""
    cdef Py_buffer view
    cdef cnp.ndarray targets, values, registers
    cdef size_t count
    if cnp.PyArray_Check(words) and words.dtype != cnp.PyArray_DescrFromType(cnp.NPY_UINT64):
        raise TypeError(f"words: uint64 needed, not {words.dtype}")
    to_targets, to_values, to_registers = (None, None, None) if out is None else out
    _acquire(words, &view, False)
    try:
        if view.len % 8:
            raise ValueError(f"words: {view.len} bytes are no whole number of 8-byte words")
        count = view.len // 8
        uint16 = cnp.PyArray_DescrFromType(cnp.NPY_UINT16)
        uint32 = cnp.PyArray_DescrFromType(cnp.NPY_UINT32)
        targets = _output(to_targets, (count,), uint16)
        values = _output(to_values, (count,), uint32)
        registers = _output(to_registers, (count,), uint16)
        _apart(targets, view.buf, view.len)
        _apart(values, view.buf, view.len)
        _apart(registers, view.buf, view.len)
        with nogil:
            npukit_decode_regcmds(
                cnp.PyArray_DATA(targets), cnp.PyArray_DATA(values), cnp.PyArray_DATA(registers),
                view.buf, count,
            )
    finally:
        PyBuffer_Release(&view)
    return targets, values, registers


# ---- SIMD ---------------------------------------------------------------------------------------


def simd():
    """The name of the SIMD level in use."""
    return npukit_simd_name(npukit_simd_level()).decode()


def simd_available():
    """The names of the levels that this processor has, "portable" first."""
    cdef unsigned bits = npukit_simd_available()
    return [
        npukit_simd_name(<npukit_simd>level).decode()
        for level in range(NPUKIT_AVX512_VNNI + 1)
        if bits >> level & 1
    ]


def set_simd(str name not None):
    """Use this level from now on."""
    for level in range(NPUKIT_AVX512_VNNI + 1):
        if npukit_simd_name(<npukit_simd>level).decode() == name:
            if npukit_simd_set(<npukit_simd>level) == 0:
                return
    raise ValueError(f"{name!r} is none of {', '.join(simd_available())}")
