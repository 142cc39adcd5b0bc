# Everything a newcomer needs. `make demo` and `make test` do all their own set-up.
SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
PYTHON ?= python3
BIN := .venv/bin
READY := .venv/.ready
# Compiled modules are kept, whatever the shell says: every process of the tests starts quicker with them.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help setup demo test test-fast test-processes test-chaos test-integration test-browser test-e2e test-long lint format bench faults faults-proof texts image crds chart monitoring docs docs-check docs-reference requirements clean

help: ## list the targets
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 20

setup: $(READY) ## own .venv with pinned, hashed packages (idempotent)

$(READY): requirements.txt pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "error: Shoal needs Python 3.11 or newer; set PYTHON=/path/to/python3"; exit 1; }
	@echo "setting up .venv (once, about a minute) …"
	@test -x $(BIN)/python || $(PYTHON) -m venv .venv
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --progress-bar on --require-hashes -r requirements.txt
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation -e .
	@touch $(READY)
	@echo "ready: $(BIN)/shoal"

demo: setup ## two stories on this machine with real Ray, and the page to watch them: two Ray clusters, a GPU job
	@$(BIN)/python demo/demo.py

test: lint test-fast test-processes test-chaos attacks test-integration test-browser test-e2e ## everything: lint, unit, real processes, deaths and storms, real control plane, a real browser, real Ray

# More workers than cores: some tests wait. The same examples every time; plain pytest explores.
test-fast: setup ## unit and in-process tests only (about a minute on two cores)
	@echo "— unit and in-process tests"
	@$(BIN)/python -m compileall -q -j 2 src  # once, not by every worker
	@$(BIN)/python -m pytest -q -n 4 --dist worksteal --hypothesis-profile=ci tests/unit tests/checker tests/conformance

test-processes: setup ## pods as real processes in each sandbox, without a control plane
	@echo "— pods as real processes"
	@$(BIN)/python -m pytest -q -n 3 --dist worksteal tests/processes

test-chaos: setup ## controllers killed after every write, servers that fail, long seeded runs; in-process
	@echo "— deaths and storms"
	@$(BIN)/python -m pytest -q -n 2 --dist worksteal --hypothesis-profile=ci tests/chaos

test-integration: setup ## against the real kube-apiserver and etcd (built once into the cache)
	@$(BIN)/python -m tests.controlplane.build
	@echo "— integration tests on the real control plane"
	@$(BIN)/python -m pytest -q -n 2 --dist loadfile tests/integration

test-browser: setup ## the page in a real browser without a screen; installs Debian's chromium once where it may
	@$(BIN)/python -m tests.browser.chromium
	@echo "— the page in a browser"
	@$(BIN)/python -m pytest -q tests/browser

test-e2e: setup ## real Ray in real processes
	@echo "— end-to-end tests with real Ray"
	@$(BIN)/python -m pytest -q tests/e2e

PARTS := $(patsubst tests/long/test_%.py,%,$(sort $(wildcard tests/long/test_*.py)))
test-long: setup ## what takes too long for every change; PART=NAME runs one part of an hour at most, PART=list names them
ifeq ($(PART),list)
	@for part in $(PARTS); do printf '%-20s %s\n' $$part "$$(sed -n '1s/"""//gp' tests/long/test_$$part.py)"; done
else
	@echo "— long tests: $(or $(PART),$(PARTS))"
	@for part in $(or $(PART),$(PARTS)); do \
		test -f tests/long/test_$$part.py || { echo "error: there is no part $$part; make test-long PART=list names them"; exit 1; }; \
		timeout 60m $(BIN)/python -m pytest -q --hypothesis-profile=ci tests/long/test_$$part.py; \
	done
endif

attacks: setup ## attack a cluster as a hostile account, tenant, pod and member; prints what was tried and refused
	@echo "— attacks"
	@$(BIN)/python -m tests.attacks

lint: setup ## ruff, mypy strict on all of src, and the floor plan
	@$(BIN)/ruff check src tests bench demo tools
	@$(BIN)/ruff format --check -q src tests bench demo tools || { echo "error: run make format"; exit 1; }
	@$(BIN)/mypy
	@$(BIN)/lint-imports

