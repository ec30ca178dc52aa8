//! The switch has the entries of the kernel's tables.

use std::net::IpAddr;
use std::time::Instant;

use ringpass_evpn::devices::{self, Device};
use ringpass_lab::wait_until;
use ringpass_port::MacAddress;
use ringpass_switch::vxlan::{self, Address, Station, announcement};

use crate::rig::{Rig, TUNNEL, VNI, batch, entry, mac};

fn end(number: u8) -> IpAddr {
    [10, 9, 0, number].into()
}

fn station(mac: MacAddress, remote: u8) -> Station {
    Station { vni: VNI, mac, remote: end(remote) }
}

/// Returns the ends, and the number of networks of which each gets frames for all.
fn ends(rig: &Rig) -> Vec<(IpAddr, usize)> {
    rig.tunnel.ends().iter().map(|end| (end.address, end.networks.len())).collect()
}

const ALL: MacAddress = MacAddress([0; 6]);

#[test]
fn stations_and_ends_come_move_and_go() {
    let rig = Rig::new(1024);
    let vxlan = Device::Vxlan.name(VNI);
    let all = |action: &str, end: u8| format!("fdb {action} {ALL} dev {vxlan} dst 10.9.0.{end} self");
    rig.bridge([all("append", 2), all("append", 3), entry(mac(1), 2), entry(mac(2), 3)]);
    wait_until("the stations", || rig.tunnel.stations() == [station(mac(1), 2), station(mac(2), 3)]);
    wait_until("the ends", || ends(&rig) == [(end(2), 1), (end(3), 1)]);
    assert_eq!([1, 2].map(|number| rig.port(mac(number))), [Some(TUNNEL); 2]);
    // A thousand moves, as fast as the kernel takes them.
    rig.bridge((0..1000).map(|round| entry(mac(1), 2 + (round % 2) as u8)).chain([entry(mac(1), 7)]));
    wait_until("the last move", || rig.tunnel.stations() == [station(mac(1), 7), station(mac(2), 3)]);
    rig.bridge([all("delete", 2), format!("fdb delete {} dev {vxlan} dst 10.9.0.3 self", mac(2))]);
    wait_until("what is left", || rig.tunnel.stations() == [station(mac(1), 7)]);
    wait_until("the ends that are left", || ends(&rig) == [(end(3), 1), (end(7), 0)]);
    assert_eq!([1, 2].map(|number| rig.port(mac(number))), [Some(TUNNEL), None]);
    assert_eq!((rig.count("evpn_refused"), rig.count("evpn_resyncs")), (0, 1));
}

/// Mistakes that FRR may make are refused, and the rest followed.
#[test]
fn what_cannot_be_is_refused() {
    let rig = Rig::new(1024);
    let vxlan = Device::Vxlan.name(VNI);
    let to = |station, end: &str| format!("fdb replace {station} dev {vxlan} dst {end} self extern_learn");
    // The switch's own address, ends outside of its network, none, one of another family.
    rig.bridge(["10.9.0.1", "172.16.0.1", "127.0.0.1"].iter().zip(1..).map(|(end, number)| to(mac(number), end)));
    rig.bridge([entry(mac(9), 2)]);
    wait_until("the good one", || rig.tunnel.stations() == [station(mac(9), 2)]);
    assert_eq!(rig.count("evpn_refused"), 3);
    // An entry of another device is none of ours.
    rig.namespace.run(&["ip", "link", "add", "other", "type", "vxlan", "id", "7", "dstport", "4790"]);
    rig.bridge([format!("fdb replace {} dev other dst 10.9.0.2 self extern_learn", mac(10))]);
    rig.bridge([entry(mac(11), 2)]);
    wait_until("the last one", || rig.tunnel.stations().len() == 2);
}

