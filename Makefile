# `make demo` and `make test` set everything up in .venv; a second call starts at once.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# Threads that wait by sleeping: on a busy machine, spinning ones slow each other down several times.
export OMP_WAIT_POLICY := PASSIVE
SOURCES := pyproject.toml bench/pyproject.toml CMakeLists.txt constraints.txt $(wildcard src/native/*)

.PHONY: demo test test-all lint format types docs docs-serve bench clean
.DEFAULT_GOAL := help

help:
	@echo "make demo    fit 20,000 elevations, print a table, draw a picture"
	@echo "make test    lint, types, and the tests that guard every promise"
	@echo "make test-all the same, with attacks, kills, several processes and whole grids"
	@echo "make docs    the documentation as a site, in site/index.html"
	@echo "make bench   speed of the kernels and of a training step"
	@echo "make format  rewrite the sources in the house style"
	@echo "make clean   remove everything that was built"

demo: $(VENV)/installed
	$(BIN)/python examples/demo.py

test: $(VENV)/installed-dev lint types
	$(BIN)/python -m pytest -m "not slow"

test-all: test
	$(BIN)/python -m pytest -m slow

lint: $(VENV)/installed-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/clang-format --dry-run --Werror $(wildcard src/native/*)

types: $(VENV)/installed-dev
	$(BIN)/pyright

format: $(VENV)/installed-dev
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .
	$(BIN)/clang-format -i $(wildcard src/native/*)

# The theme announces the next version of mkdocs at every build.
docs docs-serve: export NO_MKDOCS_2_WARNING := 1
docs: $(VENV)/installed-dev
	$(BIN)/python -m mkdocs build --strict

docs-serve: $(VENV)/installed-dev
	$(BIN)/python -m mkdocs serve

bench: $(VENV)/installed-dev
	$(BIN)/cagp bench engine
	$(BIN)/cagp bench step

# The sources are used in place (editable); only the compiled module is installed, and rebuilt when its sources change.
$(VENV)/installed: $(SOURCES) | $(BIN)/python
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable . --editable bench
	@touch $@

# Not after the rule above: each of the two compiles everything.
$(VENV)/installed-dev: $(SOURCES) | $(BIN)/python
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[dev]' --editable bench
	@touch $(VENV)/installed $@

$(BIN)/python:
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip

clean:
	rm -rf $(VENV) build dist site
