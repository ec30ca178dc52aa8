//! Tests of everything but plain forwarding: limits, moves, links, removed ports, direct forwarding.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

use crate::common::*;
use ringpass_host_ports::cable;
use ringpass_memory::{Burst, Flags, Headers, L4, Mempool};
use ringpass_port::{Link, MacAddress, Port, QueuePair, RxDecorator, RxQueue, State, chain};
use ringpass_switch::{Config, Counter, Forwarding, MAX_PORTS, PortPolicy, Switch, VlanSet, Vlans};

const DOWN: Link = Link { up: false, mbps: 0 };
const UP: Link = Link { up: true, mbps: 0 };

#[test]
fn stations_are_learned_age_and_move() {
    let mut rig = Rig::new(&Config { moves: 2, ..Default::default() }, &plain(3));
    rig.send(0, &[frame(mac(2), mac(1), 1)]);
    assert_eq!((rig.received(), rig.count(0, Counter::Unknown)), (vec![0, 1, 1], 1));
    rig.send(1, &[frame(mac(1), mac(2), 2)]);
    assert_eq!(rig.received(), [1, 0, 0]);
    rig.switch.tick(Duration::from_secs(301));
    assert!(rig.switch.table().is_empty() && rig.switch.stations() == 0);

    // Back and forth: two moves, then the station is damped; after a second of silence it may move again.
    for port in [0, 1, 0, 1, 0] {
        rig.send(port, &[frame(mac(9), mac(1), 3)]);
    }
    let counts = [0, 1].map(|port| [Counter::Learned, Counter::Moved, Counter::Damped].map(|c| rig.count(port, c)));
    assert_eq!(counts, [[2, 1, 0], [1, 1, 1]]);
    assert_eq!(rig.switch.table()[0].port, 0);
    rig.switch.tick(Duration::from_secs(304));
    rig.send(1, &[frame(mac(9), mac(1), 4)]);
    assert_eq!(rig.switch.table()[0].port, 1);
}

#[test]
fn a_station_that_moves_within_a_burst_is_found_at_its_new_port_by_the_next_frame() {
    let mut rig = Rig::new(&free(), &plain(3));
    rig.send(1, &[frame(BROADCAST, mac(1), 0)]);
    rig.received();
    let out = frame(mac(1), mac(9), 1);
    rig.send(0, &[out.clone(), out.clone(), out.clone(), frame(mac(9), mac(1), 2), out]);
    assert_eq!(rig.received(), [0, 3, 0], "the last one would go back to the port it came from");
    assert_eq!(rig.count(0, Counter::Local), 2);
}

#[test]
fn flooding_has_a_limit_at_each_port_and_known_stations_none() {
    let mut rules = plain(3);
    rules[1].flood = Some(0);
    let mut rig = Rig::new(&Config { flood: 1, ..Default::default() }, &rules);
    rig.send(2, &[frame(mac(1), mac(3), 0)]);
    rig.received();
    let floods: Vec<_> =
        (0..200).map(|number| frame(if number % 2 == 0 { BROADCAST } else { mac(9) }, mac(1), number)).collect();
    rig.send(0, &floods);
    assert_eq!(rig.received(), [0, 32, 32]);
    assert_eq!([Counter::Flooded, Counter::Limited, Counter::Unknown].map(|c| rig.count(0, c)), [32, 168, 100]);
    rig.send(0, &vec![frame(mac(3), mac(1), 0); 200]);
    assert_eq!(rig.received(), [0, 0, 200]);
    rig.send(1, &floods);
    assert_eq!(rig.received()[2], 200, "this port has no limit");
}

#[test]
fn nothing_goes_to_ports_without_a_link_and_their_stations_are_forgotten() {
    let mut rig = Rig::new(&free(), &plain(3));
    rig.send(1, &[frame(BROADCAST, mac(2), 1)]);
    rig.received();
    rig.switch.set_link(1, DOWN);
    assert!(rig.switch.table().is_empty());
    rig.send(0, &[frame(BROADCAST, mac(1), 2), frame(mac(2), mac(1), 3)]);
    assert_eq!(rig.received(), [0, 0, 2]);
    rig.switch.set_link(2, DOWN);
    rig.send(0, &[frame(BROADCAST, mac(1), 4)]);
    assert_eq!((rig.received(), rig.count(0, Counter::Nowhere)), (vec![0; 3], 1));
    rig.switch.set_link(1, UP);
    rig.send(0, &[frame(mac(2), mac(1), 5)]);
    assert_eq!(rig.received(), [0, 1, 0]);
}

