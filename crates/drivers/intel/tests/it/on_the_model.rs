//! Tests of the driver on the model: transmit and receive offloads, steering, and interrupts. Frames are made
//! and checked with etherparse.

use std::net::Ipv4Addr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use etherparse::{NetSlice, PacketBuilder, SlicedPacket, TransportSlice};
use proptest::prelude::*;
use ringpass_intel::ixgbe::Ixgbe;
use ringpass_memory::{Burst, Flags, Headers, L4, Mempool, MempoolConfig, Packet};
use ringpass_models::ixgbe::{Card, CardConfig, Lie, Lies, When};
use ringpass_pci::PciDevice;
use ringpass_port::{
    Direction, Error, Holds, MacAddress, Offloads, Port, PortConfig, Protocol, QueuePair, RingStatus, Rule, Spread,
    State, Stats, WakeSource,
};
use ringpass_testing::{Wire, scattered};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::common::posted::PostedBus;

const ALL: Offloads = Offloads { checksum: true, hash: true, vlan: true, tso: true };
const OWN: [u8; 6] = [2, 0, 0, 0, 0, 1];
const PEER: [u8; 6] = [2, 0, 0, 0, 0, 2];

struct Rig {
    queues: Vec<QueuePair>,
    port: Ixgbe,
    card: Arc<Card>,
    ends: QueuePair,
    wire: Wire,
    pool: Mempool,
}

impl Rig {
    fn new(config: PortConfig) -> Self {
        Self::lying(config, Lies::default()).expect("an honest card opens")
    }

    fn lying(config: PortConfig, lies: Lies) -> Result<Self, Error> {
        Self::on(config, lies, |card| card)
    }

    /// Opens the card by the bus that `bus` returns for it.
    fn on<B: PciDevice + 'static>(
        config: PortConfig,
        lies: Lies,
        bus: impl FnOnce(Arc<Card>) -> Arc<B>,
    ) -> Result<Self, Error> {
        let pool = Mempool::new(&MempoolConfig::default()).unwrap();
        let wire = Wire::new(512, 16_000);
        let card = Card::new(&CardConfig { mac: MacAddress(OWN), lies, ..Default::default() });
        let mut port = Ixgbe::open(bus(card.clone()), "model", &config, &pool)?;
        let queues = port.take_queues();
        let ends = wire.ends();
        Ok(Self { queues, port, card, ends, wire, pool })
    }

    fn step(&mut self) {
        while self.card.step(&mut self.ends) > 0 {}
    }

    /// Puts frames on the wire and returns what arrives at a queue.
    fn receive(&mut self, queue: usize, frames: impl IntoIterator<Item = Vec<u8>>) -> Vec<Packet> {
        self.wire.frames().to_card.extend(frames);
        self.step();
        self.arrived(queue)
    }

    fn arrived(&mut self, queue: usize) -> Vec<Packet> {
        let mut burst = Burst::new(256);
        self.queues[queue].rx.rx_burst(&mut burst);
        burst.drain().collect()
    }

    /// Sends a packet and returns the frames that leave the card.
    fn send(&mut self, packet: Packet) -> Vec<Vec<u8>> {
        let mut burst = Burst::new(1);
        burst.push(packet);
        assert_eq!(self.queues[0].tx.tx_burst(&mut burst), 1);
        self.step();
        self.wire.frames().from_card.drain(..).collect()
    }

    /// Returns whether a queue's interrupt has come.
    fn woken(&self, queue: usize) -> bool {
        let [WakeSource::Readable(event)] = WakeSource::all(&*self.queues[queue].rx)[..] else {
            panic!("a model has interrupts")
        };
        poll(&mut [PollFd::from_borrowed_fd(event, PollFlags::IN)], Some(&Timespec::default())).unwrap() == 1
    }

    /// Returns a packet with this frame, in buffers of up to `piece` bytes each.
    fn packet(&self, frame: &[u8], piece: usize) -> Packet {
        scattered(&self.pool, frame, piece)
    }
}

