# On Linux torch's default build brings gigabytes of CUDA packages. Set TORCH_INDEX_URL to an index of CPU builds
# (PyTorch's install page names it) to avoid them: make test TORCH_INDEX_URL=https://...
# make demo needs torch only where no C++ compiler works, or for a MODEL that is to be exported.
PYTHON ?= python3
VENV ?= .venv
TORCH_INDEX_URL ?=
MODEL ?= demo/mobilenet_v3_small_xnnpack_fp32.pte
NAME ?=
FUZZ_SECONDS ?= 600

BIN := $(VENV)/bin
# What is installed brings no bytecode: it must be kept where it is first imported.
export PYTHONDONTWRITEBYTECODE :=
# What is tested here, out of the ranges of pyproject.toml.
TORCH := torch==2.13.0
EXECUTORCH := executorch==1.5.1
# The notice is about the future of MkDocs; strict mode would not take it for a warning, but it fills the screen.
MKDOCS := NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet --strict
PIP := $(BIN)/python -m pip --quiet --disable-pip-version-check
INSTALL_TORCH := $(PIP) install --no-compile $(if $(TORCH_INDEX_URL),--index-url $(TORCH_INDEX_URL)) "$(TORCH)"

.DEFAULT_GOAL := help
.PHONY: help demo quick test test-all test-pythons test-arm64 check dist bench fuzz mutants zoo corpus docs frozen bless clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "%-18s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

demo: $(VENV)/runtime.stamp $(if $(filter %.pte,$(MODEL)),,$(VENV)/torch.stamp) ## install, profile MobileNetV3-Small with acceleration on and off, name the report
	@$(BIN)/python demo/runner.py || test -e $(VENV)/torch.stamp || { $(INSTALL_TORCH) && touch $(VENV)/torch.stamp; }
	$(BIN)/opscope doctor
	$(BIN)/opscope profile "$(MODEL)"

test: check ## the gates, then the tests that cost little: six minutes on two cores
	$(BIN)/python -m pytest -m "not nightly" -n auto --dist loadfile

test-all: check $(VENV)/all.stamp ## the gates, then all tests: they cost more than twice as much
	$(BIN)/python -m pytest -n auto --dist loadfile

quick: $(VENV)/dev.stamp ## gates and the tests nearest to what was changed: half a minute
	$(BIN)/python tests/support/quick.py

test-pythons: ## every command that needs no torch, in each Python from 3.10 to 3.13 that is found here
	.ci/pythons

dist: ## build the wheel and the source distribution into dist/, and check them in clean environments
	.ci/dist

test-arm64: $(VENV)/dev.stamp ## the whole program on 64-bit Arm Linux, under QEMU: on x86-64 Debian, seven minutes
	.ci/arm64

check: $(VENV)/dev.stamp ## the gates alone: lint, format, types, layers, documentation
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache
	$(BIN)/python docs/build.py --check
	$(BIN)/python docs/prose.py
	$(BIN)/python docs/names.py
	$(MKDOCS)

bench: $(VENV)/dev.stamp ## measure what opscope claims of itself; NAME="decode check" chooses, FULL=1 is the long form
	$(BIN)/python -m bench $(NAME) $(if $(FULL),--full)

fuzz: $(VENV)/dev.stamp ## damage what readers, the store and commands are given, for FUZZ_SECONDS a target; NAME= chooses
	$(BIN)/python -m fuzz $(NAME) --seconds $(FUZZ_SECONDS)

mutants: $(VENV)/dev.stamp ## change code in 60 places, one at a time, and count what tests notice; CHANGED=1: what differs from main
	$(BIN)/python -m mutants $(if $(CHANGED),--changed $(filter-out 1,$(CHANGED)))

zoo: $(VENV)/all.stamp ## export, run and analyse a hundred models of every kind, as docs/design/zoo.md shows (an hour)
	$(BIN)/python -m zoo --write
	$(BIN)/python docs/build.py

corpus: $(VENV)/dev.stamp ## profile the models of packages of the Python index, as docs/design/corpus.md shows (downloads 300 MB)
	$(BIN)/python -m corpus --write
	$(BIN)/python docs/build.py

docs: $(VENV)/dev.stamp ## generate the reference pages from the code, and build the site into site/
	$(BIN)/python docs/build.py
	$(MKDOCS)

frozen: $(VENV)/dev.stamp ## keep all that opscope writes for the tests' files in OUT, and compare with BEFORE when that is given
	$(BIN)/python tests/support/frozen.py $(OUT) $(if $(BEFORE),--against $(BEFORE))

bless: $(VENV)/dev.stamp ## show how each report differs from the expected one, and replace it when you agree
	$(BIN)/python tests/support/bless.py

clean: ## remove the virtual environment and caches
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis

# Told before anything is made: macOS brings Python 3.9.
define CHECK_PYTHON
	@version=$$($(1) -c 'import sys; print("%d.%d" % sys.version_info[:2])' 2>/dev/null); \
	case "$$version" in 3.10|3.11|3.12|3.13|3.14) exit 0;; esac; \
	echo "error: $(1) $${version:+is Python }$${version:-cannot be run}; opscope needs Python 3.10 to 3.14" >&2; \
	for name in python3.14 python3.13 python3.12 python3.11 python3.10; do \
	  if $$name -c '' 2>/dev/null; then echo "type: $(2)make $(MAKECMDGOALS) PYTHON=$$name" >&2; exit 1; fi; \
	done; \
	case "$$(uname)" in Darwin) how="brew install python@3.13";; *) how="install python3.13, as your system does that";; esac; \
	echo "type: $$how, then: $(2)make $(MAKECMDGOALS) PYTHON=python3.13" >&2; exit 1
endef

$(VENV)/bin/python:
	$(call CHECK_PYTHON,$(PYTHON))
	$(PYTHON) -m venv $(VENV) || { rm -f $(VENV)/bin/python; exit 1; }

$(VENV)/torch.stamp: | $(VENV)/bin/python
	$(call CHECK_PYTHON,$(BIN)/python,make clean; )
	$(INSTALL_TORCH)
	touch $@

# Python compiles what it imports; compiling all of it takes pip half of the time and half a gigabyte.
$(VENV)/runtime.stamp: pyproject.toml | $(VENV)/bin/python
	$(call CHECK_PYTHON,$(BIN)/python,make clean; )
	$(PIP) install --no-compile -e ".[runtime]" "$(EXECUTORCH)"
	touch $@

$(VENV)/dev.stamp: pyproject.toml $(VENV)/torch.stamp
	$(PIP) install --no-compile -e ".[executorch,litert,onnxruntime,openvino,count,store,mcp,dev]" "$(EXECUTORCH)"
	touch $@

# What the everyday tests do without.
$(VENV)/all.stamp: pyproject.toml $(VENV)/dev.stamp
	$(PIP) install --no-compile -e ".[transformers]"
	touch $@
