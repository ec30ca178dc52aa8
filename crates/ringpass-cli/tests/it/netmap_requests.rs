//! Requests of netmap's interface in any order, with any values.

use crate::common::Random;
use crate::common::netmap::{Netmapd, undisturbed};
use crate::common::wait_until;
use ringpass_netmap::client::{Client, Port};
use ringpass_netmap::protocol::Request;
use ringpass_netmap::request::{Kind, Mode, NewPort, Register, ValePolling, register};
use ringpass_netmap::{Flags, Slot};

/// Names of ports as they are in a request's header: of switches, persistent ones, native ones, pipes, and none at all.
const NAMES: [&str; 14] =
    ["vale1:a", "vale1:b", "vale1:p0", "vale2:p0", "vale1:x", "vale2:y", "p0", "p1", "x", "y", "x{1", "x}1", "a{2", ""];

const MODES: [Mode; 6] = [Mode::AllNic, Mode::Host, Mode::NicAndHost, Mode::OneNic, Mode::OneHost, Mode::Null];

fn pick<T: Copy>(random: &mut Random, of: &[T]) -> T {
    of[random.index(of.len())]
}

fn registration(random: &mut Random) -> Register {
    let mut number = |of: &[u32]| pick(random, of);
    let slots = [0; 2].map(|_: u32| number(&[0, 0, 2, 64, 1000, u32::MAX]));
    let rings = [0; 2].map(|_: u32| number(&[0, 0, 1, 3, 16, 17, 65_535]) as u16);
    let host_rings = [0; 2].map(|_: u32| number(&[0, 0, 1, 4, 65_535]) as u16);
    let memory_id = number(&[0, 0, 0, 0, 1, 2, 3, 9, 65_535]) as u16;
    let (ring, extra_buffers) = (number(&[0, 0, 1, 20, 65_535]) as u16, number(&[0, 0, 100, u32::MAX]));
    let flags = [
        register::MONITOR_TX,
        register::MONITOR_RX,
        register::ZERO_COPY_MONITOR,
        register::EXCLUSIVE,
        register::RX_ONLY,
        register::TX_ONLY,
        register::ACCEPTS_VNET_HEADER,
        u64::MAX << 18,
    ];
    let flags = flags.into_iter().filter(|_| random.below(5) == 0).sum();
    let mode = if random.below(2) == 0 { Mode::AllNic } else { pick(random, &MODES) };
    Register { slots, rings, host_rings, memory_id, ring, mode, extra_buffers, flags, ..Register::default() }
}

/// A request that registers nothing. Whether it is refused does not matter.
fn request(random: &mut Random) -> Request {
    let name = pick(random, &NAMES);
    match random.below(9) {
        0 => Request::new(Kind::PortHdrSet, name, &pick(random, &[0u32, 10, 12, 11, u32::MAX]).to_le_bytes()),
        1 | 2 => {
            let Register { slots, rings, memory_id, .. } = registration(random);
            Request::new(Kind::ValeNewif, name, &NewPort { slots, rings, memory_id }.bytes())
        }
        3 => Request::new(Kind::ValeDelif, name, &[]),
        4 | 5 => Request::new(Kind::ValeAttach, name, &registration(random).bytes()),
        6 => Request::new(Kind::ValeDetach, name, &[0; 8]),
        7 => {
            let mut number = || pick(random, &[0, 1, 2, 3, u32::MAX]);
            let polling = ValePolling { mode: number(), first_cpu: number(), cpus: number() };
            let kind = pick(random, &[Kind::ValePollingEnable, Kind::ValePollingDisable]);
            Request::new(kind, name, &polling.bytes())
        }
        _ => {
            let kind = pick(random, &[Kind::PortInfoGet, Kind::PoolsInfoGet, Kind::ValeList, Kind::PortHdrGet]);
            Request::new(kind, name, &(0..64).map(|_| random.below(3) as u8).collect::<Vec<_>>())
        }
    }
}

/// Writes to the rings of a port what a program may, or may not.
fn scribble(random: &mut Random, port: &Port) {
    for ring in port.tx().iter().chain(port.rx()) {
        let mut number = || pick(random, &[0, 1, 2, 5, 60, 2048, 65_535, u32::MAX]);
        for n in 0..ring.own().min(5) {
            let (position, flags) = (ring.position(n), Flags(number() as u16));
            let buffer = if number() < 60 { ring.ring().slot(position).buffer } else { number() };
            ring.ring().set(position, Slot { buffer, len: number() as u16, flags, pointer: 0 });
        }
        ring.release_slots(ring.own().min(number() % 8));
        // Some positions are refused here already, and none of the others may hurt anybody.
        let _ = ring.sync();
    }
}

#[test]
fn requests_in_any_order_hurt_nobody_and_leave_nothing_behind() {
    let netmapd = Netmapd::new(&[
        "--hugepages",
        "off",
        "--memory",
        "1G",
        "--queues",
        "2",
        "--port",
        "x=model:null",
        "--host",
        "x=null",
        "--port",
        "y=null",
    ]);
    undisturbed(&netmapd, || {
        let mut random = Random::new(31);
        let mut client = Client::connect(&netmapd.socket).expect("a connection");
        let (mut ports, mut granted, mut answered) = (Vec::new(), 0, 0);
        for _ in 0..4000 {
            match random.below(4) {
                0 => {
                    let connected = Client::connect(&netmapd.socket).expect("a connection");
                    let registered = connected.register(pick(&mut random, &NAMES), &registration(&mut random));
                    granted += usize::from(registered.is_ok());
                    ports.extend(registered.ok());
                    if ports.len() > 12 {
                        ports.swap_remove(random.index(ports.len()));
                    }
                }
                1 => ports.iter().for_each(|port| scribble(&mut random, port)),
                _ => answered += usize::from(client.ask(&request(&mut random)).is_ok()),
            }
        }
        println!("{granted} registrations and {answered} other requests were granted");
        assert!(granted > 50 && answered > 50, "{granted} {answered}");
        drop(ports);
        // What stays without a program is removed: polling is disabled, ports are detached and deleted.
        let off = ValePolling::default().bytes();
        wait_until("the end of what stays", || {
            for name in NAMES {
                let _ = client.ask(&Request::new(Kind::ValePollingDisable, name, &off));
                let _ = client.ask(&Request::new(Kind::ValeDetach, name, &[0; 8]));
                let _ = client.ask(&Request::new(Kind::ValeDelif, name, &[]));
            }
            let status = netmapd.status();
            let rest = |what: &str| status[what].as_array().is_some_and(|all| !all.is_empty());
            let others = status["vale"].as_array().expect("a list").len();
            !rest("pipes") && !rest("monitors") && !rest("persistent") && others == 3
        });
    });
    wait_until("all buffers", || netmapd.all_free());
    netmapd.end();
}
