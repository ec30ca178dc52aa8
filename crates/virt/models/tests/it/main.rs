//! The software cards, register by register, and as a server of vfio-user.

mod fuzz;
mod ixgbe;
mod readable;
mod served;
mod sleep;
mod stepping;
mod virtio;
mod virtio_sleep;
mod wire;