#[test]
fn a_port_that_is_gone_is_let_go_and_the_others_go_on() {
    let mut rig = Rig::new(&free(), &plain(3));
    rig.send(1, &[frame(BROADCAST, mac(2), 1)]);
    rig.received();
    rig.switch.remove(1);
    assert_eq!(rig.switch.ports_left(), 2);
    rig.send(0, &[frame(mac(2), mac(1), 2)]);
    assert_eq!(rig.received(), [0, 0, 1]);
    // The port's queues are dropped, on another thread: the cable's other end then receives nothing more.
    let start = Instant::now();
    while matches!(rig.ends[3].state(), State::Running) {
        assert!(start.elapsed() < Duration::from_secs(60));
        let mut burst = Burst::new(1);
        burst.push(packet(&rig.pool, &frame(BROADCAST, mac(2), 3)));
        rig.far[1].tx.tx_burst(&mut burst);
        assert_eq!((rig.datapath.round(), rig.switch.table().len()), (0, 1));
    }
}

/// Consecutive frames that begin alike, some of which differ in other ways: with a tag in the metadata, or with
/// a tag that has no VLAN.
#[test]
fn a_flow_of_frames_that_begin_alike() {
    let mut rig = Rig::new(&free(), &plain(3));
    rig.send(1, &[frame(BROADCAST, mac(2), 0)]);
    rig.received();
    let (mut packets, mut one, mut both) = (Vec::new(), Vec::new(), Vec::new());
    for number in 0..60 {
        let bytes = frame(mac(2), mac(1), number);
        match number / 4 % 4 {
            // A tag with only a priority.
            1 => packets.push(packet(&rig.pool, &tagged(mac(2), mac(1), 0xe000, number))),
            // Another VLAN, in which no station is known.
            2 => {
                packets.push(packet(&rig.pool, &bytes));
                packets[number as usize].set_vlan(10);
            }
            _ => packets.push(packet(&rig.pool, &bytes)),
        }
        match number / 4 % 4 {
            2 => both.push(tagged(mac(2), mac(1), 10, number)),
            _ => one.push(bytes),
        }
    }
    rig.send_packets(0, packets);
    let (tagged, plain): (Vec<_>, Vec<_>) = rig.receive(1).into_iter().partition(|frame| frame[12] == 0x81);
    assert!(plain == one && tagged == both && rig.receive(2) == both);
    assert_eq!([Counter::Forwarded, Counter::Flooded].map(|counter| rig.count(0, counter)), [44, 16]);
    // Frames that must not match the cached header of an earlier frame.
    rig.send(0, &[vec![0; 60], vec![0xff; 60], [&[0xff; 8][..], &[0; 52]].concat()]);
    assert_eq!((rig.received(), rig.count(0, Counter::Invalid)), (vec![0; 3], 3));
}

