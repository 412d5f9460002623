# Recursant. `make up` on a fresh machine (Python >= 3.11 and make) installs and starts everything.

PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
ARGS ?=

.PHONY: help install up test test-unit test-e2e test-compiled test-vllm lint format protos compiled bench bench-peers bench-fleet fuzz soak clean
.DEFAULT_GOAL := help

help: ## Show this list
	@grep -hE '^[a-z0-9-]+:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-14s %s\n", $$1, $$2}'

$(STAMP): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "Recursant needs Python 3.11 or newer; set PYTHON=..."; exit 1; }
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	@touch $@

install: $(STAMP) ## Install Recursant and everything it needs into .venv

up: $(STAMP) ## Start the gateway, its control plane and simulated workers (ARGS='--workers 8')
	@exec $(BIN)/recursant up $(ARGS)

test: lint ## Lint, types and all tests, real Envoy and Redis included
	$(BIN)/python scripts/run-tests $(ARGS)

test-unit: $(STAMP) ## Only the tests that start no Envoy
	$(BIN)/python -m pytest -m 'not e2e' $(ARGS)

test-e2e: $(STAMP) ## Only the tests that run the whole product
	$(BIN)/python -m pytest -m e2e $(ARGS)

test-compiled: compiled ## All tests against the compiled packages
	PYTHONSAFEPATH=1 PYTHONPATH=$(CURDIR)/build/compiled $(BIN)/python scripts/run-tests --compiled $(ARGS)

test-vllm: $(STAMP) ## Real vLLM on the CPU behind the gateway; installs it into .venv-vllm (docs/test-vllm.md)
	$(PYTHON) tests/real_vllm/environment.py .venv-vllm
	$(BIN)/python -m pytest --capture=sys tests/real_vllm $(ARGS)

lint: $(STAMP) ## ruff and mypy strict
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: $(STAMP) ## Format the code
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

protos: $(STAMP) ## Generate the protobuf modules from proto/
	$(BIN)/python scripts/generate-protos

compiled: $(STAMP) ## The packages in build/compiled, with what runs for every request compiled (docs/performance.md)
	rm -rf build/compiled
	RECURSANT_COMPILE=1 $(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation --target build/compiled .

bench: $(STAMP) ## Measure decision, transport and gateway (ARGS=--quick for a short run)
	$(BIN)/python -m bench $(ARGS)

bench-peers: $(STAMP) ## Measure the gateway beside others, each installed into bench/out/peers
	$(BIN)/python -m bench.peers $(ARGS)

bench-fleet: $(STAMP) ## Compare policies of routing on the same traces, in virtual time, three seeds (ARGS='--traces DIR', '--quick')
	$(BIN)/python -m bench.fleet_sim $(ARGS)

fuzz: $(STAMP) ## Fuzz with atheris, 30 s for each target (ARGS='http2 --seconds 600')
	PYTHONPATH=tests:tests/unit $(BIN)/python -m fuzz $(ARGS)

soak: $(STAMP) ## 30 minutes of mixed load, churn and hang-ups (ARGS='--minutes 5')
	$(BIN)/python -m bench.soak $(ARGS)

clean: ## Remove what install, tests and runs left
	rm -rf $(VENV) .venv-vllm .pytest_cache .mypy_cache .ruff_cache .hypothesis bench/out run build dist
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
