//! The ways to a device: sysfs and VFIO in guests, vfio-user.

mod regions;
mod vfio;
mod vfio_user;
