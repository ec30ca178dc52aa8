//! Runs the bodies of the fuzz targets over their seeds and many mutations of each.

#[path = "../../../../../fuzz/bodies/netmap.rs"]
mod netmap;

use ringpass_testing::mutations;

#[test]
fn requests() {
    mutations::run("netmap_requests", 1_000_000, netmap::requests);
}

#[test]
fn rings() {
    mutations::run("netmap_rings", 50_000, netmap::rings);
}

#[test]
fn sync_loops() {
    mutations::run("netmap_sync_loops", 50_000, netmap::sync_loops);
}

#[test]
fn pipes() {
    mutations::run("netmap_pipes", 50_000, netmap::pipes);
}
