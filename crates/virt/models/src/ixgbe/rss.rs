//! Frame classification and receive side scaling (7.1.2.8).

use ringpass_pci::registers::RegisterFile;
use ringpass_pci::registers::ixgbe::{bits::*, *};

use super::bits::*;
use super::checksum;
use super::headers::{Headers, IPV4, IPV6, TCP, UDP};

/// Classification of a frame, as Rx needs it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Class {
    /// First half of the descriptor's write-back: RSS type, packet type, RSS hash.
    pub(super) word: u64,
    /// Second half of the write-back, without DD, EOP and the length.
    pub(super) status: u64,
    pub(super) queue: u8,
    /// Length in bytes of the headers that go to a buffer of their own.
    pub(super) header: u16,
}

/// A field of MRQC that selects a kind of hash. The first enabled row that matches a frame determines its hash
/// and RSS type (7.1.2.8.1).
struct Row {
    needs: u64,
    enabled_by: u32,
    rss_type: u64,
    with_ports: bool,
}

const ROWS: [Row; 6] = {
    const fn row(needs: u64, enabled_by: u32, rss_type: u64, with_ports: bool) -> Row {
        Row { needs, enabled_by, rss_type, with_ports }
    }
    [
        row(IPV4 | TCP, MRQC_RSS_TCP_IPV4, 1, true),
        row(IPV4 | UDP, MRQC_RSS_UDP_IPV4, 7, true),
        row(IPV4, MRQC_RSS_IPV4, 2, false),
        row(IPV6 | TCP, MRQC_RSS_TCP_IPV6, 3, true),
        row(IPV6 | UDP, MRQC_RSS_UDP_IPV6, 8, true),
        row(IPV6, MRQC_RSS_IPV6, 5, false),
    ]
};

/// Largest input of the hash in bytes: two IPv6 addresses and two ports.
const INPUT: usize = 36;

/// Toeplitz hash, with one table look-up for each byte.
pub(super) struct Toeplitz(Box<[[u32; 256]; INPUT]>);

impl Toeplitz {
    pub(super) fn new(key: &[u8; 40]) -> Self {
        // Returns the 32 bits of the key from bit `n` on.
        let window = |n: usize| {
            let bytes = u64::from_be_bytes(std::array::from_fn(|i| key.get(n / 8 + i).copied().unwrap_or(0)));
            (bytes << (n % 8) >> 32) as u32
        };
        let mut table = Box::new([[0; 256]; INPUT]);
        for (position, row) in table.iter_mut().enumerate() {
            let bits: [u32; 8] = std::array::from_fn(|bit| window(position * 8 + 7 - bit));
            // An entry is that of the byte without its lowest set bit, which is complete already, combined with
            // that bit.
            for byte in 1..256usize {
                row[byte] = row[byte & (byte - 1)] ^ bits[byte.trailing_zeros() as usize];
            }
        }
        Self(table)
    }

    fn hash<'a>(&self, input: impl Iterator<Item = &'a u8>) -> u32 {
        self.0.iter().zip(input).fold(0, |hash, (row, &byte)| hash ^ row[byte as usize])
    }
}

/// Receive side scaling, decoded from its registers.
pub(super) struct Rss {
    fields: u32,
    toeplitz: Toeplitz,
    queues: [u8; 128],
    /// RXCSUM.PCSD: report the hash instead of the fragment checksum.
    report_hash: bool,
}

impl Rss {
    /// Decodes the registers; `None` if MRQC selects a mode without RSS.
    pub(super) fn decode(registers: &RegisterFile) -> Option<Self> {
        let control = registers.get(MRQC.offset);
        if !MRQC_MODES_WITH_RSS.contains(&(control & MRQC_MRQE_MASK)) {
            return None;
        }
        let byte = |array: ringpass_pci::registers::RegArray<ringpass_pci::registers::RW>, i: usize| {
            registers.get(array.at(i / 4).offset).to_le_bytes()[i % 4]
        };
        Some(Self {
            fields: control,
            toeplitz: Toeplitz::new(&std::array::from_fn(|i| byte(RSSRK, i))),
            queues: std::array::from_fn(|i| byte(RETA, i) & 0xf),
            report_hash: registers.get(RXCSUM.offset) & RXCSUM_PCSD != 0,
        })
    }

