# Two commands do everything a newcomer needs: `make run` and `make test`.
.DEFAULT_GOAL := help
CARGO ?= cargo
TARGET := $(or $(CARGO_TARGET_DIR),target)
SAMITE := $(TARGET)/release/samite
# Benchmarks to run and how long each takes: make bench PATTERN='/kv/*' SECONDS=3
PATTERN ?=
SECONDS ?= 1
# Time for each fuzz target: make fuzz FUZZ_SECONDS=600
FUZZ_SECONDS ?= 60

# Programs to try, the access path (run or mount) and the number of nodes:
# make test-programs ACCESS=mount NODES=3 PROGRAMS='git tar'
ACCESS ?= run
NODES ?= 1
PROGRAMS ?=
STRESS ?=
# Seeds for the simulator, and the first of them: make sim SEEDS=100000
SEEDS ?= 10000
FROM ?= 0

FUZZ_SOCKET ?=

.PHONY: fuzz-socket help setup build run test test-programs test-upgrade stress chaos sim test-posix fmt lint tidy unit conformance docs demo bench bench-modules bench-posix test-million fuzz clean

help: ## what there is to make
	@sed -n 's/^\([a-z-]*\):.*## /\1\t/p' $(MAKEFILE_LIST) | expand -t 16

setup: ## check, and where possible install, what a build needs
	@scripts/setup

build: setup ## the samite binary and its preloaded library, optimized
	$(CARGO) build --release --quiet --package samite-cli --package samite-preload

run: build ## show it: two nodes, a real tree in, real programs on it, the results out, every byte compared
	@SAMITE=$(SAMITE) scripts/demo.sh

test: setup ## the whole suite
	@scripts/test.sh

test-programs: build ## git, sqlite3, compilers, tar, python, fio … on the store, with checks on their results
	@SAMITE=$(SAMITE) scripts/test-programs.sh $(ACCESS) $(NODES) $(PROGRAMS)

test-upgrade: ## nodes of an older build are replaced in turn by this one's, beside git and kv (FROM_COMMIT: that build)
	@scripts/test-upgrade.sh $(FROM_COMMIT)

stress: build ## random operations of 8 processes through both access paths against a model, 10 minutes (STRESS='--seconds 60 --seed 7')
	@$(CARGO) build --release --quiet --package samite-acceptance
	@SAMITE_BIN=$(abspath $(SAMITE)) $(TARGET)/release/samite-acceptance stress $(STRESS)

chaos: build ## nodes of mirrored clusters die while 8 processes work, 100 runs (CHAOS='--runs 10 --fault stop|coordinator|two|cut-coordinator|cut-peer|lossy --coordinator etcd')
	@$(CARGO) build --release --quiet --package samite-acceptance
	@SAMITE_BIN=$(abspath $(SAMITE)) $(TARGET)/release/samite-acceptance chaos --runs 100 $(CHAOS)

sim: ## the store's decisions on a simulated network, clocks and disks: SEEDS seeds
	@$(CARGO) run --release --quiet --package samite-sim -- --seeds $(SEEDS) --from $(FROM)

conformance: ## which backend passes which part of the suite that all have to pass
	@$(CARGO) run --quiet --package samite-registry --example conformance

fuzz-socket: build ## damaged frames on a node's sockets while a client works, 10 minutes (FUZZ_SOCKET='--seconds 60 --seed 7')
	@$(CARGO) build --release --quiet --package samite-acceptance
	@SAMITE_BIN=$(abspath $(SAMITE)) $(TARGET)/release/samite-acceptance fuzz-socket $(FUZZ_SOCKET)

test-posix: build ## pjdfstest over the mounted store and on tmpfs (PJDFSTEST=DIR: the suite, built)
	@SAMITE=$(SAMITE) scripts/test-posix.sh

fmt: ## format the sources
	$(CARGO) fmt --all

lint: ## clippy, warnings denied
	$(CARGO) clippy --workspace --all-targets --quiet -- -D warnings

tidy: ## what clippy does not see: layers, lengths, dependencies, words
	@$(CARGO) xtask tidy

unit: ## only the tests that cargo runs
	$(CARGO) test --workspace --quiet

docs: build ## check the pages: links lead somewhere, commands work
	@$(CARGO) xtask docs

bench: build ## every operation and its ratio to the machine's floor
	@$(SAMITE) bench $(PATTERN) --seconds $(SECONDS)

bench-modules: build ## tools beside the data, and GNU's on the same bytes (SIZE=2G ROUNDS=5)
	@SAMITE=$(SAMITE) scripts/bench-modules.sh

bench-posix: build ## the real mdtest and IOR, beside tmpfs and libfuse (IOR_DIR, PASSTHROUGH_HP; bench/posix.sh --help)
	@SAMITE=$(SAMITE) bench/posix.sh

test-million: build ## a million files in one directory of three nodes, through samite run and samite mount
	@SAMITE=$(SAMITE) bench/million.sh

fuzz: ## each fuzz target for a while (needs cargo-fuzz and a nightly toolchain)
	@for target in $$(cd fuzz && $(CARGO) +nightly fuzz list); do \
	  (cd fuzz && $(CARGO) +nightly fuzz run $$target -- -max_total_time=$(FUZZ_SECONDS)) || exit 1; done

clean: ## remove what was built
	$(CARGO) clean
