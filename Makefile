# `make up` runs Lorikeet; `make test` tests it. Everything else is for those who work on it.
PYTHON ?= $(shell command -v python3.11 || command -v python3)
PY := .venv/bin/python

# Settings without meaning, for tools that import the code but serve nobody.
LINT_ENV := SECRET_KEY=only-for-linters-only-for-linters-only KEY_PEPPER=only-for-linters-only-for-linters-only \
	ENGINE_TOKEN=only-for-linters-only-for-linters-only INTERNAL_TOKEN=only-for-linters-only-for-linters-only \
	RECEIPT_KEY=only-for-linters-only-for-linters-only DATABASE_URL=postgresql:///linters

# The files of the tests marked as pure, which run once, with coverage.
PURE_TESTS = $(shell grep -rl --include='test_*.py' '^pytestmark = pytest.mark.pure' tests)

.PHONY: up test fuzz clients coverage check types lint format bench chaos screenshots lock clean

up: .venv/.ready ## set everything up and run it
	@exec $(PY) manage.py up

test: .venv/.ready-dev ## run the tests (ARGS=tests/inference for some of them)
	$(if $(ARGS),,$(MAKE) --no-print-directory coverage)
	$(PY) -m pytest $(or $(ARGS),-n 2 -m "not pure")

fuzz: .venv/.ready-dev ## ask every operation of the API whatever comes to mind (EXAMPLES=500 ARGS="-k keys")
	FUZZ_EXAMPLES=$(or $(EXAMPLES),500) $(PY) -m pytest -q -n 2 tests/document $(ARGS)

clients: .venv/.ready-dev ## generated clients in Python and TypeScript read what tests were answered (ANSWERS=folder)
	$(PY) -m tests.clients $(ANSWERS)

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

chaos: .venv/.ready-dev ## kill everything at random, compare all that was counted (SECONDS=60 SEED= ENGINE=)
	$(PY) -m tests.chaos --seconds $(or $(SECONDS),60) $(if $(SEED),--seed $(SEED)) $(if $(ENGINE),--engine $(ENGINE))

screenshots: .venv/.ready-dev ## photograph every page (OUT=folder ONLY=name ENGINE=vllm; DOCS=1 renews docs/images)
	$(PY) -m tests.screenshots $(if $(OUT),--out $(OUT)) $(if $(ONLY),--only $(ONLY)) $(if $(ENGINE),--engine $(ENGINE)) $(if $(DOCS),--docs)

# The locks: exact versions of everything, for --no-deps installs. torchvision, torchaudio and
# torchcodec stay out: on a CPU machine their builds are CUDA ones and break the import.
NOT_WANTED := --no-emit-package torchvision --no-emit-package torchaudio --no-emit-package torchcodec
COMPILE := .venv/bin/uv pip compile --quiet --no-header --no-annotate --python-version 3.11 $(NOT_WANTED)
FOUND := $(shell $(PYTHON) -m pip config get global.find-links 2>/dev/null)
FIND_LINKS = $(if $(FOUND),$(addprefix --find-links ,$(FOUND)),--extra-index-url https://download.pytorch.org/whl/cpu --index-strategy unsafe-best-match)
lock: ## make requirements/*.txt anew (ARGS=--upgrade for newer versions)
	$(COMPILE) $(ARGS) pyproject.toml --extra cpu --extra demo $(FIND_LINKS) --no-emit-package triton -o requirements/cpu.txt
	$(COMPILE) $(ARGS) pyproject.toml --extra gpu --extra demo --python-platform x86_64-manylinux_2_28 -o requirements/gpu.txt
	$(COMPILE) $(ARGS) pyproject.toml --extra cpu --extra demo --extra dev $(FIND_LINKS) --no-emit-package triton -c requirements/cpu.txt -o requirements/.all.txt
	sort requirements/cpu.txt > requirements/.cpu.txt
	sort requirements/.all.txt | comm -13 requirements/.cpu.txt - > requirements/dev.txt
	rm requirements/.all.txt requirements/.cpu.txt

.venv/.ready: requirements/cpu.txt requirements/gpu.txt tools/install.py
	@$(PYTHON) tools/install.py
	@touch $@

.venv/.ready-dev: requirements/cpu.txt requirements/gpu.txt requirements/dev.txt tools/install.py
	@$(PYTHON) tools/install.py --dev
	@touch $@ .venv/.ready

clean: ## forget the virtual environment and everything that was written
	rm -rf .venv var
