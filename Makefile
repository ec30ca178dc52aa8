.PHONY: help build test lab lab-shell bench soak fuzz loc clean
.DEFAULT_GOAL := help

help: ## Show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-9s  %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

build: ## Build the program, optimised (target/release/ringpass), and the library for programs of netmap beside it
	cargo build --release

test: ## Install what the tests need, then check and test everything
	@scripts/test

lab: ## Make the guests of the tests: QEMU, a kernel, its programs (once, in ./lab)
	@scripts/lab

lab-shell: ## Boot a guest with two virtio cards and the program, and a shell in it
	@scripts/lab-shell

bench: ## Measure the driver: cycles per packet of each stage
	cargo run --release -- bench driver

soak: ## Kill and restart peers at random for SECONDS=60, beside pairs that may not lose a frame (docs/campaigns.md)
	cargo build --release -p ringpass
	cargo run --release -p ringpass-lab --example soak -- --seconds $(or $(SECONDS),60) $(if $(SEED),--seed $(SEED))

fuzz: ## Run each fuzz target for its share of SECONDS=600 (docs/campaigns.md)
	@SECONDS_TO_FUZZ=$(or $(SECONDS),600) scripts/fuzz

loc: ## Count the lines of code of the forwarder with its driver
	@scripts/loc

clean: ## Remove what was built
	cargo clean
