//! Runs the body of the fuzz target on its seeds and a million mutations of them.

#[path = "../../../../../fuzz/bodies/vfio_user_messages.rs"]
mod body;
#[path = "../../../../../fuzz/bodies/mutations.rs"]
mod mutations;

#[test]
fn messages() {
    mutations::run("vfio_user_messages", 1_000_000, body::case);
}
