//! Queues of packets over rings: between the ends of a pipe, and with a peer that writes anything anywhere.

use std::collections::VecDeque;
use std::sync::Arc;

use proptest::prelude::*;
use ringpass_memory::{Burst, Mempool, MempoolConfig, RegionConfig};
use ringpass_netmap::Buffers;
use ringpass_netmap::queues::queues;
use ringpass_netmap::{Flags, Pools, PortMemory, Region, Ring, Shape, Slot, attach_pipe};
use ringpass_port::{PortConfig, PortStatus, QueuePair, State};

const MTU: usize = 3000;

/// Both ends of a pipe as queues; a slot's buffer has `size` bytes.
struct Pipe {
    ends: [QueuePair; 2],
    status: [Arc<PortStatus>; 2],
    pool: Mempool,
    region: Region,
    csb: ringpass_netmap::csb::Csb,
}

fn pool(size: usize) -> Mempool {
    Mempool::new(&MempoolConfig { buffers: 400, size, ..Default::default() }).unwrap()
}

fn pipe(slots: u32, size: u32, pool: Mempool) -> Pipe {
    let pools = Pools { interfaces: 2, ring_bytes: 8 * 2048, buffers: 2 * slots + 2, buffer_size: size };
    let mut region = Region::new(pools, &RegionConfig::default()).unwrap_or_else(|error| panic!("{error}"));
    let [a, b] =
        PortMemory::pipe(&mut region, ["a", "b"], Shape { rings: [1; 2], slots: [slots; 2], host_rings: [0; 2] })
            .unwrap_or_else(|error| panic!("{error}"));
    let buffers = Buffers::of(region.memory(), region.pools()).unwrap();
    let status = [0, 1].map(|_| Arc::new(PortStatus::new(1)));
    let csb_memory = a.csb().clone().into();
    let config = PortConfig { mtu: MTU, ..Default::default() };
    let end = |own: &PortMemory, other: &PortMemory, first: bool| {
        let places = (own.interface(), other.interface());
        let notifier = Arc::new(|| ()) as ringpass_netmap::Notifier;
        let [tx, rx] = attach_pipe(region.memory(), places, first, &csb_memory, &notifier, None).unwrap();
        let rx = rx.into_iter().map(|ring| (ring, None)).collect();
        queues(tx, rx, &buffers, &config, &pool, &status[usize::from(!first)]).unwrap().pop().unwrap()
    };
    let ends = [end(&a, &b, true), end(&b, &a, false)];
    let csb = ringpass_netmap::csb::Csb::new(&csb_memory, 0, 4096, 2).unwrap();
    Pipe { ends, status, pool, region, csb }
}

fn frame(number: u64, len: usize) -> Vec<u8> {
    (0..len as u64).map(|at| (at * 7 + number) as u8).collect()
}

