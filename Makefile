# The commands of the project. `make demo` and `make test` install what is missing first.
.PHONY: demo test lint build deny bench bench-apiserver conformance conformance-record clean

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

lint:
	$(CARGO) fmt --all --check
	$(CARGO) clippy --workspace --all-targets -- -D warnings

build:
	$(BUILD)

# Licences and advisories. Needs cargo-deny: cargo install cargo-deny.
deny:
	$(CARGO) deny check

bench:
	$(CARGO) bench --package setpoint-benches --bench start

# The API server beside kube-apiserver and etcd, if KUBEBUILDER_ASSETS names a folder with them. Options: make bench-apiserver BENCH_ARGS="--help"
bench-apiserver:
	ulimit -n 8192 && $(CARGO) bench --package setpoint-benches --bench apiserver -- $(BENCH_ARGS)

# Compares an API server with the recorded kube-apiserver: make conformance SERVER=https://… TOKEN=… [CA=file] [ONLY=topic/case]
conformance:
	@TOKEN="$(TOKEN)" $(CARGO) run --quiet --package setpoint-conformance -- check --server "$(SERVER)" $(if $(CA),--ca "$(CA)") --only "$(ONLY)"

# Records a real kube-apiserver's answers. Builds it with Go unless KUBEBUILDER_ASSETS names a folder with kube-apiserver and etcd.
conformance-record:
	@CARGO="$(CARGO)" scripts/conformance-record $(ONLY)

clean:
	$(CARGO) clean
