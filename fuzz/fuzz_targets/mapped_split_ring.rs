#![no_main]

#[allow(dead_code, reason = "the other kind of ring has a target of its own")]
#[path = "../bodies/mapped_rings.rs"]
mod body;
#[path = "../../crates/virt/vhost/tests/it/common/mod.rs"]
mod common;

libfuzzer_sys::fuzz_target!(|data: &[u8]| body::split(data));
