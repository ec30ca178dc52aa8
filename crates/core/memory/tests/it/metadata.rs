//! Tests of packet metadata, and of frames in several buffers.

use crate::common::{cases, count, pool, reclaim};
use proptest::prelude::*;
use ringpass_memory::{Burst, Flags, Headers, L4, Mempool, Packet};

fn filled(pool: &Mempool, bytes: &[u8]) -> Packet {
    let mut packet = pool.alloc().expect("a buffer is left");
    assert!(packet.copy_from(bytes));
    packet
}

fn chain(pool: &Mempool, frame: &[u8], pieces: usize) -> Packet {
    let mut parts = frame.chunks(frame.len().div_ceil(pieces).max(1));
    let mut packet = filled(pool, parts.next().unwrap_or(&[]));
    parts.for_each(|part| packet.append(filled(pool, part)));
    packet
}

#[test]
fn each_packet_has_its_own() {
    let pool = pool(3, 64);
    let (mut a, mut b) = (filled(&pool, b"a"), filled(&pool, b"b"));
    let headers = Headers { l2: 14, l3: 20, l4: 20, protocol: L4::Tcp };
    a.set_vlan(0xe123);
    a.set_rss_hash(7);
    b.request_segmentation(1448, headers);
    b.add_flags(Flags::L4_GOOD);
    assert_eq!((a.vlan(), a.rss_hash(), a.mss(), a.headers()), (Some(0xe123), Some(7), None, None));
    assert_eq!((b.vlan(), b.rss_hash(), b.mss(), b.headers()), (None, None, Some(1448), Some(headers)));
    assert_eq!((headers.l4_start(), headers.payload_start()), (34, 54));
    assert_eq!(b.flags(), Flags::TSO | Flags::CHECKSUM | Flags::L4_GOOD);
    b.clear_flags(Flags::TSO);
    assert_eq!((b.mss(), b.headers()), (None, Some(headers)), "a checksum is still asked for");
    a.clear_flags(Flags::VLAN);
    assert_eq!((a.vlan(), a.rss_hash()), (None, Some(7)));
}

#[test]
fn a_buffer_that_comes_again_says_nothing_of_the_frame_before() {
    let pool = pool(1, 64);
    let mut packet = filled(&pool, b"first");
    packet.set_vlan(5);
    drop(packet);
    assert_eq!(filled(&pool, b"second").flags(), Flags::default());
}

/// An operation on a packet.
#[derive(Clone, Copy, Debug)]
enum End {
    Drop,
    ClearBurst,
    DropBurst,
    IntoBuffer,
    Reclaim,
    TakeApart,
}

proptest! {
    #![proptest_config(cases(300))]

    #[test]
    fn chains_keep_every_byte_and_every_buffer(
        frame in prop::collection::vec(any::<u8>(), 1..count(3000, 100)),
        pieces in 1..count(40, 4),
        end in prop_oneof![Just(End::Drop), Just(End::ClearBurst), Just(End::DropBurst), Just(End::IntoBuffer),
                           Just(End::Reclaim), Just(End::TakeApart)],
    ) {
        let pool = pool(64, 3000);
        let mut packet = chain(&pool, &frame, pieces);
        packet.set_vlan(1);
        prop_assert_eq!(packet.total_len(), frame.len());
        prop_assert_eq!(packet.is_chained(), packet.segments().count() > 1);
        prop_assert_eq!(packet.segments().flat_map(|piece| piece.to_vec()).collect::<Vec<_>>(), frame.clone());
        let mut copy = vec![0; frame.len()];
        prop_assert_eq!(packet.copy_to(&mut copy[..frame.len() - 1]), None);
        prop_assert_eq!(packet.copy_to(&mut copy), Some(frame.len()));
        prop_assert_eq!(&copy, &frame);
        packet.clear_flags(packet.flags());
        prop_assert_eq!(packet.total_len(), frame.len(), "flags can be cleared, segments not");
        let mut burst = Burst::new(2);
        match end {
            End::Drop => drop(packet),
            End::IntoBuffer => drop(packet.into_buffer()),
            End::Reclaim => reclaim(&mut Default::default(), [packet]),
            End::TakeApart => {
                let mut bytes = 0;
                let mut rest = Some(packet);
                while let Some(mut piece) = rest {
                    rest = piece.take_rest();
                    prop_assert!(!piece.is_chained());
                    bytes += piece.len();
                }
                prop_assert_eq!(bytes, frame.len());
            }
            End::ClearBurst => {
                burst.push(packet);
                burst.push(filled(&pool, b"plain"));
                burst.clear();
            }
            End::DropBurst => {
                burst.push(packet);
                drop(burst);
            }
        }
        prop_assert_eq!(pool.outstanding(1), 0);
    }
}

#[test]
fn a_long_chain_is_dropped_without_recursion() {
    let pool = pool(count(50_000, 50), 64);
    let mut packet = filled(&pool, b"0");
    while let Some(mut head) = pool.alloc() {
        head.append(packet);
        packet = head;
    }
    drop(packet);
    assert_eq!(pool.outstanding(1), 0);
}
