# `make demo` and `make test` need nothing but Python 3.11, pip, make and git.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PYTEST_ARGS ?= -n 3 --dist loadgroup --cov --cov-report=term --cov-fail-under=95

.PHONY: demo test lint clean
.DELETE_ON_ERROR:

demo: $(VENV)/.installed
	$(BIN)/drdsgd demo

test: $(VENV)/.installed
	$(BIN)/python -m pytest $(PYTEST_ARGS)

lint: $(VENV)/.installed
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

$(VENV)/.installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --disable-pip-version-check --quiet -c constraints.txt -e '.[dev]'
	touch $@

clean:
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache .hypothesis .coverage*
