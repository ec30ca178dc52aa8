//! The frames that `pktgen` sends, made from a template: what differs from one to the next is written, and the checksums are right.

use std::ops::Range;

use etherparse::{IpHeaders, Ipv4Header, Ipv6Header, PacketBuilder, SingleVlanHeader, VlanHeader};
use ringpass::Offloads;
use ringpass::Packet;
use ringpass_memory::{Headers, L4};

use super::frame::{Addresses, Endpoints, MAX, MIN, Mark, SOURCE_PORTS, source_port};
use super::vary::Field;

/// Bytes of the longest headers and the mark: all that differs from one frame to the next is before.
const START: usize = 18 + 40 + 20 + Mark::LEN;

/// Side that computes the UDP or TCP checksums.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Checksums {
    /// The generator computes them.
    Generator,
    /// The port computes them on request.
    Port,
}

impl Checksums {
    /// Returns the side that has these offloads.
    pub fn with(offloads: Offloads) -> Self {
        if offloads.checksum { Self::Port } else { Self::Generator }
    }
}

/// A frame of one size.
pub struct Template {
    /// The frame, with zeros in the fields that differ from one to the next, and after its end up to [`START`].
    bytes: Vec<u8>,
    len: usize,
    headers: Headers,
    fields: Vec<Place>,
    sums: Sums,
    /// Whether this is UDP over IPv4 without a tag, which is written the fast way.
    plain: bool,
    /// Source address of flow 0, if it is of IPv4.
    source: u32,
}

/// A field that differs from one frame to the next.
struct Place {
    at: Range<usize>,
    value: Value,
    /// Whether the field is part of the sum of the IPv4 header.
    in_ip: bool,
    /// Whether the field is part of the sum of the pseudo header.
    in_pseudo: bool,
    /// Whether the field is part of the sum of the UDP or TCP header.
    in_transport: bool,
}

/// The source of a field's value.
enum Value {
    /// The source address of a flow; this is that of flow 0.
    FlowAddress(u128),
    /// The source port of a flow.
    FlowPort,
    /// One of the values that vary, by its number.
    Varied(usize),
}

/// Sums for the checksums, without the fields that differ from one frame to the next.
#[derive(Clone, Copy)]
struct Sums {
    /// Sum of the IPv4 header.
    ip: u64,
    /// Sum of the pseudo header: addresses, protocol and length (RFC 768; RFC 9293, 3.1; RFC 8200, 8.1).
    pseudo: u64,
    /// Sum of the pseudo header, the UDP or TCP header and the payload.
    transport: u64,
}

/// Returns the ones' complement sum of 16-bit words (RFC 1071), not folded.
fn sum(bytes: &[u8]) -> u64 {
    bytes.chunks(2).map(|word| u64::from(word[0]) << 8 | u64::from(*word.get(1).unwrap_or(&0))).sum()
}

/// Returns the sum of the two 32-bit words, which folds to the same as the sum of the four 16-bit words (RFC
/// 1071, 2).
fn halves(value: u64) -> u64 {
    (value >> 32) + (value & 0xffff_ffff)
}

/// Folds a sum below 2^48 and returns its complement.
fn checksum(sum: u64) -> u16 {
    let fold = |sum: u64| (sum >> 16) + (sum & 0xffff);
    !fold(fold(fold(halves(sum)))) as u16
}

/// Returns the checksum of a UDP datagram: one of 0 would mean that there is none (RFC 768).
fn udp_checksum(sum: u64) -> u16 {
    match checksum(sum) {
        0 => 0xffff,
        udp => udp,
    }
}

impl Template {
    /// Creates a frame of `size` bytes, at least the [shortest](Endpoints::shortest) and at most [`MAX`].
    pub fn new(ends: &Endpoints, size: usize) -> Self {
        Self::varied(ends, size, &[])
    }

    /// Creates a frame as [`new`](Self::new) does, with fields whose values are given for each frame.
    pub fn varied(ends: &Endpoints, size: usize, varied: &[Field]) -> Self {
        let (headers, len) = (ends.headers(), size.clamp(ends.shortest(), MAX));
        let mut bytes = zeroed(ends, len);
        bytes[headers.payload_start()..][..2].copy_from_slice(&ends.run.to_be_bytes());
        bytes.resize(len.max(START), 0);
        let fields = places(ends, varied);
        fields.iter().for_each(|field| bytes[field.at.clone()].fill(0));
        let (l3, l4) = (usize::from(headers.l2), headers.l4_start());
        let (addresses, source) = match ends.ip {
            Addresses::V4 { source, .. } => (l3 + 12..l4, Some(source.to_bits())),
            Addresses::V6 { .. } => (l3 + 8..l4, None),
        };
        let protocol = if ends.transport == L4::Udp { 17 } else { 6 };
        let pseudo = sum(&bytes[addresses]) + protocol + (len - l4) as u64;
        let sums = Sums { ip: sum(&bytes[l3..l4]), pseudo, transport: pseudo + sum(&bytes[l4..len]) };
        let plain = source.is_some() && (l3, ends.transport) == (14, L4::Udp) && varied.is_empty();
        Self { bytes, len, headers, fields, sums, plain, source: source.unwrap_or_default() }
    }

