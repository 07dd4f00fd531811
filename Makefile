# Everything is installed into VENV and runs there; the only things needed before are CPython
# 3.10 to 3.14, a C++20 compiler and make.  Stamps in VENV remember what is installed.

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DELETE_ON_ERROR:
.SUFFIXES:
.DEFAULT_GOAL := help

VENV ?= .venv
# Which Python makes VENV; empty: the first on the path that is supported.
PYTHON ?=
# More arguments for pytest: make test ARGS="-k pooling".
ARGS ?=
# Test processes, and C++ files checked at a time.
JOBS ?= $(shell env -u OMP_NUM_THREADS nproc 2>/dev/null || echo 2)

BIN := $(VENV)/bin
STAMPS := $(VENV)/.made
NATIVE := $(shell find native -name "*.cc" -o -name "*.c" -o -name "*.h" -o -name "*.hpp")
# What the plug-in is built from, and what decides which packages are installed.
SOURCES := pyproject.toml setup.py $(NATIVE)
WHEEL_REQUIRES = $(shell sed -n '/^wheel = \[/,/^\]/s/^ *\("[^"]*"\),$$/\1/p' pyproject.toml)
BUILD_REQUIRES = $(shell sed -n 's/^requires = \[\(.*\)\]$$/\1/p' pyproject.toml | tr -d ',')

.PHONY: help
help: ## List the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-11s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)
	@echo
	@echo '  PYTHON=python3.12 chooses the Python, VENV=folder where everything is installed,'
	@echo '  ARGS="-k name" what pytest gets.'

## ---- Use ------------------------------------------------------------------------------------

.PHONY: demo
demo: $(STAMPS)/demo ## Compile MobileNetV2 for OpenCL, run it, compare with ONNX Runtime
	@$(BIN)/python examples/demo.py $(ARGS)

