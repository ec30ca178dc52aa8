//! Tests of what virtqueues need: whole packets, packets moved behind a header, buffers returned one by one.

use std::mem::MaybeUninit;

use crate::common::*;
use ringpass_memory::{Burst, Flags, Packet, Reclaimer};

#[test]
fn whole_packets_come_from_the_cache_and_what_is_not_taken_stays() {
    let pool = pool(8, 2048);
    let mut cache = pool.cache();
    let taken: Vec<Packet> = cache.packets(5).take(3).collect();
    assert!(taken.iter().all(|packet| packet.len() == pool.buffer_size() && packet.flags() == Flags::default()));
    assert_eq!(cache.packets(100).count(), 5, "the other five");
    drop(taken);
    drop(cache);
    assert_eq!(pool.cache().packets(100).count(), 8);
}

#[test]
fn packets_move_behind_zeros_as_far_as_they_are_wanted() {
    let pool = pool(8, 2048);
    let mut burst = Burst::new(8);
    for len in [60, 61, 13, 62] {
        let mut packet = pool.cache().packets(1).next().unwrap();
        packet.write(0, &vec![7; packet.len()]);
        packet.set_len(len);
        burst.push(packet);
    }
    let mut drain = burst.drain();
    for len in [60, 61] {
        let packet = drain.next_with_zeroed_header::<12>(Flags::TSO, 14..=1518).unwrap();
        assert_eq!(packet.to_vec(), [vec![0; 12], vec![7; len]].concat());
    }
    assert!(drain.next_with_zeroed_header::<12>(Flags::TSO, 14..=1518).is_none(), "too short");
    drop(drain);
    assert_eq!(burst.iter().map(|packet| packet.len()).collect::<Vec<_>>(), [13, 62]);
    let mut drain = burst.drain();
    assert!(drain.next_with_zeroed_header::<200>(Flags::TSO, 1..=1518).is_none(), "no room in front");
    assert_eq!(drain.next_if(|packet| packet.len() == 13).map(|packet| packet.len()), Some(13));
    drop(drain);
    burst.clear();
    assert_eq!(pool.cache().packets(100).count(), 8);
}

#[test]
fn buffers_of_two_pools_go_home() {
    let pools = [pool(4, 2048), pool(4, 2048)];
    let mut reclaimer = Reclaimer::default();
    let mut packets: Vec<Packet> = pools.iter().flat_map(|pool| pool.cache().packets(4).collect::<Vec<_>>()).collect();
    packets.swap(1, 5);
    let rest = packets.split_off(3);
    packets.into_iter().for_each(|packet| reclaimer.add_one(packet.into_buffer()));
    let rest: Vec<MaybeUninit<Packet>> = rest.into_iter().map(MaybeUninit::new).collect();
    // SAFETY: the packets are initialised, have one segment each, and are not used again.
    unsafe { reclaimer.add_packets(&rest) };
    drop(reclaimer);
    assert!(pools.iter().all(|pool| pool.cache().packets(100).count() == 4));
}
