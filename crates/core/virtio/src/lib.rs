//! Common parts of virtio devices and their drivers: virtqueues, feature bits, and the header in front of each
//! frame. Section numbers refer to *Virtual I/O Device (VIRTIO) Version 1.3*.

pub mod device;
pub mod driver;
pub mod features;
pub mod layout;
pub mod net_header;
mod slot;
