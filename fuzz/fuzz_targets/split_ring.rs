#![no_main]

#[path = "../bodies/split_ring.rs"]
mod body;

libfuzzer_sys::fuzz_target!(|data: &[u8]| body::case(data));
