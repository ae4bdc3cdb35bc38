# make fit    a virtual environment, the install, the main job and its evaluation
# make test   the same environment with the development tools, and the tests
# make test-fast   the tests without those that train, compile or start processes; two minutes
# make pretend   what a GPU would run, on tensors that say cuda:0 and lie on the CPU; five minutes
# make kernels  what a GPU would run: compiled for three chips, compared with the reference, every access checked
# make lint   ruff, mypy, and the lint of how the code reads
# make docs   the documentation site in build/site; a warning is an error
# make asan   the C++ kernels under AddressSanitizer and UBSan: the tests of what they refuse and survive
# make soak   the same with all tests of the kernels, for every chip, and fifty times the examples of the fuzz test; and
#             shipped runs killed at a hundred random moments, each resumed to the same bits; hours
# make lowest an environment of its own with the lowest versions that pyproject.toml allows: every shipped config takes a
#             few steps in it, and the fast tests pass
# make next   an environment of its own with the newest versions, pre-releases too: the fast tests, whose failures are
#             told and fail nothing
# make wheel  a wheel for Linux on x86-64 in dist, with the C++ kernels compiled for every x86-64-v3 processor
# make bench  the throughput of this machine, parity first
# make gpu    on a machine with a GPU: tests, parity, benchmarks, short fits, in one report; GPU_ARGS=--quick for a look
# Another Python than the first that works: make fit PYTHON=/path/to/python3.12

VENV := .venv
BIN := $(VENV)/bin
CONFIG := packing.yaml
PYTEST_ARGS := -n auto --maxprocesses=4 --dist loadfile --no-loadscope-reorder --durations=30
# What trains, compiles or starts processes.
SLOW_TESTS := benchmarks callbacks checkpoints cli docs evaluation examples native pretend recordings serving training \
	envs/workers envs/test_env_compile.py policies/export/test_exporter.py streaming/ros2 \
	streaming/web/browser palletizing/test_pallet_page.py test_end_to_end.py test_windows.py
FAST_ARGS = -q -n auto --dist loadfile $(addprefix --ignore=tests/,$(SLOW_TESTS))
PRETEND_ARGS := -n 2
KERNEL_TESTS := tests/envs/packing/kernels
# The oldest chip, which has the least shared memory, Hopper, and the newest. make soak compiles for every chip.
CHIPS := 75 90 120
ASAN_TESTS := tests/native/test_operators.py tests/envs/marine/test_compiled.py $(KERNEL_TESTS)/test_fuzz.py $(KERNEL_TESTS)/test_validation.py \
	$(addprefix tests/policies/packing/ntuple/test_,values.py greedy_rollouts.py sweeps.py)
SOAK_TESTS := $(ASAN_TESTS) $(KERNEL_TESTS)/test_compiled.py $(KERNEL_TESTS)/test_transition.py
SOAK := 50
KILLS := 100
LOWEST := .venv-lowest
NEXT := .venv-next
# Not genesis, which wants another Pillow.
LOWEST_EXTRAS := dev cloud docs peers ray compiler plots gymnasium rsl-rl meshes hdf5 lists parquet physics stream video mcap webrtc ros2 \
	monitor export robobpp
LOWEST_TESTS := tests/test_end_to_end.py tests/training/test_configs.py
CKPT := runs/packing/checkpoints/last.ckpt
PIP := $(BIN)/python -m pip --disable-pip-version-check -q

# A name on the PATH may be a shim that fails, so each candidate is run: 3.11 to 3.14, with venv and ensurepip.
PYTHONS := python3.12 python3.13 python3.14 python3.11
define FIND_PYTHON
for p in $(PYTHON) $(PYTHONS) python3 python $(addprefix /usr/bin/,$(PYTHONS)); do \
	if $$p -c 'import sys, venv, ensurepip; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 14))' >/dev/null 2>&1; \
	then echo $$p; exit 0; fi; \
done; \
echo "make: want Python 3.11, 3.12, 3.13 or 3.14 with venv and ensurepip on the PATH; found none" >&2; exit 1
endef

# Where there is no C++ compiler, one from PyPI makes the kernels: with plain torch `make fit` takes over an hour.
CXX_FOUND = $(shell for p in $$CXX c++ g++ clang++; do command -v $$p && break; done 2>/dev/null)
EXTRAS = $(if $(CXX_FOUND),,[compiler])

.PHONY: help install install-dev wheel fit test test-fast docs pretend kernels asan soak lowest next lint format bench gpu clean

help:
	@sed -n '1,/^$$/s/^# //p' Makefile

$(VENV)/made:
	@python=$$($(FIND_PYTHON)) && echo "make: $(VENV) from $$($$python --version)" && $$python -m venv $(VENV)
	@touch $@

# --no-build-isolation: the build, too, uses the pinned setuptools.
$(VENV)/installed: $(VENV)/made pyproject.toml constraints.txt
	$(PIP) install -c constraints.txt pip setuptools
	$(PIP) install -c constraints.txt --no-build-isolation -e '.$(EXTRAS)'
	@touch $@

$(VENV)/installed-dev: $(VENV)/installed
	$(PIP) install -c constraints.txt --no-build-isolation -e '.[dev]'
	@touch $@

