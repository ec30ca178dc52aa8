//! Receive side scaling (7.1.2.8) and packet types (7.1.6.2). The expected hashes are the published ones.

use etherparse::PacketBuilder;
use ringpass_pci::registers::ixgbe::bits::*;
use ringpass_pci::registers::ixgbe::*;

use crate::ixgbe::driver::{Driver, frame, own_mac};

const KEY: [u8; 40] = [
    0x6d, 0x5a, 0x56, 0xda, 0x25, 0x5b, 0x0e, 0xc2, 0x41, 0x67, 0x25, 0x3d, 0x43, 0xa3, 0x8f, 0xb0, 0xd0, 0xca, 0x2b,
    0xcb, 0xae, 0x7b, 0x30, 0xb4, 0x77, 0xcb, 0x2d, 0xa3, 0x80, 0x30, 0xf2, 0x0c, 0x6a, 0x42, 0xb7, 0x3b, 0xbe, 0xac,
    0x01, 0xfa,
];
const ALL: u32 = MRQC_MRQE_RSS
    | MRQC_RSS_TCP_IPV4
    | MRQC_RSS_IPV4
    | MRQC_RSS_IPV6
    | MRQC_RSS_TCP_IPV6
    | MRQC_RSS_UDP_IPV4
    | MRQC_RSS_UDP_IPV6;
const PCSD: u32 = 1 << 13;

enum Above {
    Tcp,
    Udp,
}

/// Builds the first vector of the verification suite for IPv4 or for IPv6.
fn packet(version: u8, above: Above, vlan: Option<u16>) -> Vec<u8> {
    let link = PacketBuilder::ethernet2([2, 0, 0, 0, 0, 9], own_mac());
    macro_rules! finish {
        ($link:expr) => {{
            let ip = if version == 4 {
                $link.ipv4([66, 9, 149, 187], [161, 142, 100, 80], 64)
            } else {
                let address = |text: &str| text.parse::<std::net::Ipv6Addr>().unwrap().octets();
                $link.ipv6(address("3ffe:2501:200:1fff::7"), address("3ffe:2501:200:3::1"), 64)
            };
            let mut bytes = Vec::new();
            match above {
                Above::Tcp => ip.tcp(2794, 1766, 1, 100).write(&mut bytes, &[0; 20]).unwrap(),
                Above::Udp => ip.udp(2794, 1766).write(&mut bytes, &[0; 20]).unwrap(),
            }
            bytes
        }};
    }
    match vlan {
        Some(id) => finish!(link.single_vlan(id.try_into().unwrap())),
        None => finish!(link),
    }
}

/// Starts a NIC that distributes over four queues; queue n is at entries n, n + 4 and so on of the table.
fn spread(fields: u32) -> Driver {
    let mut driver = Driver::new();
    for (i, key) in KEY.chunks(4).enumerate() {
        driver.window.write(RSSRK.at(i), u32::from_le_bytes(key.try_into().unwrap()));
    }
    (0..32).for_each(|i| driver.window.write(RETA.at(i), 0x0302_0100));
    driver.window.write(MRQC, fields);
    driver.window.write(RXCSUM, PCSD);
    (0..4).for_each(|queue| driver.start_rx(queue, 16, SRRCTL_DESCTYPE_ADV_ONEBUF | 2));
    driver
}

/// Returns queue, hash, RSS type and packet type that a frame gets.
fn classified(fields: u32, frame: &[u8]) -> (usize, u32, u64, u64) {
    let mut driver = spread(fields);
    driver.arrive(&[frame.to_vec()]);
    let (queue, received) = (0..4).find_map(|queue| Some((queue, driver.receive(queue)?))).expect("a frame");
    assert_eq!(received.bytes, frame);
    (queue, (received.word >> 32) as u32, received.word & 0xf, received.word & 0xfff0)
}

const IPV4: u64 = 0x10;
const IPV4_OPTIONS: u64 = 0x20;
const IPV6: u64 = 0x40;
const TCP: u64 = 0x100;
const UDP: u64 = 0x200;

#[test]
fn hashes_types_and_queues_are_the_published_ones() {
    for (version, above, hash, rss_type, packet_type) in [
        (4, Above::Tcp, 0x51cc_c178, 1, IPV4 | TCP),
        (4, Above::Udp, 0x51cc_c178, 7, IPV4 | UDP),
        (6, Above::Tcp, 0x4020_7d3d, 3, IPV6 | TCP),
        (6, Above::Udp, 0x4020_7d3d, 8, IPV6 | UDP),
    ] {
        let queue = hash as usize & 0x7f & 3;
        assert_eq!(classified(ALL, &packet(version, above, None)), (queue, hash, rss_type, packet_type));
    }
}

#[test]
fn only_enabled_fields_are_hashed() {
    let tcp4 = packet(4, Above::Tcp, None);
    let addresses = (0x323e_8fc2 & 3, 0x323e_8fc2, 2, IPV4 | TCP);
    assert_eq!(classified(MRQC_MRQE_RSS | MRQC_RSS_IPV4 | MRQC_RSS_UDP_IPV4, &tcp4), addresses);
    let tcp6 = packet(6, Above::Tcp, None);
    assert_eq!(classified(MRQC_MRQE_RSS | MRQC_RSS_IPV6, &tcp6), (0x2cc1_8cd5 & 3, 0x2cc1_8cd5, 5, IPV6 | TCP));
    assert_eq!(classified(MRQC_MRQE_RSS | MRQC_RSS_TCP_IPV6, &tcp4), (0, 0, 0, IPV4 | TCP), "none fits");
    assert_eq!(classified(ALL & !0xf, &tcp4), (0, 0, 0, IPV4 | TCP), "RSS is off");
}

#[test]
fn a_fragment_is_hashed_by_its_addresses() {
    let mut fragment = packet(4, Above::Tcp, None);
    fragment[14 + 6] = 0x20;
    assert_eq!(classified(ALL, &fragment), (0x323e_8fc2 & 3, 0x323e_8fc2, 2, IPV4));
}

#[test]
fn options_before_the_ports_are_skipped() {
    let plain = packet(4, Above::Udp, None);
    let mut with_options = [&plain[..34], &[1, 1, 1, 0], &plain[34..]].concat();
    with_options[14] = 0x46;
    assert_eq!(classified(ALL, &with_options), (0, 0x51cc_c178, 7, IPV4 | IPV4_OPTIONS | UDP));
}

#[test]
fn a_tag_is_looked_behind() {
    assert_eq!(classified(ALL, &packet(4, Above::Tcp, Some(5))), (0, 0x51cc_c178, 1, IPV4 | TCP));
}

#[test]
fn other_frames_go_to_queue_0() {
    assert_eq!(classified(ALL, &frame(own_mac(), 60)), (0, 0, 0, 0));
}

#[test]
fn headers_cut_short_are_no_headers() {
    let whole = packet(6, Above::Udp, None);
    for len in 14..whole.len() {
        // Padded to 60 bytes; the test is that nothing is read beyond the frame.
        let mut driver = spread(ALL);
        driver.arrive(&[whole[..len].to_vec()]);
        assert_eq!(driver.card.counters().rx_packets, 1);
    }
}

#[test]
fn without_pcsd_the_hash_is_not_reported() {
    let mut driver = spread(ALL);
    driver.window.write(RXCSUM, 0);
    driver.arrive(&[packet(4, Above::Tcp, None)]);
    assert_eq!(driver.receive(0).expect("a frame").word, 1 | IPV4 | TCP);
}
