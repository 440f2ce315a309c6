# `make demo` and `make test` do all the set-up themselves.
PYTHON ?= python3
VENV ?= .venv
# Extra arguments for pip, such as --extra-index-url https://download.pytorch.org/whl/cpu for a CPU-only torch.
PIP_ARGS ?=
# Workers of pytest-xdist; two processes of one thread each suit two cores.
TEST_JOBS ?= 2
# A GPU build of torch brings the Triton that it needs; `make check-kernels` adds this one beside a CPU build.
TRITON ?= "triton>=3.2"
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

.PHONY: help env demo test test-all check-kernels test-gpu bench-gpu lint format clean
.DEFAULT_GOAL := help

help: ## list the targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 14

$(STAMP): requirements.txt pyproject.toml setup.py
	@$(PYTHON) -c 'import sys; sys.exit(not (3, 10) <= sys.version_info[:2] <= (3, 13))' || \
	  { echo "Python 3.10 to 3.13 is needed, but $(PYTHON) is $$($(PYTHON) --version 2>&1). Name another: make $(MAKECMDGOALS) PYTHON=python3.11"; exit 1; }
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --disable-pip-version-check $(PIP_ARGS) -r requirements.txt
	$(BIN)/pip install --disable-pip-version-check --no-deps -e .
	@touch $(STAMP)

env: $(STAMP) ## make .venv and install the tested requirements and this package into it

demo: $(STAMP) ## simulate a data set, train a small PointPillars on it, evaluate it, draw it (at most 8 minutes)
	$(BIN)/python tools/demo_run.py

test: $(STAMP) ## run the test suite (at most 15 minutes on 2 cores)
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -m "not slow" -n $(TEST_JOBS)

test-all: $(STAMP) ## run every test, the slow ones too
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n $(TEST_JOBS)

check-kernels: $(STAMP) ## compile the GPU kernels for sm_70, 80, 90, 100 (no GPU needed): registers, shared memory, spills
	@$(BIN)/python -c 'import triton' 2>/dev/null || \
	  $(BIN)/pip install --disable-pip-version-check $(PIP_ARGS) $(TRITON) || echo "Triton has no wheel for this machine"
	$(BIN)/python benchmarks/check_kernels.py

test-gpu: $(STAMP) ## run what needs a GPU: kernels against their references, models and engine against the CPU
	$(BIN)/python -m pytest tests/gpu tests/ops -m "not slow" -rs

bench-gpu: $(STAMP) ## measure operators and models on the GPU; writes benchmarks/results/gpu-<name>.md
	$(BIN)/python benchmarks/gpu.py

lint: $(STAMP) ## check style with ruff
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

format: $(STAMP) ## format and fix what ruff can
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

clean: ## remove the environment and caches; data and output stay
	rm -rf $(VENV) .pytest_cache .ruff_cache *.egg-info
