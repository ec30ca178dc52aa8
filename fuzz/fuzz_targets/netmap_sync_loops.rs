#![no_main]

#[allow(dead_code, reason = "the others have targets of their own")]
#[path = "../bodies/netmap.rs"]
mod body;

libfuzzer_sys::fuzz_target!(|data: &[u8]| body::sync_loops(data));
