//! Runs the fuzz target's body over its seeds and a million mutations of them.

#[path = "../../../../../fuzz/bodies/vhost_user_messages.rs"]
mod body;

use ringpass_testing::mutations;

#[test]
fn messages() {
    mutations::run("vhost_user_messages", 1_000_000, body::case);
}
