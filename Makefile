# Each target works on a fresh machine: it makes the virtual environment, installs with the pins, then runs.
VENV ?= .venv
PYTHON ?= python3
CONSTRAINTS ?= constraints.txt
BIN := $(VENV)/bin

.PHONY: install test test-oldest lint demo format clean

install: $(VENV)/.installed

# torch first and pinned: asked for loosely, pip would fetch gigabytes of CUDA libraries.
$(VENV)/.installed: pyproject.toml $(CONSTRAINTS)
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet --constraint $(CONSTRAINTS) torch
	$(BIN)/python -m pip install --quiet --constraint $(CONSTRAINTS) --editable '.[dev]'
	touch $@

test: install
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist worksteal --durations=25

# With the oldest torch and core packages that Halocline claims. On Linux, that torch comes with 5 GB of CUDA libraries.
test-oldest: .venv-oldest/constraints.txt
	$(MAKE) test VENV=.venv-oldest CONSTRAINTS=.venv-oldest/constraints.txt

# Of the two pins of a package, sort keeps the first.
.venv-oldest/constraints.txt: constraints-oldest.txt constraints.txt
	mkdir -p .venv-oldest
	LC_ALL=C sort -u -t= -k1,1 constraints-oldest.txt constraints.txt > $@

lint: install
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: install
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

demo: install
	$(BIN)/python examples/demo.py

clean:
	rm -rf $(VENV) .venv-oldest build dist src/*.egg-info
