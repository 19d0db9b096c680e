# The two commands for a start: make demo, make test. `make help` lists the rest.
.DEFAULT_GOAL := help
SHELL := /bin/bash
bin := .venv/bin

# Keep compiled modules, whatever the calling shell sets: tests start hundreds of Python processes, and each
# would compile the whole project again.
unexport PYTHONDONTWRITEBYTECODE

# command:debian-package or file:debian-package; scripts/setup.sh installs what is missing.
RUNTIME := etcd:etcd-server
JAVA := java:openjdk-17-jre-headless
LOAD := cc:gcc /usr/include/stdio.h:libc6-dev /usr/include/librdkafka/rdkafka.h:librdkafka-dev
TESTING := $(RUNTIME) etcdctl:etcd-client $(JAVA) $(LOAD) kcat:kcat mvn:maven prometheus:prometheus

UNITS := not integration and not java
# Tests that start no processes run on all cores; idle workers take over tests from the others.
PARALLEL := -n auto --dist worksteal
# The quick run has two workers per core, because tests wait half of their time: 46 s instead of 70 on two cores.
CROWDED := -n $(shell echo $$((2 * $$(getconf _NPROCESSORS_ONLN)))) --dist worksteal

.PHONY: help
help: ## list the targets
	@awk -F':.*## ' '/^[a-z0-9-]+:.*## /{printf "  make %-16s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

.PHONY: demo
demo: ## three brokers, a million records through both protocols, a kill under load, a Spark job; cleans up afterwards
	@scripts/setup.sh $(RUNTIME) --optional $(JAVA)
	@$(bin)/python -m ottla_cli.demo

.PHONY: test
test: ## all tests of CI: checks, units, properties, real etcd, stock clients, kills, fuzz
	@scripts/setup.sh $(TESTING)
	@$(MAKE) --no-print-directory static
	$(bin)/pytest $(PARALLEL) -m "$(UNITS)" tests
	OTTLA_PURE=1 $(bin)/pytest $(CROWDED) --hypothesis-profile=quick -m "$(UNITS)" tests/core
	@$(MAKE) --no-print-directory sim SEEDS=300 SIM="--faults-s 4 --processes 2"
	@scripts/integration_tests.sh

.PHONY: check
check: ## format, lint, types, import contracts, tidy, units and properties; under a minute on two cores
	@scripts/setup.sh
	@$(MAKE) --no-print-directory --jobs=2 static quick

.PHONY: static
static:
	$(bin)/ruff format --check .
	$(bin)/ruff check .
	$(bin)/lint-imports
	$(bin)/mypy

# A fifth of the examples of property tests and of the seeds of the heaviest others (tests/budget.py), and no
# simulation: `make test` runs all of it.

.PHONY: quick
quick:
	$(bin)/pytest $(CROWDED) --hypothesis-profile=quick -m "$(UNITS)" --ignore=tests/sim tests

.PHONY: format
format: ## format with ruff and fix what it can
	@scripts/setup.sh
	$(bin)/ruff format .
	$(bin)/ruff check --fix .

