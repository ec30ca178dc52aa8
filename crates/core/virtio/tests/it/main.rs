//! Virtqueues: the side of the driver, the side of the device, and seeds of the fuzz targets.

mod device;
mod fuzz;
mod rings;
