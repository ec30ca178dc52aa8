//! Ends in QEMU guests (figures 6 and 7): ports that were passed through, and the kernel's virtio-net for
//! comparison.

mod passed;
mod virtio;

use std::panic::{AssertUnwindSafe, catch_unwind, set_hook, take_hook};
use std::path::Path;
use std::time::Duration;

use ringpass::Error;
use serde::Serialize;
use serde_json::Value;

use self::passed::PassthroughRig;
use super::rig::Rig;
use super::{Medium, Sample};
use crate::cores::check_interrupted;
use crate::progress::progress;

/// One measurement with guests.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct GuestCase {
    pub what: GuestLink,
    pub path: GuestRoute,
    pub batch: u32,
}

/// Connection of the guest's end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum GuestLink {
    /// A pipe in shared memory, between guests that trust each other.
    Pipe,
    /// A switch, which copies between guests that do not.
    Vale,
    /// vhost-user, with the kernel's own driver and generator.
    VirtioNet,
}

/// Source and destination of the packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum GuestRoute {
    GuestGuest,
    GuestHost,
    HostGuest,
}

impl GuestRoute {
    pub fn name(self) -> &'static str {
        match self {
            Self::GuestGuest => "guest to guest",
            Self::GuestHost => "guest to host",
            Self::HostGuest => "host to guest",
        }
    }
}

/// Largest burst of `pktgen` and `fwd`.
const MOST: u32 = 256;
/// Burst of the kernel's generator.
const BURST: u32 = 32;

/// Returns all measurements. Those that share guests are contiguous and begin with one that needs both guests.
pub fn settings(what: &[Medium], batches: &[u32]) -> Vec<GuestCase> {
    let mut settings = Vec::new();
    for &what in what {
        let what = if what == Medium::Pipe { GuestLink::Pipe } else { GuestLink::Vale };
        for path in [GuestRoute::GuestGuest, GuestRoute::GuestHost, GuestRoute::HostGuest] {
            let batches = batches.iter().filter(|&&batch| batch <= MOST);
            settings.extend(batches.map(|&batch| GuestCase { what, path, batch }));
        }
    }
    let kernel = [GuestRoute::GuestHost, GuestRoute::HostGuest].map(|path| GuestCase {
        what: GuestLink::VirtioNet,
        path,
        batch: BURST,
    });
    settings.extend(kernel);
    settings
}

/// Returns an error if guests cannot be measured here.
pub fn check() -> Result<(), Error> {
    if !ringpass_lab::is_made() {
        return Err(Error::NotFound(
            "--only guests: there is no QEMU and no kernel for guests; run 'make lab' first".into(),
        ));
    }
    if !nix::unistd::geteuid().is_root() {
        return Err(Error::Config(
            "--only guests: QEMU is started as a user of its own, which takes root; use sudo".into(),
        ));
    }
    Ok(())
}

/// Runs measurements that share guests.
pub fn measure(rig: &Rig, folder: &Path, settings: &[GuestCase], time: Duration) -> Result<Vec<Sample>, Error> {
    let Some(first) = settings.first() else { return Ok(Vec::new()) };
    catch_lab_panic(|| match first.what {
        GuestLink::VirtioNet => virtio::measure(rig, folder, settings, time),
        what => {
            progress(&format!("two guests boot: {what:?}"));
            let mut rooms = PassthroughRig::boot(rig, folder, what)?;
            let measured = settings.iter().map(|setting| {
                check_interrupted()?;
                progress(&format!("{setting:?}"));
                rooms.measure(setting, time)
            });
            measured.collect()
        }
    })
}

/// Turns a panic into an error: the lab panics on failures, as it was made for tests.
fn catch_lab_panic<T>(work: impl FnOnce() -> Result<T, Error>) -> Result<T, Error> {
    let hook = take_hook();
    set_hook(Box::new(|_| {}));
    let result = catch_unwind(AssertUnwindSafe(work));
    set_hook(hook);
    result.unwrap_or_else(|panic| {
        let text = panic.downcast_ref::<String>().map(String::as_str).or(panic.downcast_ref::<&str>().copied());
        check_interrupted()?;
        Err(Error::Fault(text.and_then(|text| text.lines().next()).unwrap_or("a guest failed").into()))
    })
}

fn number(event: &Value, of: &str) -> Result<f64, Error> {
    event[of].as_f64().ok_or_else(|| Error::Fault(format!("no '{of}' in {event}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_is_an_error_in_one_line() {
        let failed = catch_lab_panic::<()>(|| panic!("no answer to: {}\nconsole", "uname"));
        assert_eq!(failed.unwrap_err().to_string(), "no answer to: uname");
        assert_eq!(catch_lab_panic(|| Ok(3)).unwrap(), 3);
    }

    #[test]
    fn what_shares_guests_is_in_one_piece() {
        let settings = settings(&[Medium::Pipe, Medium::Vale], &[1, 256, 1024]);
        assert_eq!(settings.len(), 2 * 3 * 2 + 2);
        let whats: Vec<_> = settings.chunk_by(|a, b| a.what == b.what).map(|chunk| chunk[0].what).collect();
        assert_eq!(whats, [GuestLink::Pipe, GuestLink::Vale, GuestLink::VirtioNet]);
    }
}
