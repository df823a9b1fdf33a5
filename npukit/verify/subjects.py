# SPDX-License-Identifier: MIT
"""What there is to verify: each ABI module, the header it mirrors, and the kernel's part of it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Subject:
    """An ABI module of npukit and where a kernel says the same.

    ``headers`` are the names under which its header may be included, ``module`` the kernel module
    that has the types ("" for what is always built in), ``config`` the option that builds it.
    ``driver`` is the name that DRM_IOCTL_VERSION answers, ``mainline`` says whether torvalds' tree
    has it, and with ``partial`` npukit leaves out some of the header on purpose.
    """

    name: str
    headers: tuple[str, ...]
    module: str
    config: str
    table: bool = False
    """Whether its kernel module carries a DRM request table."""
    mainline: bool = True
    partial: bool = False


SUBJECTS = {
    subject.name: subject
    for subject in (
        Subject(
            "rknpu",
            ("drm/rknpu_ioctl.h", "rknpu_ioctl.h"),
            "rknpu",
            "ROCKCHIP_RKNPU",
            table=True,
            mainline=False,
        ),
        Subject("rocket", ("drm/rocket_accel.h",), "rocket", "DRM_ACCEL_ROCKET", table=True),
        Subject("ethosu", ("drm/ethosu_accel.h",), "ethosu", "DRM_ACCEL_ARM_ETHOSU", table=True),
        Subject("amdxdna", ("drm/amdxdna_accel.h",), "amdxdna", "DRM_ACCEL_AMDXDNA", table=True),
        Subject("ivpu", ("drm/ivpu_accel.h",), "intel_vpu", "DRM_ACCEL_IVPU", table=True),
        Subject("qaic", ("drm/qaic_accel.h",), "qaic", "DRM_ACCEL_QAIC", table=True),
        Subject(
            "habanalabs",
            ("drm/habanalabs_accel.h",),
            "habanalabs",
            "DRM_ACCEL_HABANALABS",
            table=True,
        ),
        Subject("fastrpc", ("misc/fastrpc.h",), "fastrpc", "QCOM_FASTRPC"),
        Subject("wrapfd", ("linux/wrapfd.h",), "wrapfd", "ANDROID_WRAPFD", mainline=False),
        Subject("drm", ("drm/drm.h",), "drm", "DRM", table=True, partial=True),
        Subject("dma_buf", ("linux/dma-buf.h",), "", "DMA_SHARED_BUFFER"),
        Subject("dma_heap", ("linux/dma-heap.h",), "", "DMABUF_HEAPS"),
        Subject("udmabuf", ("linux/udmabuf.h",), "udmabuf", "UDMABUF"),
        Subject("sync_file", ("linux/sync_file.h",), "", "SYNC_FILE"),
    )
}
"""By the name of the ABI module."""
