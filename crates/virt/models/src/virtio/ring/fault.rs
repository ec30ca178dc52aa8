//! Violations of the specification by the driver.

/// How the driver violated the specification, for which the device needs a reset.
pub(in super::super) type Fault = &'static str;

/// A ring or a buffer is in memory that was not mapped for the device, or is not aligned.
pub(in super::super) const NOT_MAPPED: Fault = "an address that was not mapped, or is not aligned";
