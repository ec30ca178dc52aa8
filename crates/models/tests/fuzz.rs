//! The fuzz targets' bodies over their seeds and mutations of them.

#[path = "../../../fuzz/bodies/registers.rs"]
mod body;
#[path = "../../../fuzz/bodies/mutations.rs"]
mod mutations;
#[path = "../../../fuzz/bodies/virtio_registers.rs"]
mod virtio_registers;

#[test]
fn registers() {
    mutations::run("registers", 1_000_000, body::case);
}

#[test]
fn virtio_registers() {
    mutations::run("virtio_registers", 1_000_000, virtio_registers::case);
}
