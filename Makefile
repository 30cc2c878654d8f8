# Everything happens in .venv, which is made on first use. `make run` and `make test` need Python and make only.
PYTHON ?= python3
BIN := .venv/bin
# Real data are read where they are; tests that need them skip with a reason otherwise.
export FEDFUSE_DATA ?= $(abspath $(wildcard ../shared/data))

.PHONY: run test coverage slow lint bench docs dist clean

# FPFC and the fusion tree beside every device alone, one model for all, and what knows the groups
run: .venv/core
	$(BIN)/fedfuse compare synthetic:S1 --methods fpfc,fusion-tree,local,fedavg,oracle \
		--seeds 1 --set local.rounds=200 --set fedavg.rounds=200 --out runs/mission

test: .venv/ready
	$(BIN)/python -m pytest -n 2

# counting lines doubles the time of the tests
coverage: .venv/ready
	$(BIN)/python -m pytest -n 2 --cov=fedfuse --cov-report=term:skip-covered --cov-fail-under=95

slow: .venv/ready
	$(BIN)/python -m pytest -m slow

lint: .venv/ready
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

bench: .venv/ready
	$(BIN)/fedfuse bench

# site/index.html opens from disk; nothing is loaded from elsewhere
docs: .venv/ready
	$(BIN)/python docs/make_figures.py
	$(BIN)/python docs/make_cli.py
	$(BIN)/mkdocs build --strict

# wheel and sdist of a release, in an environment of their own
dist:
	$(PYTHON) -m venv .venv-dist
	.venv-dist/bin/python -m pip install --quiet --quiet build twine
	rm -rf dist
	.venv-dist/bin/python -m build
	.venv-dist/bin/twine check --strict dist/*

# what a first run needs, and what developers need on top of it
INSTALL = $(BIN)/python -m pip install --quiet --quiet --constraint constraints.txt --editable

.venv/core: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(INSTALL) '.[report]'
	touch $@

.venv/ready: .venv/core
	$(INSTALL) '.[dev]'
	touch $@

clean:
	rm -rf .venv .venv-dist dist runs site docs/figures .pytest_cache .mypy_cache .ruff_cache .hypothesis
