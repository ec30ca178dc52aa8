//! The frames that `pktgen` sends: UDP over IPv4, with a run, a sequence number and a time in the payload.

use std::net::Ipv4Addr;

use etherparse::PacketBuilder;
use ringpass::{MacAddress, Packet};
use ringpass_memory::{Headers, L4, RawBytes};

/// Sender and receiver of the frames.
#[derive(Clone, Copy, Debug)]
pub struct Endpoints {
    /// MAC addresses of sender and receiver.
    pub mac: (MacAddress, MacAddress),
    /// IP addresses of sender and receiver. The sender's is that of flow 0.
    pub ip: (Ipv4Addr, Ipv4Addr),
    /// UDP port of the receiver.
    pub port: u16,
    /// Number of this run, which tells its frames from others.
    pub run: u16,
}

/// Fields of a frame that differ from one to the next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mark {
    /// Flow number, encoded in the UDP source port and, from 16384 flows on, in the source address.
    pub flow: u32,
    /// Sequence number within the flow.
    pub sequence: u64,
    /// Nanoseconds since an epoch chosen by the sender.
    pub time: u64,
}

/// Bytes of the Ethernet, IPv4 and UDP headers.
const HEADERS: usize = 14 + 20 + 8;
/// Shortest frame in bytes: Ethernet's minimum without CRC, which just holds run, sequence number and time.
pub const MIN: usize = 60;
/// Longest frame in bytes, without CRC.
pub const MAX: usize = 14 + 9710;
/// First source port, and number of source ports for each source address. The ports are dynamic ones (RFC 6335,
/// 6).
const PORTS: (u16, u32) = (49152, 16384);

/// A frame of one size, with the constant parts of its checksums.
pub struct Template {
    bytes: Vec<u8>,
    source: u32,
    ip_sum: u64,
    udp_sum: u64,
    /// Sum of the pseudo header alone.
    pseudo_sum: u64,
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

fn source(base: u32, flow: u32) -> (u32, u16) {
    (base.wrapping_add(flow / PORTS.1), PORTS.0 + (flow % PORTS.1) as u16)
}

impl Template {
    /// Creates a frame of `size` bytes, clamped to [`MIN`] and [`MAX`].
    pub fn new(ends: &Endpoints, size: usize) -> Self {
        let builder = PacketBuilder::ethernet2(ends.mac.0.0, ends.mac.1.0)
            .ipv4(ends.ip.0.octets(), ends.ip.1.octets(), 64)
            .udp(0, ends.port);
        let mut payload = vec![0; size.clamp(MIN, MAX) - HEADERS];
        payload[..2].copy_from_slice(&ends.run.to_be_bytes());
        let mut bytes = Vec::with_capacity(size);
        builder.write(&mut bytes, &payload).expect("memory takes any frame");
        // Source address, source port and checksums differ from frame to frame. The sums without them are
        // constant.
        bytes[24..30].fill(0);
        bytes[34..36].fill(0);
        bytes[40..42].fill(0);
        let (ip_sum, udp_len) = (sum(&bytes[14..34]), u64::from(u16::from_be_bytes([bytes[38], bytes[39]])));
        // The pseudo header has addresses, protocol and length (RFC 768).
        let udp_sum = sum(&bytes[30..]) + 17 + udp_len;
        let pseudo_sum = sum(&bytes[30..34]) + 17 + udp_len;
        Self { bytes, source: ends.ip.0.to_bits(), ip_sum, udp_sum, pseudo_sum }
    }

    /// Returns the length of the frame in bytes.
    pub fn len(&self) -> usize {
        self.bytes.len()
    }

    /// Returns the frame with zeros in the fields that differ from one to the next.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// Writes the frame as [`write`](Self::write) does, but leaves the UDP checksum to the port.
    pub fn write_with_offload(&self, packet: &mut Packet, mark: &Mark) {
        self.write(packet, mark);
        let pseudo = !checksum(self.pseudo_sum + u64::from(source(self.source, mark.flow).0));
        packet.write(40, &pseudo.to_be_bytes());
        packet.request_checksum(Headers { l2: 14, l3: 20, l4: 8, protocol: L4::Udp });
    }

    /// Writes the frame to `packet`, truncated to the packet's length. That must be at least [`MIN`] and at
    /// most [`len`](Self::len).
    #[inline]
    pub fn write(&self, packet: &mut Packet, mark: &Mark) {
        packet.write(0, &self.start(mark));
        let more = packet.len() - MIN;
        if more > 0 {
            packet.write(MIN, &self.bytes[MIN..][..more]);
        }
    }

