# Each target works on a fresh machine: it makes the virtual environment, installs with the pins, then runs.
VENV ?= .venv
PYTHON ?= python3
BIN := $(VENV)/bin

.PHONY: install test lint demo format clean

install: $(VENV)/.installed

# torch first and pinned: asked for loosely, pip would fetch gigabytes of CUDA libraries.
$(VENV)/.installed: pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet --constraint constraints.txt torch
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[dev]'
	touch $@

test: install
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist worksteal --durations=25

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
	rm -rf $(VENV) build dist src/*.egg-info
