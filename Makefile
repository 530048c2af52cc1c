# `make test` and `make demo` work on a fresh machine with Python 3.11+ and make.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
# Tests start many processes; with this variable set, each would compile the sources again.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: demo test lint bench docs wheel-test clean

demo: $(READY)
	$(BIN)/tammes demo

test: $(READY)
	$(BIN)/python -m pytest -n 3 --dist worksteal

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/basedpyright --pythonpath $(BIN)/python src

bench: $(READY)
	$(BIN)/python -m benchmarks

docs: $(READY)
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet
	@echo "Open build/site/index.html"

# Run by hand before a release. Creates two environments of 6 GB each: the library alone, and with the lab.
wheel-test:
	rm -rf build/wheel
	$(PYTHON) -m venv build/wheel/tools
	build/wheel/tools/bin/pip install --quiet build
	build/wheel/tools/bin/python -m build --outdir build/wheel/dist .
	for extra in "" "[lab]"; do \
	    $(PYTHON) -m venv build/wheel/empty --clear && \
	    build/wheel/empty/bin/pip install --quiet "$$(echo $(CURDIR)/build/wheel/dist/*.whl)$$extra" && \
	    (cd build/wheel && empty/bin/python ../../tools/wheel_test.py $$(echo "$$extra" | tr -d '[]')) || exit 1; \
	done

$(READY): pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "tammes needs Python 3.11 or newer, got `$(PYTHON) --version 2>&1`. Choose one: make PYTHON=python3.12 $(MAKECMDGOALS)"; exit 1; }
	@$(PYTHON) -c 'import ensurepip' 2>/dev/null || { echo "$(PYTHON) cannot create virtual environments (no ensurepip). On Debian or Ubuntu: apt-get install python3-venv"; exit 1; }
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet --editable '.[dev]'
	@touch $(READY)

clean:
	rm -rf $(VENV) build dist .pytest_cache .ruff_cache
