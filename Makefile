# `make up` runs Lorikeet; `make test` tests it. Everything else is for those who work on it.
PYTHON ?= $(shell command -v python3.11 || command -v python3)
PY := .venv/bin/python

# What was imported once is kept compiled: else each of the many processes of a start or of the tests
# compiles Django, vLLM and the rest anew, which is more than half of what its start costs.
unexport PYTHONDONTWRITEBYTECODE

# Settings without meaning, for tools that import the code but serve nobody.
LINT_ENV := SECRET_KEY=only-for-linters-only-for-linters-only KEY_PEPPER=only-for-linters-only-for-linters-only \
	DISPATCH_KEY=only-for-linters-only-for-linters-only WORKER_TOKEN=only-for-linters-only-for-linters-only \
	INTERNAL_TOKEN=only-for-linters-only-for-linters-only \
	RECEIPT_KEY=only-for-linters-only-for-linters-only DATABASE_URL=postgresql:///linters

# The pure tests fill the time in which the others wait. What they say comes at the end.
define ALL_TESTS
said=$$(mktemp); nice -n 10 $(MAKE) --no-print-directory coverage > $$said 2>&1 & pure=$$!; \
	trap 'kill $$pure; wait; exit 130' INT TERM; \
	$(PY) -m pytest -n 4 $(PURE_TESTS:%=--ignore=%); others=$$?; \
	wait $$pure; pure=$$?; cat $$said; rm $$said; exit $$((others || pure))
endef

# The files of the tests marked as pure, which run once, with coverage; the others don't even collect them.
PURE_TESTS = $(shell grep -rl --include='test_*.py' '^pytestmark = pytest.mark.pure' tests)

.PHONY: up test clients frameworks coverage check types lint format bench chaos attack fuzz fuzz-api mutate screenshots dashboards lock sbom clean

up: .venv/.ready ## set everything up and run it
	@exec $(PY) manage.py up

test: .venv/.ready-dev ## run the tests (ARGS=tests/inference for some of them)
	$(if $(ARGS),$(PY) -m pytest $(ARGS),$(ALL_TESTS))

fuzz-api: .venv/.ready-dev ## ask every operation of the API what schemathesis thinks of (QUESTIONS=60 EXAMPLES=3 SEED= SECONDS= ARGS="-k keys")
	FUZZ_QUESTIONS=$(or $(QUESTIONS),60) FUZZ_EXAMPLES=$(or $(EXAMPLES),3) FUZZ_SEED=$(or $(SEED),0) FUZZ_SECONDS=$(or $(SECONDS),inf) \
		$(PY) -m pytest -q -n 2 --dist worksteal tests/document/fuzz_*.py $(ARGS)

clients: .venv/.ready-dev tests/clients/node_modules/.ready ## generated clients in Python and TypeScript read what tests were answered (ANSWERS=folder)
	$(PY) -m tests.clients $(ANSWERS)

# Without Node.js there is no TypeScript client.
tests/clients/node_modules/.ready: tests/clients/package.json tests/clients/package-lock.json
	@! command -v npm > /dev/null || { npm ci --prefix tests/clients --silent --no-audit --no-fund && touch $@; } || true

# Some want an older openai than the others, so there are two environments.
frameworks: .venv-clients/frameworks/.ready .venv-clients/older-openai/.ready tests/clients/node_modules/.ready ## what tests/stack/test_clients.py runs, in environments of their own

.venv-clients/%/.ready: requirements/%.txt .venv/.ready-dev
	.venv/bin/uv venv --quiet --clear --python $(PYTHON) $(@D)
	.venv/bin/uv pip sync --quiet --require-hashes --python $(@D)/bin/python $<
	@touch $@

coverage: .venv/.ready-dev ## run the pure tests: they reach every branch of the sans-IO modules
	$(PY) -m coverage erase
	$(PY) -m coverage run -m pytest -q -n 2 --dist worksteal $(PURE_TESTS)
	$(PY) -m coverage combine --quiet
	$(PY) -m coverage report

check: .venv/.ready-dev ## linters, types, import arrows
	$(MAKE) --no-print-directory -j2 --output-sync types lint

types: .venv/.ready-dev
	$(LINT_ENV) PYTHONPATH=platform:. $(PY) -m mypy

lint: .venv/.ready-dev
	$(PY) -m ruff format --check .
	$(PY) -m ruff check .
	PYTHONPATH=platform:. .venv/bin/lint-imports