    /// Returns the length of the frame in bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Returns the frame with zeros in the fields that differ from one to the next.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes[..self.len]
    }

    /// Returns whether [`write_plain`](Self::write_plain) writes frames of this kind, which is faster.
    pub fn is_plain(&self) -> bool {
        self.plain
    }

    /// Writes the frame to `packet`, truncated to the length of its first buffer. That must hold the headers and
    /// the mark, and at most [`len`](Self::len) bytes. `values` are those of the fields that vary.
    pub fn write(&self, packet: &mut Packet, mark: &Mark, values: &[u128]) {
        self.write_start(packet, &self.start(mark, values, Checksums::Generator));
    }

    /// Writes the frame as [`write`](Self::write) does, if it [is plain](Self::is_plain).
    #[inline]
    pub fn write_plain(&self, packet: &mut Packet, mark: &Mark) {
        packet.write(0, &self.plain_start(mark));
        self.write_from(packet, MIN);
    }

    /// Writes the frame as [`write`](Self::write) does, but leaves the UDP or TCP checksum to the port.
    pub fn write_with_offload(&self, packet: &mut Packet, mark: &Mark, values: &[u128]) {
        self.write_start(packet, &self.start(mark, values, Checksums::Port));
        packet.request_checksum(self.headers);
    }

    fn write_start(&self, packet: &mut Packet, start: &[u8; START]) {
        let end = self.headers.payload_start() + Mark::LEN;
        packet.write(0, &start[..end]);
        self.write_from(packet, end);
    }

    /// Writes the rest of the frame, which is the same in each.
    #[inline]
    fn write_from(&self, packet: &mut Packet, at: usize) {
        let more = packet.len() - at;
        if more > 0 {
            packet.write(at, &self.bytes[at..][..more]);
        }
    }

    /// Returns the first [`MIN`] bytes of a frame of UDP over IPv4: all that differ from one to the next.
    #[inline]
    fn plain_start(&self, mark: &Mark) -> [u8; MIN] {
        let (address, port) = (self.source.wrapping_add(mark.flow / SOURCE_PORTS.1), source_port(mark.flow));
        let ip = checksum(self.sums.ip + u64::from(address));
        let varying = u64::from(address) + u64::from(port) + halves(mark.number()) + halves(mark.time);
        let udp = udp_checksum(self.sums.transport + varying);
        // A length known at compile time avoids calls to `memcpy` and bounds checks.
        let mut start: [u8; MIN] = *self.bytes.first_chunk().expect("a frame has its headers and marks");
        start[24..26].copy_from_slice(&ip.to_be_bytes());
        start[26..30].copy_from_slice(&address.to_be_bytes());
        start[34..36].copy_from_slice(&port.to_be_bytes());
        start[40..42].copy_from_slice(&udp.to_be_bytes());
        start[44..52].copy_from_slice(&mark.number().to_be_bytes());
        start[52..60].copy_from_slice(&mark.time.to_be_bytes());
        start
    }

    /// Returns the start of a frame of any kind, up to the end of its mark and some bytes further.
    pub fn start(&self, mark: &Mark, values: &[u128], checksums: Checksums) -> [u8; START] {
        let mut start: [u8; START] = *self.bytes.first_chunk().expect("a frame has its headers and marks");
        let mut sums = self.sums;
        for field in &self.fields {
            let value = match field.value {
                Value::FlowAddress(first) => first.wrapping_add((mark.flow / SOURCE_PORTS.1).into()),
                Value::FlowPort => source_port(mark.flow).into(),
                Value::Varied(n) => values[n],
            };
            sums.add(field, put(&mut start[field.at.clone()], value));
        }
        let (l4, payload) = (self.headers.l4_start(), self.headers.payload_start());
        if self.headers.l3 == 20 {
            start[l4 - 10..l4 - 8].copy_from_slice(&checksum(sums.ip).to_be_bytes());
        }
        start[payload + 2..payload + 10].copy_from_slice(&mark.number().to_be_bytes());
        start[payload + 10..payload + 18].copy_from_slice(&mark.time.to_be_bytes());
        let all = sums.transport + halves(mark.number()) + halves(mark.time);
        let (at, sum) = match (self.headers.protocol, checksums) {
            (L4::Udp, Checksums::Generator) => (6, udp_checksum(all)),
            (L4::Udp, Checksums::Port) => (6, !checksum(sums.pseudo)),
            (L4::Tcp, Checksums::Generator) => (16, checksum(all)),
            (L4::Tcp, Checksums::Port) => (16, !checksum(sums.pseudo)),
        };
        start[l4 + at..l4 + at + 2].copy_from_slice(&sum.to_be_bytes());
        start
    }
}

