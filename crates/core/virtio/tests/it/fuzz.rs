//! Runs the bodies of the fuzz targets on their seeds and a million mutations each.

#[path = "../../../../../fuzz/bodies/device_rings.rs"]
mod device_rings;
#[path = "../../../../../fuzz/bodies/rings.rs"]
pub mod rings;

use ringpass_testing::mutations;

#[test]
fn split_rings() {
    mutations::run("split_ring", 1_000_000, rings::split);
}

#[test]
fn packed_rings() {
    mutations::run("packed_ring", 1_000_000, rings::packed);
}

#[test]
fn devices_of_split_rings() {
    mutations::run("device_split_ring", 1_000_000, device_rings::split);
}

#[test]
fn devices_of_packed_rings() {
    mutations::run("device_packed_ring", 1_000_000, device_rings::packed);
}