.PHONY: wheel
wheel: $(STAMPS)/build ## Build a source distribution, and a manylinux wheel from it, into dist/
	$(BIN)/python -m pip install --quiet $(WHEEL_REQUIRES)
	@rm -rf build/wheel build/agents
	$(BIN)/python -c 'from tvmflow.agent.executable import write_agents; write_agents("build/agents")'
	TVMFLOW_AGENTS=$(abspath build/agents) $(BIN)/python -m build --no-isolation --outdir build/wheel .
	@# TVM's libraries come from its own wheels, beside this one.
	PATH=$(abspath $(BIN)):$$PATH $(BIN)/python -m auditwheel repair --wheel-dir dist \
	    --exclude 'libtvm*.so' build/wheel/*.whl
	@mv build/wheel/*.tar.gz dist

SPHINX = $(BIN)/python -m sphinx --quiet --nitpicky --fail-on-warning --conf-dir docs
.PHONY: docs
docs: $(STAMPS)/dev ## Build the site of all pages into build/site; its links are checked
	@# Anew: a page that is gone leaves nothing behind.
	@rm -rf build/site
	$(SPHINX) --fresh-env --doctree-dir build/doctrees . build/site
	@echo 'build/site/index.html'

## ---- Tests and checks -----------------------------------------------------------------------

# Tests run as many processes as there are cores: more threads in each do not help.
test test-rest test-every coverage: export OMP_NUM_THREADS ?= 1
PYTEST = $(BIN)/python -m pytest -n $(JOBS) --dist worksteal

.PHONY: test
test: $(STAMPS)/test ## Run the quick tests, five minutes on two cores (ARGS for pytest)
	$(PYTEST) $(ARGS)

.PHONY: test-rest
test-rest: $(STAMPS)/test ## Run what they leave out: optimising compilers, Oclgrind, long matrices
	@# The second run follows whatever the first one finds; ARGS may leave either no test (5).
	first=0; $(PYTEST) --tier rest $(ARGS) || first=$$?; \
	second=0; $(PYTEST) --tier optimised $(ARGS) || second=$$?; \
	for status in $$first $$second; do [ $$status = 0 ] || [ $$status = 5 ] || exit $$status; done

.PHONY: test-all
test-all: ## Run the quick tests, then the rest
	@$(MAKE) --no-print-directory --keep-going test test-rest

.PHONY: test-every
test-every: $(STAMPS)/test ## Run every case of every test, which takes hours
	$(PYTEST) --tier every $(ARGS)

.PHONY: durations
durations: override ARGS += --measure --cache-clear
durations: test-every ## Measure how long each test takes, which decides what is quick

.PHONY: test-wheel
test-wheel: $(STAMPS)/test ## Build a wheel and use it in an empty environment
	$(BIN)/python -m pytest -m wheel --wheel $(ARGS)

# How long networks are drawn, and where failures and counts go.
SECONDS ?= 600
FUZZ := build/fuzz
.PHONY: fuzz
fuzz: $(STAMPS)/test ## Draw networks for SECONDS=600 and compare them with ONNX Runtime
	OMP_NUM_THREADS=1 $(BIN)/python tests/differential/fuzz.py --seconds $(SECONDS) --jobs $(JOBS) \
	    --output $(FUZZ) $(ARGS)

.PHONY: mutants
mutants: $(STAMPS)/test ## Apply deliberate bugs to copies; each must fail the tests nearest to it
	$(BIN)/python tests/mutants/run_mutants.py $(ARGS)

.PHONY: coverage
coverage: $(STAMPS)/dev ## Run the tests and show which lines they do not reach
	$(BIN)/python -m pytest -n $(JOBS) --dist worksteal --cov --cov-report=term-missing $(ARGS)

.PHONY: check
check: $(STAMPS)/dev ## Lint, formatting, types and layers, of Python and C++; the site's links
	@# One failing check does not hide what the next one finds.
	@$(MAKE) --no-print-directory --keep-going lint format-check types layers prose cpp-format-check cpp-lint docs

.PHONY: lint format-check types layers prose cpp-format-check cpp-lint
lint: $(STAMPS)/dev
	$(BIN)/ruff check .

format-check: $(STAMPS)/dev
	$(BIN)/ruff format --check .

types: $(STAMPS)/dev
	$(BIN)/mypy tvmflow examples

# A copy without links, which the linter does not follow.
LAYERED := build/layers
layers: $(STAMPS)/dev
	@rm -rf $(LAYERED) && mkdir -p $(LAYERED)
	@cp -rL tvmflow $(LAYERED)
	cd $(LAYERED) && PYTHONPATH=. $(abspath $(BIN))/lint-imports --no-cache --no-logo \
	    --config $(CURDIR)/pyproject.toml

prose: $(STAMPS)/dev
	$(BIN)/python docs/check_prose.py

CPP_SOURCES := $(filter %.cc,$(NATIVE))
cpp-format-check: $(STAMPS)/dev
	$(BIN)/clang-format --dry-run -Werror $(NATIVE)

cpp-lint: $(STAMPS)/dev
	@$(MAKE) --no-print-directory --keep-going -j $(JOBS) $(CPP_SOURCES:%.cc=$(STAMPS)/tidy/%)

$(STAMPS)/tidy/%: %.cc $(filter %.h,$(NATIVE)) .clang-tidy $(STAMPS)/dev
	@echo 'clang-tidy $<'
	@site=$$($(BIN)/python -c 'import sysconfig; print(sysconfig.get_path("platlib"))'); \
	$(BIN)/clang-tidy --quiet --warnings-as-errors='*' $< -- -std=c++20 -Wall -Wextra -Wshadow -Wno-deprecated-declarations \
	    -Inative/tvm_plugin/include -isystem $$site/tvm/include -isystem $$site/tvm_ffi/include
	@mkdir -p $(@D) && touch $@

.PHONY: format
format: $(STAMPS)/dev ## Format Python and C++
	$(BIN)/ruff check --fix-only --quiet .
	$(BIN)/ruff format .
	$(BIN)/clang-format -i $(NATIVE)

.PHONY: clean
clean: ## Remove what was built, and the environment
	rm -rf $(VENV) build dist *.egg-info tvmflow/runtime/*.so
	rm -rf .pytest_cache .mypy_cache .ruff_cache .coverage .coverage.*
	find tvmflow schedules models tests examples benchmarks -name __pycache__ -prune -exec rm -rf {} +

## ---- Environment ----------------------------------------------------------------------------

CANDIDATES = $(or $(PYTHON),python3 python3.14 python3.13 python3.12 python3.11 python3.10)
# `make CXX=…` and an exported CXX reach setup.py; make's own default does not.
COMPILER := $(if $(filter default undefined,$(origin CXX)),g++,$(CXX))
comma := ,

define NO_PYTHON
Remedy: install one (on Debian and Ubuntu python3 and python3-venv), or name one with
make PYTHON=/path/to/python3.12
endef

define NO_COMPILER
Building the OpenCL plug-in needs a C++20 compiler, but there is none as: $(COMPILER).
Remedy: install one (on Debian and Ubuntu g++), or name one with make CXX=/path/to/g++
endef
export NO_PYTHON NO_COMPILER

$(STAMPS)/python:
	@found=(); for python in $(CANDIDATES); do \
	    if $$python -c 'import ensurepip, sys, venv; \
	        sys.exit(not (3, 10) <= sys.version_info[:2] <= (3, 14))' 2>/dev/null; then \
	        echo "Making $(VENV) with $$($$python --version)"; \
	        $$python -m venv $(VENV); mkdir -p $(@D); touch $@; exit 0; \
	    fi; \
	    found+=("  $$python: $$($$python --version 2>/dev/null || echo not installed)"); \
	done; \
	printf '%s\n' 'tvmflow needs CPython 3.10 to 3.14 with its venv module, but found' \
	    "$${found[@]}" "$$NO_PYTHON" >&2; exit 2


$(STAMPS)/build: pyproject.toml | $(STAMPS)/python
	@command -v $(firstword $(COMPILER)) >/dev/null || { echo "$$NO_COMPILER" >&2; exit 2; }
	$(BIN)/python -m pip install $(BUILD_REQUIRES)
	@touch $@

# Built in this environment and not in an isolated one: TVM is downloaded once, and only the
# C++ files that changed are compiled again.
install = $(BIN)/python -m pip install --no-build-isolation --editable '.[$(1)]'

# Each of these contains the one before.
$(STAMPS)/demo: $(SOURCES) $(STAMPS)/build
	$(call install,cpu-opencl$(comma)verify)
	@touch $@

$(STAMPS)/test: $(SOURCES) $(STAMPS)/build
	$(call install,test)
	@touch $(STAMPS)/demo $@

$(STAMPS)/dev: $(SOURCES) $(STAMPS)/build
	$(call install,dev)
	@touch $(STAMPS)/demo $(STAMPS)/test $@
