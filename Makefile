# The words that README and CI use. Everything is installed into .venv, with uv where it can be had, else with pip.

PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
TORCH  ?= torch==2.13.0
DEMO   ?=

.PHONY: help demo lab test test-quick check format clean

help:
	@echo "make demo    the whole kit in a few minutes, without a GPU or downloads: reference readers, leaderboard, figures"
	@echo "make test    all tests that need no GPU, server or cluster; real data too where RULERKIT_DATA names a folder"
	@echo "make lab     JupyterLab in notebooks/"
	@echo "make check   ruff, ruff format, mypy"
	@echo "make format  let ruff put the code in order"
	@echo "make clean   remove the virtual environment and caches; outputs/ stays"

demo: $(VENV)/.core
	$(BIN)/rulerkit batch params/batches/demo.yaml $(DEMO)

lab: $(VENV)/.core
	$(BIN)/jupyter lab notebooks

test: $(VENV)/.dev $(VENV)/.torch
	$(BIN)/python -m pytest -n auto --dist loadgroup

test-quick: $(VENV)/.dev
	$(BIN)/python -m pytest -n auto --dist loadgroup -m "not slow"

check: $(VENV)/.dev
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy

format: $(VENV)/.dev
	$(BIN)/ruff check --fix
	$(BIN)/ruff format

clean:
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache .hypothesis *.egg-info

# --- installation -------------------------------------------------------------------------------------------------------

INSTALL = if [ -x $(BIN)/uv ]; then $(BIN)/uv pip install --python $(BIN)/python $(1) || $(BIN)/python -m pip install $(1); \
          else $(BIN)/python -m pip install $(1); fi

$(VENV)/.made:
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "rulerkit needs Python 3.11 or newer: make PYTHON=python3.12 ...")'
	$(PYTHON) -m venv $(VENV)
	-$(BIN)/python -m pip install --quiet uv
	@touch $@

$(VENV)/.core: $(VENV)/.made pyproject.toml
	$(call INSTALL,--quiet -e .)
	@touch $@

$(VENV)/.dev: $(VENV)/.made pyproject.toml
	$(call INSTALL,--quiet -e ".[dev]")
	@touch $(VENV)/.core $@

# The tests run a tiny model on the CPU: the CPU build of torch where it can be had, else the default one.
$(VENV)/.torch: $(VENV)/.dev
	$(BIN)/python -c 'import torch' 2>/dev/null \
	  || $(BIN)/uv pip install --quiet --python $(BIN)/python --torch-backend=cpu "$(TORCH)" \
	  || $(BIN)/python -m pip install --quiet "$(TORCH)"
	@touch $@
