//! Runs the body of a fuzz target over its seeds and many mutations of each.

#[path = "../../../../fuzz/bodies/netmap_options.rs"]
mod netmap_options;

#[test]
fn options() {
    ringpass_testing::mutations::run("netmap_options", 1_000_000, netmap_options::options);
}