/// A flow takes a short way once its stations are known; whatever that depends on ends it.
#[test]
fn a_flow_follows_every_change() {
    let native = |id| Vlans::Trunk { native: Some(id), allowed: VlanSet::of([id, 10]) };
    let access = || PortPolicy { vlans: Vlans::Access(10), ..Default::default() };
    let mut rig = Rig::new(&Config { moves: 1, ageing: Duration::from_secs(2), ..free() }, &vec![access(); 4]);
    let flow = || vec![frame(mac(2), mac(1), 0); 40];
    let known = |rig: &mut Rig| {
        rig.send(1, &[frame(BROADCAST, mac(2), 0)]);
        rig.send(0, &flow());
        rig.received();
        rig.send(0, &flow());
        assert_eq!(rig.received(), [0, 40, 0, 0]);
    };
    known(&mut rig);
    // A station that goes on sending stays, and one that does not is forgotten.
    let other = rig.switch.table().len();
    for second in 1..8 {
        rig.switch.tick(Duration::from_secs(second));
        rig.send(0, &flow());
        assert_eq!(rig.received().iter().sum::<usize>(), if second <= 2 { 40 } else { 120 }, "second {second}");
    }
    assert_eq!((other, rig.switch.table().len(), rig.switch.table()[0].mac.0), (2, 1, mac(1)));
    known(&mut rig);
    // The destination is somewhere else.
    rig.send(2, &[frame(BROADCAST, mac(2), 0)]);
    rig.received();
    rig.send(0, &flow());
    assert_eq!(rig.received(), [0, 0, 40, 0]);
    // So is the source: what comes from its old port moves it once, and is then what others send in its name.
    rig.send(3, &[frame(BROADCAST, mac(1), 0)]);
    rig.received();
    rig.send(0, &flow());
    assert_eq!((rig.received(), rig.count(0, Counter::Damped)), (vec![0, 0, 40, 0], 40));
    // Links, groups, tags, static stations.
    rig.switch.tick(Duration::from_secs(100));
    known(&mut rig);
    rig.switch.set_link(1, DOWN);
    rig.send(0, &flow());
    assert_eq!(rig.received(), [0, 0, 40, 40]);
    rig.switch.set_link(1, UP);
    known(&mut rig);
    for port in [0, 1] {
        rig.switch.set_policy(port, PortPolicy { isolation: Some(1), ..access() }).expect("a right policy");
    }
    rig.send(1, &[frame(BROADCAST, mac(2), 0)]);
    rig.received();
    rig.send(0, &flow());
    assert_eq!((rig.received(), rig.count(0, Counter::Isolated)), (vec![0; 4], 40));
    for port in [0, 1] {
        rig.switch.set_policy(port, access()).expect("a right policy");
    }
    known(&mut rig);
    rig.switch.set_policy(1, PortPolicy { vlans: native(20), ..Default::default() }).expect("a right policy");
    rig.send_packets(1, vec![packet(&rig.pool, &tagged(BROADCAST, mac(2), 10, 0))]);
    rig.received();
    for _ in 0..3 {
        rig.send(0, &flow());
        assert!(rig.receive(1).iter().all(|frame| frame[12..16] == [0x81, 0, 0, 10]));
    }
    rig.switch.set_policy(1, access()).expect("a right policy");
    known(&mut rig);
    let policy = PortPolicy { stations: vec![(MacAddress(mac(1)), None)], ..access() };
    rig.switch.set_policy(3, policy).expect("a right policy");
    rig.send(0, &flow());
    assert_eq!((rig.received(), rig.count(0, Counter::Spoofed)), (vec![0; 4], 40));
}

/// As in VALE, frames from zeros and from groups are forwarded but not learned from.
#[test]
fn frames_from_nobody_pass_where_they_may() {
    let mut rules = plain(3);
    rules[2].sources = vec![ringpass_port::MacAddress(mac(3))];
    let mut rig = Rig::new(&Config { any_source: true, ..free() }, &rules);
    rig.send(1, &[frame(mac(9), mac(2), 0)]);
    assert_eq!(rig.received(), [1, 0, 1]);
    for from in [[0; 6], [1; 6], [0xff; 6]] {
        rig.send(
            0,
            &[frame(mac(2), from, 1), frame(mac(2), from, 2), frame([0xff; 6], from, 3), frame(mac(8), from, 4)],
        );
        assert_eq!(rig.received(), [0, 4, 2], "to one station, to all, to an unknown one");
        // Where a port lists its stations, these sources are not among them.
        rig.send(2, &[frame(mac(2), from, 5)]);
        assert_eq!(rig.received(), [0; 3]);
    }
    assert_eq!([0, 2].map(|port| rig.count(port, Counter::Invalid)), [0, 3]);
    assert_eq!((0..3).map(|port| rig.count(port, Counter::Learned)).sum::<u64>(), 1);
}

#[test]
fn passed_frames_are_not_looked_at() {
    let mut rules = plain(3);
    rules[1].isolation = Some(1);
    rules[0].isolation = Some(1);
    let way = |port| if port == 0 { Forwarding::Direct(1) } else { Forwarding::Lookup };
    let mut rig = Rig::with(&free(), &rules, 1024, way, |_, queues, _| queues);
    let frames = [frame([1, 0x80, 0xc2, 0, 0, 0], [0xff; 6], 1), vec![1, 2, 3], tagged(mac(1), mac(2), 4095, 2)];
    rig.send(0, &frames);
    assert_eq!(rig.receive(1), frames);
    assert!(rig.received() == [0; 3] && rig.switch.table().is_empty());
    assert_eq!((rig.count(0, Counter::Passed), accounted(&rig.switch, 3)), (3, 3));
    rig.switch.set_link(1, DOWN);
    rig.send(0, &frames);
    assert_eq!((rig.received(), rig.count(0, Counter::Nowhere)), (vec![0; 3], 3));
    rig.switch.set_link(1, UP);
    rig.send(2, &[frame(BROADCAST, mac(3), 4)]);
    assert_eq!(rig.received(), [1, 1, 0]);
}

