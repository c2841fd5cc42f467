# Needs python3 (3.11 or newer) and make. The first target creates .venv; after that everything works offline.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed
PIP := -m pip --disable-pip-version-check

.DEFAULT_GOAL := help
.PHONY: help setup demo test unit check audit bench lock clean

help: ## show this list
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "make %-6s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: $(INSTALLED) ## create .venv with the locked dependencies

demo: $(INSTALLED) ## run the main job on this machine; KEEP=1 leaves everything running until Ctrl-C
	@$(BIN)/delegation demo $(if $(filter 1 yes true,$(KEEP)),--keep)

test: $(INSTALLED) ## every test: unit, integration, acceptance
	$(BIN)/python -m pytest

unit: $(INSTALLED) ## the tests that need no network and no Redis
	$(BIN)/python -m pytest tests/unit

check: $(INSTALLED) ## lint, format, types, import contracts
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

audit: $(INSTALLED) ## ask for published advisories against what is locked
	@$(BIN)/python .ci/audit.py

bench: $(INSTALLED) ## measure against the raw reference, and print the table
	$(BIN)/python -m bench

# For every platform and every Python from 3.11 on, with the hashes of all files; uv is needed here alone.
LOCK := .venv-lock/bin/uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-header pyproject.toml

lock: ## resolve the ranges in pyproject.toml anew and write the locks
	rm -rf .venv-lock
	$(PYTHON) -m venv .venv-lock
	.venv-lock/bin/python $(PIP) install --quiet uv
	$(LOCK) --extra demo --extra dev --extra build --output-file .venv-lock/all
	$(LOCK) --extra demo --extra build --constraints .venv-lock/all --no-annotate --output-file .venv-lock/image
	{ echo '# What is developed and tested with; made by `make lock` from the ranges in pyproject.toml.'; \
	  cat .venv-lock/all; } > requirements.lock
	{ echo '# What runs, in the same versions as in requirements.lock; made by `make lock` as well.'; \
	  cat .venv-lock/image; } > requirements-image.lock
	rm -rf .venv-lock

clean: ## remove .venv and what the tools left behind
	rm -rf $(VENV) .venv-lock .peers build *.egg-info .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# Nothing comes from the registry but files whose hashes are in the lock, what builds this project included.
$(INSTALLED): pyproject.toml requirements.lock
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or newer is needed; name one: make PYTHON=python3.12 …")'
	$(PYTHON) -m venv --clear $(VENV)
	$(BIN)/python $(PIP) install --quiet --require-hashes -r requirements.lock
	$(BIN)/python $(PIP) install --quiet --no-deps --no-build-isolation -e .
	@touch $@
