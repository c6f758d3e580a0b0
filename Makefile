# Everything sets itself up from a bare Python >= 3.11 with pip:
#   make demo   fit two moons and digits, write pictures and a table to demo/
#   make paper  Algorithm 1 of the paper beside the defaults: pictures and seconds
#   make test   lint, types, tests; make test-all also runs the tests that take long
#   make test SEED=3   the same tests with other random data; make test-seeds runs five seeds
PYTHON ?= python3
VENV ?= .venv
BIN = $(VENV)/bin
READY = $(VENV)/.ready
# Threads that wait for work should sleep, not spin: several times as fast where cores are shared.
export OMP_WAIT_POLICY ?= passive

# The seed of the random data in tests: they must hold for any.
SEED ?= 0
SEEDS ?= 1 2 3 4 5
export SLICEFLOW_TEST_SEED = $(SEED)

.PHONY: demo paper test fast-tests test-all test-seeds test-matrix lint bench docs clean

demo: $(READY)
	$(BIN)/python examples/demo.py --out demo

# Algorithm 1 of the paper beside the defaults, on moons and digits: a few minutes.
paper: $(READY)
	$(BIN)/python examples/algorithm1.py --out algorithm1

# Two workers with a thread each; a worker that is done takes tests from the other.
PYTEST = OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist worksteal

# Linter and tests at the same time: tests that wait leave a core to the linter.
test: $(READY)
	$(MAKE) --no-print-directory --jobs=2 lint fast-tests

fast-tests: $(READY)
	$(PYTEST)

test-all: test
	$(PYTEST) -m 'slow and not gpu'

test-seeds: $(READY)
	for seed in $(SEEDS); do SLICEFLOW_TEST_SEED=$$seed $(PYTEST) || exit 1; done

# Every Python from 3.11 on that this machine has, with pinned and with the lowest versions.
test-matrix: $(READY)
	$(BIN)/python scripts/test_matrix.py

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

bench: $(READY)
	$(BIN)/python benchmarks/cpu.py

docs: $(READY)
	$(BIN)/zensical build --clean --strict

# Pins live in constraints.txt; the package itself is installed in place.
$(READY): pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; sys.exit(0 if sys.version_info >= (3, 11) else "sliceflow needs Python 3.11 or newer, this is %d.%d: make PYTHON=python3.12" % sys.version_info[:2])'
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --disable-pip-version-check -q -c constraints.txt -e '.[dev]'
	touch $@

clean:
	rm -rf $(VENV) .matrix demo algorithm1 site .cache .mypy_cache .ruff_cache .pytest_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
