# Everything a newcomer and CI need. `make run` and `make test` set up by themselves.
# The system's own Python, where it is new enough: distributions compile it with profile-guided optimisation, version
# managers mostly do not, and that is a tenth to a third of the gateway's speed. Otherwise whichever `python3` is.
PYTHON ?= $(shell for python in /usr/bin/python3.14 /usr/bin/python3.13 /usr/bin/python3.12 /usr/bin/python3.11; do \
	$$python -m ensurepip --version >/dev/null 2>&1 && echo $$python && exit; done; echo python3)
VENV := .venv
BIN := $(VENV)/bin
CLIENTS := tests/e2e/javascript
CODE := src tests bench docs examples native hatch_build.py
MODEL ?= smollm2:135m
PORT ?= 11435
HOME_DIR ?= $(or $(DRIVETRAIN_HOME),.drivetrain)

NATIVE := native/build.py $(shell find native/src -type f)
LIBRARY := src/drivetrain/engines/expertstream/libexpertstream.so
CPP = $(shell find native -name '*.cpp' -o -name '*.hpp' -o -name '*.h')
MINUTES ?= 1

.PHONY: setup run test test-slow check audit format lock native native-asan native-tidy fuzz bench bench-gateway bench-soak bench-model bench-moe bench-calm bench-start bench-router bench-affinity bench-sim docs clean

setup: $(VENV)/.ready $(LIBRARY) $(CLIENTS)/node_modules/.ready

# Bytecode is compiled here, also where PYTHONDONTWRITEBYTECODE keeps Python from it: the first start is then no slower.
$(VENV)/.ready: pyproject.toml requirements.lock
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check uv==0.13.9
	$(BIN)/uv pip install --quiet --python $(BIN)/python --compile-bytecode --no-deps -r requirements.lock
	$(BIN)/uv pip install --quiet --python $(BIN)/python --no-deps --no-build-isolation --editable .
	$(BIN)/python -m compileall -q src
	touch $@

# The streaming library, when its sources have changed. Without a C++ compiler, or if it fails, everything else works.
$(LIBRARY): $(NATIVE) | $(VENV)/.ready
	-@$(BIN)/python native/build.py library

# The official JavaScript clients, for end-to-end tests. Without npm everything else works.
$(CLIENTS)/node_modules/.ready: $(CLIENTS)/package-lock.json
	@mkdir -p $(@D)
	@if command -v npm >/dev/null; then cd $(CLIENTS) && npm ci --silent --no-audit --no-fund; \
	else echo "npm is not installed: the tests with JavaScript clients will not run"; fi
	@touch $@

run: setup
	@$(BIN)/python examples/first_run.py --home $(HOME_DIR) --port $(PORT) --model $(MODEL)

# A worker for each core; the tests of a file stay together.
test: setup check
	$(BIN)/python -m pytest -q -m "not slow" --numprocesses auto --dist loadfile

test-slow: setup
	$(BIN)/python -m pytest -q -m slow

check: setup
	$(BIN)/ruff format --check $(CODE)
	$(BIN)/clang-format --dry-run --Werror $(CPP)
	$(BIN)/ruff check $(CODE)
	$(BIN)/mypy
	$(BIN)/lint-imports

# What looks dangerous in the source, and which pinned packages have known weaknesses (asks an advisory service).
audit: setup
	$(BIN)/bandit --quiet --recursive src --configfile pyproject.toml
	$(BIN)/uv tool run pip-audit==2.10.1 --require-hashes --requirement requirements.lock --disable-pip

format: setup
	$(BIN)/ruff format $(CODE)
	$(BIN)/ruff check --fix $(CODE)
	$(BIN)/clang-format -i $(CPP)

# Everything in native/, with a C++17 compiler; CXX and CXXFLAGS are honoured.
native: $(VENV)/.ready
	$(BIN)/python native/build.py library

native-asan: $(VENV)/.ready
	$(BIN)/python native/build.py test --sanitize

native-tidy: $(VENV)/.ready
	$(BIN)/python native/build.py database
	find native/src -name '*.cpp' | xargs -P $(shell getconf _NPROCESSORS_ONLN) -n 1 $(BIN)/clang-tidy --quiet -p build/native

# The readers of files from anywhere, against what no one would write. `make fuzz MINUTES=10`
fuzz: $(VENV)/.ready
	$(BIN)/python native/build.py fuzz --minutes $(MINUTES)

# Pins stay as they are unless pyproject.toml says otherwise; `make lock UPGRADE=--upgrade` takes what is new.
lock:
	$(BIN)/uv pip compile --quiet $(UPGRADE) --universal --python-version 3.11 --generate-hashes \
	  --extra demo --extra team --extra bigquery --group bench --group build --group check --group test --no-emit-index-url --no-emit-find-links \
	  --custom-compile-command "make lock" --output-file requirements.lock pyproject.toml

bench: bench-gateway bench-soak bench-model bench-start bench-router bench-affinity

bench-gateway: setup
	$(BIN)/python bench/gateway/run.py

# Whether memory stays flat over 200,000 governed requests.
bench-soak: setup
	$(BIN)/python bench/gateway/soak.py

bench-model: setup
	$(BIN)/python bench/model/run.py

# Under memory limits; makes its models (34 GB, kept) in $BENCH_MOE_MODELS.
bench-moe: setup
	$(BIN)/python bench/moe/run.py --out bench/results

# Ten minutes beside a process that takes memory and gives it back.
bench-calm: setup
	$(BIN)/python bench/moe/calm.py --out bench/results

bench-start: setup
	$(BIN)/python bench/cold_start.py

bench-router: setup
	$(BIN)/python bench/router.py --out bench/results

bench-affinity: setup
	$(BIN)/python bench/affinity.py --out bench/results

# A day of 1,000 simulated instances under each strategy of routing: some minutes on two cores.
bench-sim: setup
	$(BIN)/python bench/simulator.py --out bench/results

docs: setup
	$(BIN)/python docs/generate.py

clean:
	rm -rf $(VENV) $(CLIENTS)/node_modules .drivetrain build dist $(LIBRARY)
