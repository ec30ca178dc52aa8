//! Gives the library the name by which `LD_PRELOAD` loads it.

fn main() {
    println!("cargo::rustc-cdylib-link-arg=-Wl,-soname,libringpass_netmap.so");
    println!("cargo::rerun-if-changed=build.rs");
}
