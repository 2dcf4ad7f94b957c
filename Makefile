# Everything runs in .venv, which the first target that needs it builds.
# Needs python3 >= 3.11 (with its venv module) and make, nothing else.

PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
PIP    := $(BIN)/python -m pip install --quiet --disable-pip-version-check

# Unless told otherwise everything runs on the host CPU, whatever accelerators are plugged in.
export JAX_PLATFORMS ?= cpu

.DEFAULT_GOAL := help
.PHONY: help setup demo test quick lint format bench fuzz sweep lock referee peers docs release clean

help:                ## this list
	@sed -n 's/^\([a-z]*\):.*## /\1\t/p' $(MAKEFILE_LIST) | expand -t 12

# Two installations share the environment: the demo needs only the models, so it starts sooner.
$(VENV)/.base:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
	  || { echo "Shardwright needs Python 3.11 or newer: make PYTHON=python3.12 ..."; exit 1; }
	$(PYTHON) -m venv $(VENV)
	@touch $@

$(VENV)/.demo: $(VENV)/.base pyproject.toml
	$(PIP) -e '.[zoo]'
	@touch $@

# pip would compile all modules on one core; those of a package's own tests may not compile.
$(VENV)/.dev: $(VENV)/.base pyproject.toml constraints.txt
	$(PIP) --no-compile -c constraints.txt -e '.[zoo,dev]'
	-@$(BIN)/python -m compileall -qq -j 0 $(VENV)/lib
	@touch $@ $(VENV)/.demo

$(VENV)/.referee: $(VENV)/.dev
	$(PIP) -e '.[zoo,dev,tpu,cuda]'
	@touch $@

setup: $(VENV)/.dev  ## build .venv with everything the tests need

lock:                ## write constraints.txt: the versions that are in .venv now
	(sed -n '/^#/p' constraints.txt; \
	 $(BIN)/python -m pip list --format=freeze --exclude-editable --disable-pip-version-check \
	 | grep -Ev '^(pip|setuptools)=='| sort -f) > constraints.new && mv constraints.new constraints.txt

demo: $(VENV)/.demo  ## plan a large model, train a small one with a plan
	$(BIN)/python examples/demo.py

lint: $(VENV)/.dev   ## ruff, format check, mypy
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: $(VENV)/.dev ## rewrite the code in the house format
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

# What compiles little: everything up to the plan, and how it reads.
QUICK := $(addprefix tests/,program rules analysis spmd cost report referee test_*.py) \
  $(patsubst %,tests/search/test_%.py,pins pinned_baselines) tests/plans/test_files.py

quick: lint          ## lint, types, and the tests to run while typing: about a minute on two cores
	OPENBLAS_NUM_THREADS=1 $(BIN)/python -m pytest -q -n 2 -m "not slow and not referee" $(QUICK)

test: lint           ## lint, types, tests (the host CPU is the referee)
	OPENBLAS_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist worksteal --ignore=tests/compilers

referee: $(VENV)/.referee ## every plan of the zoo; the TPU and GPU compilers, without that hardware
	$(BIN)/python -m pytest tests/compilers
	$(BIN)/python -m pytest -n 2 tests/plans/exhaustive.py

# Hours: a compilation or two for each of some 300 rows. It goes on where it was interrupted.
peers: $(VENV)/.referee ## other planners and experts, judged by the compilers; writes docs/peers.md
	$(BIN)/python -m benchmarks.peers $(if $(CASE),--case $(CASE))
	$(BIN)/python -m benchmarks.peers.large
	$(BIN)/python -m benchmarks.peers.report

fuzz: $(VENV)/.dev   ## plan, compile and run 2,000 random programs; COUNT and SEED say others
	$(BIN)/python -m tests.fuzz.run --count $(or $(COUNT),2000) --seed $(or $(SEED),300000)

# Other people's libraries, in an environment of their own: some want older packages than the tests.
SWEEP := .venv-sweep

$(SWEEP)/.ready: tests/sweep/requirements.txt pyproject.toml
	$(PYTHON) -m venv $(SWEEP)
	$(SWEEP)/bin/python -m pip install --quiet --disable-pip-version-check -e . jax==0.10.2
	@grep -v '^#' $< | while read library; do \
	  $(SWEEP)/bin/python -m pip install --quiet --disable-pip-version-check jax==0.10.2 $$library \
	  || echo "not installed: $$library"; done
	@touch $@

sweep: $(SWEEP)/.ready ## plan, compile and run programs of libraries that are not ours: docs/sweep.md
	$(SWEEP)/bin/python -m tests.sweep.run --write docs/sweep.md

docs: $(VENV)/.dev   ## the documentation as a site, in build/site; `make test` runs its code and checks its links
	$(BIN)/mkdocs build --strict

release: $(VENV)/.dev ## wheel and sdist in dist/, each tried in an empty environment
	$(BIN)/python -m tests.release

bench: $(VENV)/.dev  ## measure speed
	$(BIN)/python benchmarks/run.py

clean:               ## remove .venv and caches
	rm -rf $(VENV) $(SWEEP) build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis src/*.egg-info
