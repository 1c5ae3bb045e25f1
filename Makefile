# Every target sets up what it needs, in a virtual environment of its own.
PYTHON ?= python3
VENV ?= .venv
# The CPU build where one is offered; on a GPU machine: make TORCH=torch setup
TORCH ?= torch==2.13.0

STAMP := $(VENV)/.ready
RUN := $(VENV)/bin

.PHONY: setup demo test test-gpu lint bench clean

setup: $(STAMP)

$(STAMP): pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(RUN)/python -m pip install --quiet --upgrade pip
	$(RUN)/python -m pip install --quiet "$(TORCH)"
	$(RUN)/python -m pip install --quiet --editable ".[dev]"
	touch $@

demo: $(STAMP)
	$(RUN)/gdws demo

test: $(STAMP)
	$(RUN)/python -m pytest -m "not gpu"

test-gpu: $(STAMP)
	$(RUN)/python -m pytest -m gpu

lint: $(STAMP)
	$(RUN)/ruff check .
	$(RUN)/ruff format --check .
	$(RUN)/mypy

bench: $(STAMP)
	$(RUN)/python scripts/bench_core.py
	$(RUN)/python scripts/layer_speed.py

clean:
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis
