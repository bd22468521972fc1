# `make demo`, `make test` and `make docs` (the site, into site/) need nothing but Python 3.11, pip, make and git. Tests of
# the report need chromium, too: where it is missing it is installed if that needs no password, and else they are skipped.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PYTEST_ARGS ?= -n 3 --dist loadgroup --cov --cov-report=term --cov-fail-under=95
# the library, and what is beside it in this repository: studies (`drdsgd reproduce`) and benchmarks (`drdsgd bench`)
INSTALL := $(BIN)/python -m pip install --disable-pip-version-check --quiet -c constraints.txt -e ./studies -e ./benchmarks

.PHONY: demo test quick browser docs lint clean
.DELETE_ON_ERROR:

demo: $(VENV)/.installed
	$(BIN)/drdsgd demo

test: $(VENV)/.developing browser
	$(BIN)/python -m pytest $(PYTEST_ARGS)

# an answer in under a minute: the laws, and the unit tests that are fast
quick: $(VENV)/.developing
	$(BIN)/python -m pytest -n 2 --dist loadgroup -q -m "not slow" tests/laws tests/unit

browser:
	@if { command -v chromium || command -v chromium-browser || command -v google-chrome; } >/dev/null; then :; \
	elif [ "$$(id -u)" = 0 ] && { apt-get -qq update && apt-get install -qq -y chromium; } >/dev/null 2>&1; then :; \
	elif { sudo -n apt-get -qq update && sudo -n apt-get install -qq -y chromium; } >/dev/null 2>&1; then :; \
	else echo "there is no chromium, and it could not be installed: tests of the report in a browser are skipped"; fi

# not --quiet: that also hides warnings from --strict, so that a page that is in no menu would do
docs: $(VENV)/.developing
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict
	@echo "open site/index.html; its search needs a server: python3 -m http.server -d site"

lint: $(VENV)/.developing
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

PROJECTS := pyproject.toml studies/pyproject.toml benchmarks/pyproject.toml constraints.txt

$(VENV)/.installed: $(PROJECTS)
	$(PYTHON) -m venv $(VENV)
	$(INSTALL) -e .
	touch $@

# developers' tools on top
$(VENV)/.developing: $(VENV)/.installed
	$(INSTALL) -e '.[dev]'
	touch $@

clean:
	rm -rf $(VENV) site .pytest_cache .mypy_cache .ruff_cache .hypothesis .coverage*
