//! Runs the fuzz target's body over its seeds and many mutations of them.

#[path = "../../../../../fuzz/bodies/ptnet.rs"]
mod ptnet;

use ringpass_testing::mutations;

#[test]
fn devices() {
    mutations::run("ptnet", 50_000, ptnet::case);
}
