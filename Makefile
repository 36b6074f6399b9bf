# Everything a checkout needs: Python 3.11 or newer and make. See CONTRIBUTING.md.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.ready
# Machines with a GPU often have jax and no way to install anything else: then that Python serves.
GPU_PYTHON ?= $(if $(wildcard $(BIN)/python),$(BIN)/python,$(PYTHON))

.DEFAULT_GOAL := help
.PHONY: help setup demo test test-gpu test-compatibility fuzz check fix bench docs protos reference

help: ## list the commands
	@sed -n 's/^\([a-z-]*\):.*## /  make \1\t/p' Makefile

setup: $(STAMP) ## virtual environment with the package and the development tools

$(STAMP): pyproject.toml
	@$(PYTHON) tools/make_venv.py $(VENV)
	@touch $(STAMP)

demo: setup ## serve a small real model and print how to ask it
	$(BIN)/hloserve demo

test: setup ## unit, property, contract, conformance and integration tests
	$(BIN)/python -m pytest

test-gpu: ## the tests of the device on an NVIDIA GPU; skipped where there is none; see docs/gpu.md
	$(GPU_PYTHON) -m pytest tests/contract/test_backend.py tests/gpu --platform cuda -m gpu

test-compatibility: setup ## programs across old versions of jaxlib, which it installs apart
	$(BIN)/python -m pytest -s tests/compatibility

fuzz: setup ## coverage-guided fuzzing of what reads from clients; see tests/fuzz/README.md
	$(BIN)/python tests/fuzz/run.py $(FUZZ) $(if $(SECONDS),--seconds $(SECONDS))

check: setup ## format, lint, types, layers, sizes, generated files
	$(BIN)/python tools/check.py

fix: setup ## format and apply the automatic fixes
	$(BIN)/ruff check --fix --quiet || true
	$(BIN)/ruff format

bench: setup ## the load table, with JSON in .benchmarks/
	$(BIN)/python -m benchmarks

docs: setup ## build the documentation strictly into site/
	$(BIN)/mkdocs build --strict --quiet

protos: setup ## generate the protobuf code again
	$(BIN)/python tools/make_protos.py

reference: setup ## generate the reference pages again
	$(BIN)/python tools/make_reference.py