#[test]
fn a_port_may_have_further_rx_queues_each_with_its_own_way() {
    let (pool, mut switch) = (pool(), Switch::new(&free(), &plain(2)).unwrap());
    let (mut near, mut far): (Vec<_>, Vec<_>) = (0..3).map(|i| cable(&i.to_string(), 64)).unzip();
    let [a, b, more] = near.iter_mut().map(|end| queues(end)).collect::<Vec<_>>().try_into().ok().unwrap();
    let mut datapath = switch.datapath(&pool, 32).unwrap();
    let mut first = share(a, Forwarding::Lookup);
    first.rx.push((more.rx, Forwarding::Direct(1)));
    switch.insert(0, vec![first]);
    switch.insert(1, vec![share(b, Forwarding::Lookup)]);
    let mut far: Vec<_> = far.iter_mut().map(|end| queues(end)).collect();
    for (queue, number) in [(0, 1), (2, 2)] {
        let mut burst = Burst::new(1);
        burst.push(packet(&pool, &frame(BROADCAST, mac(queue), number)));
        far[usize::from(queue)].tx.tx_burst(&mut burst);
    }
    assert_eq!(datapath.round(), 2);
    let order: Vec<u8> = receive(&mut far[1]).iter().map(|frame| frame[17]).collect();
    assert_eq!(order, [1, 2], "what came first leaves first");
    assert_eq!(switch.table().len(), 1);
}

#[test]
fn what_a_port_has_no_room_for_is_dropped_and_counted() {
    let mut rig = Rig::with(&free(), &plain(3), 64, |_| Forwarding::Lookup, |_, queues, _| queues);
    for _ in 0..3 {
        rig.send(0, &vec![frame(BROADCAST, mac(1), 1); 50]);
        assert_eq!(rig.receive(2).len(), 50);
    }
    assert_eq!(rig.received(), [0, 64, 0]);
    assert_eq!([1, 2].map(|port| rig.count(port, Counter::TxDrops)), [86, 0]);
    assert_eq!(rig.count(0, Counter::Flooded), 150);
}

#[test]
fn more_than_a_burst_to_one_port_in_one_round() {
    let mut rig = Rig::new(&free(), &plain(4));
    rig.send(3, &[frame(BROADCAST, mac(4), 0)]);
    rig.received();
    for port in 0..3 {
        let mut burst = Burst::new(256);
        (0..200).for_each(|number| burst.push(packet(&rig.pool, &frame(mac(4), mac(port), number))));
        rig.far[usize::from(port)].tx.tx_burst(&mut burst);
    }
    assert_eq!(rig.datapath.round(), 600);
    assert_eq!((rig.receive(3).len(), rig.count(3, Counter::TxDrops)), (600, 0));
}

#[test]
fn copies_carry_all_that_is_known_and_asked() {
    let mut rig = Rig::new(&free(), &plain(3));
    let small = Mempool::new(&ringpass_memory::MempoolConfig { size: 500, buffers: 64, ..Default::default() }).unwrap();
    let mut bytes = frame(BROADCAST, mac(1), 7);
    bytes.resize(3000, 9);
    let mut packet = chain([&bytes[..]], || small.alloc()).unwrap();
    let headers = Headers { l2: 14, l3: 20, l4: 20, protocol: L4::Tcp };
    packet.request_segmentation(1000, headers);
    packet.set_rss_hash(77);
    rig.send_packets(0, vec![packet]);
    for port in [1, 2] {
        let mut burst = Burst::new(2);
        assert_eq!(rig.far[port].rx.rx_burst(&mut burst), 1);
        let packet = &burst[0];
        assert_eq!(packet.segments().flat_map(|segment| segment.to_vec()).collect::<Vec<_>>(), bytes);
        assert_eq!((packet.mss(), packet.headers(), packet.rss_hash()), (Some(1000), Some(headers), Some(77)));
    }
}

