//! Tests of offloads, frames in several buffers and interrupts, descriptor by descriptor.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use crate::common::{FakeCard, IXGBE, Kind, each_kind};
use ringpass_memory::{Burst, Flags, Headers, L4, Mempool, MempoolConfig, Packet};
use ringpass_pci::registers::ixgbe::{bits::*, descriptor::*, *};
use ringpass_port::{Offloads, Port, PortConfig, QueuePair, RxQueue, WakeSource};

const ALL: Offloads = Offloads { checksum: true, hash: true, vlan: true, tso: true };
const TCP: Headers = Headers { l2: 14, l3: 20, l4: 20, protocol: L4::Tcp };

fn rig(kind: &'static Kind, mtu: usize) -> (Arc<FakeCard>, Box<dyn Port>, QueuePair, Mempool) {
    let (straw, pool) = (FakeCard::new(kind), Mempool::new(&MempoolConfig::default()).unwrap());
    let config = PortConfig { rx_ring: 64, tx_ring: 64, offloads: ALL, mtu, ..Default::default() };
    let mut port = straw.open(&config, &pool).unwrap();
    let queues = port.take_queues().remove(0);
    (straw, port, queues, pool)
}

fn write_back(straw: &FakeCard, index: u32, first: u64, second: u64) {
    straw.rx(index, 0).store(first, Ordering::Relaxed);
    straw.rx(index, 1).store(second, Ordering::Release);
}

fn packet(pool: &Mempool, len: usize) -> Packet {
    let mut packet = pool.alloc().unwrap();
    packet.set_len(len);
    packet.write(0, &vec![0; packet.len()]);
    packet
}

/// Returns a TCP packet over IPv4 from 10.0.0.1 to 10.0.0.2.
fn tcp(pool: &Mempool, len: usize) -> Packet {
    let mut packet = packet(pool, len);
    packet.write(12, &[8, 0]);
    packet.write(14, &[0x45]);
    packet.write(16, &[0xff, 0xff]);
    packet.write(24, &[0xff, 0xff]);
    packet.write(26, &[10, 0, 0, 1, 10, 0, 0, 2]);
    packet
}

#[test]
fn the_card_is_set_up_for_them() {
    let (straw, ..) = rig(&IXGBE, 9000);
    assert_eq!(straw.get(RXCSUM.offset), RXCSUM_PCSD | RXCSUM_IPPCSE);
    assert_ne!(straw.get(RXDCTL.at(0).offset) & RXDCTL_VME, 0);
    assert_eq!(straw.get(MAXFRS.offset) >> 16, 9018);
    assert_ne!(straw.get(HLREG0.offset) & HLREG0_JUMBOEN, 0);
    assert_eq!(straw.get(MRQC.offset) & 0xf, MRQC_MRQE_RSS, "there is no hash without RSS");
}

#[test]
fn what_the_card_says_becomes_flags() {
    each_kind(|kind| {
        let (straw, mut port, mut queues, _pool) = rig(kind, 1500);
        let done = RX_DD | RX_EOP | 60 << RX_LENGTH_SHIFT;
        let (checked, [mac, l3, l4]) = (done | RX_IPCS | RX_L4CS, kind.rx_errors);
        write_back(&straw, 0, 0, done);
        write_back(&straw, 1, 0, checked);
        write_back(&straw, 2, 0, checked | l3 | l4);
        write_back(&straw, 3, 0xdead_beef << 32 | 1, done | RX_VP | 0xe123 << RX_VLAN_SHIFT);
        write_back(&straw, 4, 0xdead_beef << 32, done | l3 | l4); // errors, but nothing was checked
        write_back(&straw, 5, 0, checked | l3);
        write_back(&straw, 6, 0, checked | l4);
        write_back(&straw, 7, 0, done | mac);
        let mut burst = Burst::new(32);
        assert_eq!(queues.rx.rx_burst(&mut burst), 7);
        let flags: Vec<_> = burst.iter().map(Packet::flags).collect();
        assert_eq!(flags[0], Flags::default());
        assert_eq!(flags[1], Flags::L3_GOOD | Flags::L4_GOOD);
        assert_eq!(flags[2], Flags::L3_BAD | Flags::L4_BAD);
        assert_eq!(flags[3], Flags::HASH | Flags::VLAN);
        assert_eq!((burst[3].rss_hash(), burst[3].vlan()), (Some(0xdead_beef), Some(0xe123)));
        assert_eq!(flags[4], Flags::default());
        assert_eq!(flags[5], Flags::L3_BAD | Flags::L4_GOOD);
        assert_eq!(flags[6], Flags::L3_GOOD | Flags::L4_BAD);
        assert_eq!(port.stats().rx_drops, 1);
    });
}