.PHONY: gen
gen: ## regenerate core/ottla_core/pb from proto/, and CRDs and manifests from the operator and its chart
	@scripts/setup.sh
	$(bin)/python -m grpc_tools.protoc -Iottla_core/pb=proto/ottla/v1 --python_out=core --pyi_out=core \
		--grpc_python_out=core $(patsubst proto/ottla/v1/%,ottla_core/pb/%,$(sort $(wildcard proto/ottla/v1/*.proto)))
	$(bin)/python scripts/portable_stubs.py core/ottla_core/pb
	$(bin)/python manifests/generate.py
	$(bin)/python manifests/reference.py

.PHONY: docs
docs: ## regenerate docs/reference: settings, protocol versions, metrics, commands, resources
	@scripts/setup.sh
	$(bin)/python manifests/reference.py

.PHONY: bench
bench: bench-broker bench-cluster ## compare with Apache Kafka on this machine (RUNS=5): one broker, then three

.PHONY: bench-broker
bench-broker: ## one broker each: rates, CPU, latency, start-up, memory
	@scripts/setup.sh $(TESTING)
	$(bin)/python -m ottla_bench.side_by_side --runs $(or $(RUNS),5) $(BENCH)

.PHONY: bench-cluster
bench-cluster: ## three brokers each: replication, a thousand partitions, killed and paused leaders
	@scripts/setup.sh $(TESTING)
	$(bin)/python -m ottla_bench.three_brokers --runs $(or $(RUNS),5) $(BENCH)

.PHONY: bench-partitions
bench-partitions: ## one broker with ten thousand partitions (RUNS=5): rates, idle CPU, start-up, memory
	@scripts/setup.sh $(RUNTIME) $(LOAD)
	$(bin)/python -m ottla_bench.many_partitions --runs $(or $(RUNS),5) $(BENCH)

.PHONY: bench-scale
bench-scale: ## metadata of 10,000 partitions: memory, creation, elections, etcd (BENCH="--partitions 100000 --real 0")
	@scripts/setup.sh $(RUNTIME)
	$(bin)/python -m ottla_bench.scale $(BENCH)

.PHONY: bench-timers
bench-timers: ## a million deadlines in a heap and in a timing wheel
	@scripts/setup.sh
	$(bin)/python -m ottla_bench.timers $(BENCH)

.PHONY: bench-floods
bench-floods: ## three brokers each: a normal client beside none, one, two and four flooding clients (RUNS=3)
	@scripts/setup.sh $(TESTING)
	$(bin)/python -m ottla_bench.floods --runs $(or $(RUNS),3) $(BENCH)

.PHONY: bench-client
bench-client: ## client libraries on one broker, per second of client CPU: Ottla, aiokafka, confluent-kafka (RUNS=5)
	@scripts/setup.sh $(RUNTIME)
	$(bin)/python -m ottla_bench.client_libraries --runs $(or $(RUNS),5) $(BENCH)

.PHONY: bench-groups
bench-groups: ## three brokers each: ten members share 900 partitions, an eleventh joins, with both group protocols (RUNS=3)
	@scripts/setup.sh $(TESTING)
	$(bin)/python -m ottla_bench.groups --runs $(or $(RUNS),3) $(BENCH)

.PHONY: bench-spark
bench-spark: ## Spark's Kafka connector and the data source ottla in one JVM, on the same topics (RUNS=3)
	@scripts/setup.sh $(TESTING)
	$(bin)/python -m ottla_bench.spark_side_by_side --runs $(or $(RUNS),3) $(BENCH)

.PHONY: bench-transactions
bench-transactions: ## three brokers each: rate, commit latency and CPU of transactions of 100 and of 10,000 records (RUNS=3)
	@scripts/setup.sh $(TESTING)
	$(bin)/python -m ottla_bench.transactions --runs $(or $(RUNS),3) $(BENCH)

.PHONY: bench-coordinators
bench-coordinators: ## kill the coordinator of 100,000 committed offsets, and that of 10,000 open transactions (RUNS=3)
	@scripts/setup.sh $(TESTING)
	$(bin)/python -m ottla_bench.coordinators --runs $(or $(RUNS),3) $(BENCH)

.PHONY: attack
attack: ## hostile and busy clients against real brokers for MINUTES=25; `make test` runs seconds of each
	@scripts/setup.sh $(RUNTIME)
	OTTLA_ATTACK_MINUTES=$(or $(MINUTES),25) $(bin)/pytest -s -p no:randomly -m integration tests/attack --timeout 7200

.PHONY: spark-chaos
spark-chaos: ## kill a streaming Spark job at each step of a commit and KILLS=20 times at random, and the archive job as often: each row once
	@scripts/setup.sh $(RUNTIME) $(JAVA)
	cd tests && ../$(bin)/python -m spark.spark_chaos --steps --kills $(or $(KILLS),20)
	cd tests && ../$(bin)/python -m spark.spark_chaos --foreach-batch --kills $(or $(KILLS),20)
	cd tests && PYTHONPATH=../e2e ../$(bin)/python -m spark.archive_chaos --kills $(or $(KILLS),20)

.PHONY: drain-chaos
drain-chaos: ## drain brokers under writes while brokers, the controller and etcd are killed KILLS=20 times; SEED=1
	@scripts/setup.sh $(RUNTIME)
	OTTLA_DRAIN_KILLS=$(or $(KILLS),20) OTTLA_DRAIN_SEED=$(or $(SEED),1) $(bin)/pytest -s -m integration \
		tests/cluster/test_drain_chaos.py

.PHONY: eos-chaos
eos-chaos: ## consume, transform, produce while brokers, coordinators and workers are killed for SECONDS=60: each record once
	@scripts/setup.sh $(RUNTIME)
	cd tests && ../$(bin)/python -m cluster.eos_chaos --seconds $(or $(SECONDS),60) $(CHAOS)

.PHONY: interop-more
interop-more: ## franz-go, sarama and kafkajs in transactions and groups; needs go and npm
	@scripts/setup.sh $(RUNTIME)
	PYTHONPATH=tests $(bin)/python -m interop.more

.PHONY: kill-test
kill-test: ## kill -9 while writing, ROUNDS=200 times: no acknowledged record is lost
	@scripts/setup.sh $(RUNTIME)
	OTTLA_KILL_ROUNDS=$(or $(ROUNDS),200) $(bin)/pytest -m integration tests/crash --timeout 3600

.PHONY: sim
sim: ## simulate whole clusters under faults in virtual time: SEEDS=100, or SEED=17 with a full trace
	@scripts/setup.sh
	PYTHONPATH=tests $(bin)/python -m sim $(if $(SEED),--seed $(SEED),--seeds $(or $(SEEDS),100)) $(SIM)

.PHONY: e2e
e2e: ## end-to-end test on a real Kubernetes: E2E_CONTEXT=…, else kind, else a new local node (first time: ten minutes more)
	@scripts/setup.sh
	@PYTHONPATH=e2e $(bin)/python -m ottla_e2e

.PHONY: e2e-docs
e2e-docs: ## run the commands of docs/kubernetes.md, in order and as written, on a new local node or kind
	@scripts/setup.sh
	@PYTHONPATH=e2e $(bin)/python -m ottla_e2e docs

.PHONY: images
images: ## build images and print the path of an archive, for `kind load image-archive`, `ctr images import` (WITH=docker; E2E_REGISTRY=…)
	@scripts/setup.sh >&2
	@PYTHONPATH=e2e $(bin)/python -m ottla_e2e images $(if $(WITH),--with $(WITH))

.PHONY: node
node: ## start a single-node Kubernetes on this machine, with the images; e2e/node/down.sh removes it
	@scripts/setup.sh
	@PYTHONPATH=e2e $(bin)/python -m ottla_e2e node

.PHONY: wheel
wheel: ## build wheels into dist/: one with compiled modules for this Python and platform, one of the sources for all others
	@scripts/setup.sh
	$(bin)/python -m pip wheel --quiet --no-deps --no-build-isolation --wheel-dir dist .
	OTTLA_PURE=1 $(bin)/python -m pip wheel --quiet --no-deps --no-build-isolation --wheel-dir dist .
	@ls -l dist

.PHONY: release
release: ## wheels (ottla-client compiled and pure, ottla), chart, images and checksums into dist/; the CHANGELOG needs a section for the version
	@scripts/setup.sh
	$(bin)/python scripts/release.py $(RELEASE)

.PHONY: oldest-client
oldest-client: ## run an example with the client's wheel and the oldest gRPC and protobuf that it allows
	@scripts/setup.sh $(RUNTIME)
	scripts/oldest_client.sh

.PHONY: clean
clean: ## remove the virtual environment, compiled modules and caches
	rm -rf .venv dist build core/ottla_core/_compiled .mypy_cache .ruff_cache .pytest_cache .hypothesis
