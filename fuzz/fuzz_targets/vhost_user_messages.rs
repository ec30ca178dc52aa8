#![no_main]

#[path = "../bodies/vhost_user_messages.rs"]
mod body;

libfuzzer_sys::fuzz_target!(|data: &[u8]| body::case(data));
