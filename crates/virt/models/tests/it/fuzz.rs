//! Runs the bodies of the fuzz targets on their seeds and on mutations of them.

#[path = "../../../../../fuzz/bodies/registers.rs"]
mod body;
#[path = "../../../../../fuzz/bodies/virtio_registers.rs"]
mod virtio_registers;

use ringpass_testing::mutations;

#[test]
fn registers() {
    mutations::run("registers", 1_000_000, body::case);
}

#[test]
fn virtio_registers() {
    mutations::run("virtio_registers", 1_000_000, virtio_registers::case);
}
