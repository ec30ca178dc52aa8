.PHONY: help build install uninstall deb check test book lab lab-shell bench soak fuzz loc clean
.DEFAULT_GOAL := help

help: ## Show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-9s  %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

build: ## Build the program, optimised (target/release/ringpass), the benchmarks and the libraries for C and for netmap programs
	@scripts/rust
	cargo build --release -p ringpass-cli -p ringpass-bench -p ringpass-netmap-preload -p ringpass-c

PREFIX ?= /usr/local
built = $(or $(CARGO_TARGET_DIR),target)/release
to = $(DESTDIR)$(PREFIX)
version = $(shell sed -n 's/^version = "\(.*\)"/\1/p' Cargo.toml)

# Symbols lie apart, where debuggers look for them.
debug = $(DESTDIR)/usr/lib/debug$(PREFIX)
define without-symbols
	@install -d $(dir $(debug)/$(1))
	@objcopy --only-keep-debug $(to)/$(1) $(debug)/$(1).debug && chmod 644 $(debug)/$(1).debug
	@objcopy --strip-unneeded --add-gnu-debuglink=$(debug)/$(1).debug $(to)/$(1)
endef

# By a root who has no Rust: what is built is installed. The loader learns of the library unless a package is being made.
install: ## Install what was built, for all users: sudo make install [PREFIX=/usr/local] [DESTDIR=]
	@test -x $(built)/ringpass -a -x $(built)/ringpass-bench -a -f $(built)/libringpass_netmap.so -a -f $(built)/libringpass_c.so || \
		{ echo "make install: nothing is built in $(built) yet: make build, then sudo make install" >&2; exit 1; }
	install -D -m 755 $(built)/ringpass $(built)/ringpass-bench -t $(to)/bin
	install -D -m 644 $(built)/libringpass_netmap.so -t $(to)/lib
	install -D -m 644 $(built)/libringpass_c.so $(to)/lib/libringpass.so.0
	$(call without-symbols,bin/ringpass)
	$(call without-symbols,bin/ringpass-bench)
	$(call without-symbols,lib/libringpass_netmap.so)
	$(call without-symbols,lib/libringpass.so.0)
	ln -sf libringpass.so.0 $(to)/lib/libringpass.so
	install -D -m 644 crates/ringpass-c/include/ringpass.h -t $(to)/include
	install -d $(to)/lib/pkgconfig
	sed 's|@PREFIX@|$(PREFIX)|; s|@VERSION@|$(version)|' crates/ringpass-c/ringpass.pc.in >$(to)/lib/pkgconfig/ringpass.pc
	umask 022 && $(built)/ringpass generate $(to)/share && $(built)/ringpass-bench generate $(to)/share
	install -D -m 644 docs/service.toml packaging/examples/* -t $(to)/share/doc/ringpass/examples
	install -d $(to)/lib/systemd/system
	for unit in ringpass@ ringpass-netmapd; do \
		sed 's|@PREFIX@|$(PREFIX)|' packaging/$$unit.service.in >$(to)/lib/systemd/system/$$unit.service || exit 1; done
	install -m 644 packaging/ringpass-netmapd.socket -t $(to)/lib/systemd/system
	install -D -m 755 packaging/extcap $(to)/lib/wireshark/extcap/ringpass
	install -D -m 644 packaging/ringpass.sysusers $(to)/lib/sysusers.d/ringpass.conf
	$(ldconfig)

uninstall: ## Remove what make install has installed, with the same PREFIX and DESTDIR
	rm -f $(addprefix $(to)/, bin/ringpass bin/ringpass-bench lib/libringpass_netmap.so lib/libringpass.so lib/libringpass.so.0 \
		include/ringpass.h lib/pkgconfig/ringpass.pc)
	rm -f $(wildcard $(addprefix $(to)/share/man/, man1/ringpass.1 man1/ringpass-*.1 man5/ringpass.toml.5))
	rm -f $(addprefix $(to)/share/, bash-completion/completions/ringpass zsh/vendor-completions/_ringpass fish/vendor_completions.d/ringpass.fish)
	rm -f $(addprefix $(to)/lib/systemd/system/, ringpass@.service ringpass-netmapd.service ringpass-netmapd.socket)
	rm -f $(addprefix $(to)/lib/, sysusers.d/ringpass.conf wireshark/extcap/ringpass)
	rm -rf $(to)/share/doc/ringpass
	rm -f $(addsuffix .debug, $(addprefix $(debug)/, bin/ringpass bin/ringpass-bench lib/libringpass_netmap.so lib/libringpass.so.0))
	$(ldconfig)

ldconfig = $(if $(DESTDIR),,@test "$$(id -u)" != 0 || PATH=$$PATH:/usr/sbin:/sbin ldconfig)

deb: build ## Make Debian packages of the program and of its symbols (target/debian)
	@scripts/deb

check: ## Check what has changed since main's last commit, without root, in a few minutes (ALL=1: everything)
	@scripts/check $(if $(ALL),all)

test: ## Install what the tests need, then check and test everything
	@scripts/test

book: ## Build the documentation as a book (target/book)
	@scripts/book

lab: ## Make the guests of the tests: QEMU, a kernel, its programs (once, in ./lab)
	@scripts/lab

lab-shell: ## Boot a guest with two virtio cards and the program, and a shell in it
	@scripts/lab-shell

bench: ## Measure the driver: cycles per packet of each stage
	cargo run --release -p ringpass-bench -- driver

soak: ## Kill and restart peers at random for SECONDS=60, beside pairs that may not lose a frame (docs/campaigns.md)
	cargo build --release -p ringpass-cli -p ringpass-netmap-preload
	cargo run --release -p ringpass-lab --example soak -- --seconds $(or $(SECONDS),60) $(if $(SEED),--seed $(SEED))

fuzz: ## Run each fuzz target for its share of SECONDS=600 (docs/campaigns.md)
	@SECONDS_TO_FUZZ=$(or $(SECONDS),600) scripts/fuzz

loc: ## Count the lines of code from the forwarder down to the descriptors
	@scripts/loc

clean: ## Remove what was built and what the tests have downloaded
	cargo clean
	rm -rf fuzz/target lab lab.new
