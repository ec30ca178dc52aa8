#![no_main]

#[path = "../bodies/service_files.rs"]
mod body;

libfuzzer_sys::fuzz_target!(|data: &[u8]| body::case(data));
