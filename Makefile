# make demo    set everything up and train the default network
# make test    set up if needed and run the tests; with ARGS='-m slow' the sweeps that take minutes
# make check   lint and types
# make docs    build the pages of docs/ into site/
# make bench   measure beside other libraries, 15 to 20 minutes; with ARGS=--quick one (sets up an environment of its own)
# make bench-checkpoint    measure saving and restoring

PYTHON ?= $(firstword $(foreach name,python3.11 python3.12 python3.13 python3,$(shell command -v $(name))))
VENV   := .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.ready
DEMO   := $(VENV)/.demo
# Without a terminal or on a shared machine two workers are as quick as more: torch's own threads are set to one.
WORKERS ?= 2

.PHONY: demo test check docs bench bench-checkpoint setup clean

demo: $(DEMO)
	$(BIN)/lucid train

test: $(STAMP)
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n $(WORKERS) $(ARGS)

check: $(STAMP)
	$(BIN)/ruff check src tests
	$(BIN)/mypy

bench:
	PYTHON=$(PYTHON) $(PYTHON) -m benchmarks $(ARGS)

bench-checkpoint: $(STAMP)
	$(BIN)/python -m benchmarks.checkpoint $(ARGS)

docs: $(STAMP)
	$(BIN)/python -m pip install -q -e '.[docs]'
	$(BIN)/mkdocs build

setup: $(STAMP)

# torch first and pinned, so that nothing else chooses its version.
$(DEMO): pyproject.toml
	@echo "Setting up $(VENV): torch and what the command needs, about 1 GB, some minutes. Only this once."
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install -q torch==2.13.0
	$(BIN)/python -m pip install -q -e '.[demo,images,ui]'
	touch $@

# What the tests need besides: other libraries to compare with and to come from. timm and torchvision stand apart:
# their dependencies would bring another torch, and other libraries change where they see them. See tests/outside.py.
$(STAMP): $(DEMO)
	@echo "Setting up what the tests need besides, some minutes. Only this once."
	$(BIN)/python -m pip install -q -e '.[dev]'
	$(BIN)/python -m pip install -q --upgrade --no-deps --target $(VENV)/outside timm torchvision==0.28.0
	touch $@

clean:
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache build dist