format: .venv/.ready-dev
	$(PY) -m ruff check --fix .
	$(PY) -m ruff format .

bench: .venv/.ready-dev ## benchmarks, as ratios in one run
	$(PY) -m tests.bench $(ARGS)

chaos: .venv/.ready-dev ## kill everything at random, compare all that was counted (SECONDS=60 SEED= ENGINE= ARGS=--only-gateways)
	$(PY) -m tests.chaos --seconds $(or $(SECONDS),60) $(if $(SEED),--seed $(SEED)) $(if $(ENGINE),--engine $(ENGINE)) $(ARGS)

fuzz: .venv/.ready-dev ## thousands of random requests on a real vLLM, beside greedy neighbours (REQUESTS=2000 SEED=)
	$(PY) -m tests.fuzz --requests $(or $(REQUESTS),2000) $(if $(SEED),--seed $(SEED))

attack: .venv/.ready-dev ## attack a running stack, and measure what another tenant notices (SECONDS=10 of each, ONLY=name)
	$(PY) -m tests.attack --seconds $(or $(SECONDS),10) $(if $(ONLY),--only "$(ONLY)") $(ARGS)

mutate: .venv/.ready-dev ## mutated adapters through a whole Lorikeet; its neighbours notice nothing (COUNT=500 SECONDS= SEED=)
	$(PY) -m tests.mutations --count $(or $(COUNT),500) $(if $(SECONDS),--seconds $(SECONDS)) $(if $(SEED),--seed $(SEED))

screenshots: .venv/.ready-dev ## photograph every page (OUT=folder ONLY=name ENGINE=vllm; DOCS=1 renews docs/images)
	$(PY) -m tests.screenshots $(if $(OUT),--out $(OUT)) $(if $(ONLY),--only $(ONLY)) $(if $(ENGINE),--engine $(ENGINE)) $(if $(DOCS),--docs)

dashboards: .venv/.ready-dev ## write deploy/grafana anew, from tools/dashboards.py
	$(PY) tools/dashboards.py

# The locks: exact versions of everything with their hashes, for --no-deps installs. torchvision,
# torchaudio and torchcodec stay out: on a CPU machine their builds are CUDA ones and break the
# import. torch's CPU build alone comes from PyTorch's own index (`tool.uv.sources`), or from pip's
# find-links where there are some.
NOT_WANTED := --no-emit-package torchvision --no-emit-package torchaudio --no-emit-package torchcodec
COMPILE := .venv/bin/uv pip compile --quiet --no-header --no-annotate --generate-hashes --python-version 3.11
FOUND := $(shell $(PYTHON) -m pip config get global.find-links 2>/dev/null)
SOURCES = $(if $(FOUND),--no-sources $(addprefix --find-links ,$(FOUND)))
CPU = --extra cpu --extra demo $(SOURCES) $(NOT_WANTED) --no-emit-package triton
lock: .venv/.ready-dev ## make requirements/*.txt anew (ARGS=--upgrade for newer versions)
	echo uv | $(COMPILE) $(ARGS) - -o requirements/install.txt
	$(COMPILE) $(ARGS) pyproject.toml $(CPU) -o requirements/cpu.txt
	$(COMPILE) $(ARGS) pyproject.toml --extra gpu --extra demo $(NOT_WANTED) --python-platform x86_64-manylinux_2_28 -o requirements/gpu.txt
	$(COMPILE) $(ARGS) pyproject.toml $(CPU) --extra dev -c requirements/cpu.txt \
		$$(sed -nE 's/^([a-z0-9._-]+)==.*/--no-emit-package \1/p' requirements/cpu.txt) -o requirements/dev.txt

	for name in frameworks older-openai; do \
		$(COMPILE) $(ARGS) tests/clients/frameworks/$$name.in -o requirements/$$name.txt || exit; done

sbom: .venv/.ready-dev ## write what Lorikeet is made of to dist/ (CycloneDX)
	$(PY) tools/sbom.py

INSTALLER := requirements/install.txt requirements/cpu.txt requirements/gpu.txt tools/install.py

.venv/.ready: $(INSTALLER)
	@$(PYTHON) tools/install.py
	@touch $@

.venv/.ready-dev: $(INSTALLER) requirements/dev.txt
	@$(PYTHON) tools/install.py --dev
	@touch $@ .venv/.ready

clean: ## forget the virtual environment and everything that was written
	rm -rf .venv .venv-clients var
