# `make demo` and `make test` do all the set-up on a fresh machine.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
PYTEST := OMP_NUM_THREADS=1 $(BIN)/python -m pytest -q
TEST := $(PYTEST) -n auto --dist worksteal

unexport PYTHONDONTWRITEBYTECODE  # hundreds of processes start: none is to compile torch again

# Tests whose numbers could hang on the processor: run with its defaults forced each way. The first
# load models, whose dtype is forced; the others make views, and their one small model has its own.
# What the processor takes by itself ran among the quick tests, and is passed over.
# Left out are long ones with other numbers: sizes of files, imports, Triton's interpreter.
DTYPES := tests/test_classifier.py tests/models/test_registry.py tests/models/test_openclip.py \
	tests/evaluate/test_cache.py \
	--deselect tests/models/test_registry.py::test_torchvision_imports_and_again \
	--deselect tests/evaluate/test_cache.py::test_the_replay_benchmark_in_small \
	--deselect tests/evaluate/test_cache.py::test_every_byte_of_a_shard_counts
KERNELS := tests/test_views.py tests/pipeline \
	--deselect tests/pipeline/test_views_gpu.py::test_the_kernel_says_what_matrix_products_say
OWN := import torch; from adte.images import Views; from adte.models.loading import default_dtype; \
	print(Views().kernel(), str(default_dtype(torch.device("cpu"))).removeprefix("torch."))
FORCED_DTYPES := dtype-float32 dtype-bfloat16
FORCED_KERNELS := kernel-uint8 kernel-bands kernel-float kernel-pillow

.PHONY: demo test test-all matrix quick slow cluster lint bench clean $(FORCED_DTYPES) $(FORCED_KERNELS)

$(BIN)/python:
	$(PYTHON) -m venv --upgrade-deps $(VENV)  # an old pip takes minutes more

$(VENV)/.demo: pyproject.toml | $(BIN)/python
	$(BIN)/python -m pip install --quiet -e ".[plots]"
	touch $@

$(VENV)/.test: pyproject.toml | $(BIN)/python
	$(BIN)/python -m pip install --quiet -e ".[test]"
	touch $@

demo: $(VENV)/.demo  ## install, then run the main job
	$(BIN)/adte demo

test: $(VENV)/.test  ## install what the tests need, lint, check types, run the quick tests
	$(MAKE) -j2 lint quick

quick: $(VENV)/.test
	$(TEST) -m "not slow"

test-all: $(VENV)/.test  ## kills, full studies, browsers: what `make test` leaves out
	$(MAKE) -j3 slow cluster matrix  # the second waits for Ray most of the time

slow: $(VENV)/.test
	$(TEST) -m slow tests --ignore tests/cluster

cluster: $(VENV)/.test  # one process, hence one Ray cluster
	$(PYTEST) -m slow tests/cluster

matrix: HOST = $(shell $(BIN)/python -c '$(OWN)')
matrix: $(VENV)/.test  ## the default dtype and the kernel of the views forced each way
	$(MAKE) $(filter-out $(patsubst %,kernel-%,$(HOST)) $(patsubst %,dtype-%,$(HOST)), \
		$(FORCED_DTYPES) $(FORCED_KERNELS))

$(FORCED_DTYPES): dtype-%: $(VENV)/.test
	ADTE_DTYPE=$* $(PYTEST) $(DTYPES)

$(FORCED_KERNELS): kernel-%: $(VENV)/.test
	ADTE_VIEWS=$* $(PYTEST) $(KERNELS)

lint: $(VENV)/.test
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/bandit -q -r src/adte -ll

bench: $(VENV)/.test  ## speed and memory on this machine
	for what in views head prior encode pipeline cost; do $(BIN)/adte bench $$what || exit 1; done

clean:
	rm -rf $(VENV) adte-demo adte-paper adte-study .pytest_cache .mypy_cache .ruff_cache
