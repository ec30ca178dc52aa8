//! Tests of tunnels: two switches connected by a cable that carries VXLAN.

use std::net::Ipv4Addr;

use crate::common::*;
use ringpass_memory::{Burst, MAX_BATCH, Mempool, MempoolConfig};
use ringpass_port::{Offloads, QueuePair};
use ringpass_switch::vxlan::{self, OVERHEAD, Tunnel};
use ringpass_switch::{Forwarding, PortPolicy, Vlans};

const HERE: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 1);
const THERE: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 2);

fn tunnel(local: Ipv4Addr, remote: Ipv4Addr) -> Tunnel {
    Tunnel::new(vxlan::Config { vni: 42, port: 4789, local, remote, mac: None }).unwrap()
}

/// Returns a switch of two ports, the second of which is the end of a tunnel.
fn rig(tunnel: &Tunnel) -> Rig {
    let mut rules = plain(2);
    rules.iter_mut().for_each(|rules: &mut PortPolicy| rules.vlans = Vlans::Access(7));
    let wrap = |port, queues: QueuePair, pool: &Mempool| if port == 1 { tunnel.wrap(queues, pool) } else { queues };
    Rig::with(&free(), &rules, 1024, |_| Forwarding::Lookup, wrap)
}

fn count(tunnel: &Tunnel, name: &str) -> u64 {
    tunnel.counts().iter().find(|(known, _)| *known == name).unwrap_or_else(|| panic!("no counter {name}")).1
}

/// Carries frames from the outer side of one switch to that of the other. Returns how many.
fn carry(from: &mut Rig, to: &mut Rig) -> usize {
    let mut burst = Burst::new(MAX_BATCH);
    let frames = from.far[1].rx.rx_burst(&mut burst);
    to.far[1].tx.tx_burst(&mut burst);
    while to.datapath.round() > 0 {}
    // An ARP packet counts as no work, so poll its queue once more.
    to.datapath.round();
    frames
}

#[test]
fn two_switches_find_each_other_and_pass_frames_both_ways() {
    let (one, other) = (tunnel(HERE, THERE), tunnel(THERE, HERE));
    let (mut a, mut b) = (rig(&one), rig(&other));
    // The other end's address is unknown: it is requested once, and the frames are lost.
    a.send(0, &[frame(BROADCAST, mac(1), 1), frame(BROADCAST, mac(1), 2)]);
    a.send(0, &[frame(BROADCAST, mac(1), 3)]);
    assert_eq!(count(&one, "vxlan_unresolved"), 3);
    assert_eq!((carry(&mut a, &mut b), carry(&mut b, &mut a)), (1, 1));
    // The other end has learned from the request, so both ends know each other now.
    let frames: Vec<_> = (4..104).map(|number| frame(mac(2), mac(1), number)).collect();
    a.send(0, &frames);
    assert_eq!((carry(&mut a, &mut b), b.receive(0)), (100, frames));
    b.send(0, &[frame(mac(1), mac(2), 200)]);
    assert_eq!((carry(&mut b, &mut a), a.receive(0)), (1, vec![frame(mac(1), mac(2), 200)]));
    assert_eq!([&one, &other].map(|tunnel| count(tunnel, "vxlan_received")), [1, 100]);
    assert_eq!([&one, &other].map(|tunnel| count(tunnel, "vxlan_sent")), [100, 1]);
    assert_eq!(b.switch.table().len(), 2);
}

#[test]
fn others_are_not_heard() {
    let (one, other) = (tunnel(HERE, THERE), tunnel(THERE, HERE));
    let (mut a, mut b) = (rig(&one), rig(&other));
    a.send(0, &[frame(BROADCAST, mac(1), 1)]);
    carry(&mut a, &mut b);
    carry(&mut b, &mut a);
    a.send(0, &[frame(BROADCAST, mac(1), 2)]);
    let good = a.receive(1).remove(0);
    let mut wrong_network = good.clone();
    wrong_network[48] ^= 1;
    let mut wrong_flags = good.clone();
    wrong_flags[42] = 0;
    let mut for_somebody = good.clone();
    for_somebody[33] ^= 4; // its checksum is now wrong, too, but must not be verified
    b.send(1, &[wrong_network, wrong_flags, for_somebody, frame(BROADCAST, mac(9), 5), good]);
    assert_eq!(b.receive(0), [frame(BROADCAST, mac(1), 2)]);
    assert_eq!((count(&other, "vxlan_foreign"), count(&other, "vxlan_malformed")), (3, 1));
}