/// FRR tells of more ends and stations than there is room for. What was there before stays, and what fits comes.
#[test]
fn more_than_there_is_room_for_is_refused() {
    let rig = Rig::new(1024);
    rig.bridge([entry(mac(0x10_0000), 2)]);
    wait_until("the first", || rig.tunnel.stations().len() == 1);
    let vxlan = Device::Vxlan.name(VNI);
    let to = |number: u32| {
        let [.., high, low] = number.to_be_bytes();
        format!("fdb replace {} dev {vxlan} dst 10.9.{high}.{low} self extern_learn", mac(number))
    };
    // More ends than a tunnel has, from 10.9.1.0 on, each with a station.
    rig.bridge((256..256 + 5000).map(to));
    wait_until("what fits and what does not", || rig.count("evpn_added") + rig.count("evpn_refused") >= 5001);
    assert!(rig.count("evpn_refused") >= 5001 - vxlan::MAX_REMOTES as u64, "{}", rig.count("evpn_refused"));
    assert!(rig.tunnel.stations().contains(&station(mac(0x10_0000), 2)));
    assert!(rig.tunnel.ends().len() <= vxlan::MAX_REMOTES);
    // Once they are gone, there is room again.
    rig.bridge(
        (256..256 + 5000).map(|number| to(number).replace("fdb replace", "fdb delete").replace(" extern_learn", "")),
    );
    wait_until("one", || rig.tunnel.stations() == [station(mac(0x10_0000), 2)]);
    rig.bridge([entry(mac(7), 9)]);
    wait_until("the next", || rig.tunnel.stations().contains(&station(mac(7), 9)));
}

/// A station flaps between this host and others, as fast as the kernel takes it, and a device goes and comes. FRR is not flooded, others are where they
/// were, and all is well in the end.
#[test]
fn what_flaps_ends_where_it_was_last() {
    let mut rig = Rig::new(1024);
    rig.bridge([entry(mac(9), 9)]);
    wait_until("the bystander", || rig.port(mac(9)) == Some(TUNNEL));
    let before = rig.count("evpn_announced");
    for _ in 0..20 {
        rig.bridge((0..100).map(|number| entry(mac(1), 2 + number)));
        (0..100).for_each(|_| rig.send(mac(1)));
        assert_eq!(rig.port(mac(9)), Some(TUNNEL));
    }
    rig.bridge([entry(mac(1), 7)]);
    wait_until("its last place", || {
        rig.port(mac(1)) == Some(TUNNEL) && rig.tunnel.stations() == [station(mac(1), 7), station(mac(9), 9)]
    });
    let announced = rig.count("evpn_announced") - before;
    assert!((1..=2000).contains(&announced), "{announced}");
    println!("{announced} announcements");
    let (down, up) = (["ip", "link", "set", "down"], ["ip", "link", "set", "up"]);
    let vxlan = Device::Vxlan.name(VNI);
    for _ in 0..50 {
        [down, up].iter().for_each(|command| _ = rig.namespace.run(&[&command[..], &["dev", &vxlan]].concat()));
    }
    rig.bridge([entry(mac(2), 3)]);
    wait_until("the last", || rig.tunnel.stations().contains(&station(mac(2), 3)));
    assert_eq!(rig.count("evpn_refused"), 0);
}

/// The devices go, and come again with other indices.
#[test]
fn devices_are_made_anew() {
    let rig = Rig::new(1024);
    let execute = |commands: Vec<String>| {
        commands.iter().for_each(|command| _ = rig.namespace.run(&command.split(' ').collect::<Vec<_>>()));
    };
    rig.bridge([entry(mac(1), 2)]);
    wait_until("the station", || rig.tunnel.stations().len() == 1);
    let vxlan = Device::Vxlan.name(VNI);
    execute(vec![format!("ip link del {vxlan}")]);
    wait_until("nothing", || rig.tunnel.stations().is_empty() && rig.port(mac(1)).is_none());
    let again = devices::make(&[VNI], end(1), None);
    execute(again.into_iter().filter(|command| command.contains(&format!("add {vxlan}"))).collect());
    rig.bridge([entry(mac(2), 3)]);
    wait_until("the new one", || rig.tunnel.stations() == [station(mac(2), 3)]);
}

