//! The frames that `pktgen` sends, made from a template: what differs from one to the next is written, and the checksums are right.

use etherparse::{IpHeaders, Ipv4Header, Ipv6Header, PacketBuilder, SingleVlanHeader, VlanHeader};
use ringpass::Packet;
use ringpass_memory::{Headers, L4};

use super::frame::{Addresses, Endpoints, MAX, MIN, Mark};

/// First source port, and number of source ports for each source address. The ports are dynamic ones (RFC 6335,
/// 6).
const PORTS: (u16, u32) = (49152, 16384);

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

/// A frame of one size.
pub struct Template {
    /// The frame, with zeros in the fields that differ from one to the next, and after its end up to [`START`].
    bytes: Vec<u8>,
    len: usize,
    headers: Headers,
    ip: Addresses,
    sums: Sums,
    /// Whether this is UDP over IPv4 without a tag, which is written the fast way.
    plain: bool,
    /// Source address of flow 0, if it is of IPv4.
    source: u32,
}

/// Sums for the checksums, without the fields that differ from one frame to the next.
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

/// Returns the source port of a flow.
fn source_port(flow: u32) -> u16 {
    PORTS.0 + (flow % PORTS.1) as u16
}

impl Template {
    /// Creates a frame of `size` bytes, at least the [shortest](Endpoints::shortest) and at most [`MAX`].
    pub fn new(ends: &Endpoints, size: usize) -> Self {
        let (headers, len) = (ends.headers(), size.clamp(ends.shortest(), MAX));
        let mut bytes = zeroed(ends, len);
        bytes[headers.payload_start()..][..2].copy_from_slice(&ends.run.to_be_bytes());
        bytes.resize(len.max(START), 0);
        let (l3, l4) = (usize::from(headers.l2), headers.l4_start());
        let addresses = match ends.ip {
            Addresses::V4 { .. } => l3 + 12..l4,
            Addresses::V6 { .. } => l3 + 8..l4,
        };
        let protocol = if ends.transport == L4::Udp { 17 } else { 6 };
        let pseudo = sum(&bytes[addresses]) + protocol + (len - l4) as u64;
        let sums = Sums { ip: sum(&bytes[l3..l4]), pseudo, transport: pseudo + sum(&bytes[l4..len]) };
        let source = match ends.ip {
            Addresses::V4 { source, .. } => Some(source.to_bits()),
            Addresses::V6 { .. } => None,
        };
        let plain = source.is_some() && (l3, ends.transport) == (14, L4::Udp);
        Self { bytes, len, headers, ip: ends.ip, sums, plain, source: source.unwrap_or_default() }
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
    /// the mark, and at most [`len`](Self::len) bytes.
    pub fn write(&self, packet: &mut Packet, mark: &Mark) {
        self.write_start(packet, mark, Checksums::Generator);
    }

    /// Writes the frame as [`write`](Self::write) does, if it [is plain](Self::is_plain).
    #[inline]
    pub fn write_plain(&self, packet: &mut Packet, mark: &Mark) {
        packet.write(0, &self.plain_start(mark));
        self.write_from(packet, MIN);
    }

    /// Writes the frame as [`write`](Self::write) does, but leaves the UDP or TCP checksum to the port.
    pub fn write_with_offload(&self, packet: &mut Packet, mark: &Mark) {
        self.write_start(packet, mark, Checksums::Port);
        packet.request_checksum(self.headers);
    }

    fn write_start(&self, packet: &mut Packet, mark: &Mark, checksums: Checksums) {
        let (start, end) = (self.start(mark, checksums), self.headers.payload_start() + Mark::LEN);
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
        let (address, port) = (self.source.wrapping_add(mark.flow / PORTS.1), source_port(mark.flow));
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
    pub fn start(&self, mark: &Mark, checksums: Checksums) -> [u8; START] {
        let mut start: [u8; START] = *self.bytes.first_chunk().expect("a frame has its headers and marks");
        let (l3, l4) = (usize::from(self.headers.l2), self.headers.l4_start());
        let (payload, flow) = (self.headers.payload_start(), mark.flow / PORTS.1);
        let address = match self.ip {
            Addresses::V4 { source, .. } => {
                let address = source.to_bits().wrapping_add(flow);
                start[l3 + 12..l3 + 16].copy_from_slice(&address.to_be_bytes());
                let sum = checksum(self.sums.ip + u64::from(address));
                start[l3 + 10..l3 + 12].copy_from_slice(&sum.to_be_bytes());
                u64::from(address)
            }
            Addresses::V6 { source, .. } => {
                let address = source.to_bits().wrapping_add(flow.into());
                start[l3 + 8..l3 + 24].copy_from_slice(&address.to_be_bytes());
                halves((address >> 64) as u64) + halves(address as u64)
            }
        };
        let port = source_port(mark.flow);
        start[l4..l4 + 2].copy_from_slice(&port.to_be_bytes());
        start[payload + 2..payload + 10].copy_from_slice(&mark.number().to_be_bytes());
        start[payload + 10..payload + 18].copy_from_slice(&mark.time.to_be_bytes());
        let all = self.sums.transport + address + u64::from(port) + halves(mark.number()) + halves(mark.time);
        let (at, sum) = match (self.headers.protocol, checksums) {
            (L4::Udp, Checksums::Generator) => (6, udp_checksum(all)),
            (L4::Udp, Checksums::Port) => (6, !checksum(self.sums.pseudo + address)),
            (L4::Tcp, Checksums::Generator) => (16, checksum(all)),
            (L4::Tcp, Checksums::Port) => (16, !checksum(self.sums.pseudo + address)),
        };
        start[l4 + at..l4 + at + 2].copy_from_slice(&sum.to_be_bytes());
        start
    }
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
mod tests {
    use std::net::{Ipv4Addr, Ipv6Addr};

    use etherparse::{NetSlice, SlicedPacket, TransportSlice};
    use ringpass::MacAddress;
    use ringpass_memory::{Mempool, MempoolConfig};

    use super::super::frame::FLOWS;
    use super::*;

    /// Returns all kinds of frames; the first one is plain.
    fn kinds() -> Vec<Endpoints> {
        let mac = |n| MacAddress([2, 0, 0, 0, 0, n]);
        let v4 = Addresses::V4 { source: [198, 18, 255, 255].into(), destination: [198, 19, 0, 1].into() };
        let source = Ipv6Addr::new(0x2001, 2, 0, 0, 0, 0xffff, 0xffff, 0xffff);
        let v6 = Addresses::V6 { source, destination: Ipv6Addr::new(0x2001, 2, 0, 1, 0, 0, 0, 1) };
        let mut kinds = Vec::new();
        for vlan in [None, Some(5 << 13 | 100)] {
            for ip in [v4, v6] {
                for transport in [L4::Udp, L4::Tcp] {
                    kinds.push(Endpoints { mac: (mac(1), mac(2)), vlan, ip, transport, port: 9, run: 0xbeef });
                }
            }
        }
        kinds
    }

    fn pool() -> Mempool {
        Mempool::new(&MempoolConfig { buffers: 1, size: MAX, ..Default::default() }).unwrap()
    }

    fn written(pool: &Mempool, template: &Template, mark: &Mark, checksums: Checksums) -> Vec<u8> {
        let mut packet = pool.alloc().unwrap();
        packet.set_len(template.len());
        match checksums {
            Checksums::Generator if template.is_plain() => template.write_plain(&mut packet, mark),
            Checksums::Generator => template.write(&mut packet, mark),
            Checksums::Port => template.write_with_offload(&mut packet, mark),
        }
        packet.to_vec()
    }

    /// Checks a frame, parsed by another library.
    fn check(frame: &[u8], ends: &Endpoints, flow: u32) {
        let packet = SlicedPacket::from_ethernet(frame).unwrap();
        assert_eq!(packet.ether_payload().unwrap().payload.len(), frame.len() - usize::from(ends.headers().l2));
        let tag = packet.vlan().map(|tag| {
            let tag = tag.to_header();
            let etherparse::VlanHeader::Single(tag) = tag else { panic!("two tags") };
            u16::from(tag.pcp.value()) << 13 | tag.vlan_id.value()
        });
        assert_eq!(tag, ends.vlan);
        let above = flow / PORTS.1;
        let (v4, v6) = match (packet.net, ends.ip) {
            (Some(NetSlice::Ipv4(ip)), Addresses::V4 { source, destination }) => {
                let header = ip.header().to_header();
                assert_eq!(header.header_checksum, header.calc_header_checksum());
                assert_eq!(usize::from(header.total_len), frame.len() - usize::from(ends.headers().l2));
                let expected = Ipv4Addr::from_bits(source.to_bits().wrapping_add(above));
                assert_eq!(
                    (Ipv4Addr::from(header.source), Ipv4Addr::from(header.destination)),
                    (expected, destination)
                );
                (Some(header), None)
            }
            (Some(NetSlice::Ipv6(ip)), Addresses::V6 { source, destination }) => {
                let header = ip.header().to_header();
                let expected = Ipv6Addr::from_bits(source.to_bits().wrapping_add(above.into()));
                assert_eq!(
                    (Ipv6Addr::from(header.source), Ipv6Addr::from(header.destination)),
                    (expected, destination)
                );
                (None, Some(header))
            }
            (net, _) => panic!("{net:?}"),
        };
        let (source, destination, checksums) = match (packet.transport, ends.transport) {
            (Some(TransportSlice::Udp(udp)), L4::Udp) => {
                let header = udp.to_header();
                let right = match (&v4, &v6) {
                    (Some(v4), _) => header.calc_checksum_ipv4(v4, udp.payload()),
                    (_, v6) => header.calc_checksum_ipv6(v6.as_ref().unwrap(), udp.payload()),
                };
                (header.source_port, header.destination_port, [header.checksum, right.unwrap()])
            }
            (Some(TransportSlice::Tcp(tcp)), L4::Tcp) => {
                let header = tcp.to_header();
                assert!(header.ack && !header.syn && !header.fin && !header.rst && header.header_len() == 20);
                let right = match (&v4, &v6) {
                    (Some(v4), _) => header.calc_checksum_ipv4(v4, tcp.payload()),
                    (_, v6) => header.calc_checksum_ipv6(v6.as_ref().unwrap(), tcp.payload()),
                };
                (header.source_port, header.destination_port, [header.checksum, right.unwrap()])
            }
            (transport, _) => panic!("{transport:?}"),
        };
        assert_eq!(checksums[0], checksums[1]);
        assert_eq!((source, destination), (PORTS.0 + (flow % PORTS.1) as u16, ends.port));
    }

    #[test]
    fn frames_of_all_kinds_have_right_checksums_and_give_their_marks_back() {
        let pool = pool();
        for ends in kinds() {
            for size in [ends.shortest(), ends.shortest() + 1, 590, 1514, MAX] {
                let template = Template::new(&ends, size);
                assert_eq!(template.len(), size);
                for flow in [0, 1, 16383, 16384, 65535] {
                    let sequence = (1 << 48) - 1 - 7 * u64::from(flow);
                    let mark = Mark { flow, sequence, time: 0x1234_5678_9abc_def0 };
                    let frame = written(&pool, &template, &mark, Checksums::Generator);
                    assert_eq!(ends.read(&frame, FLOWS as u32), Some(mark));
                    assert_eq!(ends.read(&frame, flow), None, "a flow that is not there");
                    check(&frame, &ends, flow);
                }
            }
        }
    }

    #[test]
    fn the_fast_way_and_the_general_one_write_the_same() {
        let (pool, ends) = (pool(), kinds()[0]);
        for size in [MIN, 61, 1514] {
            let template = Template::new(&ends, size);
            for n in 0..70_000 {
                let mark = Mark { flow: n % 65536, sequence: u64::from(n) * 977, time: u64::from(n) << 20 };
                let frame = written(&pool, &template, &mark, Checksums::Generator);
                assert_eq!(frame[..MIN], template.start(&mark, Checksums::Generator)[..MIN]);
            }
        }
    }

    #[test]
    fn the_port_gets_the_sum_of_the_pseudo_header() {
        let pool = pool();
        for ends in kinds() {
            let (template, mark) = (Template::new(&ends, 590), Mark { flow: 16385, sequence: 3, time: 4 });
            let mut frame = written(&pool, &template, &mark, Checksums::Port);
            // As a card does it: the sum from the transport header on.
            let headers = ends.headers();
            let at = headers.l4_start() + if ends.transport == L4::Udp { 6 } else { 16 };
            let right = checksum(sum(&frame[headers.l4_start()..]));
            frame[at..at + 2].copy_from_slice(&right.to_be_bytes());
            check(&frame, &ends, mark.flow);
        }
    }

    #[test]
    fn tags_come_and_go_on_the_way() {
        let (pool, kinds) = (pool(), kinds());
        let mark = Mark { flow: 1, sequence: 2, time: 3 };
        for (plain, tagged) in kinds[..4].iter().zip(&kinds[4..]) {
            for [sent, expected] in [[plain, tagged], [tagged, plain]] {
                let frame = written(&pool, &Template::new(sent, 100), &mark, Checksums::Generator);
                assert_eq!(expected.read(&frame, 2), Some(mark));
            }
        }
    }

    #[test]
    fn other_frames_are_nobodys() {
        let (pool, mark) = (pool(), Mark { flow: 0, sequence: 0, time: 0 });
        for ends in kinds() {
            assert_eq!(ends.read(&[0; 17], 1), None);
            assert_eq!(ends.read(&[0; 59], 1), None);
            assert_eq!(ends.read(&[0xff; 96], 1), None);
            let other = Endpoints { run: 1, ..ends };
            assert_eq!(ends.read(&written(&pool, &Template::new(&other, 96), &mark, Checksums::Generator), 1), None);
            let other = if ends.transport == L4::Udp { L4::Tcp } else { L4::Udp };
            let other = Endpoints { transport: other, ..ends };
            assert_eq!(ends.read(&written(&pool, &Template::new(&other, 96), &mark, Checksums::Generator), 1), None);
            let frame = written(&pool, &Template::new(&ends, 96), &mark, Checksums::Generator);
            assert!(ends.read(&frame, 1).is_some());
            assert_eq!(ends.read(&frame[..ends.shortest() - 1], 1), None, "cut");
        }
    }
}
