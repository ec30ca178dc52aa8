//! The fuzz targets' bodies over their seeds and a million mutations of them each.

#[path = "../../../fuzz/bodies/mutations.rs"]
mod mutations;
#[path = "../../../fuzz/bodies/rings.rs"]
mod rings;

#[test]
fn split_rings() {
    mutations::run("split_ring", 1_000_000, rings::split);
}

#[test]
fn packed_rings() {
    mutations::run("packed_ring", 1_000_000, rings::packed);
}
