//! The lab: real peers for the tests. Guests under QEMU with Linux's own drivers, network namespaces, running programs.
//!
//! What guests need is made once by `make lab`, from Debian's packages, in the ignored folder `lab`.
//!
//! ```no_run
//! use ringpass_lab::Guest;
//!
//! let _alone = ringpass_lab::alone();
//! let guest = Guest::new().cpus(2).device("edu").boot();
//! assert!(guest.run("cat /sys/bus/pci/devices/*/vendor").contains("0x1234"));
//! ```

#![forbid(unsafe_code)]

mod guest;
mod host;
mod initramfs;
mod shell;
pub mod soak;

pub use guest::{Builder, Guest, Iommu, Job, Machine, Output, Qemu, Tap, VhostUser, alone, nic_address, nic_mac};
pub use host::{Namespace, Program, run, unique, until};
pub use shell::{Behind, shell};

/// Whether guests can be started: `make lab` was run.
pub fn is_made() -> bool {
    std::path::Path::new(guest::LAB).join("recipe").exists()
}
