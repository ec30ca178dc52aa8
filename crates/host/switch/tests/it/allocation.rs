//! The packet path does not allocate.

use crate::common::*;
use ringpass_memory::{Burst, MAX_BATCH, Mempool};
use ringpass_port::QueuePair;
use ringpass_switch::vxlan::{self, Tunnel};
use ringpass_switch::{Config, Forwarding, VlanSet, Vlans};
use ringpass_testing::{CountingAllocator, allocator_calls};

#[global_allocator]
static ALLOCATOR: CountingAllocator = CountingAllocator;

#[test]
fn switching_allocates_nothing() {
    let mut rules = plain(4);
    rules[0].vlans = Vlans::Access(7);
    rules[1].vlans = Vlans::Trunk { allowed: VlanSet::all(), native: None };
    rules[2].vlans = Vlans::Access(7);
    rules[3].vlans = Vlans::Access(7);
    let [local, remote] = [[10, 0, 0, 1], [10, 0, 0, 2]].map(Into::into);
    let tunnel = Tunnel::new(vxlan::Config {
        networks: vxlan::Networks::One(1),
        port: 4789,
        local,
        prefix: None,
        gateway: None,
        ends: vxlan::Ends::Fixed(vec![remote]),
        stations: 1,
        mac: None,
    })
    .unwrap();
    let wrap =
        |port, queues: QueuePair, pool: &Mempool| if port == 3 { tunnel.wrap(queues, pool, 1500) } else { queues };
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
    let mut switch = |round: usize| {
        for (port, template) in &templates {
            for mut packet in cache.take(32) {
                assert!(packet.copy_from(template));
                // A new station every seven rounds.
                if round.is_multiple_of(7) && packet.len() > 12 {
                    let [byte] = packet.array(11).unwrap();
                    packet.write(11, &[byte ^ round as u8]);
                }
                burst.push(packet);
            }
            rig.far[*port].tx.tx_burst(&mut burst);
            burst.clear();
        }
        while rig.datapath.round() > 0 {}
        let mut received = 0;
        for far in &mut rig.far {
            received += far.rx.rx_burst(&mut burst);
            burst.clear();
        }
        received
    };
    // What is allocated on first use (thread-locals and the like) exists after some rounds.
    (0..20).for_each(|round| _ = switch(round));
    let mut received = 0;
    assert_eq!(allocator_calls(|| received = (20..400).map(switch).sum()), 0);
    assert!(received > 380 * 100, "{received}");
    assert!(tunnel.counts().contains(&("vxlan_unresolved", 0)), "{:?}", tunnel.counts());
}
