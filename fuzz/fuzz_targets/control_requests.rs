#![no_main]

#[path = "../bodies/control_requests.rs"]
mod body;

libfuzzer_sys::fuzz_target!(|data: &[u8]| body::case(data));
