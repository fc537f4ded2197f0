# Every word here sets itself up: the first use of a fresh clone makes the virtual environment.
SHELL := /bin/bash
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := .setup/ready

# Tests start many interpreters; without bytecode each of them compiles all that it imports.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help setup interpreters java demo docs test check check-types check-rules fix conformance client-suite differential sim chaos spark-chaos image container-test bench dist release-check lock clean

help: ## what can be asked for
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 18

COMPILED := $(shell sed -n 's/^    "\([a-z_]*\/[a-z_/]*\)",$$/\1.py/p' tools/build_backend.py)
$(READY): pyproject.toml setup.py tools/setup.sh tools/build_backend.py $(COMPILED)
	@PYTHON=$(PYTHON) bash tools/setup.sh
	@mkdir -p .setup && touch $(READY)

setup: $(READY) ## virtual environment with everything that development needs

java: ## a Java 17+ runtime (on Debian as root it is installed, elsewhere you are told how)
	@bash tools/java.sh

demo: $(READY) java ## exactly-once on 336,776 flights while processes are killed
	@$(BIN)/python -m examples.flights $(ARGS)

test: $(READY) java ## everything but Apache Kafka itself; under 15 minutes on 2 cores (PLAIN=1: nothing compiled)
	@$(if $(PLAIN),$(BIN)/python tools/plain_tree.py && ONCEFLOW_COMPILE=0 PYTHONPATH=$(CURDIR)/.setup/plain )$(BIN)/pytest -q -n 4 --dist loadfile --no-loadscope-reorder -m "not kafka and not chaos and not container" $(ARGS)

BUILD_SITE := NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build

check: $(READY) ## style, types, import contracts, the documentation's links, one short simulation of each kind
	@$(MAKE) --no-print-directory -j 2 -O check-types check-rules

check-types:
	@$(BIN)/python tools/documented_programs.py
	@MYPYPATH=.setup/programs:tests/typing $(BIN)/mypy -p onceflow -p examples -p documented -m typed_records -m processing_samples

	@$(BUILD_SITE) >.setup/site.log 2>&1 || { cat .setup/site.log; exit 1; }

check-rules:
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/python tools/blocking_faces.py --check
	@$(BIN)/lint-imports --no-cache
	@$(BIN)/pytest -q tests/house tests/simulation/test_simulation_seeds.py -m "not slow and not spark" -p no:randomly

docs: $(READY) ## the documentation as a site, in build/site
	@$(BUILD_SITE)
	@echo "open build/site/index.html"

fix: $(READY) ## format and mend what can be mended by machine
	@$(BIN)/ruff check --fix .
	@$(BIN)/ruff format .
	@$(BIN)/python tools/settings_keywords.py
	@$(BIN)/python tools/blocking_faces.py
	@$(BIN)/python tools/declared_types.py
	@for page in api config design tables; do $(BIN)/python tools/$${page}_docs.py; done

conformance: $(READY) java ## the same tests against Apache Kafka and its tools (fetched once by Maven; SLOW=1: also those that take minutes)
	@$(BIN)/pytest -q -n 3 --dist loadfile --no-loadscope-reorder -m "kafka and not chaos$(if $(SLOW),, and not slow)" -p no:randomly $(ARGS)

client-suite: $(READY) ## tests of other clients' publishers against our broker (ARGS="kafka-python")
	@$(BIN)/python tools/client_suites.py $(ARGS)

differential: $(READY) java ## random conversations with Apache Kafka and our broker (ARGS="--seeds 500")
	@$(BIN)/python tests/support/differential.py $(ARGS)

sim: $(READY) ## seeded whole-system simulation: SEED=n replays one run, SEEDS=1000 runs many
	@$(BIN)/python tests/simulation/sim_main.py $(if $(SEED),--seed $(SEED)) $(if $(SEEDS),--seeds $(SEEDS)) $(if $(FROM),--from $(FROM)) $(ARGS)

chaos: $(READY) java ## kills: demo seeds and broker SIGKILLs (long)
	@$(BIN)/pytest -q -m chaos $(ARGS)

SPARK_CHAOS := kills lineage exactly_once batch_write transaction apps
spark-chaos: $(READY) java ## Spark with drivers, executors, workers and brokers killed at each step (long; SEED=n, STEPS=n: only n steps of each query)
	@$(BIN)/python tests/support/spark_world.py
	@SPARK_CHAOS_SEED=$(or $(SEED),1) SPARK_CHAOS_STEPS=$(or $(STEPS),0) $(BIN)/pytest -q -m spark -p no:randomly $(SPARK_CHAOS:%=tests/integration/test_spark_%.py) tests/integration/test_examples_run.py $(ARGS)

image: $(READY) ## the broker as a container image (needs an engine; BASE=python:3.12-slim)
	@PYTHON=$(BIN)/python bash tools/image.sh

container-test: image ## the image for real: clients, transactions, volumes, kills (needs an engine)
	@$(BIN)/pytest -q -m container -p no:randomly $(ARGS)

interpreters: ## tests of clients, protocol and broker on every Python from 3.11 on that is here
	@bash tools/interpreters.sh $(ARGS)

bench: $(READY) ## side by side with the published clients; one JSON line each
	@$(BIN)/python bench/suite.py $(ARGS)

dist: $(READY) ## source archive, and from it the wheel for the interpreter at hand
	@rm -rf dist && $(BIN)/python -m build

release-check: $(READY) ## what dist builds, in clean environments: every Python, oldest and newest libraries, the tutorial
	@$(BIN)/python tools/release_check.py

lock: $(READY) ## the development environment's releases, in requirements-dev.lock
	@$(BIN)/python -m uv pip compile -q --universal --python-version 3.11 --extra dev --no-annotate --no-header --upgrade -o requirements-dev.lock pyproject.toml

clean: ## caches and build output (not the virtual environment)
	@rm -rf build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis src/*.egg-info
