# `make demo` and `make test` do all the set-up on a fresh machine.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin

.PHONY: demo test lint bench clean

$(BIN)/python:
	$(PYTHON) -m venv $(VENV)

$(VENV)/.demo: pyproject.toml | $(BIN)/python
	$(BIN)/python -m pip install --quiet -e ".[plots]"
	touch $@

$(VENV)/.test: pyproject.toml | $(BIN)/python
	$(BIN)/python -m pip install --quiet -e ".[test]"
	touch $@

demo: $(VENV)/.demo  ## install, then run the main job
	$(BIN)/adte demo

test: $(VENV)/.test lint  ## install what the tests need, then run them all
	$(BIN)/python -m pytest -q -n auto

lint: $(VENV)/.test
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

bench: $(VENV)/.test  ## speed and memory on this machine
	for what in views head prior encode pipeline cost; do $(BIN)/adte bench $$what || exit 1; done

clean:
	rm -rf $(VENV) adte-demo adte-paper adte-study .pytest_cache .mypy_cache .ruff_cache
