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

/// The command that runs the lab's passt, which serves one front-end of vhost-user, with these arguments.
pub fn passt(arguments: &[&str]) -> Vec<String> {
    let passt = std::path::Path::new(guest::LAB).join("passt");
    let inside = |name: &str| passt.join(name).to_string_lossy().into_owned();
    assert!(passt.exists(), "this test needs passt, which 'make lab' unpacks");
    let loader = [inside("ld-linux-x86-64.so.2"), "--library-path".into(), inside("lib"), inside("passt")];
    loader.into_iter().chain(arguments.iter().map(|&argument| argument.into())).collect()
}

/// Whether guests can be started: `make lab` was run.
pub fn is_made() -> bool {
    std::path::Path::new(guest::LAB).join("recipe").exists()
}
