//! RARP announcements, sent on behalf of a guest after it has migrated here so that switches learn its new
//! location.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};

use ringpass_memory::{Burst, Cache};
use ringpass_port::MacAddress;

/// MAC address to be announced next.
#[derive(Default)]
pub(crate) struct Announcement {
    due: AtomicBool,
    mac: Mutex<Option<MacAddress>>,
}

impl Announcement {
    pub(crate) fn set(&self, mac: Option<MacAddress>) {
        *self.mac.lock().unwrap_or_else(PoisonError::into_inner) = mac;
        self.due.store(mac.is_some(), Ordering::Release);
    }

    #[inline]
    pub(crate) fn is_due(&self) -> bool {
        self.due.load(Ordering::Relaxed)
    }

    /// Adds the announcement to a burst and returns its length. If the pool or the burst has no room, the
    /// announcement stays pending and the result is `None`.
    #[cold]
    pub(crate) fn deliver(&self, cache: &mut Cache, burst: &mut Burst) -> Option<usize> {
        let mut mac = self.mac.lock().unwrap_or_else(PoisonError::into_inner);
        let frame = rarp((*mac)?);
        let mut packet = (burst.room() > 0).then(|| cache.take(1).next())??;
        // 60 bytes fit into every buffer.
        let _ = packet.copy_from(&frame);
        burst.push(packet);
        *mac = None;
        self.due.store(false, Ordering::Relaxed);
        Some(frame.len())
    }
}

/// Builds a RARP request (RFC 903) for the guest's own address. No host answers it, and all switches learn
/// from it.
fn rarp(MacAddress(mac): MacAddress) -> [u8; 60] {
    let mut frame = [0; 60];
    frame[..6].fill(0xff);
    frame[6..12].copy_from_slice(&mac);
    // EtherType RARP; Ethernet, IPv4, lengths 6 and 4, operation "request reverse".
    frame[12..22].copy_from_slice(&[0x80, 0x35, 0, 1, 8, 0, 6, 4, 0, 3]);
    frame[22..28].copy_from_slice(&mac);
    frame[32..38].copy_from_slice(&mac);
    frame
}
