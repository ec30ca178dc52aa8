//! The virtio-user port at our back-end, and at back-ends that break the protocol.

mod common;
mod hostile;
mod our_back_end;