    /// Returns the first [`MIN`] bytes of the frame: all that differ from one to the next.
    #[inline]
    pub fn start(&self, mark: &Mark) -> [u8; MIN] {
        let (address, port) = source(self.source, mark.flow);
        let ip = checksum(self.ip_sum + u64::from(address));
        let varying = u64::from(address) + u64::from(port) + halves(mark.sequence) + halves(mark.time);
        // A checksum of 0 would mean that there is none (RFC 768).
        let udp = match checksum(self.udp_sum + varying) {
            0 => 0xffff,
            udp => udp,
        };
        // A length known at compile time avoids calls to `memcpy` and bounds checks.
        let mut start: [u8; MIN] = *self.bytes.first_chunk().expect("a frame has its headers and marks");
        start[24..26].copy_from_slice(&ip.to_be_bytes());
        start[26..30].copy_from_slice(&address.to_be_bytes());
        start[34..36].copy_from_slice(&port.to_be_bytes());
        start[40..42].copy_from_slice(&udp.to_be_bytes());
        start[44..52].copy_from_slice(&mark.sequence.to_be_bytes());
        start[52..60].copy_from_slice(&mark.time.to_be_bytes());
        start
    }
}

impl Endpoints {
    /// Returns the mark of a frame, or `None` unless it belongs to this run and to one of its first `flows`
    /// flows.
    #[inline]
    pub fn read<'a>(&self, frame: impl Into<RawBytes<'a>>, flows: u32) -> Option<Mark> {
        let frame: [u8; MIN] = frame.into().array(0)?;
        let long = |at: usize| u64::from_be_bytes(frame[at..at + 8].try_into().expect("eight bytes"));
        let (sequence, time) = (long(44), long(52));
        let own = frame[12..15] == [0x08, 0x00, 0x45] && frame[23] == 17 && frame[42..44] == self.run.to_be_bytes();
        let address = u32::from_be_bytes([frame[26], frame[27], frame[28], frame[29]]);
        let port = u16::from_be_bytes([frame[34], frame[35]]);
        let above = u64::from(address.wrapping_sub(self.ip.0.to_bits())) * u64::from(PORTS.1);
        let flow = above + u64::from(port.checked_sub(PORTS.0)?);
        (own && flow < flows.into()).then_some(Mark { flow: flow as u32, sequence, time })
    }
}

#[cfg(test)]
mod tests {
    use etherparse::{NetSlice, SlicedPacket, TransportSlice};
    use ringpass_memory::{Mempool, MempoolConfig};

    use super::*;

    fn ends() -> Endpoints {
        let mac = |n| MacAddress([2, 0, 0, 0, 0, n]);
        let (ip, run) = ((Ipv4Addr::new(198, 18, 255, 255), Ipv4Addr::new(198, 19, 0, 1)), 0xbeef);
        Endpoints { mac: (mac(1), mac(2)), ip, port: 9, run }
    }

    fn pool() -> Mempool {
        Mempool::new(&MempoolConfig { buffers: 1, size: MAX, ..Default::default() }).unwrap()
    }

    fn written(pool: &Mempool, template: &Template, mark: &Mark) -> Vec<u8> {
        let mut packet = pool.alloc().unwrap();
        packet.set_len(template.len());
        template.write(&mut packet, mark);
        packet.to_vec()
    }

    #[test]
    fn frames_have_right_checksums_and_give_their_marks_back() {
        let pool = pool();
        for size in [MIN, 61, 590, 1514, MAX] {
            let template = Template::new(&ends(), size);
            for flow in [0, 1, 16383, 16384, 65535] {
                let mark = Mark { flow, sequence: u64::MAX - 7 * u64::from(flow), time: 0x1234_5678_9abc_def0 };
                let frame = written(&pool, &template, &mark);
                assert_eq!(ends().read(&frame, 65536), Some(mark));
                assert_eq!(ends().read(&frame, flow), None, "a flow that is not there");
                let packet = SlicedPacket::from_ethernet(&frame).unwrap();
                let Some(NetSlice::Ipv4(ip)) = packet.net else { panic!("{packet:?}") };
                let Some(TransportSlice::Udp(udp)) = packet.transport else { panic!() };
                let header = ip.header().to_header();
                assert_eq!(header.header_checksum, header.calc_header_checksum());
                let right = udp.to_header().calc_checksum_ipv4(&header, udp.payload()).unwrap();
                assert_eq!(udp.checksum(), right);
                assert_eq!(udp.source_port(), PORTS.0 + (flow % PORTS.1) as u16);
            }
        }
    }

    #[test]
    fn other_frames_are_nobodys() {
        assert_eq!(ends().read(&[0; 59], 1), None);
        assert_eq!(ends().read(&[0xff; 60], 1), None);
        let template = Template::new(&Endpoints { run: 1, ..ends() }, 60);
        let frame = written(&pool(), &template, &Mark { flow: 0, sequence: 0, time: 0 });
        assert_eq!(ends().read(&frame, 1), None);
    }
}
