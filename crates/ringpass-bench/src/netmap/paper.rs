//! Values of the ptnetmap paper (Garzarella, Lettieri, Rizzo, ANCS 2015). For figures 6, 7 and 11 only the text
//! has numbers.

use super::Medium;
use super::guests::{GuestCase, GuestLink, GuestRoute};

/// Returns the rate host to host with batches of 256 or more, in Mpps (sections 5.3.1 and 5.3.2).
pub fn mpps(what: Medium) -> f64 {
    match what {
        Medium::Pipe => 100.0,
        Medium::Vale => 20.0,
    }
}

/// Returns the rate with guests on KVM, in Mpps: over VALE the same as host to host (section 5.3.1), and over a
/// pipe between trusted guests (abstract).
pub fn guests(setting: GuestCase) -> Option<f64> {
    match (setting.what, setting.path) {
        (GuestLink::Vale, _) => Some(20.0),
        (GuestLink::Pipe, GuestRoute::GuestGuest) => Some(70.0),
        _ => None,
    }
}

/// Rate of copying bridges in a row on the host, in Mpps (section 5.4).
pub const CASCADE: f64 = 20.0;

/// Returns the shortest and the average round trip host to host, in µs (table 1).
pub fn round_trip(what: Medium, busy: bool) -> (f64, f64) {
    match (what, busy) {
        (Medium::Pipe, false) => (2.6, 4.6),
        (Medium::Vale, false) => (3.3, 5.2),
        (Medium::Pipe, true) => (0.5, 0.8),
        (Medium::Vale, true) => (0.8, 1.2),
    }
}
