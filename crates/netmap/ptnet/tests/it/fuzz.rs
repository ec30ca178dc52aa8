//! Runs the fuzz target's body over its seeds and many mutations of them.

#[path = "../../../../../fuzz/bodies/mutations.rs"]
mod mutations;
#[path = "../../../../../fuzz/bodies/ptnet.rs"]
mod ptnet;

#[test]
fn devices() {
    mutations::run("ptnet", 50_000, ptnet::case);
}
