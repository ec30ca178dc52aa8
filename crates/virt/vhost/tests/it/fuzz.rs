//! Runs the fuzz targets' bodies over their seeds and mutations of them.

#[path = "../../../../../fuzz/bodies/mapped_rings.rs"]
mod mapped_rings;

use ringpass_testing::mutations;

#[test]
fn mapped_split_rings() {
    mutations::run("mapped_split_ring", 20_000, mapped_rings::split);
}

#[test]
fn mapped_packed_rings() {
    mutations::run("mapped_packed_ring", 20_000, mapped_rings::packed);
}