fn offloaded(mtu: usize) -> Rig {
    Rig::new(PortConfig { offloads: ALL, mtu, ..Default::default() })
}

fn bytes(len: usize) -> Vec<u8> {
    (0..len).map(|i| (i * 7 + i / 251) as u8).collect()
}

fn udp(to: [u8; 6], ports: (u16, u16), payload: &[u8]) -> Vec<u8> {
    let mut frame = Vec::new();
    let builder = PacketBuilder::ethernet2(PEER, to).ipv4([192, 0, 2, 1], [192, 0, 2, 2], 64).udp(ports.0, ports.1);
    builder.write(&mut frame, payload).unwrap();
    frame
}

fn tcp(ipv6: bool, payload: &[u8]) -> Vec<u8> {
    let ethernet = PacketBuilder::ethernet2(OWN, PEER);
    let mut frame = Vec::new();
    let ip = if ipv6 { ethernet.ipv6([1; 16], [2; 16], 64) } else { ethernet.ipv4([192, 0, 2, 1], [192, 0, 2, 2], 64) };
    ip.tcp(80, 443, 1_000_000, 512).ack(77).psh().fin().write(&mut frame, payload).unwrap();
    frame
}

/// Replaces the TCP or UDP checksum by that of the pseudo header, as a network stack does with checksum
/// offload.
fn leave_checksum(frame: &mut [u8], headers: Headers) {
    let (ip, l4) = (usize::from(headers.l2), headers.l4_start());
    let ipv4 = frame[ip] >> 4 == 4;
    let addresses = if ipv4 { ip + 12..ip + 20 } else { ip + 8..ip + 40 };
    let (protocol, field) = if headers.protocol == L4::Tcp { (6, 16) } else { (17, 6) };
    let words = frame[addresses].chunks(2).map(|word| u32::from(u16::from_be_bytes([word[0], word[1]])));
    let sum = words.sum::<u32>() + protocol + (frame.len() - l4) as u32;
    let sum = (sum & 0xffff) + (sum >> 16);
    let sum = (sum & 0xffff) + (sum >> 16);
    frame[l4 + field..l4 + field + 2].copy_from_slice(&(sum as u16).to_be_bytes());
}

