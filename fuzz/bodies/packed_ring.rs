//! Packed rings with a device that does anything.

#[path = "rings.rs"]
mod rings;

/// One case.
pub fn case(data: &[u8]) {
    rings::case::<ringpass_virtio::driver::Packed>(data, |number| number + 1);
}
