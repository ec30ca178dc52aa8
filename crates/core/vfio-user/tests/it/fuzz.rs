//! Runs the body of the fuzz target on its seeds and a million mutations of them.

#[path = "../../../../../fuzz/bodies/vfio_user_messages.rs"]
mod body;

use ringpass_testing::mutations;

#[test]
fn messages() {
    mutations::run("vfio_user_messages", 1_000_000, body::case);
}
