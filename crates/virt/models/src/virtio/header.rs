//! The header in front of each frame (5.1.6), device's side. It shares no code with the driver, so that a
//! mistake of one shows.

use ringpass_memory::{Headers, L4, Packet};
use ringpass_port::{Sum, complete_checksum, parse_headers};
use ringpass_virtio::features::*;

pub(super) const NEEDS_CSUM: u8 = 1;
pub(super) const DATA_VALID: u8 = 2;
const TCPV4: u8 = 1;
const TCPV6: u8 = 4;
const ECN: u8 = 0x80;

/// Decoded virtio-net header.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Header {
    pub(super) flags: u8,
    pub(super) kind: u8,
    pub(super) len: u16,
    pub(super) segment: u16,
    pub(super) start: u16,
    pub(super) offset: u16,
    pub(super) buffers: u16,
}

impl Header {
    /// Decodes the first 10 or 12 bytes of a frame to be sent.
    pub(super) fn decode(bytes: &[u8]) -> Self {
        let field = |at: usize| bytes.get(at..at + 2).map_or(0, |field| u16::from_le_bytes([field[0], field[1]]));
        let (flags, kind) = (bytes[0], bytes[1]);
        Self { flags, kind, len: field(2), segment: field(4), start: field(6), offset: field(8), buffers: field(10) }
    }

    pub(super) fn encode(self) -> [u8; 12] {
        let mut bytes = [0; 12];
        (bytes[0], bytes[1]) = (self.flags, self.kind);
        let fields = [self.len, self.segment, self.start, self.offset, self.buffers];
        bytes[2..].copy_from_slice(fields.map(u16::to_le_bytes).as_flattened());
        bytes
    }

    /// Returns whether the driver set fields that it must leave clear (5.1.6.2.1).
    pub(super) fn has_reserved_fields(self) -> bool {
        self.flags & !NEEDS_CSUM != 0 || self.buffers != 0 || self.kind == 0 && self.segment != 0
    }

    /// Applies the offloads that the header of a frame to be sent requests (5.1.6.2); `None` if they are
    /// invalid or were not negotiated.
    pub(super) fn apply(self, packet: &mut Packet, accepted: u64) -> Option<()> {
        let has = |feature| accepted & feature != 0;
        let kind = self.kind & !ECN;
        if self.flags & NEEDS_CSUM == 0 {
            return (self.kind == 0).then_some(());
        }
        if !has(CSUM) || self.kind & ECN != 0 && !has(HOST_ECN) {
            return None;
        }
        if kind == 0 {
            return complete_checksum(packet, self.start.into(), self.offset.into()).then_some(());
        }
        let headers = parse_headers(&*packet)?;
        let version = version(packet, headers);
        let right = match kind {
            TCPV4 => has(HOST_TSO4) && version == 4,
            TCPV6 => has(HOST_TSO6) && version == 6,
            _ => false,
        };
        let fits = headers.protocol == L4::Tcp
            && headers.l4_start() == usize::from(self.start)
            && self.offset == 16
            && self.segment > 0
            && usize::from(self.len) <= packet.total_len();
        if !right || !fits {
            return None;
        }
        packet.request_segmentation(self.segment, headers);
        Some(())
    }

    /// Returns the header of a received frame (5.1.6.4), from the packet's metadata or, without any, from a
    /// check of its checksum. `None` if the frame needs an offload that the driver did not accept.
    pub(super) fn received(packet: &mut Packet, accepted: u64) -> Option<Self> {
        let has = |feature| accepted & feature != 0;
        let Some(headers) = packet.headers() else {
            let valid = has(GUEST_CSUM) && is_valid(packet);
            return Some(Self { flags: if valid { DATA_VALID } else { 0 }, ..Self::default() });
        };
        let (start, offset) = (headers.l4_start() as u16, checksum_offset(headers));
        let open = Self { flags: NEEDS_CSUM, start, offset, ..Self::default() };
        match packet.mss() {
            None if has(GUEST_CSUM) => Some(open),
            None => complete_checksum(packet, start.into(), offset.into()).then(Self::default),
            Some(segment) => {
                let (kind, feature) =
                    if version(packet, headers) == 6 { (TCPV6, GUEST_TSO6) } else { (TCPV4, GUEST_TSO4) };
                has(feature).then_some(Self { kind, segment, len: headers.payload_start() as u16, ..open })
            }
        }
    }
}

/// Returns the IP version; 0 if the frame has no IP header.
fn version(packet: &Packet, headers: Headers) -> u8 {
    packet.array(headers.l2.into()).map_or(0, |[byte]| byte >> 4)
}

fn checksum_offset(headers: Headers) -> u16 {
    match headers.protocol {
        L4::Tcp => 16,
        L4::Udp => 6,
    }
}

/// Returns whether a frame has a valid TCP or UDP checksum.
fn is_valid(packet: &Packet) -> bool {
    let frame: Vec<u8> = packet.segments().flat_map(|segment| segment.to_vec()).collect();
    let Some(headers) = parse_headers(&frame[..packet.len()]) else { return false };
    let (l3, l4) = (usize::from(headers.l2), headers.l4_start());
    let field = |at: usize| usize::from(u16::from_be_bytes([frame[at], frame[at + 1]]));
    let version = frame[l3] >> 4;
    let end = l3 + if version == 4 { field(l3 + 2) } else { 40 + field(l3 + 4) };
    let Some(covered) = frame.get(l4..end) else { return false };
    let at = l4 + usize::from(checksum_offset(headers));
    // A UDP checksum of 0 means that the sender made none.
    if covered.len() < usize::from(headers.l4) || headers.protocol == L4::Udp && frame[at..at + 2] == [0, 0] {
        return false;
    }
    let mut sum = Sum::default();
    sum.add(if version == 4 { &frame[l3 + 12..l3 + 20] } else { &frame[l3 + 8..l3 + 40] });
    sum.add(&[0, if headers.protocol == L4::Tcp { 6 } else { 17 }]);
    sum.add(&(covered.len() as u32).to_be_bytes());
    sum.add(covered);
    sum.folded() == [0xff, 0xff]
}