#[test]
fn stations_that_are_fixed_are_nowhere_else() {
    let mut rules = plain(3);
    rules[0].stations = vec![(MacAddress(mac(1)), None)];
    let mut rig = Rig::new(&free(), &rules);
    rig.send(1, &[frame(mac(2), mac(1), 1), frame(mac(1), mac(2), 2)]);
    assert_eq!((rig.received(), rig.count(1, Counter::Spoofed)), (vec![1, 0, 0], 1));
    rig.switch.tick(Duration::from_secs(1000));
    rig.switch.set_link(0, DOWN);
    rig.switch.set_link(0, UP);
    let table = rig.switch.table();
    assert!(table.len() == 1 && table[0].port == 0 && table[0].age.is_none(), "{table:?}");
}

/// Frames that forbid learning cannot be used to send in the name of other stations.
#[test]
fn frames_that_are_not_learned_from() {
    let mut rules = plain(3);
    rules[0].stations = vec![(MacAddress(mac(1)), None)];
    rules[2].sources = vec![MacAddress(mac(3))];
    let mut rig = Rig::new(&free(), &rules);
    let mut send = |port: usize, source: u8| {
        let mut quiet = packet(&rig.pool, &frame(mac(9), mac(source), 0));
        quiet.add_flags(Flags::NO_LEARN);
        rig.send_packets(port, vec![quiet]);
        (rig.received(), rig.count(port, Counter::Spoofed), rig.switch.table().len())
    };
    assert_eq!(send(0, 1), (vec![0, 1, 1], 0, 1));
    assert_eq!(send(1, 2), (vec![1, 0, 1], 0, 1));
    assert_eq!(send(1, 1), (vec![0; 3], 1, 1));
    assert_eq!(send(2, 3), (vec![1, 1, 0], 0, 1));
    assert_eq!(send(2, 2), (vec![0; 3], 1, 1));
}

#[test]
fn frames_that_are_cut_short_are_counted_and_nothing_else() {
    let mut rig = Rig::new(&free(), &plain(2));
    let whole = tagged(BROADCAST, mac(1), 5, 0);
    rig.send(0, &(0..18).map(|len| whole[..len].to_vec()).collect::<Vec<_>>());
    assert_eq!((rig.received(), rig.count(0, Counter::Invalid)), (vec![0, 0], 18));
    rig.send(0, &[whole[..18].to_vec()]);
    assert_eq!(rig.received(), [0, 1]);
}

#[test]
fn what_makes_no_switch_is_refused() {
    let refused = |config: &Config, rules: &[PortPolicy], part: &str| {
        let error = Switch::new(config, rules).err().expect(part).to_string();
        assert!(error.contains(part) && !error.contains('\n'), "{error}");
    };
    let usual = Config::default();
    refused(&usual, &plain(1), "2 to 64");
    refused(&usual, &plain(MAX_PORTS + 1), "2 to 64");
    refused(&Config { ageing: Duration::from_secs(40_000), ..usual.clone() }, &plain(2), "32400");
    refused(&Config { table: 0, ..usual.clone() }, &plain(2), "stations");
    let with = |vlans: Vlans, station: ([u8; 6], Option<u16>)| {
        let mut rules = plain(2);
        rules[1].vlans = vlans;
        rules[1].stations = vec![(MacAddress(station.0), station.1)];
        rules
    };
    refused(&usual, &with(Vlans::Access(5), (mac(1), Some(6))), "VLAN 6");
    refused(&usual, &with(Vlans::Access(5), (BROADCAST, None)), "'p1'");
    refused(&usual, &with(Vlans::Trunk { allowed: VlanSet::all(), native: None }, (mac(1), None)), "native");
    assert!(Switch::new(&usual, &plain(MAX_PORTS)).is_ok());
}

