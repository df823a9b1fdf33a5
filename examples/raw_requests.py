# SPDX-License-Identifier: MIT
"""Talk to a driver request by request, and see every call that is made."""

import os

from npukit.abi import rocket
from npukit.abi.drm import DRM_IOCTL_GEM_CLOSE
from npukit.ioctl import NpuError, TracingKernel
from npukit.sim import SimKernel

kernel = TracingKernel(
    SimKernel(["rocket"]),
    lambda call: print(f"{call.name:6} {call.duration_ns / 1000:7.1f} us  {call.arguments}"),
)
fd = kernel.open("/dev/accel/accel0", os.O_RDWR | os.O_CLOEXEC)
bo = rocket.DRM_IOCTL_ROCKET_CREATE_BO(kernel, fd, size=4096)
print(bo)
DRM_IOCTL_GEM_CLOSE(kernel, fd, handle=bo.handle)
try:
    DRM_IOCTL_GEM_CLOSE(kernel, fd, handle=bo.handle)
except NpuError as error:
    print(error)
kernel.close(fd)
