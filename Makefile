PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt
# Tests start hundreds of servers, and wait for them half of the time: bytecode is kept, and two more tests run than there are processors.
# --dist worksteal: with --dist loadfile, xdist 3.8 hangs when one of its processes dies.
unexport PYTHONDONTWRITEBYTECODE
WORKERS := $(shell expr $$(getconf _NPROCESSORS_ONLN) + 2)
PYTEST := $(BIN)/python -m pytest --numprocesses $(WORKERS) --dist worksteal

.PHONY: help venv demo demo-cluster test test-quick test-long fuzz wheel check generate bench clean
help: ## list the targets
	@grep -hE '^[a-z-]+:.*## ' Makefile | sed -E 's/:.*## /\t/' | expand -t 14

$(VENV)/.runtime: pyproject.toml constraints.txt
	@echo "Installing the store and its 12 dependencies (trio, msgpack, lmdb, numpy, ...) into $(VENV)"
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@$(PIP) --editable .
	@touch $@

$(VENV)/.installed: pyproject.toml constraints.txt
	@echo "Installing what tests and checks need (pytest, mypy, ruff, PySpark, ...) into $(VENV)"
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@$(PIP) --editable '.[dev]'
	@touch $@ $(VENV)/.runtime $(VENV)/.cluster

$(VENV)/.cluster: pyproject.toml constraints.txt
	@echo "Installing the store, the client of etcd (httpx) and an etcd into $(VENV)"
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@$(PIP) --editable '.[cluster,etcd]'
	@touch $@ $(VENV)/.runtime

$(VENV)/.bench: $(VENV)/.installed
	@echo "Installing the clients of the other systems that are measured into $(VENV)"
	@$(PIP) --editable '.[dev,bench]'
	@touch $@

venv: $(VENV)/.installed ## create .venv with all that tests and checks need

demo: $(VENV)/.runtime ## a library, a bank and a shop on scratch folders: events, commands, a read model, messages, restarts
	$(BIN)/python docs/examples/demo

demo-cluster: $(VENV)/.cluster ## three nodes over an etcd, of which one is killed while a client appends
	$(BIN)/python docs/examples/demo_cluster

test: $(VENV)/.installed ## run the test suite, on all processors
	$(PYTEST) -m 'not long' || { [ $$? = 1 ] && $(BIN)/python .ci/failed_again.py; }

test-quick: $(VENV)/.installed ## run every test that is not marked heavy
	$(PYTEST) -m 'not heavy and not long'

test-long: $(VENV)/.installed ## run the tests that make test leaves out, which take ten seconds and more
	$(PYTEST) -m long

fuzz: $(VENV)/.installed ## 100,000 made-up grants, tokens and handshakes; SEED=N repeats a run
	$(BIN)/python -m tests.fuzz.access $(if $(SEED),--seed $(SEED))

wheel: $(VENV)/.installed ## build a wheel, install it into a fresh environment and run README's program
	$(BIN)/python .ci/wheel.py

check: $(VENV)/.installed ## lint, types, layers, generated files, names in the pages
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python .ci/generate.py --check
	$(BIN)/python .ci/check_names.py

generate: $(VENV)/.installed ## write the pages and modules that follow from the code
	$(BIN)/python .ci/generate.py

bench: $(VENV)/.bench ## side by side with the peers that are installed
	$(BIN)/python -m benchmarks.append
	$(BIN)/python -m benchmarks.read
	$(BIN)/python -m benchmarks.store
	$(BIN)/python -m benchmarks.bank
	$(BIN)/python -m benchmarks.broker
	$(BIN)/python -m benchmarks.consumers
	$(BIN)/python -m benchmarks.projections
	$(BIN)/python -m benchmarks.neighbours
	$(BIN)/python -m benchmarks.security
	$(BIN)/python -m benchmarks.cluster
	$(BIN)/python -m benchmarks.replicas
	$(BIN)/python -m benchmarks.growing
	$(BIN)/python -m benchmarks.console

clean: ## remove the environment and everything generated
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache benchmarks/results