/// Checks a frame's checksums. Returns its payload, TCP sequence number and flags (FIN, PSH).
fn judge(frame: &[u8]) -> (Vec<u8>, u32, (bool, bool)) {
    let sliced = SlicedPacket::from_ethernet(frame).unwrap();
    if let Some(NetSlice::Ipv4(ip)) = &sliced.net {
        let header = ip.header().to_header();
        assert_eq!(header.header_checksum, header.calc_header_checksum(), "IPv4 checksum");
    }
    match (&sliced.net, sliced.transport) {
        (Some(NetSlice::Ipv4(ip)), Some(TransportSlice::Tcp(tcp))) => {
            let right = tcp.to_header().calc_checksum_ipv4(&ip.header().to_header(), tcp.payload()).unwrap();
            assert_eq!(tcp.checksum(), right, "TCP checksum");
            (tcp.payload().to_vec(), tcp.sequence_number(), (tcp.fin(), tcp.psh()))
        }
        (Some(NetSlice::Ipv6(ip)), Some(TransportSlice::Tcp(tcp))) => {
            let right = tcp.to_header().calc_checksum_ipv6(&ip.header().to_header(), tcp.payload()).unwrap();
            assert_eq!(tcp.checksum(), right, "TCP checksum");
            (tcp.payload().to_vec(), tcp.sequence_number(), (tcp.fin(), tcp.psh()))
        }
        (Some(NetSlice::Ipv4(ip)), Some(TransportSlice::Udp(udp))) => {
            let right = udp.to_header().calc_checksum_ipv4(&ip.header().to_header(), udp.payload()).unwrap();
            assert_eq!(udp.checksum(), right, "UDP checksum");
            (udp.payload().to_vec(), 0, (false, false))
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn received_frames_come_with_a_verdict_and_a_hash() {
    let mut rig = offloaded(1500);
    // With the symmetric key, ports that differ in the same way as the addresses do would not change the hash.
    let good = udp(OWN, (1, 9), &bytes(100));
    let mut bad_l4 = good.clone();
    bad_l4[50] ^= 1;
    let mut bad_l3 = good.clone();
    bad_l3[24] ^= 1;
    let other = [&OWN[..], &PEER, &[0x88, 0xb5], &bytes(50)].concat();
    let packets = rig.receive(0, [good.clone(), bad_l4, bad_l3, other]);
    let verdicts = Flags::L3_GOOD | Flags::L3_BAD | Flags::L4_GOOD | Flags::L4_BAD;
    let flags: Vec<_> = packets.iter().map(|packet| packet.flags().and(verdicts)).collect();
    assert_eq!(flags[0], Flags::L3_GOOD | Flags::L4_GOOD);
    assert_eq!(flags[1], Flags::L3_GOOD | Flags::L4_BAD);
    assert!(flags[2].any(Flags::L3_BAD));
    assert_eq!(flags[3], Flags::default());
    assert!(packets[0].rss_hash().is_some_and(|hash| hash != 0));
    assert_eq!(packets[0].rss_hash(), packets[1].rss_hash(), "one flow");
    assert_eq!(packets[3].rss_hash(), None);
    assert_eq!(packets[0].to_vec(), good);
}

#[test]
fn vlan_tags_are_taken_out_and_put_in() {
    let mut rig = offloaded(1500);
    let plain = udp(OWN, (1, 2), &bytes(100));
    let tagged = [&plain[..12], &[0x81, 0, 0x60, 0x07], &plain[12..]].concat();
    let packets = rig.receive(0, [tagged.clone(), plain.clone()]);
    assert_eq!((packets[0].vlan(), packets[1].vlan()), (Some(0x6007), None));
    assert_eq!((packets[0].to_vec(), packets[1].to_vec()), (plain.to_vec(), plain.to_vec()));
    let back = packets.into_iter().next().expect("two packets");
    assert_eq!(rig.send(back), [tagged]);
}

#[test]
fn checksums_are_filled_in() {
    let mut rig = offloaded(1500);
    for (ipv6, l3) in [(false, 20), (true, 40)] {
        let headers = Headers { l2: 14, l3, l4: 20, protocol: L4::Tcp };
        let right = tcp(ipv6, &bytes(500));
        let mut frame = right.clone();
        leave_checksum(&mut frame, headers);
        for piece in [2000, 100] {
            let mut packet = rig.packet(&frame, piece);
            packet.request_checksum(headers);
            packet.add_flags(Flags::L3_CHECKSUM);
            assert_eq!(rig.send(packet), std::slice::from_ref(&right), "IPv6 {ipv6}, pieces of {piece}");
        }
    }
    let headers = Headers { l2: 14, l3: 20, l4: 8, protocol: L4::Udp };
    let right = udp(PEER, (1, 2), &bytes(333));
    let mut frame = right.clone();
    leave_checksum(&mut frame, headers);
    let mut packet = rig.packet(&frame, 2000);
    packet.request_checksum(headers);
    assert_eq!(rig.send(packet), std::slice::from_ref(&right));
    let mut frame = right.clone();
    frame[24..26].fill(0xaa);
    let mut packet = rig.packet(&frame, 2000);
    packet.add_flags(Flags::L3_CHECKSUM);
    assert_eq!(rig.send(packet), [right]);
}

#[test]
fn segments_are_cut_into_frames() {
    let mut rig = offloaded(1500);
    for (ipv6, l3) in [(false, 20), (true, 40)] {
        let headers = Headers { l2: 14, l3, l4: 20, protocol: L4::Tcp };
        let data = bytes(30_000);
        let mut frame = tcp(ipv6, &data);
        leave_checksum(&mut frame, headers);
        let mut packet = rig.packet(&frame, 2000);
        packet.request_segmentation(1400, headers);
        packet.set_vlan(5);
        let frames = rig.send(packet);
        assert_eq!(frames.len(), 30_000usize.div_ceil(1400));
        let mut joined = Vec::new();
        for (i, frame) in frames.iter().enumerate() {
            assert_eq!(frame[12..16], [0x81, 0, 0, 5]);
            let (payload, sequence, flags) = judge(frame);
            assert_eq!(sequence, 1_000_000 + joined.len() as u32);
            let last = i + 1 == frames.len();
            assert_eq!(flags, (last, last), "FIN and PSH in the last only");
            joined.extend(payload);
        }
        assert_eq!(joined, data);
    }
    let stats = rig.port.stats();
    assert_eq!((stats.tx_packets, stats.tx_drops), (44, 0));
}

#[test]
fn jumbo_frames_pass_both_ways() {
    let mut rig = offloaded(9000);
    let frame = udp(OWN, (1, 2), &bytes(8972));
    assert_eq!(frame.len(), 9014);
    let packets = rig.receive(0, [frame.clone(), udp(OWN, (1, 2), &bytes(10))]);
    assert_eq!(packets.len(), 2);
    assert_eq!(packets[0].segments().count(), 9014usize.div_ceil(2048));
    assert!(packets[0].flags().any(Flags::L4_GOOD));
    let jumbo = packets.into_iter().next().expect("two packets");
    assert_eq!(jumbo.total_len(), 9014);
    assert_eq!(rig.send(jumbo), [frame]);
    drop(rig.queues);
    assert_eq!(rig.pool.outstanding(1), 0);
}

/// A queue without offloads would send the first part alone, and lose the buffers of the rest.
#[test]
fn a_queue_without_offloads_refuses_frames_in_several_buffers() {
    let mut rig = Rig::new(PortConfig::default());
    let frame = udp(OWN, (1, 2), &bytes(600));
    let parts = rig.packet(&frame, 200);
    assert_eq!(rig.send(parts), Vec::<Vec<u8>>::new());
    assert_eq!(rig.port.stats().tx_drops, 1);
    let whole = rig.packet(&frame, 2000);
    assert_eq!(rig.send(whole), [frame]);
}

#[test]
fn a_queue_gets_only_what_is_meant_for_it() {
    let mut rig = Rig::new(PortConfig { queues: 3, spread: Spread::Steered, ..Default::default() });
    let guests = [[2, 0, 0, 0, 1, 1], [2, 0, 0, 0, 1, 2]];
    rig.port.steer(&Rule::Address { mac: MacAddress(guests[0]), vlan: None }, 1).unwrap();
    rig.port.steer(&Rule::Address { mac: MacAddress(guests[1]), vlan: None }, 2).unwrap();
    let to = |mac| udp(mac, (1, 2), &bytes(100));
    let broadcast = to([0xff; 6]);
    let stranger = to([2, 9, 9, 9, 9, 9]);
    let all = [to(guests[1]), to(OWN), broadcast.clone(), to(guests[0]), stranger.clone()];
    let first = rig.receive(0, all);
    let frames = |packets: &[Packet]| packets.iter().map(|packet| packet.to_vec()).collect::<Vec<_>>();
    assert_eq!(frames(&first), [to(OWN), broadcast, stranger]);
    let (one, two) = (rig.arrived(1), rig.arrived(2));
    assert_eq!((frames(&one), frames(&two)), (vec![to(guests[0])], vec![to(guests[1])]));
    assert!(rig.port.steer(&Rule::Address { mac: MacAddress(OWN), vlan: None }, 3).is_err(), "there is no such queue");
}

#[test]
fn pools_keep_vlans_apart() {
    let mut rig = Rig::new(PortConfig { queues: 3, spread: Spread::Steered, ..Default::default() });
    let guest = [2, 0, 0, 0, 1, 1];
    rig.port.steer(&Rule::Address { mac: MacAddress(guest), vlan: Some(7) }, 1).unwrap();
    let plain = udp(guest, (1, 2), &bytes(100));
    let tagged = |id: u8| [&plain[..12], &[0x81, 0, 0, id], &plain[12..]].concat();
    let own = udp(OWN, (1, 2), &bytes(100));
    let own_tagged = [&own[..12], &[0x81, 0, 0, 9], &own[12..]].concat();
    let first = rig.receive(0, [tagged(7), tagged(8), plain.clone(), own.clone(), own_tagged.clone()]);
    let one: Vec<_> = rig.arrived(1).iter().map(|packet| packet.to_vec()).collect();
    assert_eq!(one, [tagged(7)], "its VLAN, and nothing else");
    let first: Vec<_> = first.iter().map(|packet| packet.to_vec()).collect();
    assert!(first.contains(&own), "{} frames at the first queue", first.len());
    assert!(!first.contains(&tagged(7)));
}

#[test]
fn tuples_steer_flows() {
    for spread in [Spread::Hash, Spread::Steered] {
        let mut rig = Rig::new(PortConfig { queues: 4, spread, ..Default::default() });
        let rule = Rule::Tuple {
            protocol: Some(Protocol::Udp),
            source: Some(Ipv4Addr::new(192, 0, 2, 1)),
            destination: None,
            source_port: None,
            destination_port: Some(4789),
        };
        rig.port.steer(&rule, 3).unwrap();
        let flows = (0..32).map(|port| udp(OWN, (1000 + port, if port % 2 == 0 { 4789 } else { 4790 }), &bytes(20)));
        let steered = rig.receive(3, flows);
        let ports: Vec<_> = steered.iter().map(|packet| u16::from_be_bytes(packet.array(36).unwrap())).collect();
        assert_eq!(ports.iter().filter(|&&port| port == 4789).count(), 16, "{spread:?}");
        let elsewhere: Vec<_> = (0..3).flat_map(|queue| rig.arrived(queue)).collect();
        assert!(elsewhere.iter().all(|packet| packet.array(36) != Some(4789u16.to_be_bytes())));
        assert_eq!(elsewhere.len() + steered.len(), 32);
    }
}

#[test]
fn each_queue_counts_its_own_frames() {
    for spread in [Spread::Hash, Spread::Steered] {
        let mut rig = Rig::new(PortConfig { queues: 3, spread, ..Default::default() });
        if spread == Spread::Steered {
            let rule = Rule::Address { mac: MacAddress(PEER), vlan: None };
            rig.port.steer(&rule, 2).unwrap();
        }
        let to = |port| if port % 3 == 0 { PEER } else { OWN };
        let frames: Vec<_> =
            (0..60).map(|port| udp(to(port), (1000 + port, 7), &bytes(30 + usize::from(port)))).collect();
        let sent_by = |queue: usize| frames[..10 * (queue + 1)].iter().map(Vec::len).sum::<usize>() as u64;
        let mut first = rig.receive(0, frames.clone());
        let mut expected = Vec::new();
        for queue in 0..3 {
            let arrived = if queue == 0 { std::mem::take(&mut first) } else { rig.arrived(queue) };
            let mut burst = Burst::new(32);
            for frame in &frames[..10 * (queue + 1)] {
                burst.push(rig.packet(frame, 2000));
            }
            rig.queues[queue].tx.tx_burst(&mut burst);
            rig.step();
            expected.push(Stats {
                rx_packets: arrived.len() as u64,
                rx_bytes: arrived.iter().map(|packet| packet.total_len() as u64).sum(),
                tx_packets: 10 * (queue as u64 + 1),
                tx_bytes: sent_by(queue),
                ..Stats::default()
            });
        }
        assert_eq!(rig.port.queue_stats(), expected, "{spread:?}");
        assert!(expected.iter().filter(|stats| stats.rx_packets > 0).count() > 1, "{expected:?}");
        let stats = rig.port.stats();
        assert_eq!(stats.rx_packets, expected.iter().map(|queue| queue.rx_packets).sum::<u64>());
        assert_eq!((stats.rx_packets, stats.tx_packets, stats.rx_drops), (60, 60, 0));
        assert_eq!(stats.tx_bytes, expected.iter().map(|queue| queue.tx_bytes).sum::<u64>());
    }
}

#[test]
fn rings_are_as_the_registers_show_them() {
    let mut rig = Rig::new(PortConfig { queues: 2, rx_ring: 128, tx_ring: 64, ..Default::default() });
    let [rx, tx] = [Direction::Rx, Direction::Tx];
    let ring = |queue, direction, head, posted| {
        let descriptors = if direction == rx { 128 } else { 64 };
        let holds = if direction == rx { Holds::Buffers } else { Holds::Frames };
        RingStatus { queue, direction, descriptors, head, posted, holds }
    };
    // One descriptor stays free (7.1.9), and free buffers are posted 32 at a time.
    let full = rig.port.rings()[0].posted;
    assert!((96..128).contains(&full), "{full} posted");
    let idle = [ring(0, rx, 0, full), ring(0, tx, 0, 0), ring(1, rx, 0, full), ring(1, tx, 0, 0)];
    assert_eq!(rig.port.rings(), idle);
    rig.wire.frames().to_card.extend(std::iter::repeat_n(udp(OWN, (1, 2), &bytes(30)), 5));
    rig.step();
    let mut burst = Burst::new(3);
    (0..3).for_each(|_| burst.push(rig.packet(&udp(PEER, (1, 2), &bytes(30)), 2000)));
    rig.queues[1].tx.tx_burst(&mut burst);
    let mut busy = idle;
    let queue = if rig.port.rings()[0].head == 5 { 0 } else { 2 };
    busy[queue] = RingStatus { head: 5, posted: full - 5, ..busy[queue] };
    busy[3] = ring(1, tx, 0, 3);
    assert_eq!(rig.port.rings(), busy, "received and not taken yet, posted and not sent yet");
    rig.step();
    busy[3] = ring(1, tx, 3, 0);
    assert_eq!(rig.port.rings(), busy);
}

#[test]
fn an_armed_queue_is_woken_by_a_frame_and_a_polling_one_is_not() {
    let mut rig = Rig::new(PortConfig { queues: 2, ..Default::default() });
    let woken = Rig::woken;
    let frame = [&OWN[..], &PEER, &[0x88, 0xb5], &bytes(50)].concat();
    assert_eq!(rig.receive(0, [frame.clone()]).len(), 1);
    assert!(!woken(&rig, 0), "it polls");
    rig.queues[0].rx.arm();
    rig.step();
    assert!(woken(&rig, 0), "a frame has come while it polled");
    rig.queues[0].rx.disarm();
    rig.queues[0].rx.arm();
    rig.step();
    assert!(!woken(&rig, 0), "once");
    assert_eq!(rig.receive(0, []).len(), 0);
    // The least time between two interrupts passes.
    std::thread::sleep(Duration::from_millis(1));
    rig.wire.frames().to_card.push_back(frame.clone());
    rig.step();
    assert!(woken(&rig, 0) && !woken(&rig, 1));
    rig.queues[0].rx.disarm();
    assert!(!woken(&rig, 0));
    assert_eq!(rig.receive(0, [frame]).len(), 2);
    assert!(!woken(&rig, 0), "it polls again");
}

#[test]
fn a_frame_that_comes_while_writes_are_under_way_wakes() {
    let mut bus = None;
    let mut rig = Rig::on(PortConfig::default(), Lies::default(), |card| bus.insert(PostedBus::new(card)).clone())
        .expect("an honest card opens");
    let bus = bus.expect("made just now");
    bus.hold();
    rig.queues[0].rx.arm();
    assert_eq!(rig.arrived(0).len(), 0, "the last look before it sleeps");
    rig.wire.frames().to_card.push_back([&OWN[..], &PEER, &[0x88, 0xb5], &bytes(50)].concat());
    rig.step();
    bus.release();
    assert!(rig.woken(0));
}

/// Runs traffic both ways with a card that lies from frame 20 on. Whatever the card reports, each received
/// packet has the bytes of a buffer of the pool, every wait ends in time, and every buffer is returned.
fn survives(lie: Lie, offloads: Offloads, head_write_back: bool) -> (u64, State) {
    let config =
        PortConfig { rx_ring: 64, tx_ring: 64, queues: 2, offloads, head_write_back, mtu: 4000, ..Default::default() };
    let mut lies = Lies::default().with(lie, When { first: 20, ..When::default() });
    lies.address = 0xdead_0000;
    let start = Instant::now();
    let Ok(mut rig) = Rig::lying(config, lies) else { panic!("{lie:?} begins after the card is open") };
    let mut received = 0;
    for round in 0..100u16 {
        let frames = (0..8).map(|i| udp(OWN, (round, i), &bytes(20 + 100 * usize::from(round % 30))));
        for packet in rig.receive(0, frames).into_iter().chain(rig.arrived(1)) {
            received += 1;
            assert!(packet.len() <= 2048 && packet.total_len() <= 4018, "{lie:?}: {} bytes", packet.total_len());
            let mut burst = Burst::new(1);
            burst.push(packet);
            rig.queues[0].tx.tx_burst(&mut burst);
        }
        rig.step();
        rig.wire.frames().to_card.clear();
        rig.port.stats();
        rig.port.link();
        rig.queues[0].rx.arm();
        rig.queues[0].rx.disarm();
    }
    let state = rig.port.state();
    drop(rig.queues);
    drop(rig.port);
    assert!(start.elapsed() < Duration::from_secs(20), "{lie:?}: {:?}", start.elapsed());
    // A queue that was not confirmed as stopped keeps the memory that the card may still write.
    if ![Lie::DisableNever, Lie::Removed].contains(&lie) {
        assert_eq!(rig.pool.outstanding(1), 0, "{lie:?}");
    }
    (received, state)
}

#[test]
fn a_card_that_lies_does_no_harm() {
    const READY: [Lie; 4] = [Lie::EepromNever, Lie::ResetNever, Lie::InitNever, Lie::EnableNever];
    for &lie in Lie::ALL.iter().filter(|lie| !READY.contains(lie)) {
        for (offloads, head_write_back) in [(Offloads::default(), false), (ALL, true)] {
            let (received, state) = survives(lie, offloads, head_write_back);
            assert!(received >= 8, "{lie:?}: it was honest at first, and {received} frames came");
            match (lie, state) {
                (Lie::Removed, State::Gone(why)) => assert!(why.contains("gone"), "{why}"),
                (Lie::Removed, state) => panic!("{state:?}: it has gone"),
                (_, State::Running) => {}
                (_, state) => panic!("{lie:?}: {state:?}"),
            }
        }
    }
}

#[test]
fn a_card_that_is_never_ready_is_an_error_in_time() {
    for lie in [Lie::EepromNever, Lie::ResetNever, Lie::InitNever, Lie::EnableNever, Lie::Removed] {
        let start = Instant::now();
        let lies = Lies::default().with(lie, When::default());
        let error = Rig::lying(PortConfig::default(), lies).err().unwrap_or_else(|| panic!("{lie:?} went unnoticed"));
        assert!(!error.to_string().contains('\n') && start.elapsed() < Duration::from_secs(20), "{lie:?}: {error}");
    }
}

/// Frames that leave the card for a packet.
#[derive(Debug)]
enum Leaves {
    Nothing,
    Frame(Vec<u8>),
    /// Segments with this payload.
    Segments(Vec<u8>),
}

/// Returns a packet with one of several kinds of requests, and what is to leave the card.
fn requesting(rig: &Rig, kind: u8, len: usize) -> (Packet, Leaves) {
    let ipv6 = kind % 2 == 1;
    let tcp_headers = Headers { l2: 14, l3: if ipv6 { 40 } else { 20 }, l4: 20, protocol: L4::Tcp };
    let udp_headers = Headers { l2: 14, l3: 20, l4: 8, protocol: L4::Udp };
    let of_udp = udp(PEER, (1, len as u16), &bytes(len));
    let of_tcp = tcp(ipv6, &bytes(len));
    let with = |right: &[u8], headers: Headers, piece: usize| {
        let mut frame = right.to_vec();
        leave_checksum(&mut frame, headers);
        let mut packet = rig.packet(&frame, piece);
        packet.request_checksum(headers);
        packet
    };
    match kind {
        0 => (rig.packet(&of_udp, 2000), Leaves::Frame(of_udp)),
        1 => (with(&of_udp, udp_headers, 2000), Leaves::Frame(of_udp)),
        2 | 3 => (with(&of_tcp, tcp_headers, 2000), Leaves::Frame(of_tcp)),
        4 | 5 => {
            let mut packet = with(&of_tcp, tcp_headers, 2000);
            packet.add_flags(Flags::L3_CHECKSUM);
            if !ipv6 {
                packet.write(24, &[0xaa; 2]);
            }
            (packet, Leaves::Frame(of_tcp))
        }
        6 | 7 => {
            let tag = 0x6000 + len as u16 % 3;
            let mut packet = with(&of_tcp, tcp_headers, 2000);
            packet.set_vlan(tag);
            let [high, low] = tag.to_be_bytes();
            (packet, Leaves::Frame([&of_tcp[..12], &[0x81, 0, high, low], &of_tcp[12..]].concat()))
        }
        8 => {
            let mut frame = of_udp.clone();
            frame[24..26].fill(0xaa);
            let mut packet = rig.packet(&frame, 2000);
            packet.add_flags(Flags::L3_CHECKSUM);
            (packet, Leaves::Frame(of_udp))
        }
        9 => (with(&of_udp, udp_headers, 100), Leaves::Frame(of_udp)),
        10 | 11 => {
            let mut packet = with(&of_tcp, tcp_headers, 2000);
            packet.request_segmentation(400, tcp_headers);
            (packet, Leaves::Segments(bytes(len)))
        }
        12 => {
            let mut packet = rig.packet(&of_udp, 2000);
            packet.request_checksum(Headers { l3: 1600, ..udp_headers });
            (packet, Leaves::Nothing)
        }
        _ => (rig.packet(&of_udp[..16], 2000), Leaves::Nothing),
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 150, failure_persistence: None, ..ProptestConfig::default() })]

    /// Whatever a frame requests, and whatever those before it did: contexts are posted when they are needed.
    #[test]
    fn requests_are_carried_out_in_any_order(
        bursts in prop::collection::vec(
            prop::collection::vec((0_u8..14, 20_usize..1200, 1_usize..5), 1..12), 1..6),
    ) {
        let mut rig = offloaded(1500);
        for requests in bursts {
            let mut burst = Burst::new(64);
            let mut expected = Vec::new();
            for (kind, len, times) in requests {
                for more in 0..times {
                    let (packet, leaves) = requesting(&rig, kind, len + more);
                    burst.push(packet);
                    expected.push(leaves);
                }
            }
            let packets = burst.len();
            prop_assert_eq!(rig.queues[0].tx.tx_burst(&mut burst), packets);
            rig.step();
            let mut frames = std::mem::take(&mut rig.wire.frames().from_card).into_iter();
            for leaves in expected {
                match leaves {
                    Leaves::Nothing => {}
                    Leaves::Frame(right) => prop_assert_eq!(frames.next(), Some(right)),
                    Leaves::Segments(right) => {
                        let mut payload = Vec::new();
                        while payload.len() < right.len() {
                            payload.extend(judge(&frames.next().expect("a segment")).0);
                        }
                        prop_assert_eq!(payload, right);
                    }
                }
            }
            prop_assert_eq!(frames.next(), None);
        }
        drop(rig.queues);
        prop_assert_eq!(rig.pool.outstanding(1), 0);
    }
}
