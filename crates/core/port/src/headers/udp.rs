//! UDP headers (RFC 768).

use super::{ChecksumChange, header, ports};

header! {
    /// A UDP header. Its checksum follows each change, unless it is 0, which means that there is none.
    Udp, 8, |_| true
}

ports!(Udp);

impl Udp {
    /// Creates a header for `payload` bytes behind it, without a checksum. A port fills one in on
    /// [request](ringpass_memory::Packet::request_checksum).
    ///
    /// # Panics
    /// If the payload has more than 65,527 bytes.
    #[inline]
    pub fn new(source: u16, destination: u16, payload: u16) -> Self {
        let mut header = Self([0; 8]);
        header.set(0, source.to_be_bytes());
        header.set(2, destination.to_be_bytes());
        header.set(4, payload.checked_add(8).expect("a datagram of at most 65,535 bytes").to_be_bytes());
        header
    }

    /// Returns the length of the datagram with this header, in bytes.
    #[inline]
    pub fn total_len(&self) -> usize {
        u16::from_be_bytes(self.get(4)).into()
    }

    /// Returns the checksum; `None` if the sender has left it out.
    #[inline]
    pub fn checksum(&self) -> Option<u16> {
        Some(u16::from_be_bytes(self.get(6))).filter(|&checksum| checksum != 0)
    }

    /// Adjusts the checksum to a change of the IP header's addresses.
    #[inline]
    pub fn apply(&mut self, change: ChecksumChange) {
        if let Some(checksum) = self.checksum() {
            let changed = change.apply(checksum);
            // 0 is sent as all ones.
            self.set(6, if changed == 0 { [0xff; 2] } else { changed.to_be_bytes() });
        }
    }
}
