PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# Tests start hundreds of servers, and most of them wait for a disk: compiled once, and one more at a time than there are processors.
# Divided by stealing: xdist 3.8 waits for ever where a process dies while whole files are handed out (--dist loadfile).
unexport PYTHONDONTWRITEBYTECODE
WORKERS := $(shell expr $$(getconf _NPROCESSORS_ONLN) + 1)

# Real servers, disks and kills: on a busy machine a test may lose a race. What failed is run once more, alone; a fault fails again.
FAILED_AGAIN := echo "What failed is run once more, one test at a time:" && \
	$(BIN)/python -m pytest --verbose --last-failed --last-failed-no-failures none

.PHONY: help demo test check bench clean
help: ## list the targets
	@grep -hE '^[a-z]+:.*## ' Makefile | sed -E 's/:.*## /\t/' | expand -t 10

$(VENV)/.installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[dev]'
	@touch $@

$(VENV)/.bench: $(VENV)/.installed
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[dev,bench]'
	@touch $@

demo: $(VENV)/.installed ## a library, a bank and a shop on scratch folders: events, commands, a read model, messages, restarts
	$(BIN)/python -m eventstore.cli.demo

test: $(VENV)/.installed ## run the whole test suite, on all processors
	$(BIN)/python -m pytest --numprocesses $(WORKERS) --dist worksteal || { [ $$? = 1 ] && $(FAILED_AGAIN); }

check: $(VENV)/.installed ## lint, types, layers
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

bench: $(VENV)/.bench ## side by side with the peers that are installed
	$(BIN)/python -m benchmarks.append
	$(BIN)/python -m benchmarks.read
	$(BIN)/python -m benchmarks.store
	$(BIN)/python -m benchmarks.bank
	$(BIN)/python -m benchmarks.broker
	$(BIN)/python -m benchmarks.consumers

clean: ## remove the environment and everything generated
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache benchmarks/results
