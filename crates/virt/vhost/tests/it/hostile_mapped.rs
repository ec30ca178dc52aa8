//! Line 20 of the list of hostile inputs (`docs/security.md`): what a guest may do to buffers that a NIC
//! receives into. The guest harms only itself; the NIC, the port and the next guest are not affected.
//! `mapped.rs` tests buffers that are posted twice, overlap a ring or are too short, and line 21.

use crate::common::mapped::*;
use crate::common::*;
use ringpass_vhost_user::Device;
use ringpass_virtio::device::{GuestMemory, GuestRegion};
use ringpass_virtio::features::*;

/// Reads the buffer address in one of the guest's descriptors.
fn address(guest: &Guest, queue: usize, slot: usize) -> u64 {
    let words = (0..4).map(|word| guest.peek(queue, Area::Descriptors, 16 * slot + 2 * word));
    words.rev().fold(0, |address, word| address << 16 | u64::from(word))
}

/// Replaces the buffer address in one of the guest's descriptors.
fn readdress(guest: &Guest, queue: usize, slot: usize, address: u64) {
    for word in 0..4 {
        guest.poke(queue, Area::Descriptors, 16 * slot + 2 * word, (address >> (16 * word)) as u16);
    }
}

/// Number of buffers that a ring of 64 makes available, with one descriptor each.
const SHOWN: usize = 64;

/// The NIC writes to buffers that the guest also sends from, which are read meanwhile.
#[test]
fn line_20_buffers_that_the_guest_still_reads() {
    for features in features() {
        let (mut mapped, mut guest) = (Mapped::new(), Guest::new(features, 1, 64));
        guest.offer_all(0);
        guest.attach(&mut mapped.rig.device);
        mapped.look();
        for round in 0..20 {
            for slot in 0..16 {
                assert!(guest.send(0, [0; 12], &frame(slot, 100 + slot), &[]));
                readdress(&guest, 1, (round * 16 + slot) % 64, address(&guest, 0, slot));
            }
            let packets = mapped.arrive(&frames(16, 60));
            assert_eq!(lent(&packets), 16, "{features:#x}");
            let sent = mapped.rig.receive(0);
            assert!(sent.iter().zip(100..).all(|(packet, len)| packet.total_len() == len), "what lies there now");
            assert_eq!((sent.len(), mapped.send(packets)), (16, 0));
            assert_eq!((guest.sent(0), guest.received(0).len()), (16, 16));
            guest.offer_all(0);
        }
        assert_eq!((mapped.rig.fault(), mapped.card.counters().dma_faults), (None, 0));
        mapped.while_polled(|device| guest.detach(device));
        guest.reset();
    }
}

/// Two guests share memory and have two NICs write to the same buffers. They corrupt only each other's
/// frames.
#[test]
fn line_20_buffers_of_two_guests() {
    for features in features() {
        let (mut mapped, mut other) = (Mapped::new(), Mapped::new());
        let (mut guest, mut accomplice) = (Guest::new(features, 1, 64), Guest::new(features, 1, 64));
        guest.offer_all(0);
        accomplice.offer_all(0);
        (0..SHOWN).for_each(|slot| readdress(&accomplice, 0, slot, address(&guest, 0, slot)));
        let both = [guest.memory.regions(), accomplice.memory.regions()].concat();
        accomplice.memory = GuestMemory::new(both).unwrap();
        guest.attach(&mut mapped.rig.device);
        accomplice.attach(&mut other.rig.device);
        let (one, two) = (mapped.arrive(&frames(20, 60)), other.arrive(&frames(20, 700)));
        assert_eq!((lent(&one), lent(&two)), (20, 20), "{features:#x}");
        assert_eq!((mapped.send(one), other.send(two)), (0, 0));
        assert_eq!((guest.received(0).len(), accomplice.received(0).len()), (20, 20));
        for (it, of) in [(&mut mapped, &guest), (&mut other, &accomplice)] {
            assert_eq!((it.rig.fault(), it.card.counters().dma_faults), (None, 0));
            it.while_polled(|device| of.detach(device));
        }
        guest.reset();
        accomplice.reset();
    }
}

