//! Runs the fuzz target's body over its seeds and many mutations of them.

#[path = "../../../../../fuzz/bodies/switch_frames.rs"]
mod switch_frames;

use ringpass_testing::mutations;

#[test]
fn frames_of_any_bytes() {
    mutations::run("switch_frames", 20_000, switch_frames::case);
}
