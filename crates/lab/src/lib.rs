//! Real peers for the tests: guests under QEMU with Linux's own drivers, network namespaces, running programs.
//!
//! `make lab` builds what guests need, once, from Debian's packages, in the ignored folder `lab`.
//!
//! ```no_run
//! use ringpass_lab::Guest;
//!
//! let guest = Guest::new().cpus(2).device("edu").boot();
//! assert!(guest.run("cat /sys/bus/pci/devices/*/vendor").contains("0x1234"));
//! ```

#![deny(unsafe_code)]

mod container;
mod guest;
mod host;
mod initramfs;
mod shell;
mod silent_file;
mod slow_eventfd;
pub mod soak;

pub use container::Container;
pub use guest::{Builder, Guest, Iommu, Job, Machine, Migrated, Output, Qemu, Tap, VhostUser, nic_address, nic_mac};
pub use host::{Ended, Namespace, Program, built, run, unique, wait_until};
pub use shell::{Uplink, shell};
pub use silent_file::SilentFile;
pub use slow_eventfd::SlowEventfd;

/// Returns the command that runs the lab's passt, which serves one vhost-user front-end, with these arguments.
pub fn passt(arguments: &[&str]) -> Vec<String> {
    unpacked("passt", "passt", arguments)
}

/// Returns the command that runs the lab's `prometheus` or `promtool`, with these arguments.
pub fn prometheus(program: &str, arguments: &[&str]) -> Vec<String> {
    unpacked("prometheus", program, arguments)
}

/// Returns the command that runs a program of a package that the lab has unpacked.
fn unpacked(package: &str, program: &str, arguments: &[&str]) -> Vec<String> {
    let folder = std::path::Path::new(guest::LAB).join(package);
    let inside = |name: &str| folder.join(name).to_string_lossy().into_owned();
    assert!(folder.exists(), "this test needs {program}, which 'make lab' unpacks");
    let loader = [inside("ld-linux-x86-64.so.2"), "--library-path".into(), inside("lib"), inside(program)];
    loader.into_iter().chain(arguments.iter().map(|&argument| argument.into())).collect()
}

/// Returns whether guests can be started, that is, whether `make lab` was run.
pub fn is_made() -> bool {
    std::path::Path::new(guest::LAB).join("recipe").exists()
}
