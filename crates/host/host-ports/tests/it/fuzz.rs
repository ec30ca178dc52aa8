//! Runs the fuzz target's body over its seeds and many mutations of them.

#[path = "../../../../../fuzz/bodies/capture_files.rs"]
mod capture_files;

use ringpass_testing::mutations;

#[test]
fn capture_files_of_any_bytes() {
    mutations::run("capture_files", 50_000, capture_files::case);
}
