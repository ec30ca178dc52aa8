//! Tests of tunnels: two switches connected by a cable that carries VXLAN.

use std::net::{IpAddr, Ipv4Addr};

use crate::common::*;
use ringpass_memory::{Burst, MAX_BATCH, Mempool, MempoolConfig};
use ringpass_port::{MacAddress, Offloads, QueuePair, Sum};
use ringpass_switch::vxlan::{self, EndState, OVERHEAD, Tunnel};
use ringpass_switch::{Forwarding, PortPolicy, VlanSet, Vlans};

const HERE: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 1);
const THERE: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 2);

fn tunnel(local: Ipv4Addr, remote: Ipv4Addr) -> Tunnel {
    mesh(local, &[remote])
}

/// Returns an end that has these others.
fn mesh(local: Ipv4Addr, remotes: &[Ipv4Addr]) -> Tunnel {
    Tunnel::new(config(vxlan::Networks::One(42), local.into(), remotes.iter().map(|&remote| remote.into()))).unwrap()
}

fn config(networks: vxlan::Networks, local: IpAddr, remotes: impl IntoIterator<Item = IpAddr>) -> vxlan::Config {
    let ends = vxlan::Ends::Fixed(remotes.into_iter().collect());
    vxlan::Config { networks, port: 4789, local, prefix: None, gateway: None, ends, stations: 1024, mac: None }
}

/// Makes the second port of a switch the end of a tunnel.
fn second(tunnel: &Tunnel) -> impl Fn(usize, QueuePair, &Mempool) -> QueuePair {
    |port, queues, pool| if port == 1 { tunnel.wrap(queues, pool, 1500) } else { queues }
}

