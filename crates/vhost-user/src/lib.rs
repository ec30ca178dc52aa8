//! The vhost-user protocol (QEMU, *docs/interop/vhost-user.rst*), both ends: how a front-end hands the rings of its
//! virtio device to a back-end in another process. Neither end trusts the other.

mod device;

pub use device::{Base, Device, Start};
