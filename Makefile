# SPDX-License-Identifier: MIT
# The two commands of a new user are `make smoke` and `make test`.

PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
# The library that is preloaded would take the self-test's own calls.
CSRC   := $(filter-out csrc/preload.c,$(wildcard csrc/*.c))
CHDRS  := $(wildcard csrc/*.h)
CYTHON := $(wildcard npukit/*.pyx npukit/*.pxd npukit/sim/*.pyx npukit/sim/*.pxd npukit/trace/*.pyx)
CWARN  := -std=gnu11 -O2 -ffp-contract=off -Wall -Wextra -Werror
SANITIZE := -fsanitize=address,undefined -fno-sanitize-recover=all

.PHONY: help build dev smoke test lint bench abi-kernels abi-snapshots \
        selftest selftest-aarch64 preload-aarch64 teflon sanitize soak clean

help:
	@echo 'make smoke   build, then run the whole path on the first NPU found or a simulated one'
	@echo 'make test    the test suite'
	@echo 'make lint    ruff, mypy --strict, the C with -Wall -Wextra -Werror'
	@echo 'make bench   benchmarks, each beside its baseline'
	@echo 'make abi-kernels   check the ABI against Debian kernels of both architectures'
	@echo 'make abi-snapshots   make the stored ABI of each kernel version again and compare'
	@echo 'make soak   a million manager events, a minute of DSP calls, 100,000 mutated xclbins and'
	@echo '            streams, 500 kills at random moments'
	@echo 'make preload-aarch64   the library of the preload door for AArch64 programs'
	@echo 'make teflon   models of Mesa'\''s own tests, by Mesa and TensorFlow Lite on a simulated NPU'
	@echo 'make sanitize   the C self-test and 100,000 NPU streams under AddressSanitizer and UBSan'
	@echo 'make selftest-aarch64   the C self-test, cross-compiled, under qemu-user'

# Says which of the things that a fresh machine may lack is missing.
$(VENV)/prepared:
	@command -v $(PYTHON) >/dev/null || { echo 'missing: python3 (apt-get install python3)'; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	    { echo 'missing: Python 3.11 or newer'; exit 1; }
	@command -v gcc >/dev/null || { echo 'missing: gcc (apt-get install gcc libc6-dev)'; exit 1; }
	@echo '#include <stdio.h>' | gcc -E - >/dev/null 2>&1 || \
	    { echo 'missing: libc headers (apt-get install libc6-dev)'; exit 1; }
	@command -v git >/dev/null || { echo 'missing: git (apt-get install git)'; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || \
	    { echo 'missing: venv (apt-get install python3-venv)'; exit 1; }
	@$(PYTHON) -c 'import os, sys, sysconfig; \
	    sys.exit(not os.path.exists(sysconfig.get_path("include") + "/Python.h"))' || \
	    { echo 'missing: Python headers (apt-get install python3-dev)'; exit 1; }
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet 'setuptools>=77' 'Cython>=3.1' 'numpy>=2'
	@touch $@

$(VENV)/built: $(VENV)/prepared pyproject.toml setup.py $(CYTHON) $(CSRC) csrc/preload.c $(CHDRS)
	$(BIN)/pip install --quiet --no-build-isolation -e .
	@touch $@

$(VENV)/dev: $(VENV)/prepared pyproject.toml
	$(BIN)/pip install --quiet --no-build-isolation -e '.[dev]'
	@touch $@ $(VENV)/built

build: $(VENV)/built
dev: $(VENV)/dev $(VENV)/built

smoke: build
	$(BIN)/npukit smoke

test: dev
	$(BIN)/python -m pytest

lint: dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	gcc $(CWARN) -fsyntax-only -Icsrc $(CSRC) csrc/preload.c

bench: dev
	$(BIN)/python -m bench

# The next two say why and succeed where Debian's packages cannot be had.
abi-kernels: dev
	$(BIN)/python tools/abi_kernels.py

abi-snapshots: dev
	$(BIN)/python tools/make_snapshots.py --check

selftest: $(CSRC) $(CHDRS)
	@mkdir -p build
	gcc $(CWARN) -Icsrc $(CSRC) -pthread -lm -o build/selftest
	build/selftest

selftest-aarch64: $(CSRC) $(CHDRS)
	@mkdir -p build
	aarch64-linux-gnu-gcc $(CWARN) -static -Icsrc $(CSRC) -pthread -lm -o build/selftest-aarch64
	qemu-aarch64 build/selftest-aarch64

# For AArch64 programs that run under qemu-user in the preload door.
preload-aarch64: npukit/sim/preload-aarch64.so

npukit/sim/preload-aarch64.so: csrc/preload.c
	aarch64-linux-gnu-gcc $(CWARN) -fPIC -fvisibility=hidden -shared $< -pthread -o $@

# Says why and succeeds where Debian's packages, or the cross compiler, cannot be had.
teflon: dev
	NPUKIT_TEFLON="$$($(BIN)/python tools/mesa_teflon.py)" NPUKIT_MODELS=2000 \
	    $(BIN)/python -m pytest -rs tests/sim/test_teflon.py

# Long runs of what the tests do shortly.
soak: dev
	$(BIN)/python tests/manager/soak.py
	$(BIN)/python tests/devices/hexagon_soak.py 60
	$(BIN)/python tests/programs/xdna/fuzz.py 100000
	NPUKIT_KILLS=500 $(BIN)/python -m pytest tests/sim/test_run.py tests/sim/test_preload.py \
	    -k 'moment or churn'

# The self-test, and 100,000 streams for the simulated RK3588, under both sanitizers.
sanitize: dev $(CSRC) $(CHDRS)
	@mkdir -p build
	gcc $(CWARN) -g $(SANITIZE) -Icsrc $(CSRC) -pthread -lm -o build/selftest-sanitize
	build/selftest-sanitize
	gcc $(CWARN) -g $(SANITIZE) -Icsrc tests/sim/rk3588_fuzz.c csrc/cpu.c \
	    $(filter-out %selftest.c,$(wildcard csrc/rk3588*.c)) -pthread -lm -o build/rk3588-fuzz
	PYTHONPATH=tests $(BIN)/python -m sim.rk3588_fuzz build/rk3588-fuzz.corpus
	build/rk3588-fuzz build/rk3588-fuzz.corpus 1 100000

clean:
	rm -rf build $(VENV) npukit/*.so npukit/sim/*.so npukit/trace/*.so npukit/_fast.c npukit/sim/_*.c \
	    npukit/trace/_*.c *.egg-info