/// Returns a switch of two ports, the second of which is the end of a tunnel.
fn rig(tunnel: &Tunnel) -> Rig {
    let mut rules = plain(2);
    rules.iter_mut().for_each(|rules: &mut PortPolicy| rules.vlans = Vlans::Access(7));
    Rig::with(&free(), &rules, 1024, |_| Forwarding::Lookup, second(tunnel))
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

/// Lets both ends learn each other's hardware address, from a frame that is lost.
fn meet(a: &mut Rig, b: &mut Rig) {
    a.send(0, &[frame(BROADCAST, mac(1), 1)]);
    carry(a, b);
    carry(b, a);
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
fn senders_of_frames_that_do_not_fit_are_told() {
    let (one, other) = (tunnel(HERE, THERE), tunnel(THERE, HERE));
    let (mut a, mut b) = (rig(&one), rig(&other));
    meet(&mut a, &mut b);
    // An MTU of 1500 bytes, less IP, UDP and VXLAN headers.
    let sized = |len: usize| {
        let mut frame = frame(mac(2), mac(1), 2);
        frame.resize(len, 0);
        frame[12..24].copy_from_slice(&[8, 0, 0x45, 0, 0, 0, 0, 0, 0x40, 0, 64, 17]);
        frame[26..34].copy_from_slice(&[198, 18, 0, 1, 198, 18, 0, 2]);
        frame
    };
    let mut not_ip = sized(1465);
    not_ip[13] = 1;
    a.send(0, &[sized(1464), not_ip, sized(1465), sized(1465), sized(1464)]);
    assert_eq!(carry(&mut a, &mut b), 2);
    assert_eq!(b.receive(0), [sized(1464), sized(1464)]);
    a.datapath.round();
    let told = a.receive(0);
    // From who did not get it: ICMP, "fragmentation needed", 1450 bytes; and only once at a time.
    assert_eq!(told.len(), 1);
    assert_eq!(told[0][..12], [mac(1), mac(2)].concat());
    assert_eq!(told[0][26..36], [198, 18, 0, 2, 198, 18, 0, 1, 3, 4]);
    assert_eq!((&told[0][40..42], told[0].len()), (&1450u16.to_be_bytes()[..], 14 + 576));
    assert_eq!((count(&one, "vxlan_too_long"), count(&one, "vxlan_tx_drops")), (3, 0));
}

#[test]
fn others_are_not_heard() {
    let (one, other) = (tunnel(HERE, THERE), tunnel(THERE, HERE));
    let (mut a, mut b) = (rig(&one), rig(&other));
    meet(&mut a, &mut b);
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
    meet(&mut a, &mut b);
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
    use ringpass_port::parse_headers;
    let (one, other) = (tunnel(HERE, THERE), tunnel(THERE, HERE));
    let (mut a, mut b) = (rig(&one), rig(&other));
    meet(&mut a, &mut b);
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

/// Switches with tunnels to each other, on one outer network.
struct Mesh {
    tunnels: Vec<Tunnel>,
    rigs: Vec<Rig>,
}

impl Mesh {
    /// Creates this many switches, of which each has all others as its remotes.
    fn new(ends: u8) -> Self {
        let others = |own| (1..=ends).filter(|&end| end != own).map(address).collect::<Vec<_>>();
        let tunnels: Vec<_> = (1..=ends).map(|own| mesh(address(own), &others(own))).collect();
        let rigs = tunnels.iter().map(rig).collect();
        Self { tunnels, rigs }
    }

    /// Carries frames between the switches until there are none. Returns the numbers of those to which VXLAN frames went.
    fn carry(&mut self) -> Vec<usize> {
        let mut went = Vec::new();
        loop {
            let mut frames = Vec::new();
            for rig in &mut self.rigs {
                frames.append(&mut rig.receive(1));
            }
            if frames.is_empty() {
                went.sort_unstable();
                return went;
            }
            for frame in frames {
                let is_arp = frame[12..14] == [8, 6];
                let to = usize::from(frame[if is_arp { 41 } else { 33 }]) - 1;
                went.extend((!is_arp).then_some(to));
                self.rigs[to].send(1, &[frame]);
            }
        }
    }

    /// Sends a frame from the switch's own station's port.
    fn send(&mut self, from: usize, frame: Vec<u8>) -> Vec<usize> {
        self.rigs[from].send(0, &[frame]);
        self.carry()
    }

    /// Returns what came out at each switch's own station's port.
    fn received(&mut self) -> Vec<Vec<Vec<u8>>> {
        self.rigs.iter_mut().map(|rig| rig.receive(0)).collect()
    }
}

fn address(end: u8) -> Ipv4Addr {
    Ipv4Addr::new(10, 0, 0, end)
}

/// A control plane gives three switches' tunnels their remotes and stations: none is learned from frames.
#[test]
fn remotes_and_stations_are_given() {
    let given = |own: u8| {
        let config = config(vxlan::Networks::One(42), address(own).into(), []);
        Tunnel::new(vxlan::Config { ends: vxlan::Ends::Given, ..config }).unwrap()
    };
    let tunnels: Vec<Tunnel> = (1..=3).map(given).collect();
    let rigs = tunnels.iter().map(rig).collect();
    let mut mesh = Mesh { tunnels, rigs };
    // Nothing is known: frames go nowhere, and nobody is heard.
    assert_eq!(mesh.send(0, frame(BROADCAST, mac(1), 1)), [0; 0]);
    assert_eq!(count(&mesh.tunnels[0], "vxlan_tx_drops"), 1);
    let end = |end: u8| IpAddr::from(address(end));
    for (own, others) in [(0, [2, 3]), (1, [1, 3]), (2, [1, 2])] {
        let change = |changes: &mut vxlan::Changes| others.map(|other| changes.add_remote(42, end(other)).unwrap());
        mesh.tunnels[own].change(change).unwrap();
    }
    // All get what is for all; the questions for hardware addresses come first.
    for own in 0..3 {
        mesh.send(own, frame(BROADCAST, mac(own as u8 + 1), 2));
    }
    mesh.received();
    assert_eq!(mesh.send(0, frame(BROADCAST, mac(1), 3)), [1, 2]);
    assert_eq!(mesh.received(), [vec![], vec![frame(BROADCAST, mac(1), 3)], vec![frame(BROADCAST, mac(1), 3)]]);
    // A station's frames do not say where it is.
    mesh.send(1, frame(mac(1), mac(2), 4));
    assert_eq!(mesh.send(0, frame(mac(2), mac(1), 5)), [1, 2]);
    let station =
        |number: u8, remote: u8| vxlan::Station { vni: 42, mac: MacAddress(mac(number)), remote: end(remote) };
    let add = |tunnel: &Tunnel, station| tunnel.change(|changes| changes.add_station(station)).unwrap();
    assert!(add(&mesh.tunnels[0], station(2, 2)).unwrap());
    assert!(!add(&mesh.tunnels[0], station(2, 2)).unwrap(), "it was there");
    assert_eq!(mesh.send(0, frame(mac(2), mac(1), 6)), [1]);
    // It moves, to an end that is in no list of copies.
    let moved = |changes: &mut vxlan::Changes| {
        changes.remove_remote(42, end(3));
        changes.add_station(station(2, 3))
    };
    mesh.tunnels[0].change(moved).unwrap().unwrap();
    assert_eq!(mesh.send(0, frame(mac(2), mac(1), 7)), [2]);
    assert_eq!(mesh.tunnels[0].stations(), [station(2, 3)]);
    let state = |end, stations, networks: &[u32]| EndState {
        address: end,
        networks: networks.into(),
        stations,
        is_resolved: true,
    };
    assert_eq!(mesh.tunnels[0].ends(), [state(end(2), 0, &[42]), state(end(3), 1, &[])]);
    // What is said of another end is not heard; an end that nothing needs any longer is unknown.
    let remove = |tunnel: &Tunnel, station| tunnel.change(|changes| changes.remove_station(station)).unwrap();
    assert!(!remove(&mesh.tunnels[0], station(2, 2)));
    assert!(remove(&mesh.tunnels[0], station(2, 3)));
    mesh.received();
    let foreign = count(&mesh.tunnels[0], "vxlan_foreign");
    assert_eq!(mesh.send(2, frame(mac(1), mac(3), 8)), [0, 1]);
    assert_eq!((mesh.received()[0].len(), count(&mesh.tunnels[0], "vxlan_foreign") - foreign), (0, 1));
    // All anew: what is not said again is gone.
    add(&mesh.tunnels[0], station(4, 2)).unwrap();
    add(&mesh.tunnels[0], station(5, 3)).unwrap();
    let mut gone = Vec::new();
    let all = |changes: &mut vxlan::Changes| {
        changes.begin_all();
        changes.add_station(station(4, 2)).unwrap();
        changes.end_all(|vni, mac| gone.push((vni, mac)));
    };
    mesh.tunnels[0].change(all).unwrap();
    assert_eq!((mesh.tunnels[0].stations(), gone), (vec![station(4, 2)], vec![(42, MacAddress(mac(5)))]));
    assert_eq!(mesh.tunnels[0].ends(), [state(end(2), 1, &[])]);
}

#[test]
fn what_is_given_must_be_possible() {
    let given = config(vxlan::Networks::One(42), HERE.into(), []);
    let given = vxlan::Config { ends: vxlan::Ends::Given, prefix: Some(24), ..given };
    let tunnel = Tunnel::new(given).unwrap();
    let remote = |vni, remote: &str| tunnel.change(|changes| changes.add_remote(vni, remote.parse().unwrap())).unwrap();
    let station = |vni, mac, remote| vxlan::Station { vni, mac: MacAddress(mac), remote };
    let add = |station| tunnel.change(|changes| changes.add_station(station)).unwrap().map(drop);
    let why = |result: Result<(), ringpass_port::Error>| result.unwrap_err().to_string();
    assert!(why(remote(43, "10.0.0.2")).contains("no network 43"));
    assert!(why(remote(42, "10.0.1.2")).contains("outside of the network of 10.0.0.1; say through which gateway"));
    for other in ["10.0.0.1", "fd00::2", "255.255.255.255", "224.0.0.1", "0.0.0.0"] {
        assert!(why(remote(42, other)).contains("are not the addresses of two stations"));
    }
    assert!(why(add(station(42, BROADCAST, THERE.into()))).contains("is not the address of a station"));
    assert!(why(add(station(7, mac(2), THERE.into()))).contains("no network 7"));
    assert!(tunnel.stations().is_empty());
    // As many ends as there may be, each with a station, and one that finds no number.
    let near = |number: u32| IpAddr::from(Ipv4Addr::from_bits(0x0a01_0000 + number));
    let wide = config(vxlan::Networks::One(42), HERE.into(), []);
    let wide = Tunnel::new(vxlan::Config { ends: vxlan::Ends::Given, ..wide }).unwrap();
    let fill = |changes: &mut vxlan::Changes| {
        (1..=4096).for_each(|number| changes.add_remote(42, near(number)).unwrap());
        let full = changes.add_remote(42, near(5000));
        changes.remove_remote(42, near(7));
        (full, changes.add_remote(42, near(5000)))
    };
    let (full, after) = wide.change(fill).unwrap();
    assert!(why(full).contains("a tunnel has 1 to 4096 remotes"));
    after.unwrap();
    let fixed = self::tunnel(HERE, THERE);
    assert!(why(fixed.change(|_| ())).contains("the remotes of this tunnel are fixed"));
}

#[test]
fn many_remotes_get_what_is_for_all_and_one_gets_what_is_for_its_station() {
    let mut mesh = Mesh::new(4);
    // Nobody knows anybody yet: the frame is lost, and all addresses are requested.
    assert!(mesh.send(0, frame(BROADCAST, mac(1), 1)).is_empty());
    assert_eq!(count(&mesh.tunnels[0], "vxlan_unresolved"), 3);
    mesh.send(1, frame(BROADCAST, mac(2), 1));
    assert_eq!(mesh.send(0, frame(BROADCAST, mac(1), 2)), [1, 2, 3]);
    assert_eq!(count(&mesh.tunnels[0], "vxlan_copies"), 2);
    mesh.received();
    // The station's own remote alone gets the answer, and a frame to somebody unknown goes to all.
    assert_eq!(mesh.send(1, frame(mac(1), mac(2), 3)), [0]);
    assert_eq!(mesh.received()[0], [frame(mac(1), mac(2), 3)]);
    assert_eq!(mesh.send(0, frame(mac(2), mac(1), 4)), [1]);
    assert_eq!(mesh.send(0, frame(mac(9), mac(1), 5)), [1, 2, 3]);
    let received = mesh.received();
    assert_eq!(received[1], [frame(mac(2), mac(1), 4), frame(mac(9), mac(1), 5)]);
    assert_eq!((&received[2], &received[3]), (&vec![frame(mac(9), mac(1), 5)], &vec![frame(mac(9), mac(1), 5)]));
    // Nothing that came from a remote went to another one.
    let sent: Vec<u64> = mesh.tunnels.iter().map(|tunnel| count(tunnel, "vxlan_sent")).collect();
    assert_eq!(sent, [7, 2, 0, 0]);
}

#[test]
fn a_station_that_moves_is_found_at_its_new_remote() {
    let mut mesh = Mesh::new(3);
    for end in [0, 1, 2, 0, 1, 2] {
        mesh.send(end, frame(BROADCAST, mac(end as u8 + 1), 1));
    }
    assert_eq!(mesh.send(0, frame(mac(2), mac(1), 2)), [1]);
    // A thousand moves a second: the last one counts.
    for number in 0..1000 {
        mesh.send(1 + number % 2, frame(mac(1), mac(7), 3));
    }
    assert_eq!(mesh.send(0, frame(mac(7), mac(1), 4)), [2]);
}

#[test]
fn frames_from_an_end_that_is_no_remote_are_counted_and_dropped() {
    let mut mesh = Mesh::new(3);
    for end in [0, 1, 2, 0] {
        mesh.send(end, frame(BROADCAST, mac(1), 1));
    }
    mesh.received();
    mesh.rigs[0].send(0, &[frame(BROADCAST, mac(1), 2)]);
    let mut forged = mesh.rigs[0].receive(1).remove(0);
    assert_eq!(forged[29], 1);
    forged[29] = 9;
    forged[24..26].fill(0);
    let mut sum = Sum::default();
    sum.add(&forged[14..34]);
    forged[24..26].copy_from_slice(&sum.folded().map(|byte| !byte));
    let before = count(&mesh.tunnels[1], "vxlan_foreign");
    mesh.rigs[1].send(1, &[forged]);
    assert!(mesh.rigs[1].receive(0).is_empty());
    assert_eq!(count(&mesh.tunnels[1], "vxlan_foreign"), before + 1);
}

#[test]
fn each_vlan_is_a_network_of_its_own() {
    let ends = [(HERE, THERE), (THERE, HERE)].map(|(local, remote)| {
        let networks = vxlan::Networks::Vlans(vec![(7, 1007), (8, 1008), (9, 1009)]);
        let remotes = [remote, Ipv4Addr::new(10, 0, 0, 3)].map(IpAddr::from);
        Tunnel::new(config(networks, local.into(), remotes)).unwrap()
    });
    let trunk = |vlans: &[u16]| Vlans::Trunk { allowed: VlanSet::of(vlans.iter().copied()), native: None };
    let rigs = ends.each_ref().map(|tunnel| {
        let mut rules = plain(3);
        (rules[0].vlans, rules[2].vlans) = (Vlans::Access(7), Vlans::Access(8));
        rules[1].vlans = trunk(&[7, 8, 10]);
        Rig::with(&free(), &rules, 1024, |_| Forwarding::Lookup, second(tunnel))
    });
    let [mut a, mut b] = rigs;
    meet(&mut a, &mut b);
    // The same station in two VLANs.
    a.send(0, &[frame(BROADCAST, mac(1), 2)]);
    a.send(2, &[frame(BROADCAST, mac(1), 3)]);
    let frames = a.receive(1);
    let vnis: Vec<&[u8]> = frames.iter().filter(|frame| frame[12..14] == [8, 0]).map(|frame| &frame[46..49]).collect();
    assert_eq!(vnis, [&[0, 3, 0xef][..], &[0, 3, 0xf0]]);
    assert!(frames.iter().all(|frame| frame.len() <= OVERHEAD + 60), "no tag inside");
    b.send(1, &frames);
    assert_eq!((b.receive(0), b.receive(2)), (vec![frame(BROADCAST, mac(1), 2)], vec![frame(BROADCAST, mac(1), 3)]));
    // A network that this end does not have, one whose VLAN the port has not, and a tag inside.
    let mut unknown = frames.last().unwrap().clone();
    unknown[48] = 0xf2;
    let mut elsewhere = unknown.clone();
    elsewhere[48] = 0xf1;
    let mut tagged = frames.last().unwrap().clone();
    tagged[OVERHEAD + 12..OVERHEAD + 14].copy_from_slice(&[0x81, 0]);
    let foreign = count(&ends[1], "vxlan_foreign");
    b.send(1, &[unknown, elsewhere, tagged]);
    assert!(b.receive(0).is_empty() && b.receive(2).is_empty());
    assert_eq!((count(&ends[1], "vxlan_foreign"), count(&ends[1], "vxlan_malformed")), (foreign + 1, 1));
}

#[test]
fn wrong_networks_and_ends_are_refused_with_the_reason() {
    let new = |networks, remotes: &[Ipv4Addr], stations| {
        let remotes = remotes.iter().map(|&remote| remote.into());
        let config = vxlan::Config { stations, ..config(networks, HERE.into(), remotes) };
        Tunnel::new(config).err().map(|error| error.to_string()).unwrap_or_default()
    };
    let (one, vlans) = (vxlan::Networks::One, |list: &[_]| vxlan::Networks::Vlans(list.to_vec()));
    let many: Vec<_> = (0..=vxlan::MAX_REMOTES as u32).map(|n| Ipv4Addr::from(0x0a01_0000 + n)).collect();
    for (networks, remotes, stations, why) in [
        (one(1 << 24), &[THERE][..], 1, "16777216 is not a VNI"),
        (vlans(&[]), &[THERE], 1, "at least one network"),
        (vlans(&[(0, 1)]), &[THERE], 1, "0 is not a VLAN"),
        (vlans(&[(4095, 1)]), &[THERE], 1, "4095 is not a VLAN"),
        (vlans(&[(1, 5), (2, 5)]), &[THERE], 1, "VNI 5 is there twice"),
        (vlans(&[(1, 5), (1, 6)]), &[THERE], 1, "VLAN 1 is there twice"),
        (one(1), &[], 1, "1 to 4096 remotes, not 0"),
        (one(1), &many, 1, "1 to 4096 remotes, not 4097"),
        (one(1), &[THERE, HERE], 1, "10.0.0.1 and 10.0.0.1"),
        (one(1), &[THERE, Ipv4Addr::BROADCAST], 1, "255.255.255.255"),
        (one(1), &[THERE], 0, "1 to 16777216 stations, not 0"),
        (vlans(&[(1, 1), (2, 2)]), &many[..2], 1 << 24, "16777216 stations in all networks"),
    ] {
        let said = new(networks, remotes, stations);
        assert!(said.contains(why) && !said.contains('\n'), "{said}");
    }
}

#[test]
fn a_router_is_for_remotes_elsewhere() {
    let new = |prefix, gateway: Option<&str>, remote: &str| {
        let gateway = gateway.map(|gateway| gateway.parse().unwrap());
        let config = config(vxlan::Networks::One(1), HERE.into(), [remote.parse().unwrap()]);
        Tunnel::new(vxlan::Config { prefix, gateway, ..config }).err().map_or("".into(), |error| error.to_string())
    };
    for (prefix, gateway, remote, why) in [
        (Some(33), None, "10.0.0.2", "32 bits"),
        (None, None, "fd00::1", "two stations"),
        (None, Some("10.0.0.9"), "10.1.0.1", "prefix length"),
        (Some(24), Some("10.0.1.9"), "10.1.0.1", "gateway 10.0.1.9"),
        (Some(24), Some("10.0.0.1"), "10.1.0.1", "two stations"),
        (Some(24), None, "10.0.1.2", "through which gateway"),
    ] {
        let said = new(prefix, gateway, remote);
        assert!(said.contains(why) && !said.contains('\n'), "{said}");
    }
    for (prefix, gateway, remote) in
        [(Some(8), None, "10.1.0.1"), (Some(24), Some("10.0.0.9"), "10.1.0.1"), (None, None, "192.0.2.1")]
    {
        assert_eq!(new(prefix, gateway, remote), "");
    }
    // The router is asked for its address, and gets the frames.
    let far = config(vxlan::Networks::One(42), HERE.into(), ["10.9.0.1".parse().unwrap()]);
    let tunnel = Tunnel::new(vxlan::Config { prefix: Some(24), gateway: Some(THERE.into()), ..far }).unwrap();
    let mut rig = rig(&tunnel);
    rig.send(0, &[frame(BROADCAST, mac(1), 1)]);
    let question = rig.receive(1).remove(0);
    assert_eq!((&question[12..14], &question[38..42]), (&[8, 6][..], &THERE.octets()[..]));
    let mut answer = [&mac(1)[..], &mac(9), &[8, 6, 0, 1, 8, 0, 6, 4, 0, 2], &mac(9), &THERE.octets()].concat();
    answer.extend([&question[22..28], &HERE.octets()].concat());
    rig.send(1, &[answer]);
    rig.send(0, &[frame(BROADCAST, mac(1), 2)]);
    let sent = rig.receive(1).remove(0);
    assert_eq!((&sent[..6], &sent[30..34]), (&mac(9)[..], &[10, 9, 0, 1][..]));
}

/// Returns an ARP frame for all: who has `target`, tell `sender`.
fn question(source: [u8; 6], sender: [u8; 4], target: [u8; 4]) -> Vec<u8> {
    let kind = [8, 6, 0, 1, 8, 0, 6, 4, 0, 1];
    [&BROADCAST[..], &source, &kind, &source, &sender, &[0; 6], &target].concat()
}

/// Returns a neighbor solicitation for `target`, which `from` asks: from nothing, without an option of its hardware address.
fn solicitation(source: [u8; 6], from: std::net::Ipv6Addr, target: std::net::Ipv6Addr) -> Vec<u8> {
    let mut options = target.octets().to_vec();
    if !from.is_unspecified() {
        options.extend([&[1, 1][..], &source].concat());
    }
    let [.., a, b, c] = target.octets();
    let group = std::net::Ipv6Addr::new(0xff02, 0, 0, 0, 0, 1, 0xff00 | u16::from(a), u16::from_be_bytes([b, c]));
    let builder = etherparse::PacketBuilder::ethernet2(source, [0x33, 0x33, 0xff, a, b, c]);
    let builder = builder.ipv6(from.octets(), group.octets(), 255);
    let mut frame = Vec::new();
    builder
        .icmpv6(etherparse::Icmpv6Type::Unknown { type_u8: 135, code_u8: 0, bytes5to8: [0; 4] })
        .write(&mut frame, &options)
        .unwrap();
    frame
}

/// Questions for stations behind other ends, whose addresses a control plane has given, are answered by the tunnel.
#[test]
fn questions_for_stations_elsewhere_are_answered_here() {
    let given = config(vxlan::Networks::Vlans(vec![(7, 42)]), HERE.into(), []);
    let tunnel = Tunnel::new(vxlan::Config { ends: vxlan::Ends::Given, ..given }).unwrap();
    let mut rules = plain(2);
    rules[0].vlans = Vlans::Access(7);
    rules[1].vlans = Vlans::Trunk { allowed: VlanSet::of([7]), native: None };
    let mut rig = Rig::with(&free(), &rules, 1024, |_| Forwarding::Lookup, second(&tunnel));
    let heard = tunnel.heard().unwrap();
    let elsewhere =
        |number, ip: IpAddr| vxlan::Address { vni: 42, ip, mac: MacAddress(mac(number)), is_router: number == 4 };
    let (four, six): (IpAddr, IpAddr) = ([198, 18, 0, 3].into(), "fd00::4:5:6".parse().unwrap());
    let addresses = [elsewhere(3, four), elsewhere(4, six)];
    let give = |changes: &mut vxlan::Changes| {
        changes.add_remote(42, THERE.into()).unwrap();
        addresses.iter().for_each(|&address| changes.add_address(address).unwrap());
    };
    tunnel.change(give).unwrap();
    assert_eq!(tunnel.addresses(), addresses);
    let answered = |rig: &mut Rig, frame: Vec<u8>| {
        let before = count(&tunnel, "vxlan_answered");
        rig.send(0, &[frame]);
        rig.datapath.round();
        (rig.receive(0), count(&tunnel, "vxlan_answered") - before)
    };
    // Nobody has said where the stations are, so they may be anywhere.
    assert_eq!(answered(&mut rig, question(mac(1), [198, 18, 0, 1], [198, 18, 0, 3])), (vec![], 0));
    let station = |number| vxlan::Station { vni: 42, mac: MacAddress(mac(number)), remote: THERE.into() };
    let add = |changes: &mut vxlan::Changes| [3, 4].map(|number| changes.add_station(station(number)).unwrap());
    tunnel.change(add).unwrap();
    let answer =
        [&mac(1)[..], &mac(3), &[8, 6, 0, 1, 8, 0, 6, 4, 0, 2], &mac(3), &[198, 18, 0, 3], &mac(1), &[198, 18, 0, 1]];
    assert_eq!(answered(&mut rig, question(mac(1), [198, 18, 0, 1], [198, 18, 0, 3])), (vec![answer.concat()], 1));
    // Who asks for it as its own is told, unless it is the station itself, which has come here.
    assert_eq!(answered(&mut rig, question(mac(1), [0; 4], [198, 18, 0, 3])).1, 1);
    assert_eq!(answered(&mut rig, question(mac(3), [0; 4], [198, 18, 0, 3])).1, 0);
    // Other questions, and what is no question, go to the other ends.
    for (sender, target) in [([198, 18, 0, 1], [198, 18, 0, 4]), ([198, 18, 0, 3], [198, 18, 0, 3])] {
        assert_eq!(answered(&mut rig, question(mac(1), sender, target)), (vec![], 0));
    }
    // By neighbor discovery, to one who has an address and to all if it has none yet.
    let own = "fd00::1".parse().unwrap();
    let IpAddr::V6(target) = six else { unreachable!() };
    for (from, to, flags) in [(own, mac(1), 0xe0), (std::net::Ipv6Addr::UNSPECIFIED, [0x33, 0x33, 0, 0, 0, 1], 0xa0)] {
        let (answers, answered) = answered(&mut rig, solicitation(mac(1), from, target));
        assert_eq!((answers.len(), answered), (1, 1));
        let answer = &answers[0];
        let parsed = etherparse::PacketHeaders::from_ethernet_slice(answer).unwrap();
        let Some(etherparse::TransportHeader::Icmpv6(icmp)) = parsed.transport else { panic!("{parsed:?}") };
        let Some(etherparse::NetHeaders::Ipv6(ip, _)) = parsed.net else { panic!() };
        assert_eq!(
            icmp.checksum,
            icmp.icmp_type.calc_checksum(ip.source, ip.destination, parsed.payload.slice()).unwrap()
        );
        assert_eq!((&answer[..6], &answer[6..12], answer[54], answer[58]), (&to[..], &mac(4)[..], 136, flags));
        assert_eq!((&answer[62..78], &answer[80..86]), (&target.octets()[..], &mac(4)[..]));
    }
    // What the station has said of itself, in order; a sender whose frame comes from another address is not believed.
    let mut liar = question(mac(1), [198, 18, 0, 9], [198, 18, 0, 8]);
    liar[6..12].copy_from_slice(&mac(2));
    answered(&mut rig, liar);
    let mut said = Vec::new();
    assert!(heard.read(|address| said.push((address.ip, address.mac))));
    said.dedup();
    let [asked, claimed] = [[198, 18, 0, 1], [198, 18, 0, 3]].map(|ip| (IpAddr::from(ip), MacAddress(mac(1))));
    assert_eq!(said, [asked, claimed, (own.into(), MacAddress(mac(1)))]);
    // All anew, without the first address; then the second one is taken back.
    let anew = |changes: &mut vxlan::Changes| {
        changes.begin_all();
        add(changes);
        changes.add_address(addresses[1]).unwrap();
        changes.end_all(|_, _| ());
    };
    tunnel.change(anew).unwrap();
    assert_eq!(tunnel.addresses(), addresses[1..]);
    tunnel.change(|changes| changes.remove_address(42, six)).unwrap();
    assert_eq!(tunnel.addresses(), []);
    assert!(tunnel.heard().is_err(), "it has a reader");
    // As many as there is room for.
    let filled = tunnel.change(|changes| {
        let ip = |number: u32| IpAddr::from(Ipv4Addr::from_bits(number));
        (1..1 << 20).position(|number| changes.add_address(elsewhere(3, ip(number))).is_err())
    });
    assert_eq!((filled.unwrap(), tunnel.addresses().len()), (Some(4096), 4096));
    assert!(mesh(HERE, &[THERE]).heard().is_err(), "its ends are fixed");
}
