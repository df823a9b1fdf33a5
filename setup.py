# SPDX-License-Identifier: MIT
"""The extension modules; everything else about the package is in pyproject.toml."""

import platform
from glob import glob

import numpy
from Cython.Build import cythonize
from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

# No -march: SIMD variants carry their own target attribute and are chosen at run time.
# No fast-math: the simulated NPU promises IEEE results.
CFLAGS = ["-std=gnu11", "-O3", "-ffp-contract=off", "-fvisibility=hidden", "-pthread"]


def extension(name: str, sources: list[str]) -> Extension:
    return Extension(
        name,
        [name.replace(".", "/") + ".pyx", *sources],
        include_dirs=["csrc", numpy.get_include()],
        define_macros=[("NPY_NO_DEPRECATED_API", "NPY_1_7_API_VERSION")],
        depends=glob("csrc/*.h") + glob("npukit/*.pxd") + glob("npukit/sim/*.pxd"),
        extra_compile_args=CFLAGS,
        extra_link_args=["-pthread"],
    )


class BuildExt(build_ext):
    """Builds one library that is no module of Python, and is named for its architecture."""

    def get_ext_filename(self, fullname: str) -> str:
        *folders, name = fullname.split(".")
        if name == "library":
            return "/".join([*folders, f"preload-{platform.machine()}.so"])
        return super().get_ext_filename(fullname)


LIBRARY = Extension(
    "npukit.sim.library",
    ["csrc/preload.c"],
    extra_compile_args=CFLAGS,
    extra_link_args=["-pthread"],
)

setup(
    cmdclass={"build_ext": BuildExt},
    ext_modules=cythonize(
        [
            extension(
                "npukit._fast",
                ["csrc/cpu.c", "csrc/copy.c", "csrc/pack.c", "csrc/regcmd.c"],
            ),
            extension("npukit.sim._seccomp", ["csrc/seccomp.c"]),
            extension("npukit.trace._ptrace", ["csrc/trace.c"]),
            extension("npukit.sim._rk3588", ["csrc/cpu.c", *sorted(glob("csrc/rk3588*.c"))]),
            LIBRARY,
        ],
        compiler_directives={"language_level": 3, "embedsignature": True},
    ),
)