    fn hash(&self, headers: &Headers) -> Option<(u64, u32)> {
        let fits = |row: &&Row| {
            self.fields & row.enabled_by != 0
                && headers.packet_type & row.needs == row.needs
                && (!row.with_ports || headers.ports.len() == 4)
        };
        let row = ROWS.iter().find(fits)?;
        let ports = if row.with_ports { headers.ports } else { &[] };
        Some((row.rss_type, self.toeplitz.hash(headers.addresses.iter().chain(ports))))
    }
}

/// Classifies a frame by its headers, and chooses its queue by RSS.
#[inline]
pub(super) fn classify(rss: Option<&Rss>, headers: &Headers) -> Class {
    let status = checksum::verdicts(headers);
    let mut class = Class { word: headers.packet_type, status, ..Class::default() };
    if let Some(rss) = rss
        && let Some((rss_type, hash)) = rss.hash(headers)
    {
        class.queue = rss.queues[hash as usize & 0x7f];
        class.word |= rss_type;
        if rss.report_hash {
            class.word |= u64::from(hash) << 32;
        }
    }
    class
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Key of the verification suite (7.1.2.8.3; Microsoft, *Verifying the RSS Hash Calculation*).
    const KEY: [u8; 40] = [
        0x6d, 0x5a, 0x56, 0xda, 0x25, 0x5b, 0x0e, 0xc2, 0x41, 0x67, 0x25, 0x3d, 0x43, 0xa3, 0x8f, 0xb0, 0xd0, 0xca,
        0x2b, 0xcb, 0xae, 0x7b, 0x30, 0xb4, 0x77, 0xcb, 0x2d, 0xa3, 0x80, 0x30, 0xf2, 0x0c, 0x6a, 0x42, 0xb7, 0x3b,
        0xbe, 0xac, 0x01, 0xfa,
    ];

    fn hash(source: &str, source_port: u16, destination: &str, destination_port: u16) -> (u32, u32) {
        let octets = |address: &str| match address.parse().expect("an address") {
            std::net::IpAddr::V4(v4) => v4.octets().to_vec(),
            std::net::IpAddr::V6(v6) => v6.octets().to_vec(),
        };
        let addresses = [octets(source), octets(destination)].concat();
        let ports = [source_port.to_be_bytes(), destination_port.to_be_bytes()].concat();
        let toeplitz = Toeplitz::new(&KEY);
        (toeplitz.hash(addresses.iter()), toeplitz.hash(addresses.iter().chain(&ports)))
    }

    #[test]
    fn the_published_vectors_come_out() {
        for (source, source_port, destination, destination_port, plain, with_ports) in [
            ("66.9.149.187", 2794, "161.142.100.80", 1766, 0x323e8fc2, 0x51ccc178),
            ("199.92.111.2", 14230, "65.69.140.83", 4739, 0xd718262a, 0xc626b0ea),
            ("24.19.198.95", 12898, "12.22.207.184", 38024, 0xd2d0a5de, 0x5c2b394a),
            ("38.27.205.30", 48228, "209.142.163.6", 2217, 0x82989176, 0xafc7327f),
            ("153.39.163.191", 44251, "202.188.127.2", 1303, 0x5d1809c5, 0x10e828a2),
            ("3ffe:2501:200:1fff::7", 2794, "3ffe:2501:200:3::1", 1766, 0x2cc18cd5, 0x40207d3d),
            ("3ffe:501:8::260:97ff:fe40:efab", 14230, "ff02::1", 4739, 0x0f0c461c, 0xdde51bbf),
            ("3ffe:1900:4545:3:200:f8ff:fe21:67cf", 44251, "fe80::200:f8ff:fe21:67cf", 38024, 0x4b61e985, 0x02d1feef),
        ] {
            assert_eq!(hash(source, source_port, destination, destination_port), (plain, with_ports), "{source}");
        }
    }
}
