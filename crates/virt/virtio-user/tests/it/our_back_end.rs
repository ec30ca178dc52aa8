//! Tests of the front-end with this project's back-end, in one process: all kinds of rings, and back-ends that come
//! and go.

use std::time::{Duration, Instant};

use crate::common::pool;
use ringpass_lab::wait_until;
use ringpass_memory::{Burst, Mempool};
use ringpass_port::{Port, PortConfig, QueuePair, Role, State, VhostConfig, VirtioUserConfig};
use ringpass_testing::{bytes_of, frame, scattered};
use ringpass_vhost::{CopyModes, Vhost};
use ringpass_virtio_user::VirtioUser;
use tempfile::TempDir;

/// A front-end and a back-end that are connected.
struct Pair {
    back: Vhost,
    back_queues: Vec<QueuePair>,
    front: VirtioUser,
    front_queues: Vec<QueuePair>,
    back_pool: Mempool,
    pool: Mempool,
    folder: TempDir,
}

fn back(folder: &TempDir, port: &PortConfig, role: Role, pool: &Mempool) -> (Vhost, Vec<QueuePair>) {
    let config = VhostConfig::new(folder.path().join("vhost"), role);
    let features = Some("packed+in_order".to_owned());
    let config = VhostConfig { features, ..config };
    let mut back = Vhost::open(&config, port, pool, CopyModes::default()).unwrap_or_else(|error| panic!("{error}"));
    let queues = back.take_queues();
    (back, queues)
}

impl Pair {
    fn new(features: &str, port: &PortConfig, server: bool) -> Self {
        Self::noting(features, port, server, true)
    }

    fn noting(features: &str, port: &PortConfig, server: bool, inflight: bool) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let (back_pool, pool) = (pool(), pool());
        let roles = if server { (Role::Connect, Role::Listen) } else { (Role::Listen, Role::Connect) };
        let (back, back_queues) = back(&folder, port, roles.0, &back_pool);
        let path = folder.path().join("vhost");
        let config =
            VirtioUserConfig { features: Some(features.into()), inflight, ..VirtioUserConfig::new(path, roles.1) };
        let mut front = VirtioUser::open("card", &config, port, &pool).unwrap_or_else(|error| panic!("{error}"));
        let front_queues = front.take_queues();
        Self { back, back_queues, front, front_queues, back_pool, pool, folder }
    }

    /// Sends frames of many lengths in both directions on all queues, which must arrive unchanged and in order.
    fn pass(&mut self, count: u32, longest: usize) {
        for (front, back) in self.front_queues.iter_mut().zip(&mut self.back_queues) {
            pass(front, back, &self.pool, count, longest);
            pass(back, front, &self.back_pool, count, longest);
        }
    }
}

fn pass(from: &mut QueuePair, to: &mut QueuePair, pool: &Mempool, count: u32, longest: usize) {
    let len = |number: u32| 60 + number as usize * 131 % (longest - 59);
    let (mut sent, mut received, start) = (0, 0, Instant::now());
    let (mut burst, mut came) = (Burst::new(32), Burst::new(32));
    while received < count {
        assert!(start.elapsed() < Duration::from_secs(60), "{received} of {sent} arrived");
        while burst.room() > 0 && sent < count && sent - received < 200 {
            burst.push(scattered(pool, &frame(sent, len(sent)), 1900));
            sent += 1;
        }
        from.tx.tx_burst(&mut burst);
        to.rx.rx_burst(&mut came);
        for packet in came.drain() {
            assert!(bytes_of(&packet) == frame(received, len(received)), "frame {received}");
            received += 1;
        }
    }
}

const KINDS: [&str; 8] = [
    "",
    "-in_order",
    "-in_order-indirect_desc-event_idx",
    "-event_idx",
    "-packed",
    "-packed-in_order",
    "-packed-in_order-indirect_desc-event_idx",
    "-packed-event_idx",
];

