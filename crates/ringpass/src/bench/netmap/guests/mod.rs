//! Ends in QEMU's guests (figures 6 and 7): ports that were passed through, beside the kernel's virtio-net.

mod passed;
mod virtio;

use std::panic::{AssertUnwindSafe, catch_unwind, set_hook, take_hook};
use std::path::Path;
use std::time::Duration;

use ringpass_port::Error;
use serde::Serialize;
use serde_json::Value;

use self::passed::Rooms;
use super::rig::Rig;
use super::{Sample, What};
use crate::bench::cores::go_on;
use crate::bench::driver::progress;

/// What is measured.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Setting {
    pub what: Through,
    pub path: Way,
    pub batch: u32,
}

/// How the guest's end is reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Through {
    /// A pipe in shared memory, and guests that trust each other.
    Pipe,
    /// A switch, which copies between guests that do not.
    Vale,
    /// vhost-user, and the kernel's own driver and generator.
    VirtioNet,
}

/// From where to where.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Way {
    GuestGuest,
    GuestHost,
    HostGuest,
}

impl Way {
    pub fn name(self) -> &'static str {
        match self {
            Self::GuestGuest => "guest to guest",
            Self::GuestHost => "guest to host",
            Self::HostGuest => "host to guest",
        }
    }
}

/// Packets that are sent and received together, at most, by `pktgen` and `fwd`.
const MOST: u32 = 256;
/// Those of the kernel's generator.
const BURST: u32 = 32;

/// All that is to be measured: what shares guests is in one piece, and begins with both of them.
pub fn settings(what: &[What], batches: &[u32]) -> Vec<Setting> {
    let mut settings = Vec::new();
    for &what in what {
        let what = if what == What::Pipe { Through::Pipe } else { Through::Vale };
        for path in [Way::GuestGuest, Way::GuestHost, Way::HostGuest] {
            let batches = batches.iter().filter(|&&batch| batch <= MOST);
            settings.extend(batches.map(|&batch| Setting { what, path, batch }));
        }
    }
    let kernel = [Way::GuestHost, Way::HostGuest].map(|path| Setting { what: Through::VirtioNet, path, batch: BURST });
    settings.extend(kernel);
    settings
}

/// Whether this can be measured here.
pub fn check() -> Result<(), Error> {
    if !ringpass_lab::is_made() {
        return Err(Error::Other(
            "--only guests: there is no QEMU and no kernel for guests; run 'make lab' first".into(),
        ));
    }
    if !nix::unistd::geteuid().is_root() {
        return Err(Error::Other(
            "--only guests: QEMU is started as a user of its own, which takes root; use sudo".into(),
        ));
    }
    Ok(())
}

/// Measures settings that share guests.
pub fn measure(rig: &Rig, folder: &Path, settings: &[Setting], time: Duration) -> Result<Vec<Sample>, Error> {
    let Some(first) = settings.first() else { return Ok(Vec::new()) };
    in_the_lab(|| match first.what {
        Through::VirtioNet => virtio::measure(rig, folder, settings, time),
        what => {
            progress(&format!("two guests boot: {what:?}"));
            let mut rooms = Rooms::boot(rig, folder, what)?;
            let measured = settings.iter().map(|setting| {
                go_on()?;
                progress(&format!("{setting:?}"));
                rooms.measure(setting, time)
            });
            measured.collect()
        }
    })
}

/// The lab panics, as it was made for tests; here that is an error.
fn in_the_lab<T>(work: impl FnOnce() -> Result<T, Error>) -> Result<T, Error> {
    let hook = take_hook();
    set_hook(Box::new(|_| {}));
    let result = catch_unwind(AssertUnwindSafe(work));
    set_hook(hook);
    result.unwrap_or_else(|panic| {
        let text = panic.downcast_ref::<String>().map(String::as_str).or(panic.downcast_ref::<&str>().copied());
        go_on()?;
        Err(Error::Other(text.and_then(|text| text.lines().next()).unwrap_or("a guest failed").into()))
    })
}

fn number(event: &Value, of: &str) -> Result<f64, Error> {
    event[of].as_f64().ok_or_else(|| Error::Other(format!("no '{of}' in {event}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_is_an_error_in_one_line() {
        let failed = in_the_lab::<()>(|| panic!("no answer to: {}\nconsole", "uname"));
        assert_eq!(failed.unwrap_err().to_string(), "no answer to: uname");
        assert_eq!(in_the_lab(|| Ok(3)).unwrap(), 3);
    }

    #[test]
    fn what_shares_guests_is_in_one_piece() {
        let settings = settings(&[What::Pipe, What::Vale], &[1, 256, 1024]);
        assert_eq!(settings.len(), 2 * 3 * 2 + 2);
        let whats: Vec<_> = settings.chunk_by(|a, b| a.what == b.what).map(|chunk| chunk[0].what).collect();
        assert_eq!(whats, [Through::Pipe, Through::Vale, Through::VirtioNet]);
    }
}
