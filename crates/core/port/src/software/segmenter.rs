//! TCP segmentation in software, as a card's TSO does it.

use ringpass_memory::{Flags, Packet};

use super::checksum::Sum;
use crate::chain::{chain, range};

/// TCP flags that only the last segment keeps: FIN and PSH (Linux, `tcp_gso_segment`).
const FIN_PSH: u8 = 0x09;
/// TCP flag that only the first segment keeps: CWR (RFC 3168, 6.1.2).
const CWR: u8 = 0x80;

/// A packet that is being segmented.
pub(super) struct Segmenter {
    source: Packet,
    /// Offset of the IP header.
    ip: usize,
    /// Offset of the TCP header.
    tcp: usize,
    /// Offset of the TCP payload.
    payload: usize,
    version: u8,
    mss: usize,
    len: usize,
    /// Offset in the source of the next byte to send.
    at: usize,
    /// Number of segments so far.
    count: u16,
}

/// Result of an attempt to make the next segment.
pub(super) enum Next {
    Frame(Packet),
    NoBuffer,
    Done,
}

impl Segmenter {
    /// Checks the request, and returns the packet if the request is invalid.
    pub(super) fn new(source: Packet) -> Result<Self, Packet> {
        let (Some(headers), Some(mss)) = (source.headers(), source.mss()) else { return Err(source) };
        let ip = usize::from(headers.l2);
        let tcp = headers.l4_start();
        let payload = headers.payload_start();
        let (mss, len) = (usize::from(mss), source.total_len());
        let version = source.array(ip).map_or(0, |[byte]| byte >> 4);
        let shortest = match version {
            4 => 20,
            6 => 40,
            _ => usize::MAX,
        };
        let fits = payload <= source.len() && payload - ip + mss <= usize::from(u16::MAX);
        if mss == 0 || ip < 14 || tcp - ip < shortest || headers.l4 < 20 || !fits {
            return Err(source);
        }
        Ok(Self { source, ip, tcp, payload, version, mss, len, at: payload, count: 0 })
    }

    /// Makes the next segment in buffers from `alloc`. A VLAN tag stays outside of the frame.
    pub(super) fn next(&mut self, alloc: impl FnMut() -> Option<Packet>) -> Next {
        if self.at >= self.len && self.count > 0 {
            return Next::Done;
        }
        let len = self.mss.min(self.len - self.at);
        let pieces = [self.source.bytes().range(0..self.payload)].into_iter().chain(range(&self.source, self.at, len));
        let Some(mut frame) = chain(pieces, alloc) else { return Next::NoBuffer };
        if frame.len() < self.payload {
            // The headers do not fit into one buffer, and would not the next time either.
            return Next::Done;
        }
        self.finish(&mut frame, len);
        if let Some(tag) = self.source.vlan() {
            frame.set_vlan(tag);
        }
        frame.add_flags(self.source.flags().and(Flags::L4_GOOD));
        (self.at, self.count) = (self.at + len, self.count.wrapping_add(1));
        Next::Frame(frame)
    }

    /// Sets the fields that differ between segments.
    fn finish(&self, frame: &mut Packet, payload: usize) {
        let &Self { ip, tcp, .. } = self;
        let l4_len = self.payload - tcp + payload;
        let mut sum = Sum::default();
        if self.version == 4 {
            let id = u16::from_be_bytes(field(frame, ip + 4)).wrapping_add(self.count);
            frame.write(ip + 2, &((tcp - ip + l4_len) as u16).to_be_bytes());
            frame.write(ip + 4, &id.to_be_bytes());
            fill_l3_checksum(frame, ip, tcp);
            sum.add(frame.bytes().range(ip + 12..ip + 20));
        } else {
            frame.write(ip + 4, &((tcp - ip - 40 + l4_len) as u16).to_be_bytes());
            sum.add(frame.bytes().range(ip + 8..ip + 40));
        }
        let sequence = u32::from_be_bytes(field(frame, tcp + 4));
        let sequence = sequence.wrapping_add((self.at - self.payload) as u32);
        frame.write(tcp + 4, &sequence.to_be_bytes());
        let [mut flags] = field(frame, tcp + 13);
        if self.at + payload < self.len {
            flags &= !FIN_PSH;
        }
        if self.count > 0 {
            flags &= !CWR;
        }
        frame.write(tcp + 13, &[flags]);
        // The pseudo header (RFC 9293, 3.1): addresses, protocol, length.
        sum.add(&[0, 6]);
        sum.add(&(l4_len as u32).to_be_bytes());
        frame.write(tcp + 16, &[0; 2]);
        sum.add(frame.bytes().range(tcp..frame.len()));
        frame.segments().skip(1).for_each(|segment| sum.add(segment));
        frame.write(tcp + 16, &sum.l4_checksum());
    }
}

/// Returns a header field. The headers lie in the first buffer, as [`Segmenter::new`] and [`Segmenter::next`] check.
fn field<const N: usize>(frame: &Packet, at: usize) -> [u8; N] {
    frame.array(at).expect("a field inside the headers")
}

/// Writes the checksum of the IPv4 header from `start` to `end`, which must be at least 20 bytes long.
pub(super) fn fill_l3_checksum(packet: &mut Packet, start: usize, end: usize) {
    packet.write(start + 10, &[0; 2]);
    let mut sum = Sum::default();
    sum.add(packet.bytes().range(start..end));
    packet.write(start + 10, &sum.checksum());
}
