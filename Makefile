.PHONY: help build test lab lab-shell bench loc clean
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

loc: ## Count the lines of code of the forwarder with its driver
	@scripts/loc

clean: ## Remove what was built
	cargo clean
