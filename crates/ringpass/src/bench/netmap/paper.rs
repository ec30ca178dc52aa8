//! What the ptnetmap paper says (Garzarella, Lettieri, Rizzo, ANCS 2015). Figures 6, 7 and 11 have no numbers but in the text.

use super::What;
use super::guests::{Setting, Through, Way};

/// Host to host, batches of 256 or more (sections 5.3.1 and 5.3.2), in Mpps.
pub fn mpps(what: What) -> f64 {
    match what {
        What::Pipe => 100.0,
        What::Vale => 20.0,
    }
}

/// With guests, on KVM: as host to host by VALE (section 5.3.1); between trusted guests by a pipe (abstract). In Mpps.
pub fn guests(setting: Setting) -> Option<f64> {
    match (setting.what, setting.path) {
        (Through::Vale, _) => Some(20.0),
        (Through::Pipe, Way::GuestGuest) => Some(70.0),
        _ => None,
    }
}

/// Section 5.4: copying bridges in a row on the host, in Mpps.
pub const CASCADE: f64 = 20.0;

/// Table 1, host to host: round trips in µs, least and average.
pub fn round_trip(what: What, busy: bool) -> (f64, f64) {
    match (what, busy) {
        (What::Pipe, false) => (2.6, 4.6),
        (What::Vale, false) => (3.3, 5.2),
        (What::Pipe, true) => (0.5, 0.8),
        (What::Vale, true) => (0.8, 1.2),
    }
}