proptest! {
    /// Frames arrive once, in order and unchanged, however they are divided on either side. Those that are too
    /// long or too short are dropped and counted. No buffer of the pool is lost.
    #[test]
    fn frames_arrive_as_they_were_sent(
        slots in 2u32..40,
        size in prop::sample::select(vec![64u32, 128, 1024, 2048]),
        buffer in prop::sample::select(vec![64usize, 300, 2000, 9000]),
        steps in prop::collection::vec((any::<bool>(), prop::collection::vec((1usize..3300, 1usize..1200), 0..12)), 1..20),
    ) {
        let Pipe { mut ends, status, pool, .. } = pipe(slots, size, pool(buffer));
        let [one, two] = &mut ends;
        let (mut sent, mut number, mut dropped) = (VecDeque::new(), 0, 0);
        let receive = |two: &mut QueuePair, sent: &mut VecDeque<Vec<u8>>| {
            let mut burst = Burst::new(7);
            two.rx.rx_burst(&mut burst);
            for packet in burst.iter() {
                let bytes: Vec<u8> = packet.segments().flat_map(|segment| segment.to_vec()).collect();
                prop_assert_eq!(Some(bytes), sent.pop_front());
            }
            Ok(())
        };
        for (read, frames) in steps {
            for (len, piece) in frames {
                let bytes = frame(number, len);
                let mut pieces = bytes.chunks(piece.min(buffer)).map(|piece| {
                    let mut packet = pool.alloc()?;
                    assert!(packet.copy_from(piece));
                    Some(packet)
                });
                let head = pieces.next().flatten();
                let packet = pieces.try_fold(head, |head, piece| {
                    let (mut head, piece) = (head?, piece?);
                    head.append(piece);
                    Some(Some(head))
                });
                // The pool may be empty.
                let Some(Some(packet)) = packet else { continue };
                number += 1;
                // Tagged frames may be longer.
                let tagged = matches!(packet.array(12), Some([0x81, 0] | [0x88, 0xa8]));
                let passes = (14..=14 + MTU + if tagged { 4 } else { 0 }).contains(&len);
                let fits = len.div_ceil(size as usize) < slots as usize;
                let mut burst = Burst::new(1);
                burst.push(packet);
                let taken = one.tx.tx_burst(&mut burst);
                prop_assert!(taken == 1 || passes && fits, "it is never sent");
                if taken == 1 && passes && fits {
                    sent.push_back(bytes);
                } else if taken == 1 {
                    dropped += 1;
                }
            }
            if read {
                receive(two, &mut sent)?;
            }
        }
        for _ in 0..1000 {
            receive(two, &mut sent)?;
        }
        prop_assert!(sent.is_empty(), "{} are missing", sent.len());
        let [from, to] = status.each_ref().map(|status| status.stats());
        prop_assert_eq!((from.tx_packets, from.tx_bytes), (to.rx_packets, to.rx_bytes));
        prop_assert_eq!((from.tx_drops, to.rx_drops), (dropped, 0));
        drop(ends);
        let all: Vec<_> = std::iter::from_fn(|| pool.alloc()).collect();
        prop_assert_eq!(all.len(), 400, "buffers of the pool");
    }

    /// A peer that writes anything into slots and into its own fields: the queues continue or end, and nothing
    /// else happens.
    #[test]
    fn a_peer_that_writes_anything(
        steps in prop::collection::vec((0u8..6, 0u32..16, any::<u32>(), any::<u16>(), 0u16..64), 1..300),
    ) {
        let slots = 16;
        let Pipe { mut ends, status, pool, region, csb } = pipe(slots, 256, pool(300));
        // Offsets of the first end's Tx and Rx ring: the first of their pool, with a host ring between them.
        let base = 2 * 1024;
        let stride = Ring::bytes(slots).next_multiple_of(64);
        let rings = [base, base + 2 * stride].map(|at| Ring::new(region.memory(), at, slots).unwrap());
        prop_assert_eq!(rings.each_ref().map(|ring| ring.header().direction.load(std::sync::atomic::Ordering::Relaxed)), [0, 1]);
        let [one, _] = &mut ends;
        for (what, position, number, len, flags) in steps {
            match what {
                0 | 1 => {
                    let buffer = if number & 1 == 0 { number >> 1 & 63 } else { number };
                    rings[usize::from(what)].set(position, Slot { buffer, len, flags: Flags(flags), pointer: 0 });
                }
                // The peer's positions: what it has released, and sent.
                2 if number % 8 < 7 => csb.write_ktoa(1, position, 0),
                2 => csb.write_ktoa(1, number, number),
                3 if number % 8 < 7 => csb.write_atok(0, position, position, 0),
                3 => csb.write_atok(0, number, number, 0),
                4 => {
                    let mut burst = Burst::new(8);
                    one.rx.rx_burst(&mut burst);
                    for packet in burst.iter() {
                        prop_assert!((14..=18 + MTU).contains(&packet.total_len()));
                    }
                }
                _ => {
                    let mut burst = Burst::new(8);
                    pool.cache().alloc(&mut burst);
                    burst.iter_mut().for_each(|packet| packet.set_len(14 + number as usize % 280));
                    one.tx.tx_burst(&mut burst);
                }
            }
        }
        if let State::Gone(why) = status[0].state() {
            prop_assert!(!why.contains('\n'), "{}", why);
        }
    }
}

#[test]
fn a_frame_without_an_end_is_dropped() {
    let Pipe { mut ends, status, region, csb, .. } = pipe(8, 256, pool(2000));
    let base = 2 * 1024 + 2 * Ring::bytes(8).next_multiple_of(64);
    let ring = Ring::new(region.memory(), base, 8).unwrap();
    let endless = Slot { buffer: 2, len: 100, flags: Flags::MORE_FRAGMENTS, pointer: 0 };
    (0..8).for_each(|position| ring.set(position, endless));
    let entry = (0..2).find(|&entry| {
        csb.write_atok(entry, 6, 6, 0);
        let mut burst = Burst::new(8);
        ends[0].rx.rx_burst(&mut burst);
        csb.write_atok(entry, 7, 7, 0);
        ends[0].rx.rx_burst(&mut burst);
        assert!(burst.is_empty());
        status[0].stats().rx_drops == 1
    });
    assert!(entry.is_some(), "{:?} {:?}", status[0].stats(), status[0].state());
    // The next frame is received once the slots before it are returned.
    assert_eq!(ends[0].rx.rx_burst(&mut Burst::new(8)), 0);
    ring.set(7, Slot { flags: Flags::default(), ..endless });
    csb.write_atok(entry.unwrap(), 0, 0, 0);
    let mut burst = Burst::new(8);
    assert_eq!(ends[0].rx.rx_burst(&mut burst), 1);
    assert_eq!(burst[0].len(), 100);
}
