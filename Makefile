# make app   sets everything up and opens the workbench
# make test  sets everything up and runs every check
# make docs  builds the documentation in build/docs
PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
FITS := import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 13) and "dcinterp needs Python 3.11 to 3.13; say which: make app PYTHON=python3.12")
INSTALL := $(BIN)/pip install --disable-pip-version-check --constraint constraints.txt --editable
SETUP  := $(VENV)/.app
READY  := $(VENV)/.ready
# Some containers forbid Python to keep what it has compiled: each of the hundred processes of the checks would compile
# this repository, and what pytest makes of its tests, anew.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: app test pytest lint types floors triton soak bench docs notebooks figures report code-models config-reference clean help

help:
	@sed -n '1,3s/^# //p' Makefile

# The app needs no tools of the checks, so its first start does not wait for them.
$(SETUP): pyproject.toml constraints.txt
	@echo "Setting up in $(VENV), this once: PyTorch and the like, about 2 GB, which takes some minutes."
	@echo "For the last of them, while it unpacks, pip prints nothing."
	@$(PYTHON) -c '$(FITS)'
	$(PYTHON) -m venv $(VENV)
	$(INSTALL) .
	@touch $@

$(READY): pyproject.toml constraints.txt
	@echo "Setting up the app and the tools of the checks in $(VENV), this once: some minutes."
	@$(PYTHON) -c '$(FITS)'
	$(PYTHON) -m venv $(VENV)
	$(INSTALL) '.[dev]' --quiet
	@touch $(SETUP) $@

# make app MODELS="runs/mine/model" opens further models beside the shipped ones.
app: $(SETUP)
	@echo "Starting the workbench ..."
	@$(BIN)/dcinterp app $(MODELS) || [ $$? -eq 130 ]

# The types are checked beside the tests, on whichever core is free.
test: lint
	$(MAKE) --no-print-directory --jobs 2 types pytest

pytest: $(READY)
	$(BIN)/pytest --numprocesses 2 --dist worksteal

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(READY)
	$(BIN)/mypy

# The lowest versions that pyproject.toml allows, in an environment of their own: they install together, and the tests of
# what they are used for pass (without checks of shapes, which these folders' conftest would come too early for). Some
# minutes, and up to 8 GB where only CUDA builds of the old PyTorch are offered.
FLOORS := build/floors
floors:
	$(PYTHON) -m venv $(FLOORS)
	$(PYTHON) .ci/floors.py > $(FLOORS)/pins.txt
	$(FLOORS)/bin/pip install --disable-pip-version-check --quiet --editable . --requirement $(FLOORS)/pins.txt pytest hypothesis beartype
	$(FLOORS)/bin/python -m pytest -p no:cacheprovider --quiet --override-ini addopts=--import-mode=importlib $(FLOORS_TESTS)

FLOORS_TESTS := tests/unit/support tests/unit/checkpoints tests/unit/model tests/unit/bridge tests/unit/results tests/unit/cli tests/parity

# The experimental Triton kernels on Triton's CPU interpreter, against the equation, and compiled for GPUs that need not be
# there. Triton is 1 GB, so it lies beside the environment and `make test` skips these tests.
TRITON := build/triton
triton: $(READY)
	$(BIN)/pip install --disable-pip-version-check --quiet --no-deps --upgrade --target $(TRITON) triton
	PYTHONPATH=$(CURDIR):$(CURDIR)/$(TRITON) TRITON_INTERPRET=1 $(BIN)/python -m pytest -p no:cacheprovider --quiet tests/unit/model/test_triton.py

# Thirty people in the app for ten minutes, three of them with a browser: no error, and memory that does not grow.
soak: $(READY)
	DCINTERP_SOAK=$${DCINTERP_SOAK:-10} $(BIN)/pytest -p no:cacheprovider --quiet --capture no tests/app/test_soak.py

bench: $(READY)
	$(BIN)/dcinterp bench attention --short --rounds 5

docs: $(READY)
	$(BIN)/python -m sphinx -W --keep-going -q -b html docs build/docs
	@echo "Read build/docs/index.html"

# The outputs inside the notebooks, and the figures of the documentation: after a change of the shipped models, say.
notebooks: $(READY)
	cd docs && ../$(BIN)/python -m sitetools.notebooks

figures: $(READY)
	cd docs && ../$(BIN)/python -m sitetools.blocks

# The pair of models of source code, from the finished runs of configs/source-code.yaml in the folder RUNS.
RUNS ?= runs
code-models: $(READY)
	PYTHONPATH=docs $(BIN)/python -m sitetools.code_models $(RUNS)

# docs/what-composition-does.md, measured again on the shipped models (CHECK=--check only compares fingerprints), and
# docs/config-reference.md, from the classes of the training config.
report: $(READY)
	cd docs && ../$(BIN)/python -m sitetools.report $(CHECK)

config-reference: $(READY)
	cd docs && ../$(BIN)/python -m sitetools.config_reference > config-reference.tmp && mv config-reference.tmp config-reference.md

clean:
	rm -rf $(VENV) build dist .pytest_cache .mypy_cache .ruff_cache