install: $(VENV)/installed

install-dev: $(VENV)/installed-dev

fit: install
	$(BIN)/lightning fit --config $(CONFIG)
	$(BIN)/lightning test --config $(CONFIG) --ckpt_path $(CKPT)

test: install-dev
	$(BIN)/python -m pytest $(PYTEST_ARGS)

test-fast: install-dev
	$(BIN)/python -m pytest $(FAST_ARGS)

# The variable silences an announcement of MkDocs 2, which has no plugins; see docs/decisions.
docs: install-dev
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict --quiet

pretend: install-dev
	$(BIN)/python -m pytest -p tests.pretend_cuda $(PRETEND_ARGS) tests/pretend

# No GPU is needed: Triton brings NVIDIA's assembler, and interprets; whether it does is decided at import.
kernels: install-dev
	$(BIN)/python -m benchmarks.gpu.ahead --capabilities $(CHIPS)
	TRITON_INTERPRET=1 OMP_NUM_THREADS=1 $(BIN)/python -m pytest -m 'not gpu and not soak' \
		$(PYTEST_ARGS:loadfile=load) $(KERNEL_TESTS)/test_access_checker.py \
		$(addprefix $(KERNEL_TESTS)/test_triton_,accesses.py afterstates.py cuts.py draws.py parity.py rollouts.py tables.py transition.py) \
		$(KERNEL_TESTS)/test_bearing.py tests/envs/marine/test_triton_parity.py

# The backends in torch and NumPy pass the same tests in make test; here they would only take time.
asan: install-dev
	$(BIN)/python tests/native/sanitized.py -q $(ASAN_TESTS) -k "not eager and not reference"

soak: install-dev
	$(BIN)/python -m benchmarks.gpu.ahead
	OMP_NUM_THREADS=1 TORCHRL_GPU_KILLS=$(KILLS) $(BIN)/python -m pytest -q -m soak
	TORCHRL_GPU_ALL_FORMS=1 $(BIN)/python -m pytest -q $(KERNEL_TESTS)/test_triton_launches.py -k every_kernel
	TORCHRL_GPU_OTHER_CHIPS=1 $(BIN)/python -m pytest -q $(KERNEL_TESTS)/test_triton_launches.py -k every_kernel
	TRITON_INTERPRET=1 TORCHRL_GPU_ODD_SCENES=48 OMP_NUM_THREADS=1 $(BIN)/python -m pytest -q $(KERNEL_TESTS)/test_triton_accesses.py
	TORCHRL_GPU_FUZZ=$(SOAK) $(BIN)/python tests/native/sanitized.py -q $(SOAK_TESTS)

# uv, since pip has no such choice; the requirements first, so that all that they name counts as named here.
$(LOWEST)/installed: $(VENV)/made pyproject.toml
	$(PIP) install -c constraints.txt uv
	$(BIN)/python -m uv venv --quiet --clear --seed --python $(BIN)/python $(LOWEST)
	$(BIN)/python -m uv pip install --quiet --python $(LOWEST)/bin/python --resolution lowest-direct \
		-r pyproject.toml $(addprefix --extra ,$(LOWEST_EXTRAS))
	$(BIN)/python -m uv pip install --quiet --python $(LOWEST)/bin/python --no-deps --no-build-isolation -e .
	@touch $@

# Old packages warn of newer ones: there a warning is none of ours.
lowest: $(LOWEST)/installed
	$(LOWEST)/bin/python -m pytest -W default $(PYTEST_ARGS) $(LOWEST_TESTS)
	$(LOWEST)/bin/python -m pytest -W default $(FAST_ARGS)

# TorchRL holds tensordict back, so that its next release is asked for by name, over what TorchRL says.
$(NEXT)/installed: $(VENV)/made pyproject.toml
	$(PIP) install -c constraints.txt uv
	$(BIN)/python -m uv venv --quiet --clear --seed --python $(BIN)/python $(NEXT)
	echo 'tensordict>=0.15' > $(NEXT)/newest
	$(BIN)/python -m uv pip install --quiet --python $(NEXT)/bin/python --prerelease allow --override $(NEXT)/newest \
		-r pyproject.toml $(addprefix --extra ,$(LOWEST_EXTRAS))
	$(BIN)/python -m uv pip install --quiet --python $(NEXT)/bin/python --no-deps --no-build-isolation -e .
	@touch $@

next: $(NEXT)/installed
	$(NEXT)/bin/python -m pip list | grep -iE '^(torch|torchrl|tensordict|lightning|numpy) '
	-$(NEXT)/bin/python -m pytest -W default $(FAST_ARGS)

lint: install-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/python tests/reading.py

format: install-dev
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

wheel: install
	$(BIN)/python -c 'from torchrl_gpu.native import build; build.prebuild()'
	$(PIP) wheel --no-deps --no-build-isolation --config-settings=--build-option=--plat-name=manylinux2014_x86_64 -w dist .
	rm torchrl_gpu/native/*.so

bench: install
	$(BIN)/torchrl-gpu bench packing

gpu: install-dev
	$(BIN)/python -m benchmarks.gpu.report $(GPU_ARGS)

clean:
	rm -rf $(VENV) $(LOWEST) $(NEXT) build dist *.egg-info
