# The commands of this repository. Building needs a Rust toolchain and a C
# compiler; demo, test and bench run as root on Linux, since they make network
# namespaces. Each sets up what it needs (scripts/deps, Debian).

CARGO ?= cargo
TOOLS := target/tools/bin

# Test binaries that bring up a mesh, and the order in which they run.
LEVELS_NETNS := netns chaos

.PHONY: all deps build demo test test-unit test-netns test-interop chaos check check-quick \
	fmt fuzz-smoke fuzz bench docs clean help

all: build

help: ## this list
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*##/\t/' | sort

deps: ## install what tests and benchmarks use
	@scripts/deps

build: ## every program, development profile
	$(CARGO) build --workspace --bins

demo: ## build, bring a mesh up on two nodes, show it, break it, measure it, take it down
	@scripts/deps
	$(CARGO) build --release --bins
	target/release/culvert-demo

test: test-unit test-netns ## every level: unit, direct, sim, then namespaces and short chaos

# Always the whole workspace, so that every test binary shares one build of each
# dependency; the patterns name the levels of all packages.
test-unit: build
	$(CARGO) test --workspace --lib --bins --examples --test sim --test tidy \
		--test 'direct*' --test 'netns_*'
	$(CARGO) test --workspace --doc

test-netns: build ## the levels that need root
	@scripts/deps
	$(CARGO) test --workspace $(foreach level,$(LEVELS_NETNS),--test $(level))

test-interop: build ## Envoy at the other end of the tunnel, both directions
	@scripts/deps
	$(CARGO) test --workspace --test interop

chaos: build ## kill every part 20 times under load
	@scripts/deps
	$(CARGO) test --workspace --test chaos -- --kills 20

check: ## what CI checks before it tests
	@scripts/deps
	$(CARGO) fmt --all --check
	$(CARGO) clippy --workspace --all-targets -- -D warnings
	RUSTDOCFLAGS="-D warnings -A rustdoc::private_intra_doc_links" \
		$(CARGO) doc --workspace --no-deps --document-private-items
	$(TOOLS)/cargo-deny check licenses bans sources
	$(CARGO) test --workspace --test tidy
	scripts/fuzz-smoke

check-quick: ## format and lints only
	$(CARGO) fmt --all --check
	$(CARGO) clippy --workspace --all-targets -- -D warnings

fmt:
	$(CARGO) fmt --all

fuzz-smoke: ## every fuzz target for 30 s
	@scripts/deps
	scripts/fuzz-smoke

bench: ## the tunnel beside direct and a pair of Envoys; writes target/bench/l4.json
	@scripts/deps
	$(CARGO) build --release --bins
	target/release/culvert-bench $(BENCH)

docs: ## write the documents anew that are made from code
	$(CARGO) run --quiet -p culvert-tests --example docs

clean: ## remove what was built, and any mesh that is still up
	-for mesh in /run/culvert/*/; do \
		[ ! -d "$$mesh" ] || target/debug/culvert --mesh "$$(basename "$$mesh")" down; \
	done
	$(CARGO) clean
	rm -rf tests/fuzz/target