#[test]
fn frames_without_headroom_and_of_several_buffers_go_in() {
    let (one, other) = (tunnel(HERE, THERE), tunnel(THERE, HERE));
    let (mut a, mut b) = (rig(&one), rig(&other));
    a.send(0, &[frame(BROADCAST, mac(1), 1)]);
    carry(&mut a, &mut b);
    carry(&mut b, &mut a);
    let mut tight = a.pool.alloc().unwrap();
    while tight.headroom() >= OVERHEAD {
        assert!(tight.prepend(1));
    }
    let bytes = frame(mac(2), mac(1), 2);
    assert!(tight.copy_from(&bytes));
    let mut chained = packet(&a.pool, &bytes[..40]);
    chained.append(packet(&a.pool, &bytes[40..]));
    a.send_packets(0, vec![tight, chained]);
    carry(&mut a, &mut b);
    assert_eq!(b.receive(0), [bytes.clone(), bytes]);
}

/// The buffer of a request may be a guest's, from which the card must not read.
#[test]
fn answers_to_arp_lie_in_buffers_of_our_own() {
    let (one, other) = (tunnel(HERE, THERE), tunnel(THERE, HERE));
    let (mut a, mut b) = (rig(&one), rig(&other));
    a.send(0, &[frame(BROADCAST, mac(1), 1)]);
    let question = a.receive(1).remove(0);
    let theirs = Mempool::new(&MempoolConfig { buffers: 64, ..Default::default() }).unwrap();
    b.send_packets(1, vec![packet(&theirs, &question)]);
    b.datapath.round();
    let mut answers = Burst::new(MAX_BATCH);
    assert_eq!(b.far[1].rx.rx_burst(&mut answers), 1);
    assert_eq!(answers[0].array(20), Some([0, 2]), "a reply");
    assert_eq!(theirs.outstanding(1), 0, "their buffer has come back");
}

#[test]
fn what_inner_frames_ask_for_is_done_before_they_go_in() {
    use ringpass_memory::L4;
    use ringpass_port::{Sum, parse_headers};
    let (one, other) = (tunnel(HERE, THERE), tunnel(THERE, HERE));
    let (mut a, mut b) = (rig(&one), rig(&other));
    a.send(0, &[frame(BROADCAST, mac(1), 1)]);
    carry(&mut a, &mut b);
    carry(&mut b, &mut a);
    // A TCP segment of 3,000 bytes to be segmented, with the pseudo header's checksum.
    let mut bytes = Vec::new();
    let builder = etherparse::PacketBuilder::ethernet2(mac(1), mac(2)).ipv4([1; 4], [2; 4], 9).tcp(1, 2, 3, 4);
    builder.write(&mut bytes, &[5; 3000]).unwrap();
    let mut sum = Sum::default();
    sum.add(&bytes[26..34]);
    sum.add(&[0, 6]);
    sum.add(&3020u16.to_be_bytes());
    bytes[50..52].copy_from_slice(&sum.folded());
    let mut packet = ringpass_port::chain([&bytes[..]], || a.pool.alloc()).unwrap();
    let headers = parse_headers(&bytes).unwrap();
    assert_eq!(headers.protocol, L4::Tcp);
    packet.request_segmentation(1000, headers);
    a.send_packets(0, vec![packet]);
    carry(&mut a, &mut b);
    let frames = b.receive(0);
    assert_eq!(frames.len(), 3, "{:?}", Offloads::default());
    for frame in frames {
        let parsed = etherparse::PacketHeaders::from_ethernet_slice(&frame).unwrap();
        let Some(etherparse::NetHeaders::Ipv4(ip, _)) = parsed.net else { panic!() };
        let Some(etherparse::TransportHeader::Tcp(tcp)) = parsed.transport else { panic!() };
        let right = tcp.calc_checksum_ipv4(&ip, parsed.payload.slice()).unwrap();
        assert_eq!((tcp.checksum, parsed.payload.slice().len()), (right, 1000));
    }
}