/// Two workers, each with a queue of every port, on separate threads.
#[test]
fn workers_share_the_table() {
    const FRAMES: u32 = 20_000;
    let (pool, mut switch) = (pool(), Switch::new(&free(), &plain(3)).unwrap());
    let (mut ends, mut fars) = (Vec::new(), [Vec::new(), Vec::new()]);
    let datapaths = [(); 2].map(|()| switch.datapath(&pool, 64).unwrap());
    for port in 0..3 {
        let mut shares = Vec::new();
        for far in &mut fars {
            let (mut near, mut end) = cable("c", 512);
            shares.push(share(queues(&mut near), Forwarding::Lookup));
            far.push(queues(&mut end));
            ends.push((near, end));
        }
        switch.insert(port, shares);
    }
    std::thread::scope(|scope| {
        for (worker, (mut datapath, mut far)) in datapaths.into_iter().zip(fars).enumerate() {
            let pool = pool.clone();
            scope.spawn(move || {
                // The station of each port sends to that of the next port; both workers soon know all stations.
                for port in 0..3 {
                    let mut burst = Burst::new(1);
                    burst.push(packet(&pool, &frame(BROADCAST, mac(port), 0)));
                    far[usize::from(port)].tx.tx_burst(&mut burst);
                    datapath.round();
                }
                far.iter_mut().for_each(|far| assert_eq!(receive(far).len(), 2));
                for number in (0..FRAMES).step_by(100) {
                    for port in 0..3 {
                        let mut burst = Burst::new(100);
                        let frames = (number..number + 100).map(|n| frame(mac((port + 1) % 3), mac(port), n));
                        frames.for_each(|frame| burst.push(packet(&pool, &frame)));
                        far[usize::from(port)].tx.tx_burst(&mut burst);
                    }
                    while datapath.round() > 0 {}
                    for port in 0..3u8 {
                        let numbers: Vec<u32> = receive(&mut far[usize::from(port)])
                            .iter()
                            .map(|frame| {
                                assert_eq!(frame[..12], [mac(port), mac((port + 2) % 3)].concat(), "worker {worker}");
                                u32::from_be_bytes(frame[14..18].try_into().unwrap())
                            })
                            .collect();
                        assert_eq!(numbers, (number..number + 100).collect::<Vec<_>>());
                    }
                }
            });
        }
    });
    let forwarded: u64 = (0..3).map(|port| switch.counts(port).of(Counter::Forwarded)).sum();
    assert_eq!(forwarded, u64::from(2 * 3 * FRAMES));
    let received: u64 = ends.iter_mut().map(|(near, _)| near.stats().rx_packets).sum();
    assert_eq!(received, forwarded + 6);
}

/// A port whose queue takes long to drop, like that of a card that does not stop.
struct SlowToDrop(Box<dyn RxQueue>);

const DROP: Duration = Duration::from_secs(2);

impl RxDecorator for SlowToDrop {
    fn inner(&self) -> &dyn RxQueue {
        &*self.0
    }

    fn inner_mut(&mut self) -> &mut dyn RxQueue {
        &mut *self.0
    }
}

impl Drop for SlowToDrop {
    fn drop(&mut self) {
        std::thread::sleep(DROP);
    }
}

#[test]
fn a_removed_port_that_takes_long_to_drop_keeps_no_other_port_waiting() {
    let forwarding = |_| Forwarding::Lookup;
    let mut rig = Rig::with(&free(), &plain(3), 1024, forwarding, |port, queues, _| match port {
        1 => QueuePair { rx: Box::new(SlowToDrop(queues.rx)), tx: queues.tx },
        _ => queues,
    });
    rig.switch.remove(1);
    let start = Instant::now();
    rig.send(0, &[frame(mac(2), mac(1), 1)]);
    assert_eq!(rig.received(), [0, 0, 1]);
    assert!(start.elapsed() < DROP / 2, "{:?}", start.elapsed());
}

/// A port whose queue knows of its link before the control side polls it, like one whose guest has just
/// connected.
struct Connected {
    rx: Box<dyn RxQueue>,
    link: Arc<AtomicBool>,
}

impl RxDecorator for Connected {
    fn inner(&self) -> &dyn RxQueue {
        &*self.rx
    }

    fn inner_mut(&mut self) -> &mut dyn RxQueue {
        &mut *self.rx
    }

    fn has_link(&self) -> bool {
        self.link.load(Relaxed)
    }
}

