//! Parsed headers of a received frame, for packet types (7.1.6.2), hashing, checksums and filters.

/// Headers after the Ethernet header.
#[derive(Clone, Copy)]
pub(super) struct Headers<'a> {
    /// Packet type, as in the descriptor's write-back.
    pub(super) packet_type: u64,
    /// Source and destination address, adjacent as in the header.
    pub(super) addresses: &'a [u8],
    /// Source and destination port of TCP and UDP (and of SCTP, which no hash uses).
    pub(super) ports: &'a [u8],
    /// The IPv4 header, with its options.
    pub(super) ipv4: &'a [u8],
    /// Payload of the IP datagram, to its end. After extension headers only if it is TCP, UDP or SCTP.
    payload: &'a [u8],
    /// Offset of the end of the IP header in the frame.
    pub(super) ip_end: usize,
}

pub(super) const IPV4: u64 = 1 << 4;
pub(super) const IPV4_OPTIONS: u64 = 1 << 5;
pub(super) const IPV6: u64 = 1 << 6;
pub(super) const IPV6_EXTENSIONS: u64 = 1 << 7;
pub(super) const TCP: u64 = 1 << 8;
pub(super) const UDP: u64 = 1 << 9;
pub(super) const SCTP: u64 = 1 << 10;

/// Returns the packet type bit of an IP protocol number.
fn transport(protocol: u8) -> u64 {
    match protocol {
        6 => TCP,
        17 => UDP,
        132 => SCTP,
        _ => 0,
    }
}

impl<'a> Headers<'a> {
    const NONE: Self = Self { packet_type: 0, addresses: &[], ports: &[], ipv4: &[], payload: &[], ip_end: 0 };

    /// Parses the headers after the Ethernet header, whose type is at `offset`. Truncated or contradictory
    /// headers are left out.
    #[inline(always)]
    pub(super) fn parse(frame: &'a [u8], offset: usize) -> Self {
        let payload = frame.get(offset + 2..).unwrap_or_default();
        match frame.get(offset..offset + 2) {
            Some([0x08, 0x00]) => Self::ipv4(payload, offset + 2),
            Some([0x86, 0xdd]) => Self::ipv6(payload, offset + 2),
            _ => Self::NONE,
        }
    }

    #[inline(always)]
    fn ipv4(packet: &'a [u8], start: usize) -> Self {
        let Some(header) = packet.first_chunk::<20>().filter(|header| matches!(header[0], 0x45..=0x4f)) else {
            return Self::NONE;
        };
        let len = (header[0] & 0xf) as usize * 4;
        // More fragments, or an offset: a fragment has no ports.
        let is_fragment = header[6] & 0x3f != 0 || header[7] != 0;
        let ip = if len > 20 { IPV4 | IPV4_OPTIONS } else { IPV4 };
        let above = if is_fragment { 0 } else { transport(header[9]) };
        let ports = if above != 0 { packet.get(len..len + 4).unwrap_or_default() } else { &[] };
        Self {
            packet_type: ip | above,
            addresses: &packet[12..20],
            ports,
            ipv4: packet.get(..len).unwrap_or_default(),
            payload: packet.get(len..u16::from_be_bytes([header[2], header[3]]) as usize).unwrap_or_default(),
            ip_end: start + len,
        }
    }

    #[inline]
    fn ipv6(packet: &'a [u8], start: usize) -> Self {
        let Some(header) = packet.first_chunk::<40>().filter(|header| header[0] >> 4 == 6) else { return Self::NONE };
        let datagram = packet.get(..40 + u16::from_be_bytes([header[4], header[5]]) as usize).unwrap_or(packet);
        let mut headers = Self { packet_type: IPV6, addresses: &packet[8..40], ip_end: start + 40, ..Self::NONE };
        match transport(header[6]) {
            0 if is_extension(header[6]) => headers.extended(datagram, start),
            0 => {}
            above => {
                headers.packet_type |= above;
                headers.ports = packet.get(40..44).unwrap_or_default();
                headers.payload = &datagram[40..];
            }
        }
        headers
    }

    /// Parses IPv6 extension headers: hop-by-hop, destination and routing options (7.1.11.2). Hashes ignore
    /// what follows them.
    #[cold]
    fn extended(&mut self, datagram: &'a [u8], start: usize) {
        const LIMIT: usize = 8;
        self.packet_type |= IPV6_EXTENSIONS;
        let (mut next, mut at) = (datagram[6], 40);
        for _ in 0..LIMIT {
            let Some(&[following, words]) = datagram.get(at..at + 2) else { return };
            // While a routing header has segments left, the destination is not the one that the checksum
            // covers.
            if !matches!(next, 0 | 43 | 60) || next == 43 && datagram.get(at + 3) != Some(&0) {
                return;
            }
            (next, at) = (following, at + 8 * (words as usize + 1));
            let above = transport(next);
            if above != 0
                && let Some(segment) = datagram.get(at..)
            {
                self.packet_type |= above;
                self.payload = segment;
                self.ip_end = start + at;
                return;
            }
        }
    }

    /// Returns the TCP, UDP or SCTP segment, to the end of the IP datagram; empty if there is none, or only a
    /// fragment.
    #[inline]
    pub(super) fn segment(&self) -> &'a [u8] {
        if self.packet_type & (TCP | UDP | SCTP) != 0 { self.payload } else { &[] }
    }

    /// Returns the header and the payload of an IPv4 fragment.
    pub(super) fn fragment(&self) -> Option<(&'a [u8; 20], &'a [u8])> {
        let header = self.ipv4.first_chunk::<20>()?;
        let is_fragment = header[6] & 0x3f != 0 || header[7] != 0;
        is_fragment.then_some((header, self.payload))
    }

    /// Returns whether all bits of a packet type are set.
    pub(super) fn is(&self, packet_type: u64) -> bool {
        self.packet_type & packet_type == packet_type
    }

    /// Returns source and destination port in wire order.
    pub(super) fn port_bytes(&self) -> [u8; 4] {
        self.ports.try_into().unwrap_or_default()
    }

    /// Returns the offset of the end of the TCP or UDP header, if there is one.
    pub(super) fn transport_end(&self) -> Option<usize> {
        match self.packet_type & (TCP | UDP) {
            TCP => Some(self.ip_end + (*self.segment().get(12)? >> 4) as usize * 4),
            UDP => Some(self.ip_end + 8),
            _ => None,
        }
    }

    /// Returns the flags of a TCP header.
    pub(super) fn tcp_flags(&self) -> Option<u8> {
        self.segment().get(13).copied().filter(|_| self.is(TCP))
    }
}

/// Returns whether a header is hop-by-hop options, routing, fragment, authentication or destination options.
fn is_extension(next: u8) -> bool {
    matches!(next, 0 | 43 | 44 | 51 | 60)
}
