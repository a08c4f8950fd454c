# Two commands do everything on a fresh machine: `make serve` and `make test`.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP_INSTALL := $(BIN)/python -m pip install --constraint constraints.txt
# On the path as a folder: else a Python started beside the clone takes the clone itself for the package.
EDITABLE := --config-settings editable_mode=compat --editable
DEFAULT_MODEL := smollm2-135m-instruct
KERNELS := setup.py $(wildcard mtplx/model/native/src/*)
# More flags for the server, such as: make serve SERVE_ARGS="--scheduler-mode serial --port 8001"
SERVE_ARGS ?=
# More arguments for pytest, such as: make test TEST_ARGS="tests/unit -x"
TEST_ARGS ?=

.DEFAULT_GOAL := help
.NOTPARALLEL:
.PHONY: help serve test check develop model clean

help:
	@echo "make serve    install, fetch the default model once, serve on http://127.0.0.1:8000 (SERVE_ARGS adds flags)"
	@echo "make test     install with the developer's tools, run the whole suite (TEST_ARGS adds arguments)"
	@echo "make check    format, lint, types and the rules of structure"
	@echo "make develop  the environment alone"
	@echo "make clean    remove the environment; the model stays in the user's cache folder"

serve: $(VENV)/installed
	$(BIN)/mtplx serve $(SERVE_ARGS)

test: develop model
	scripts/test $(TEST_ARGS)

check: develop
	scripts/check

develop: $(VENV)/installed-dev

model: $(VENV)/installed
	$(BIN)/mtplx pull $(DEFAULT_MODEL)

clean:
	rm -rf $(VENV)

$(VENV)/installed: pyproject.toml constraints.txt $(KERNELS) | $(BIN)/python
	$(PIP_INSTALL) $(EDITABLE) .
	@touch $@

# The developer's environment holds the user's: its stamp stands for both.
$(VENV)/installed-dev: pyproject.toml constraints.txt $(KERNELS) | $(BIN)/python
	$(PIP_INSTALL) $(EDITABLE) ".[dev]"
	@touch $(VENV)/installed $@

# A half-made environment is removed, or the next run would take it for a whole one.
$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	  echo "mtplx needs Python 3.11 or newer, and $(PYTHON) isn't; name one, such as: make PYTHON=python3.12 $(MAKECMDGOALS)" >&2; \
	  exit 1; }
	$(PYTHON) -m venv $(VENV) || { rm -rf $(VENV); exit 1; }