/// Frames for a port are not lost between the moment it gets a link, or sends something, and the control side's
/// next poll.
#[test]
fn a_port_that_may_send_may_receive() {
    let link: Arc<AtomicBool> = Default::default();
    let of_port = link.clone();
    let mut rig = Rig::with(
        &free(),
        &plain(3),
        1024,
        |_| Forwarding::Lookup,
        |port, queues, _| match port {
            1 => QueuePair { rx: Box::new(Connected { rx: queues.rx, link: of_port.clone() }), tx: queues.tx },
            _ => queues,
        },
    );
    let (to_one, from_one) = (frame(mac(2), mac(1), 1), frame(mac(1), mac(2), 2));
    // Its queue reports a link; then the link is down again.
    rig.switch.set_link(1, DOWN);
    rig.send(0, std::slice::from_ref(&to_one));
    assert_eq!(rig.received(), [0, 0, 1]);
    link.store(true, Relaxed);
    rig.send(0, std::slice::from_ref(&to_one));
    assert_eq!(rig.received(), [0, 1, 1]);
    link.store(false, Relaxed);
    rig.switch.set_link(1, DOWN);
    rig.send(0, std::slice::from_ref(&to_one));
    assert_eq!(rig.received(), [0, 0, 1]);
    // The port sends: the answer reaches it, and no other port.
    rig.send(1, &[from_one]);
    assert_eq!(rig.received(), [1, 0, 0]);
    rig.send(0, &[to_one]);
    assert_eq!(rig.received(), [0, 1, 0]);
}

/// Stations that a control plane places do not age, move to where their frames arrive, and stay when a link is lost.
#[test]
fn stations_are_placed_by_a_control_plane() {
    let mut rules = plain(3);
    rules[2].given = true;
    let config = Config { ageing: Duration::from_secs(2), moves: 3, ..free() };
    let mut rig = Rig::new(&config, &rules);
    let arrivals = rig.switch.arrivals().unwrap();
    assert!(rig.switch.arrivals().is_err());
    let placement = rig.switch.placement();
    let new = || {
        let mut new = Vec::new();
        assert!(arrivals.read(|arrival| new.push((arrival.mac.0, arrival.vlan, arrival.port))));
        new
    };
    let vlan = 0;
    assert!(placement.place(MacAddress(mac(5)), vlan, 2));
    rig.switch.tick(Duration::from_secs(100));
    rig.send(0, &[frame(mac(5), mac(1), 1)]);
    assert_eq!(rig.received(), [0, 0, 1]);
    assert_eq!(new(), [(mac(1), vlan, 0)]);
    // Nothing is learned at its port.
    rig.send(2, &[frame(mac(1), mac(6), 2), frame(BROADCAST, mac(1), 3)]);
    assert_eq!(rig.received(), [2, 1, 0]);
    assert_eq!((rig.switch.table().len(), new()), (2, vec![]));
    rig.switch.set_link(2, Link::default());
    assert_eq!(rig.switch.table().len(), 2);
    // It comes here, and is placed there again.
    rig.send(1, &[frame(mac(1), mac(5), 4)]);
    assert_eq!(new(), [(mac(5), vlan, 1)]);
    placement.remove(MacAddress(mac(5)), vlan, 2);
    assert_eq!(rig.switch.table().len(), 2, "it is no longer there");
    for _ in 0..100 {
        assert!(placement.place(MacAddress(mac(5)), vlan, 2));
        rig.send(1, &[frame(mac(1), mac(5), 5)]);
    }
    // Moves in a short time have a limit; what is placed is not bound by it.
    assert!((1..=100).contains(&new().len()));
    assert!(placement.place(MacAddress(mac(5)), vlan, 2));
    placement.remove(MacAddress(mac(5)), vlan, 2);
    assert!(rig.switch.table().iter().all(|entry| entry.mac.0 != mac(5)));
    assert!(placement.place(MacAddress(mac(7)), vlan, 2));
    rig.switch.remove(2);
    assert!(rig.switch.table().iter().all(|entry| entry.mac.0 != mac(7)));
}

/// More stations arrive than a reader has read: it learns that some are missing.
#[test]
fn a_slow_reader_of_arrivals_is_told_so() {
    let mut rig = Rig::new(&Config { table: 1 << 16, ..free() }, &plain(2));
    let arrivals = rig.switch.arrivals().unwrap();
    let station = |number: u32| [2, 0, 0, (number >> 16) as u8, (number >> 8) as u8, number as u8];
    for number in (0..5000).step_by(100) {
        let frames: Vec<_> = (number..number + 100).map(|number| frame(mac(1), station(number), 1)).collect();
        rig.send(0, &frames);
    }
    let mut count = 0;
    assert!(!arrivals.read(|_| count += 1));
    assert_eq!(count, 4096);
    rig.send(0, &[frame(mac(1), station(6000), 1)]);
    assert!(arrivals.read(|_| count += 1));
    assert_eq!(count, 4097);
}
