# SPDX-License-Identifier: MIT
"""numpy's C API: what numpy's own declarations for Cython leave out."""

from cpython.object cimport PyObject, PyTypeObject
from numpy cimport PyArray_Descr, npy_intp

cdef extern from "numpy/arrayobject.h":
    PyTypeObject PyArray_Type

    # Steals the reference to the dtype. Without data, flags other than 0 mean Fortran order.
    object PyArray_NewFromDescr(PyTypeObject *subtype, PyArray_Descr *dtype, int ndim,
                                const npy_intp *shape, const npy_intp *strides, void *data,
                                int flags, PyObject *obj)
