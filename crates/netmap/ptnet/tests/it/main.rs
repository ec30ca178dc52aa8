//! Passed-through netmap ports: the device, its sessions, and drivers over vfio-user.

mod common;
mod device;
mod fuzz;
mod kills;
mod over_vfio_user;
mod sessions;
