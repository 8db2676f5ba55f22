# `make demo` and `make test` do all the set-up on a fresh machine.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
TEST := OMP_NUM_THREADS=1 $(BIN)/python -m pytest -q -n auto

# Tests whose numbers could hang on the processor: run with its defaults forced each way. The first
# load models, whose dtype is forced; the others make views, and their one small model has its own.
DTYPES := tests/test_classifier.py tests/models/test_registry.py tests/models/test_openclip.py \
	tests/evaluate/test_cache.py
KERNELS := tests/test_views.py tests/pipeline \
	--deselect tests/pipeline/test_views_gpu.py::test_the_kernel_says_what_matrix_products_say

.PHONY: demo test test-all matrix lint bench clean

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

test: $(VENV)/.test lint  ## install what the tests need, lint, check types, run the quick tests
	$(TEST) -m "not slow"

test-all: $(VENV)/.test matrix  ## kills, full studies, browsers: what `make test` leaves out
	$(TEST) -m slow --ignore tests/cluster
	$(TEST) -m slow tests/cluster  # by themselves: Ray's nodes stay up as long as the session

matrix: $(VENV)/.test  ## the default dtype and the kernel of the views forced each way
	for dtype in float32 bfloat16; do ADTE_DTYPE=$$dtype $(TEST) $(DTYPES) || exit 1; done
	for kernel in uint8 bands float pillow; do \
		ADTE_VIEWS=$$kernel $(TEST) $(KERNELS) || exit 1; done

lint: $(VENV)/.test
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

bench: $(VENV)/.test  ## speed and memory on this machine
	for what in views head prior encode pipeline cost; do $(BIN)/adte bench $$what || exit 1; done

clean:
	rm -rf $(VENV) adte-demo adte-paper adte-study .pytest_cache .mypy_cache .ruff_cache
