#![no_main]

#[path = "../bodies/capture_files.rs"]
mod body;

libfuzzer_sys::fuzz_target!(|data: &[u8]| body::case(data));