#[test]
fn stations_of_ours_are_announced_and_come_and_go() {
    let mut rig = Rig::new(1024);
    let tap = Device::Tap.name(VNI);
    let shown = |rig: &Rig| rig.namespace.run(&["bridge", "fdb", "show", "dev", &tap]);
    rig.send(mac(1));
    wait_until("the announcement", || shown(&rig).contains(&mac(1).to_string()));
    assert_eq!(rig.port(mac(1)), Some(0));
    // It goes to another host, and comes again.
    rig.bridge([entry(mac(1), 2)]);
    wait_until("the move", || rig.port(mac(1)) == Some(TUNNEL));
    let before = rig.count("evpn_announced");
    rig.send(mac(1));
    wait_until("the second announcement", || rig.count("evpn_announced") > before);
    assert_eq!(rig.port(mac(1)), Some(0));
    // FRR's entry of the other host is older: its end does not take the station away.
    let vxlan = Device::Vxlan.name(VNI);
    rig.bridge([format!("fdb delete {} dev {vxlan} dst 10.9.0.2 self", mac(1))]);
    wait_until("the end of the entry", || rig.tunnel.stations().is_empty());
    assert_eq!(rig.port(mac(1)), Some(0));
    // When the follower ends, the TAP has no reader any more, and the bridge forgets.
    rig.follower = None;
    wait_until("nothing announced", || !shown(&rig).contains(&mac(1).to_string()));
}

/// Addresses of stations elsewhere are followed, as FRR tells the kernel of them; those that others have told it of are none.
#[test]
fn addresses_come_move_and_go() {
    let rig = Rig::new(1024);
    let bridge = Device::Bridge.name(VNI);
    let neighbour = |action: &str, ip: &str, rest: &str| format!("neigh {action} {ip} {rest} dev {bridge}");
    let run = |command: String| _ = rig.namespace.run(&[&["ip"][..], &command.split(' ').collect::<Vec<_>>()].concat());
    let learned = |number| format!("lladdr {} nud noarp extern_learn", mac(number));
    let known = |list: &[(&str, u32, bool)]| {
        let address = |&(ip, number, is_router): &(&str, u32, bool)| Address {
            vni: VNI,
            ip: ip.parse().expect("an address"),
            mac: mac(number),
            is_router,
        };
        let list: Vec<_> = list.iter().map(address).collect();
        wait_until("the addresses", || rig.tunnel.addresses() == list);
    };
    run(neighbour("replace", "198.18.0.7", &learned(7)));
    run(neighbour("replace", "fd00::7", &format!("{} router", learned(7))));
    run(neighbour("replace", "198.18.0.8", &format!("lladdr {} nud permanent", mac(8))));
    known(&[("198.18.0.7", 7, false), ("fd00::7", 7, true)]);
    run(neighbour("replace", "198.18.0.7", &learned(9)));
    run(neighbour("replace", "198.18.0.8", &learned(8)));
    known(&[("198.18.0.7", 9, false), ("198.18.0.8", 8, false), ("fd00::7", 7, true)]);
    run(neighbour("del", "198.18.0.7", "nud none"));
    // It is this host's own from now on.
    run(neighbour("replace", "198.18.0.8", &format!("lladdr {} nud permanent", mac(8))));
    known(&[("fd00::7", 7, true)]);
    run(format!("link del {bridge}"));
    known(&[]);
}

/// Addresses that stations here say of themselves are in the kernel's table of the bridge's neighbours, where FRR looks for them.
#[test]
fn addresses_of_ours_are_announced() {
    let mut rig = Rig::new(1024);
    let bridge = Device::Bridge.name(VNI);
    rig.send_frame(&announcement(mac(1), [198, 18, 0, 1].into()));
    rig.send_frame(&announcement(mac(1), "fd00::1".parse().expect("an address")));
    let shown = |rig: &Rig| rig.namespace.run(&["ip", "neigh", "show", "dev", &bridge]);
    let line = |ip: &str, number| format!("{ip} lladdr {} ", mac(number));
    wait_until("the first", || ["198.18.0.1", "fd00::1"].iter().all(|ip| shown(&rig).contains(&line(ip, 1))));
    // Another station takes it over.
    rig.send_frame(&announcement(mac(2), [198, 18, 0, 1].into()));
    wait_until("the other", || shown(&rig).contains(&line("198.18.0.1", 2)));
    // One that says that it has all addresses is not believed, and does not fill the host's table.
    (0..2000u32).for_each(|number| rig.send_frame(&announcement(mac(3), (0xc612_1000 + number).to_be_bytes().into())));
    wait_until("the refusals", || rig.count("evpn_refused") > 0);
    rig.send_frame(&announcement(mac(4), [198, 18, 0, 4].into()));
    wait_until("the good one", || shown(&rig).contains(&line("198.18.0.4", 4)));
    assert!(shown(&rig).lines().count() < 30, "{}", shown(&rig));
}

