#![no_main]

// The library for programs is a shared library alone, whose functions replace libc's. So its parts are compiled here.
extern crate ringpass_netmap as netmap;

#[path = "../bodies/netmap_options.rs"]
mod body;
#[allow(dead_code, reason = "the list is read, not what its options mean")]
#[path = "../../crates/netmap/netmap-preload/src/option_header.rs"]
mod option_header;
#[path = "../../crates/netmap/netmap-preload/src/options.rs"]
mod options;
#[allow(dead_code, reason = "nothing is printed")]
#[path = "../../crates/netmap/netmap-preload/src/refusal.rs"]
mod refusal;
#[allow(dead_code, reason = "only options use the rest")]
#[path = "../../crates/netmap/netmap-preload/src/user_memory.rs"]
mod user_memory;

#[allow(dead_code, reason = "it is never made")]
mod external_memory {
    /// In the place of a file of the program, which no option of this target has.
    pub struct MemoryFile;
}

libfuzzer_sys::fuzz_target!(|data: &[u8]| body::options(data));
