//! Packets built and checked by etherparse, which shares no code with the model.

use etherparse::{NetHeaders, PacketBuilder, PacketHeaders, TransportHeader};

use crate::ixgbe::driver::own_mac;

/// Kind of packet to build.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Kind {
    pub version: u8,
    pub tcp: bool,
    pub vlan: Option<u16>,
}

pub const TCP4: Kind = Kind { version: 4, tcp: true, vlan: None };
pub const UDP4: Kind = Kind { version: 4, tcp: false, vlan: None };
pub const TCP6: Kind = Kind { version: 6, tcp: true, vlan: None };
pub const UDP6: Kind = Kind { version: 6, tcp: false, vlan: None };

pub const SOURCE4: [u8; 4] = [192, 0, 2, 1];
pub const DESTINATION4: [u8; 4] = [198, 51, 100, 7];
pub const SOURCE_PORT: u16 = 40_000;
pub const DESTINATION_PORT: u16 = 443;
pub const SEQUENCE: u32 = 0xffff_f000;

impl Kind {
    pub fn tagged(self, vlan: u16) -> Self {
        Self { vlan: Some(vlan), ..self }
    }

    /// Builds a frame with its checksums; TCP with FIN, PSH, ACK, CWR and an option.
    pub fn frame(self, payload: &[u8]) -> Vec<u8> {
        let link = PacketBuilder::ethernet2([2, 0, 0, 0, 0, 9], own_mac());
        macro_rules! finish {
            ($link:expr) => {{
                let ip = if self.version == 4 {
                    $link.ipv4(SOURCE4, DESTINATION4, 64)
                } else {
                    let address = |text: &str| text.parse::<std::net::Ipv6Addr>().unwrap().octets();
                    $link.ipv6(address("2001:db8::1"), address("2001:db8:1::ff00:42"), 64)
                };
                let mut bytes = Vec::new();
                if self.tcp {
                    let tcp = ip.tcp(SOURCE_PORT, DESTINATION_PORT, SEQUENCE, 512).fin().psh().ack(77).cwr();
                    let tcp = tcp.options_raw(&[1, 1, 8, 10, 1, 2, 3, 4, 5, 6, 7, 8]).unwrap();
                    tcp.write(&mut bytes, payload).unwrap();
                } else {
                    ip.udp(SOURCE_PORT, DESTINATION_PORT).write(&mut bytes, payload).unwrap();
                }
                bytes
            }};
        }
        match self.vlan {
            Some(id) => finish!(link.single_vlan((id & 0xfff).try_into().unwrap())),
            None => finish!(link),
        }
    }

    pub fn mac_len(self) -> usize {
        if self.vlan.is_some() { 18 } else { 14 }
    }

    pub fn ip_len(self) -> usize {
        if self.version == 4 { 20 } else { 40 }
    }

    pub fn l4_len(self) -> usize {
        if self.tcp { 32 } else { 8 }
    }

    pub fn header_len(self) -> usize {
        self.mac_len() + self.ip_len() + self.l4_len()
    }

    /// Returns the offset of the TCP or UDP checksum.
    pub fn checksum_at(self) -> usize {
        self.mac_len() + self.ip_len() + if self.tcp { 16 } else { 6 }
    }

    /// Replaces the checksums by what a driver writes for offload: the sum of the pseudo-header, with or
    /// without the length of the segment, and 0 for IPv4.
    pub fn prepare(self, frame: &mut [u8], with_length: bool) {
        let ip = self.mac_len();
        let addresses = if self.version == 4 { &frame[ip + 12..ip + 20] } else { &frame[ip + 8..ip + 40] };
        let mut sum: u32 = addresses.chunks(2).map(|pair| u32::from(u16::from_be_bytes([pair[0], pair[1]]))).sum();
        sum += if self.tcp { 6 } else { 17 };
        if with_length {
            sum += (frame.len() - ip - self.ip_len()) as u32;
        }
        while sum > 0xffff {
            sum = (sum & 0xffff) + (sum >> 16);
        }
        let at = self.checksum_at();
        frame[at..at + 2].copy_from_slice(&(sum as u16).to_be_bytes());
        if self.version == 4 {
            frame[ip + 10..ip + 12].fill(0);
        }
    }

    /// Returns a context descriptor for these packets (7.2.3.2.3), with the bit positions of the datasheet.
    pub fn context(self, mss: usize, vlan: u16) -> (u64, u64) {
        let first = self.ip_len() as u64 | (self.mac_len() as u64) << 9 | u64::from(vlan) << 16;
        let kind = if self.version == 4 { 1 << 10 } else { 0 } | if self.tcp { 1 << 11 } else { 0 };
        let second = kind | 2 << 20 | 1 << 29 | (self.l4_len() as u64) << 40 | (mss as u64) << 48;
        (first, second)
    }
}

/// Returns whether the checksums of the IPv4 header, if there is one, and of TCP or UDP are correct.
pub fn judged(frame: &[u8]) -> (Option<bool>, bool) {
    let packet = PacketHeaders::from_ethernet_slice(frame).expect("a packet");
    let payload = packet.payload.slice();
    let net = packet.net.expect("an IP header");
    let ip = match &net {
        NetHeaders::Ipv4(header, _) => Some(header.header_checksum == header.calc_header_checksum()),
        _ => None,
    };
    let l4 = match (packet.transport.expect("TCP or UDP"), &net) {
        (TransportHeader::Tcp(tcp), NetHeaders::Ipv4(ip, _)) => {
            tcp.checksum == tcp.calc_checksum_ipv4(ip, payload).unwrap()
        }
        (TransportHeader::Tcp(tcp), NetHeaders::Ipv6(ip, _)) => {
            tcp.checksum == tcp.calc_checksum_ipv6(ip, payload).unwrap()
        }
        (TransportHeader::Udp(udp), NetHeaders::Ipv4(ip, _)) => {
            udp.checksum == udp.calc_checksum_ipv4(ip, payload).unwrap()
        }
        (TransportHeader::Udp(udp), NetHeaders::Ipv6(ip, _)) => {
            udp.checksum == udp.calc_checksum_ipv6(ip, payload).unwrap()
        }
        _ => panic!("another packet"),
    };
    (ip, l4)
}