#[test]
fn jumbo_frames_are_joined() {
    each_kind(|kind| {
        let (straw, _port, mut queues, pool) = rig(kind, 9000);
        let piece = RX_DD | 2048 << RX_LENGTH_SHIFT;
        // Only the verdict of the last descriptor counts.
        write_back(&straw, 0, 0, piece | RX_L4CS | RX_L4E);
        write_back(&straw, 1, 0, piece);
        let mut burst = Burst::new(32);
        assert_eq!(queues.rx.rx_burst(&mut burst), 0, "its end has not come");
        write_back(&straw, 2, 0, RX_DD | RX_EOP | RX_L4CS | 100 << RX_LENGTH_SHIFT);
        assert_eq!(queues.rx.rx_burst(&mut burst), 1);
        assert_eq!(burst[0].segments().map(|piece| piece.len()).collect::<Vec<_>>(), [2048, 2048, 100]);
        assert_eq!(burst[0].flags().without(Flags::CHAINED), Flags::L4_GOOD);
        // They are sent with the same segments.
        assert_eq!(queues.tx.tx_burst(&mut burst), 1);
        assert_eq!(straw.get(kind.tdt), 3);
        let commands: Vec<_> = (0..3).map(|i| straw.tx(i, 1).load(Ordering::Acquire)).collect();
        assert_eq!(commands.iter().map(|c| c & 0xffff).collect::<Vec<_>>(), [2048, 2048, 100]);
        assert!(commands.iter().all(|c| c >> TX_PAYLEN_SHIFT == 4196));
        assert_eq!(commands.iter().map(|c| c & TX_EOP != 0).collect::<Vec<_>>(), [false, false, true]);
        drop(queues);
        assert_eq!(pool.outstanding(1), 0);
    });
}

#[test]
fn frames_that_never_end_take_no_more_than_their_share() {
    each_kind(|kind| {
        let (straw, mut port, mut queues, pool) = rig(kind, 9000);
        let mut burst = Burst::new(32);
        for round in 0..50 {
            (0..63).for_each(|i| write_back(&straw, (round * 63 + i) % 64, 0, RX_DD | 2048 << RX_LENGTH_SHIFT));
            assert_eq!(queues.rx.rx_burst(&mut burst), 0);
            assert!(pool.outstanding(2) < 63 + 8 + 256, "ring, frame and caches");
        }
        // All buffers up to the frame's end are one faulty frame; the next frame is good.
        let next = 50 * 63 % 64;
        write_back(&straw, next, 0, RX_DD | RX_EOP | 60 << RX_LENGTH_SHIFT);
        write_back(&straw, (next + 1) % 64, 0, RX_DD | RX_EOP | 61 << RX_LENGTH_SHIFT);
        assert_eq!(queues.rx.rx_burst(&mut burst), 1);
        assert_eq!((burst[0].len(), port.stats().rx_drops), (61, 1));
    });
}

#[test]
fn lengths_and_errors_of_pieces_are_checked() {
    each_kind(|kind| {
        let (straw, mut port, mut queues, _pool) = rig(kind, 9000);
        let lies = [2049u64, 0xffff, 0].map(|len| RX_DD | len << RX_LENGTH_SHIFT);
        for (i, lie) in lies.into_iter().enumerate() {
            write_back(&straw, 2 * i as u32, 0, lie);
            write_back(&straw, 2 * i as u32 + 1, 0, RX_DD | RX_EOP | 60 << RX_LENGTH_SHIFT);
        }
        write_back(&straw, 6, 0, RX_DD | RX_EOP | kind.rx_errors[0] | 60 << RX_LENGTH_SHIFT);
        write_back(&straw, 7, 0, RX_DD | RX_EOP | 13 << RX_LENGTH_SHIFT);
        let mut burst = Burst::new(32);
        assert_eq!(queues.rx.rx_burst(&mut burst), 0);
        assert_eq!(port.stats().rx_drops, 5);
    });
}

