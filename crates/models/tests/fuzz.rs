//! The fuzz target's body over its seeds and a million mutations of them.

#[path = "../../../fuzz/bodies/registers.rs"]
mod body;
#[path = "../../../fuzz/bodies/mutations.rs"]
mod mutations;

#[test]
fn registers() {
    mutations::run("registers", 1_000_000, body::case);
}
