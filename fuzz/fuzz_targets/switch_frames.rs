#![no_main]

#[path = "../bodies/switch_frames.rs"]
mod body;

libfuzzer_sys::fuzz_target!(|data: &[u8]| body::case(data));