#[test]
fn requests_become_descriptors() {
    each_kind(|kind| {
        let (straw, _port, mut queues, pool) = rig(kind, 1500);
        let mut burst = Burst::new(8);
        let mut tso = tcp(&pool, 2000);
        tso.append(packet(&pool, 1000));
        tso.request_segmentation(1448, TCP);
        tso.set_vlan(0x2005);
        burst.push(tso);
        let mut checksum = tcp(&pool, 60);
        checksum.request_checksum(TCP);
        burst.push(checksum);
        let mut again = tcp(&pool, 61);
        again.request_checksum(TCP);
        burst.push(again);
        burst.push(packet(&pool, 62));
        assert_eq!(queues.tx.tx_burst(&mut burst), 4);
        assert_eq!(straw.get(kind.tdt), 7, "the same context serves two frames");
        let words = |i| [straw.tx(i, 0).load(Ordering::Acquire), straw.tx(i, 1).load(Ordering::Acquire)];

        let [low, high] = words(0);
        assert_eq!(low, 20 | 14 << 9 | 0x2005 << 16);
        assert_eq!(high & (0xf << 20 | TX_DEXT), TX_DTYP_CONTEXT | TX_DEXT);
        assert_eq!(high & 0x1ff << 9, TX_CONTEXT_IPV4 | TX_CONTEXT_L4_TCP);
        assert_eq!((high >> 40 & 0xff, high >> 48), (20, 1448));

        let [address, data] = words(1);
        assert_eq!(data & (TX_TSE | TX_VLE | TX_EOP), TX_TSE | TX_VLE);
        assert_eq!(data & (TX_IXSM | TX_TXSM), TX_IXSM | TX_TXSM);
        assert_eq!((data & 0xffff, data >> TX_PAYLEN_SHIFT), (2000, 3000 - 54));
        // SAFETY: the descriptor has the address of a buffer of this process, which stays allocated while it is
        // posted.
        let frame = unsafe { std::slice::from_raw_parts(address as *const u8, 54) };
        assert_eq!((&frame[16..18], &frame[24..26]), (&[0, 0][..], &[0, 0][..]), "length and checksum are the card's");
        // 0x0a00 + 0x0001 + 0x0a00 + 0x0002 + 6
        assert_eq!(frame[50..52], [0x14, 0x09]);
        assert_eq!(words(2)[1] & (TX_EOP | 0xffff), TX_EOP | 1000);

        let [low, high] = words(3);
        assert_eq!((low, high >> 40), (20 | 14 << 9, 0));
        for (i, len) in [(4, 60), (5, 61)] {
            let data = words(i)[1];
            assert_eq!(data & (TX_TSE | TX_VLE | TX_EOP | TX_IXSM | TX_TXSM), TX_EOP | TX_TXSM);
            assert_eq!((data & 0xffff, data >> TX_PAYLEN_SHIFT), (len, len));
        }
        assert_eq!(words(6)[1] & (TX_IXSM | TX_TXSM | TX_EOP), TX_EOP);
    });
}

/// A context takes a buffer of its own. A frame that waits for one must not be taken for one whose context is known.
#[test]
fn a_context_that_found_no_buffer_is_posted_later() {
    each_kind(|kind| {
        let (straw, _port, mut queues, pool) = rig(kind, 1500);
        let mut burst = Burst::new(1);
        let mut checksum = tcp(&pool, 60);
        checksum.request_checksum(TCP);
        burst.push(checksum);
        let all: Vec<Packet> = std::iter::from_fn(|| pool.alloc()).collect();
        assert_eq!(queues.tx.tx_burst(&mut burst), 0, "there is no buffer for the context");
        drop(all);
        assert_eq!(queues.tx.tx_burst(&mut burst), 1);
        assert_eq!(straw.get(kind.tdt), 2, "a context and a frame");
        assert_eq!(straw.tx(0, 1).load(Ordering::Acquire) & (0xf << 20), TX_DTYP_CONTEXT & (0xf << 20));
    });
}

#[test]
fn what_the_card_cannot_do_is_refused() {
    each_kind(|kind| {
        let (straw, mut port, mut queues, pool) = rig(kind, 1500);
        let wild = |headers: Headers| {
            let mut packet = tcp(&pool, 100);
            packet.request_checksum(headers);
            packet
        };
        let segmented = |mss, headers: Headers, len| {
            let mut packet = tcp(&pool, len);
            packet.request_segmentation(mss, headers);
            packet
        };
        let mut long_chain = packet(&pool, 20);
        (0..40).for_each(|_| long_chain.append(packet(&pool, 10)));
        let mut with_a_gap = packet(&pool, 100);
        with_a_gap.append(packet(&pool, 0));
        let refused = [
            wild(Headers { l3: 80, ..TCP }),
            wild(Headers { l2: 128, ..TCP }),
            wild(Headers { l3: 0, ..TCP }),
            wild(Headers { l3: u16::MAX, l4: 255, ..TCP }),
            segmented(0, TCP, 1000),
            segmented(1500, TCP, 1000),
            segmented(1000, TCP, 54),
            segmented(1000, Headers { protocol: L4::Udp, ..TCP }, 1000),
            segmented(1000, Headers { l4: 0, ..TCP }, 1000),
            long_chain,
            with_a_gap,
            packet(&pool, 16),
            packet(&pool, 1519),
        ];
        let (mut burst, count) = (Burst::new(32), refused.len());
        refused.into_iter().for_each(|packet| burst.push(packet));
        burst.push(packet(&pool, 60));
        assert_eq!(queues.tx.tx_burst(&mut burst), count + 1);
        assert_eq!((straw.get(kind.tdt), port.stats().tx_drops), (1, count as u64));
    });
}