/// Returns a line of a file in `/proc`, in KiB.
fn kib(file: &str, name: &str) -> u64 {
    let text = std::fs::read_to_string(file).expect("Linux");
    let line = text.lines().find_map(|line| line.strip_prefix(name)).expect("the line");
    line.trim_start_matches(':').trim().trim_end_matches(" kB").parse().expect("KiB")
}

/// A hundred thousand entries at once: more than the kernel keeps for a slow reader. None is missing in the end. `RINGPASS_STATIONS` says how many, if
/// not so many.
#[test]
fn a_hundred_thousand_stations() {
    let most: u32 = std::env::var("RINGPASS_STATIONS").map_or(100_000, |most| most.parse().expect("a number"));
    let end = |number: u32| 2 + (number % 200) as u8;
    let commands = batch((1..=most).map(|number| entry(mac(number), end(number))));
    let memory = || [kib("/proc/self/status", "VmRSS"), kib("/proc/meminfo", "SUnreclaim")];
    let before = memory();
    let rig = Rig::new(most as usize);
    let start = Instant::now();
    rig.run_batch(&commands);
    let made = start.elapsed();
    // The list of a million stations takes a while, so it is not asked for all the time.
    wait_until("all of them", || rig.tunnel.ends().iter().map(|end| end.stations).sum::<usize>() == most as usize);
    let followed = start.elapsed();
    let after = memory();
    let [switch, kernel] = [0, 1].map(|of| 1024 * after[of].saturating_sub(before[of]) / u64::from(most));
    println!(
        "{most} made in {made:?}, followed after {followed:?}, {} resyncs; bytes for each in the switch {switch}, in the kernel {kernel}",
        rig.count("evpn_resyncs")
    );
    let known = rig.tunnel.stations();
    assert!(known.iter().zip(1..).all(|(known, number)| *known == station(mac(number), end(number))));
    let placed = rig.switch.lock().expect("no test has panicked here").table();
    assert_eq!(placed.iter().filter(|entry| entry.port == TUNNEL).count(), most as usize);
    assert_eq!(rig.count("evpn_refused"), 0);
    // All gone at once.
    let start = Instant::now();
    rig.namespace.run(&["ip", "link", "del", &Device::Vxlan.name(VNI)]);
    wait_until("nothing", || rig.tunnel.ends().is_empty());
    println!("gone after {:?}", start.elapsed());
    let left = rig.switch.lock().expect("no test has panicked here").table();
    assert_eq!(left.len(), 0);
}

/// The follower is held up while more changes than the kernel keeps. It reads the tables anew, and has all.
#[test]
fn changes_that_were_lost_are_made_good() {
    const MOST: u32 = 50_000;
    let rig = Rig::new(MOST as usize);
    rig.bridge([entry(mac(0x10_0000), 2), entry(mac(0x10_0001), 2)]);
    wait_until("the first ones", || rig.tunnel.stations().len() == 2);
    let vxlan = Device::Vxlan.name(VNI);
    let held_up = |_: &mut vxlan::Changes| {
        rig.bridge([entry(mac(0x10_0000), 3)]);
        rig.bridge((1..=MOST).map(|number| entry(mac(number), 2)));
        rig.bridge([format!("fdb delete {} dev {vxlan} dst 10.9.0.2 self", mac(0x10_0001))]);
    };
    rig.tunnel.change(held_up).expect("a tunnel whose ends are given");
    wait_until("all of them", || rig.tunnel.stations().len() == MOST as usize + 1);
    assert!(rig.count("evpn_resyncs") > 1, "nothing was lost");
    assert_eq!(rig.tunnel.stations().last(), Some(&station(mac(0x10_0000), 3)));
    assert_eq!((rig.port(mac(0x10_0001)), rig.port(mac(7))), (None, Some(TUNNEL)));
    // It goes on with what changes.
    rig.bridge([entry(mac(7), 9)]);
    wait_until("the change", || rig.tunnel.stations().contains(&station(mac(7), 9)));
}
