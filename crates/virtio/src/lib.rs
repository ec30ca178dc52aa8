//! What virtio devices and their drivers have in common: virtqueues, feature bits, the header in front of each frame.
//! Sections are those of *Virtual I/O Device (VIRTIO) Version 1.3*.

pub mod device;
pub mod driver;
pub mod features;
pub mod layout;
pub mod net_header;
mod slot;