/// Buffers at odd addresses: frames arrive there intact.
#[test]
fn line_20_buffers_at_odd_addresses() {
    for features in features() {
        for shift in [1, 3, 7] {
            let (mut mapped, mut guest) = (Mapped::new(), Guest::new(features, 1, 64));
            // 2040 bytes leave room for the largest shift.
            while guest.offer(0, &[2040]) {}
            (0..SHOWN).for_each(|slot| readdress(&guest, 0, slot, address(&guest, 0, slot) + shift));
            guest.attach(&mut mapped.rig.device);
            let sent = frames(20, 60);
            let packets = mapped.arrive(&sent);
            assert_eq!((lent(&packets), mapped.send(packets)), (20, 0), "{features:#x}");
            let region = guest.pool.region();
            for (slot, frame) in sent.iter().enumerate() {
                let place = address(&guest, 0, slot) - region.iova(0) + guest.header() as u64;
                let mut bytes = vec![0; frame.len()];
                rustix::io::pread(region.file().unwrap(), &mut bytes[..], place).unwrap();
                assert!(bytes == *frame, "{features:#x}, {shift}, {slot}");
            }
            assert_eq!((mapped.rig.fault(), mapped.card.counters().dma_faults), (None, 0));
            mapped.while_polled(|device| guest.detach(device));
            guest.reset();
        }
    }
}

/// Memory is removed while the NIC holds buffers in it and while the test holds received frames in it.
#[test]
fn line_20_memory_that_is_unplugged_under_the_card() {
    for features in features() {
        let mut mapped = Mapped::new();
        for round in 0..3 {
            let mut guest = Guest::new(features, 1, 64);
            let (buffers, len) = (guest.pool.region().iova(0), guest.pool.region().len());
            let whole = guest.remap(len / 2);
            guest.offer_all(0);
            guest.attach(&mut mapped.rig.device);
            let packets = mapped.arrive(&frames(10, 60));
            assert_eq!(lent(&packets), 10, "{features:#x}");
            let held = if round == 1 { packets } else { packets.into_iter().take(0).collect() };
            // The rings stay; of the buffers, half or none stays.
            let from = buffers + if round == 0 { len as u64 / 2 } else { 0 };
            let stays = |region: &&GuestRegion| !(from..buffers + len as u64).contains(&region.guest);
            let left = GuestMemory::new(whole.regions().iter().filter(stays).cloned().collect()).unwrap();
            let set = mapped.while_polled(|device| device.set_memory(&left));
            if held.is_empty() {
                set.unwrap();
                for _ in 0..3 {
                    let packets = mapped.arrive(&frames(30, 60));
                    mapped.send(packets);
                }
                // The guest still offers buffers in the removed memory, which is its fault.
                let why = mapped.rig.fault().expect("buffers that are nowhere");
                assert!(why.contains("not in its memory"), "{why}");
            } else {
                // This ends the session; until then everything stays mapped.
                assert!(set.unwrap_err().contains("10 lent buffers did not come back"));
                assert!(held.iter().zip(frames(10, 60)).all(|(packet, frame)| packet.to_vec() == frame));
            }
            drop(held);
            mapped.while_polled(|device| device.disconnected("it has broken its ring"));
            guest.reset();
        }
        let mut next = Guest::new(features, 1, 64);
        next.offer_all(0);
        next.attach(&mut mapped.rig.device);
        let packets = mapped.arrive(&frames(20, 60));
        assert_eq!((lent(&packets), mapped.send(packets), next.received(0).len()), (20, 0, 20), "{features:#x}");
        assert_eq!(mapped.card.counters().dma_faults, 0);
        mapped.while_polled(|device| next.detach(device));
        next.reset();
    }
}

/// A worker that is not scheduled returns a guest's buffers too late: the session ends, and the NIC keeps the
/// memory until it has returned them. Only then is the next guest mapped.
#[test]
fn a_card_that_lets_go_late_keeps_the_memory_until_then() {
    for features in [VERSION_1 | MRG_RXBUF, VERSION_1 | RING_PACKED] {
        let mut mapped = Mapped::new();
        let mut guest = Guest::new(features, 1, 64);
        guest.offer_all(0);
        guest.attach(&mut mapped.rig.device);
        mapped.look();
        let why = mapped.rig.device.stop(0).unwrap_err();
        assert!(why.contains("did not come back"), "{why}");
        mapped.rig.device.disconnected("its queue could not be stopped");
        mapped.arrive_unseen(&frames(16, 60));
        assert_eq!(mapped.card.counters().dma_faults, 0, "{features:#x}: the card writes where it may");
        // Nothing of the next guest is lent as long as a buffer of this one is.
        let mut next = Guest::new(features, 1, 64);
        next.offer_all(0);
        next.attach(&mut mapped.rig.device);
        mapped.arrive_unseen(&frames(16, 60));
        assert_eq!(mapped.card.counters().dma_faults, 0, "{features:#x}");
        mapped.look();
        assert_eq!(mapped.rig.fault(), None);
        let packets = mapped.arrive(&frames(16, 60));
        assert_eq!(lent(&packets), 16, "{features:#x}: the next guest's");
        assert_eq!(mapped.send(packets), 0);
        assert_eq!((next.received(0).len(), mapped.card.counters().dma_faults), (16, 0));
        mapped.while_polled(|device| next.detach(device));
        mapped.rig.device.disconnected("it has left");
        guest.reset();
        next.reset();
    }
}