#[test]
fn all_kinds_of_rings_carry_frames_both_ways() {
    for features in KINDS {
        for (mtu, merged) in [(1500, ""), (3500, ""), (3500, "-mrg_rxbuf")] {
            let features = format!("{features}{merged}");
            eprintln!("'{features}', MTU {mtu}");
            let mut pair = Pair::new(&features, &PortConfig { mtu, ..Default::default() }, false);
            assert!(pair.front.link().up);
            pair.pass(2000, mtu + 14);
            let stats = pair.front.stats();
            assert_eq!((stats.rx_packets, stats.tx_packets, stats.rx_drops, stats.tx_drops), (2000, 2000, 0, 0));
            drop((pair.front_queues, pair.front));
            wait_until("the session's end", || !pair.back.link().up);
            assert_eq!(pair.pool.outstanding(1), 0, "buffers were lost");
        }
    }
}

#[test]
fn several_queues_and_the_other_roles() {
    let port = PortConfig { queues: 3, rx_ring: 256, tx_ring: 1024, ..Default::default() };
    for features in ["", "-packed"] {
        let mut pair = Pair::new(features, &port, true);
        assert_eq!(pair.front_queues.len(), 3);
        pair.pass(1000, 1514);
    }
}

/// The back-end is replaced again and again while frames are in flight. None arrives twice, and the rings hold as
/// many buffers as before.
#[test]
fn back_ends_come_and_go_under_traffic() {
    for features in KINDS {
        for (server, inflight) in [(false, true), (true, true), (false, false)] {
            eprintln!("'{features}', server: {server}, inflight: {inflight}");
            let port = PortConfig { rx_ring: 128, tx_ring: 128, ..Default::default() };
            let mut pair = Pair::noting(features, &port, server, inflight);
            let noted = pair.front.notes().iter().any(|note| note.contains("notes what is in flight"));
            assert_eq!(noted, inflight && features.contains("-in_order"));
            let (mut number, mut last) = (0, None);
            for round in 1..=10 {
                let start = Instant::now();
                let mut burst = Burst::new(32);
                while start.elapsed() < Duration::from_millis(20) {
                    while burst.room() > 0 {
                        number += 1;
                        burst.push(scattered(&pair.pool, &frame(number, 60 + number as usize % 1000), 1900));
                    }
                    pair.front_queues[0].tx.tx_burst(&mut burst);
                    let mut came = Burst::new(16);
                    pair.back_queues[0].rx.rx_burst(&mut came);
                    for packet in came.drain() {
                        let bytes = bytes_of(&packet);
                        let it = u32::from_be_bytes(bytes[14..18].try_into().unwrap());
                        assert!(last.is_none_or(|last| it > last), "{it} after {last:?}");
                        assert!(bytes == frame(it, 60 + it as usize % 1000));
                        last = Some(it);
                    }
                }
                number -= burst.len() as u32;
                drop(burst);
                drop(std::mem::take(&mut pair.back_queues));
                let (role, folder) = (if server { Role::Connect } else { Role::Listen }, &pair.folder);
                // The old back-end goes first, so that the path is free.
                let old = std::mem::replace(
                    &mut pair.back,
                    Vhost::open(
                        &VhostConfig::new(folder.path().join("unused"), Role::Listen),
                        &port,
                        &pair.back_pool,
                        CopyModes::default(),
                    )
                    .unwrap(),
                );
                drop(old);
                wait_until("the link's end", || !pair.front.link().up);
                let (back, queues) = self::back(folder, &port, role, &pair.back_pool);
                (pair.back, pair.back_queues) = (back, queues);
                wait_until("the link", || pair.front.link().up);
                assert!(matches!(pair.front.state(), State::Running), "{:?}", pair.front.state());
                assert!(pair.front.extended().contains(&("reconnects", round)));
            }
            // What was in the ring arrives; nothing is missing.
            let start = Instant::now();
            while last != Some(number) {
                assert!(start.elapsed() < Duration::from_secs(60), "{last:?} of {number}");
                let mut came = Burst::new(32);
                pair.back_queues[0].rx.rx_burst(&mut came);
                for packet in came.drain() {
                    let it = u32::from_be_bytes(bytes_of(&packet)[14..18].try_into().unwrap());
                    assert!(last.is_none_or(|last| it == last + 1), "{it} after {last:?}");
                    last = Some(it);
                }
            }
            pair.pass(500, 1514);
            drop((pair.front_queues, pair.front));
            assert_eq!(pair.pool.outstanding(1), 0, "buffers were lost");
        }
    }
}
