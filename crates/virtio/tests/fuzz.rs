//! The fuzz targets' bodies over their seeds and a million mutations of them each.

#[path = "../../../fuzz/bodies/mutations.rs"]
mod mutations;
#[path = "../../../fuzz/bodies/packed_ring.rs"]
mod packed_ring;
#[path = "../../../fuzz/bodies/split_ring.rs"]
mod split_ring;

#[test]
fn split_rings() {
    mutations::run("split_ring", 1_000_000, split_ring::case);
}

#[test]
fn packed_rings() {
    mutations::run("packed_ring", 1_000_000, packed_ring::case);
}
