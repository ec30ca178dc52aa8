//! Names the shared library as its users will find it: `libringpass.so.0`, whose number changes with the ABI.

fn main() {
    println!("cargo::rustc-cdylib-link-arg=-Wl,-soname,libringpass.so.0");
    println!("cargo::rerun-if-changed=build.rs");
}