format: setup ## let ruff write the layout
	@$(BIN)/ruff format src tests bench demo tools
	@$(BIN)/ruff check --fix src tests bench demo tools

bench: setup ## all benchmarks, with the baselines measured in the same run
	@for one in bench/*.py; do echo "— $$one"; $(BIN)/python $$one; done

faults: setup ## write docs/internals/faults.md from the fault tests' own docstrings
	@$(BIN)/python -m tests.faults_table

faults-proof: setup ## run each fault test with its protection removed; every one must fail
	@$(BIN)/python -m tests.controlplane.build
	@$(BIN)/python -m tests.browser.chromium
	@$(BIN)/python -m pytest -q -n 2 --dist loadfile --timeout 120 --faults-proof tests

texts: setup ## write tests/texts.txt, the list of every text that users can read
	@$(BIN)/python -m tests.texts

crds: setup ## write the CRDs from the types, and the chart's copies of them
	@$(BIN)/python -m shoal.api.crds
	@$(BIN)/python -m tools.chart

monitoring: setup ## write the dashboards and rules in monitoring/
	@$(BIN)/python -m tools.monitoring

chart: setup ## write charts/shoal from what shoal install applies
	@$(BIN)/python -m tools.chart

# An environment of its own: a reader of the code does not wait for it.
.venv-docs/.ready: requirements-docs.txt
	@echo "setting up .venv-docs (once, half a minute) …"
	@test -x .venv-docs/bin/python || $(PYTHON) -m venv .venv-docs
	@.venv-docs/bin/python -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements-docs.txt
	@touch .venv-docs/.ready

docs: .venv-docs/.ready ## build the site into build/docs, with search; a link that leads nowhere fails it
	@.venv-docs/bin/sphinx-build -q -W --keep-going -j auto -c docs -d build/docs-cache . build/docs
	@echo "the site: build/docs/index.html"

docs-reference: setup ## write the reference pages of command line, settings and metrics from the code
	@$(BIN)/python -m tools.docs.reference

docs-check: setup ## run every command of the documentation against clusters of its own; PAGE=FILE runs one page
	@$(BIN)/python -m tools.docs.reference --check
	@$(BIN)/python -m tools.docs.run $(PAGE)

requirements: setup ## pin and hash the packages again
	@$(BIN)/pip-compile -q --generate-hashes --allow-unsafe --no-strip-extras --no-emit-index-url --no-emit-find-links --no-emit-trusted-host --extra local --extra dev --extra bench --extra clients -o requirements.txt pyproject.toml
	@$(BIN)/python -c 'import tomllib; print(*tomllib.load(open("pyproject.toml", "rb"))["project"]["optional-dependencies"]["docs"], sep="\n")' | $(BIN)/pip-compile -q --generate-hashes --allow-unsafe --no-strip-extras --no-emit-index-url --no-emit-find-links --no-emit-trusted-host --no-header --no-annotate -o requirements-docs.txt -
	@$(BIN)/python -m tools.image

# Whichever of them is there; the base by its digest: make image BASE=docker.io/library/python:3.12-slim-bookworm@sha256:…
BUILDER ?= $(firstword $(foreach one,buildah podman docker,$(if $(shell command -v $(one)),$(one))))
IMAGE ?= shoal:$(shell sed -n 's/^version = "\(.*\)"/\1/p' pyproject.toml)
image: ## the controller's image; IMAGE=NAME:TAG, BUILDER=buildah|podman|docker, BASE=NAME@DIGEST
	@test -n "$(BUILDER)" || { echo "error: none of buildah, podman and docker is there; install one, or set BUILDER"; exit 1; }
	@$(BUILDER) build $(if $(BASE),--build-arg BASE=$(BASE)) --build-arg REVISION=$$(git rev-parse HEAD) --tag $(IMAGE) .
	@echo "built $(IMAGE); for a cluster: push it to your registry, then shoal install --image REGISTRY/$(IMAGE)"

clean: ## remove the environment and caches of this folder
	@rm -rf .venv .venv-docs .pytest_cache .mypy_cache .ruff_cache .hypothesis build dist