impl Sums {
    /// Adds the sum of a field to those that it is part of.
    #[inline]
    fn add(&mut self, field: &Place, sum: u64) {
        self.ip += if field.in_ip { sum } else { 0 };
        self.pseudo += if field.in_pseudo { sum } else { 0 };
        self.transport += if field.in_transport { sum } else { 0 };
    }
}

/// Writes the last bytes of a value to a field of an even length. Returns the sum of what it wrote.
#[inline]
fn put(field: &mut [u8], value: u128) -> u64 {
    // Lengths known at compile time avoid calls to `memcpy`.
    match field.len() {
        2 => {
            field.copy_from_slice(&(value as u16).to_be_bytes());
            u64::from(value as u16)
        }
        4 => {
            field.copy_from_slice(&(value as u32).to_be_bytes());
            u64::from(value as u32)
        }
        16 => {
            field.copy_from_slice(&value.to_be_bytes());
            halves((value >> 64) as u64) + halves(value as u64)
        }
        len => {
            field.copy_from_slice(&value.to_be_bytes()[16 - len..]);
            halves((value >> 64) as u64) + halves(value as u64)
        }
    }
}

/// Returns the fields that differ from one frame to the next, but for checksums and marks: source address and port,
/// unless they vary, and those that vary.
fn places(ends: &Endpoints, varied: &[Field]) -> Vec<Place> {
    let headers = ends.headers();
    let is_v4 = matches!(ends.ip, Addresses::V4 { .. });
    let place = |field: Field, value| {
        let is_address = matches!(field, Field::SrcIp | Field::DstIp);
        let at = field.place(&headers);
        let in_transport = is_address || matches!(field, Field::SrcPort | Field::DstPort);
        Place { at, value, in_ip: is_address && is_v4, in_pseudo: is_address, in_transport }
    };
    let first = match ends.ip {
        Addresses::V4 { source, .. } => source.to_bits().into(),
        Addresses::V6 { source, .. } => source.to_bits(),
    };
    let of_flow = [(Field::SrcIp, Value::FlowAddress(first)), (Field::SrcPort, Value::FlowPort)];
    let of_flow = of_flow.into_iter().filter(|(field, _)| !varied.contains(field));
    let varied = varied.iter().enumerate().map(|(n, &field)| place(field, Value::Varied(n)));
    of_flow.map(|(field, value)| place(field, value)).chain(varied).collect()
}

/// Returns a frame of `len` bytes with zeros in its mark and in the fields that differ from one to the next.
fn zeroed(ends: &Endpoints, len: usize) -> Vec<u8> {
    let headers = ends.headers();
    let ip = match ends.ip {
        Addresses::V4 { destination, .. } => {
            let ip = Ipv4Header { time_to_live: 64, destination: destination.octets(), ..Default::default() };
            IpHeaders::Ipv4(ip, Default::default())
        }
        Addresses::V6 { destination, .. } => {
            let ip = Ipv6Header { hop_limit: 64, destination: destination.octets(), ..Default::default() };
            IpHeaders::Ipv6(ip, Default::default())
        }
    };
    let ethernet = PacketBuilder::ethernet2(ends.mac.0.0, ends.mac.1.0);
    let ip = match ends.vlan {
        Some(tag) => ethernet.vlan(VlanHeader::Single(vlan_header(tag))).ip(ip),
        None => ethernet.ip(ip),
    };
    let (mut bytes, payload) = (Vec::with_capacity(len), vec![0; len - headers.payload_start()]);
    let (written, checksum) = match ends.transport {
        L4::Udp => (ip.udp(0, ends.port).write(&mut bytes, &payload), 6),
        // All segments are the same to TCP, so that no receiver joins them.
        L4::Tcp => (ip.tcp(0, ends.port, 1, u16::MAX).ack(1).write(&mut bytes, &payload), 16),
    };
    written.expect("memory takes any frame");
    bytes[headers.l4_start() + checksum..][..2].fill(0);
    if let Addresses::V4 { .. } = ends.ip {
        bytes[usize::from(headers.l2) + 10..][..2].fill(0);
    }
    bytes
}

fn vlan_header(tag: u16) -> SingleVlanHeader {
    let tag = tag.to_be_bytes();
    // The builder fills in the EtherType.
    SingleVlanHeader::from_bytes([tag[0], tag[1], 0, 0])
}

#[cfg(test)]
mod tests;
