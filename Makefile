# make app   sets everything up and opens the workbench
# make test  sets everything up and runs every check
PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
READY  := $(VENV)/.ready

.PHONY: app test lint types bench clean help

help:
	@sed -n '1,2s/^# //p' Makefile

$(READY): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[dev]'
	touch $(READY)

# make app MODELS="runs/mine/model" opens further models beside the shipped ones.
app: $(READY)
	$(BIN)/dcinterp app $(MODELS)

test: lint types
	$(BIN)/pytest --numprocesses 2 --dist worksteal

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(READY)
	$(BIN)/mypy

bench: $(READY)
	$(BIN)/dcinterp bench attention

clean:
	rm -rf $(VENV) build dist .pytest_cache .mypy_cache .ruff_cache
