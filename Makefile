# The commands of the project. `make demo` and `make test` install what is missing first.
.PHONY: demo test lint build deny bench clean

CARGO ?= cargo

demo:
	@scripts/install-needs demo
	$(CARGO) run --release --package setpoint-demo --bin setpoint-demo -- $(DEMO_ARGS)

test: lint
	@scripts/install-needs test
	$(CARGO) test --workspace

lint:
	$(CARGO) fmt --all --check
	$(CARGO) clippy --workspace --all-targets -- -D warnings

build:
	$(CARGO) build --release --workspace

# Licences and advisories. Needs cargo-deny: cargo install cargo-deny.
deny:
	$(CARGO) deny check

bench:
	$(CARGO) bench --package setpoint-benches

clean:
	$(CARGO) clean