/// Acts as the card: marks descriptors with a report request as done, up to the tail.
fn send_all(kind: &Kind, straw: &FakeCard, from: &mut u32) {
    while *from != straw.get(kind.tdt) {
        let word = straw.tx(*from, 1);
        if word.load(Ordering::Acquire) & TX_RS != 0 {
            assert_ne!(word.load(Ordering::Acquire) & TX_EOP, 0, "reports are only written at a frame's end");
            word.fetch_or(TX_DD, Ordering::Release);
        }
        *from = (*from + 1) % 64;
    }
}

#[test]
fn buffers_come_back_whatever_was_asked() {
    each_kind(|kind| {
        let (straw, _port, mut queues, pool) = rig(kind, 9000);
        let (mut sent, mut head) = (0, 0);
        for round in 0..3000 {
            let mut frame = tcp(&pool, 200);
            (0..round % 23).for_each(|_| frame.append(packet(&pool, 100)));
            match round % 3 {
                0 => frame.request_segmentation(500, TCP),
                1 => frame.request_checksum(Headers { l4: (round % 5) as u8, ..TCP }),
                _ => {}
            }
            let mut burst = Burst::new(1);
            burst.push(frame);
            sent += queues.tx.tx_burst(&mut burst);
            send_all(kind, &straw, &mut head);
            assert!(pool.outstanding(1) <= 64 + 63 + 4 * 256, "the rings and what caches hold");
        }
        assert!(sent > 2900, "{sent} of 3000 found room");
        drop(queues);
        assert_eq!(pool.outstanding(1), 0);
    });
}

#[test]
fn a_dry_queue_arms_its_vector() {
    let (straw, _port, mut queues, _pool) = rig(&IXGBE, 1500);
    assert_eq!(straw.get(IVAR.at(0).offset) & 0xff, IVAR_VALID);
    assert_eq!((straw.get(EIAC.offset), straw.get(EIAM.offset)), (1, 1));
    assert_ne!(straw.get(GPIE.offset) & GPIE_MSIX_MODE, 0);
    assert_ne!(straw.get(EITR.at(0).offset), 0, "throttled");
    straw.write_for_test(EIMS.offset, 0);
    queues.rx.arm();
    assert_eq!(straw.get(EIMS.offset), 1);
    let readable = |rx: &dyn RxQueue| {
        let [WakeSource::Readable(event)] = WakeSource::all(rx)[..] else { panic!("an eventfd to wait on") };
        let mut ready = [rustix::event::PollFd::new(&event, rustix::event::PollFlags::IN)];
        rustix::event::poll(&mut ready, Some(&Default::default())).unwrap() == 1
    };
    assert!(!readable(&*queues.rx));
    rustix::io::write(&straw.events.lock().unwrap()[0], &1u64.to_ne_bytes()).unwrap();
    assert!(readable(&*queues.rx));
    straw.write_for_test(EIMC.offset, 0);
    queues.rx.disarm();
    assert_eq!(straw.get(EIMC.offset), 1);
    assert!(!readable(&*queues.rx), "cleared");
}

/// A card in another process shares the open file of the interrupt's eventfd, and with it the flag
/// `O_NONBLOCK`.
#[test]
fn an_interrupt_that_the_card_makes_block_does_not_block_the_queue() {
    each_kind(|kind| {
        let (straw, _port, mut queues, _pool) = rig(kind, 1500);
        rustix::io::ioctl_fionbio(&straw.events.lock().unwrap()[0], false).unwrap();
        let (done, finished) = std::sync::mpsc::channel();
        let thread = std::thread::spawn(move || {
            queues.rx.arm();
            queues.rx.disarm();
            let _ = done.send(());
        });
        let result = finished.recv_timeout(std::time::Duration::from_secs(30));
        // Lets a blocked reader continue.
        rustix::io::write(&straw.events.lock().unwrap()[0], &1u64.to_ne_bytes()).unwrap();
        thread.join().unwrap();
        result.expect("disarmed without blocking");
    });
}
