//! Runs the body of a fuzz target over its seeds and many mutations of them.

#[path = "../../../../fuzz/bodies/service_files.rs"]
mod service_files;

use ringpass_testing::mutations;

#[test]
fn files_of_any_bytes() {
    mutations::run("service_files", 100_000, service_files::case);
}
