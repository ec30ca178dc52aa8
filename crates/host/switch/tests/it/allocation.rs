//! The packet path does not allocate.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

use crate::common::*;
use ringpass_memory::{Burst, MAX_BATCH, Mempool};
use ringpass_port::QueuePair;
use ringpass_switch::vxlan::{self, Tunnel};
use ringpass_switch::{Config, Forwarding, VlanSet, Vlans};

/// Counts the allocations of each thread.
struct Counting;

thread_local! {
    static ALLOCATIONS: Cell<usize> = const { Cell::new(0) };
}

// SAFETY: each call is passed unchanged to `System`, which fulfils the contract of `GlobalAlloc`.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.set(ALLOCATIONS.get() + 1);
        // SAFETY: `layout` is passed on unchanged, and the caller has upheld the contract of
        // `GlobalAlloc::alloc`.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: `pointer` came from `System` by `alloc` above with this layout, by the contract of
        // `GlobalAlloc::dealloc`.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

#[test]
fn switching_allocates_nothing() {
    let before = ALLOCATIONS.get();
    drop(std::hint::black_box(Box::new(1)));
    assert_eq!(ALLOCATIONS.get(), before + 1, "allocations are counted");

    let mut rules = plain(4);
    rules[0].vlans = Vlans::Access(7);
    rules[1].vlans = Vlans::Trunk { allowed: VlanSet::all(), native: None };
    rules[2].vlans = Vlans::Access(7);
    rules[3].vlans = Vlans::Access(7);
    let [local, remote] = [[10, 0, 0, 1], [10, 0, 0, 2]].map(Into::into);
    let tunnel = Tunnel::new(vxlan::Config { vni: 1, port: 4789, local, remote, mac: None }).unwrap();
    let wrap = |port, queues: QueuePair, pool: &Mempool| if port == 3 { tunnel.wrap(queues, pool) } else { queues };
    let mut rig = Rig::with(&Config { flood: 0, ..Default::default() }, &rules, 1024, |_| Forwarding::Lookup, wrap);
    let templates = [
        (0, frame(mac(2), mac(1), 0)),
        (1, tagged(mac(1), mac(2), 7, 0)),
        (2, frame(BROADCAST, mac(3), 0)),
        (0, frame(mac(99), mac(1), 0)),
        (1, tagged(mac(3), mac(2), 9, 0)),
        (2, vec![0; 10]),
    ];
    // An ARP request makes the tunnel's far end known.
    let mut arp = [&[0xff; 6][..], &mac(200), &[8, 6, 0, 1, 8, 0, 6, 4, 0, 1], &mac(200), &[10, 0, 0, 2]].concat();
    arp.extend([0, 0, 0, 0, 0, 0, 10, 0, 0, 1]);
    rig.send(3, &[arp]);
    rig.datapath.round();

    let (mut cache, mut burst) = (rig.pool.cache(), Burst::new(MAX_BATCH));
    let (mut before, mut received) = (0, 0);
    for round in 0..400 {
        // By now, everything that is allocated on first use (thread-locals and the like) exists.
        if round == 20 {
            (before, received) = (ALLOCATIONS.get(), 0);
        }
        for (port, template) in &templates {
            for mut packet in cache.take(32) {
                assert!(packet.copy_from(template));
                // A new station every seven rounds.
                if round % 7 == 0 && packet.len() > 12 {
                    let [byte] = packet.array(11).unwrap();
                    packet.write(11, &[byte ^ round as u8]);
                }
                burst.push(packet);
            }
            rig.far[*port].tx.tx_burst(&mut burst);
            burst.clear();
        }
        while rig.datapath.round() > 0 {}
        for far in &mut rig.far {
            received += far.rx.rx_burst(&mut burst);
            burst.clear();
        }
    }
    assert_eq!(ALLOCATIONS.get() - before, 0);
    assert!(received > 380 * 100, "{received}");
    assert!(tunnel.counts().contains(&("vxlan_unresolved", 0)), "{:?}", tunnel.counts());
}
