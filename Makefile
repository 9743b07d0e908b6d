# Everything starts here and needs only python3 and make.
#   make demo    set up, start a lab, train a real model as a task, show where to look
#   make quick   whether a change was right, in under four minutes on two cores: every check, and the tests that need no server
#   make test    set up; every check, the tests that need no server, and one way through each ability with the real programs
#   make test-all  every test there is, but those of make soak: half an hour
#   make check   only lint, types and import contracts
#   make soak    kill everything for minutes, under load; many random examples
#   make coverage  what the tests run of each room (TESTS=tests/policy: what these do)
#   make counts  how wide the code is, now and at COMMITS
#   make mutants  which small changes of FILES no test of TESTS notices
#   make matrix  the built wheel on every Python from 3.11 to 3.14 that is here
#   make pictures  the pictures in docs/pictures, taken anew of a lab that works
#   make bench   the figures that Carrel promises, measured here
.POSIX:
.PHONY: help setup demo quick test test-all check types lint contracts soak coverage mutants counts matrix pictures bench lock clean

# Without what a shell may say to every Python of its user.
BIN = env -u PYTHONWARNINGS -u PIP_REQUIRE_VIRTUALENV .venv/bin

help:
	@sed -n 's/^#   //p' Makefile

setup: .venv/complete

.venv/complete: requirements/dev.txt pyproject.toml tools/bootstrap
	sh tools/bootstrap

demo: setup
	$(BIN)/python tools/demo.py

quick: check
	$(BIN)/python -m pytest --tier quick -n 2 -q

test: setup
	sh tools/debian-packages
	$(MAKE) check
	$(BIN)/python -m pytest --tier gate --second-look -n 4 --dist loadgroup --durations 20

test-all: setup
	sh tools/debian-packages
	$(MAKE) check
	$(BIN)/python -m pytest -n 3 --dist loadgroup --durations 20

check: lint types contracts

lint: setup
	$(BIN)/ruff check
	$(BIN)/ruff format --check

types: setup
	$(BIN)/mypy

contracts: setup
	$(BIN)/lint-imports --no-logo

soak: setup
	$(BIN)/python -m pytest -m soak
	CARREL_EXAMPLES=20 $(BIN)/python -m pytest -m "hypothesis and not soak"

TESTS = tests
COVERAGE = COVERAGE_FILE=$(CURDIR)/.venv/coverage/data $(BIN)/coverage

coverage: setup
	rm -rf .venv/coverage
	mkdir .venv/coverage
	$(COVERAGE) run -m pytest -q -n 4 --dist loadgroup $(TESTS)
	$(COVERAGE) combine -q
	$(COVERAGE) json -q -o - | $(BIN)/python tools/coverage_by_room.py

mutants:
	tools/mutants $(TESTS) $(FILES)

counts: setup
	$(BIN)/python tools/counts.py $(COMMITS)

matrix: setup
	sh tools/matrix

pictures: setup
	CARREL_PICTURES=docs/pictures $(BIN)/python -m pytest -q tests/portal/test_portal_pictures.py

bench: setup
	$(BIN)/python benchmarks/run.py

# Pins everything again, with hashes; the files hold no addresses.
lock: setup
	$(BIN)/uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-annotate \
		--custom-compile-command "make lock" --extra server -o requirements/server.txt pyproject.toml
	$(BIN)/uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-annotate \
		--custom-compile-command "make lock" --extra server --group dev -c requirements/server.txt \
		-o requirements/dev.txt pyproject.toml

clean:
	rm -rf .venv .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis
