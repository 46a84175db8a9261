# The commands of the project. `make demo` and `make test` install what is missing first.
.PHONY: demo test test-binaries lint build deny semver bench bench-apiserver bench-sdk book clients conformance conformance-record fuzz soak clean

CARGO ?= cargo
# All programs at once: dependencies have the same features whichever program is wanted first, and are compiled once.
BUILD = $(CARGO) build --release --workspace --bins

demo:
	@scripts/install-needs demo
	$(BUILD)
	$${CARGO_TARGET_DIR:-target}/release/setpoint-demo $(DEMO_ARGS)

test: lint
	@scripts/install-needs test
	$(CARGO) test --workspace

# Random faults on real redis-server processes for an hour (SOAK_SECONDS), a client that writes throughout, a summary at the end.
soak:
	@scripts/install-needs test
	REDIS_SOAK_SECONDS=$${SOAK_SECONDS:-3600} $(CARGO) test --package redis-operator --test processes

# The tests of the SDK, the test kit and the operators' API on a real kube-apiserver and etcd, which KUBEBUILDER_ASSETS names. Two at a time.
test-binaries:
	SETPOINT_TEST_SERVER=binaries $(CARGO) test --package setpoint --package setpoint-test -- --test-threads=2
	SETPOINT_TEST_SERVER=binaries $(CARGO) test --package redis-operator --test api -- --test-threads=2

lint:
	$(CARGO) fmt --all --check
	$(CARGO) clippy --workspace --all-targets -- -D warnings

build:
	$(BUILD)

# Licences and advisories. Needs cargo-deny: cargo install cargo-deny.
deny:
	$(CARGO) deny check

# The SDK's public API beside that of the commit that Cargo.toml names. Needs Rust 1.93; installs cargo-semver-checks below target when it is missing.
semver:
	@scripts/semver

# Renders docs/ to target/book/index.html. Needs mdbook: cargo install mdbook.
book:
	mdbook build

bench:
	$(CARGO) bench --package setpoint-benches --bench start

# The API server beside kube-apiserver and etcd, if KUBEBUILDER_ASSETS names a folder with them. Options: make bench-apiserver BENCH_ARGS="--help"
bench-apiserver:
	ulimit -n 8192 && $(CARGO) bench --package setpoint-benches --bench apiserver -- $(BENCH_ARGS)

# The SDK beside kube-rs's Controller: the same operator in each. Options: make bench-sdk BENCH_ARGS="--help"
BENCH_SDK = --manifest-path benches/sdk/Cargo.toml
bench-sdk:
	$(CARGO) build $(BENCH_SDK) --profile operator --no-default-features --bins
	$(CARGO) run --quiet $(BENCH_SDK) --release --bin setpoint-bench-sdk -- $(BENCH_ARGS)

# Real clients, unmodified, each against a cluster of its own: make clients [CLIENTS="kopf helm"]. One that is not there is skipped.
clients:
	@CARGO="$(CARGO)" clients/run $(CLIENTS)

# Compares an API server with the recorded kube-apiserver: make conformance SERVER=https://… TOKEN=… [CA=file] [CLIENT_CA_KEY=file] [ONLY=topic/case]
conformance:
	@TOKEN="$(TOKEN)" $(CARGO) run --quiet --package setpoint-conformance -- check --server "$(SERVER)" $(if $(CA),--ca "$(CA)") $(if $(CLIENT_CA_KEY),--client-ca-key "$(CLIENT_CA_KEY)") --only "$(ONLY)"

# Records a real kube-apiserver's answers. Builds it with Go unless KUBEBUILDER_ASSETS names a folder with kube-apiserver and etcd.
conformance-record:
	@CARGO="$(CARGO)" scripts/conformance-record $(ONLY)

# Feeds each parser of the API server for SECONDS (default 600) with what nobody expects: make fuzz [SECONDS=…] [TARGETS="cel apply"].
# Needs cargo-fuzz (cargo install cargo-fuzz) and a nightly compiler.
fuzz:
	@scripts/fuzz $(or $(SECONDS),600) $(TARGETS)

clean:
	$(CARGO) clean
