//! Violations of the rules by guests, case by case; the fuzz targets cover the rest.

use ringpass_virtio::device::{Broken, ChainBatch, CreateVirtqueue, DeviceAccess, Virtqueue};
use ringpass_virtio::features::{EVENT_IDX, INDIRECT_DESC};
use ringpass_virtio::layout::flags::{AVAIL, INDIRECT, NEXT, USED, WRITE};

use crate::device::book::{BUFFER, DEVICE, DRIVER, END, Guest, MEMORY, SEAM, TABLE, TABLE_SEAM, burst, pieces};

const SIZE: u16 = 8;
/// Descriptors: address, length, flags, and the next descriptor (split) or the buffer's id (packed).
type Descriptors<'a> = &'a [(u64, u32, u16, u16)];

/// Takes the chain that begins with the first of these descriptors of a split ring.
fn split(
    features: u64,
    access: DeviceAccess,
    ring: Descriptors,
    table: Descriptors,
) -> Result<Vec<(u64, u32)>, Broken> {
    let mut guest = Guest::new(SIZE, features);
    for (index, &(address, len, flags, next)) in ring.iter().enumerate() {
        guest.descriptor(MEMORY, index as u64, address, len, flags, next);
    }
    for (index, &(address, len, flags, next)) in table.iter().enumerate() {
        guest.descriptor(TABLE, index as u64, address, len, flags, next);
    }
    guest.offer(0);
    first(&guest, guest.split(), access)
}

/// Takes the chain that begins with the first of these descriptors of a packed ring.
fn packed(
    features: u64,
    access: DeviceAccess,
    ring: Descriptors,
    table: Descriptors,
) -> Result<Vec<(u64, u32)>, Broken> {
    let guest = Guest::new(SIZE, features);
    for (index, &(address, len, flags, id)) in table.iter().enumerate() {
        guest.packed_descriptor(TABLE, index as u64, address, len, flags, id);
    }
    guest.offer_packed(ring);
    first(&guest, guest.packed(), access)
}

fn first<Q: Virtqueue>(guest: &Guest, mut queue: Q, access: DeviceAccess) -> Result<Vec<(u64, u32)>, Broken> {
    let result = burst(guest, &mut queue, access);
    if let Err(broken) = &result {
        // The queue stays broken, and none of its methods has an effect.
        assert_eq!(queue.take(access, 1, &mut ChainBatch::default()), Err(*broken));
        assert!(!queue.publish());
        queue.arm();
        queue.disarm();
        queue.base();
    }
    let mut chains = result?;
    assert_eq!(chains.len(), 1, "{chains:x?}");
    Ok(chains.remove(0))
}

/// Tries the same descriptors in both kinds of ring; in split rings each refers to the one after it.
fn both(features: u64, access: DeviceAccess, descriptors: &[(u64, u32, u16)]) -> [Result<Vec<(u64, u32)>, Broken>; 2] {
    let with = |number: fn(usize) -> u16| {
        let number = |(index, &(address, len, flags)): (usize, &(u64, u32, u16))| (address, len, flags, number(index));
        descriptors.iter().enumerate().map(number).collect::<Vec<_>>()
    };
    [split(features, access, &with(|index| index as u16 + 1), &[]), packed(features, access, &with(|_| 5), &[])]
}

fn each<T: Clone>(value: T) -> [T; 2] {
    [value.clone(), value]
}

#[test]
fn line_11_available_indices_that_jump_or_go_back() {
    for index in [SIZE + 1, 0x100, 0x7fff, 0x8000, 0xffff] {
        let guest = Guest::new(SIZE, 0);
        guest.write(DRIVER + 2, &index.to_le_bytes());
        assert_eq!(burst(&guest, &mut guest.split(), DeviceAccess::Read), Err(Broken::IndexJump(index)));
    }
    // Back by one, and forward by more than was given back.
    for (jump, broken) in [(1_u16, Broken::IndexJump(0xffff)), (2 + SIZE + 1, Broken::IndexJump(SIZE + 1))] {
        let mut guest = Guest::new(SIZE, 0);
        (0..2).for_each(|id| guest.descriptor(MEMORY, id, BUFFER, 64, 0, 0));
        (0..2).for_each(|id| guest.offer(id));
        let mut queue = guest.split();
        assert_eq!(burst(&guest, &mut queue, DeviceAccess::Read).map(|chains| chains.len()), Ok(2));
        guest.write(DRIVER + 2, &jump.to_le_bytes());
        assert_eq!(burst(&guest, &mut queue, DeviceAccess::Read), Err(broken));
    }
}

#[test]
fn line_11_heads_that_are_none_or_come_twice() {
    for id in [SIZE, 0x7fff, 0xffff] {
        let mut guest = Guest::new(SIZE, 0);
        guest.offer(id);
        assert_eq!(burst(&guest, &mut guest.split(), DeviceAccess::Read), Err(Broken::BadId(id)));
    }
    let mut guest = Guest::new(SIZE, 0);
    guest.descriptor(MEMORY, 3, BUFFER, 64, 0, 0);
    (0..2).for_each(|_| guest.offer(3));
    let mut queue = guest.split();
    // The valid chain is returned first.
    assert_eq!(burst(&guest, &mut queue, DeviceAccess::Read), Ok(vec![vec![(BUFFER, 64)]]));
    assert_eq!(burst(&guest, &mut queue, DeviceAccess::Read), Err(Broken::DuplicateId(3)));
}

#[test]
fn line_12_chains_that_lead_nowhere() {
    let ring = |next| [(BUFFER, 4, NEXT, next), (BUFFER, 4, NEXT, 0)];
    for next in [SIZE, 0x7fff, 0xffff] {
        assert_eq!(split(0, DeviceAccess::Read, &ring(next), &[]), Err(Broken::BadNext(next)));
    }
    // To itself, a loop of two, and longer than the ring.
    for next in [0, 1] {
        assert_eq!(split(0, DeviceAccess::Read, &ring(next), &[]), Err(Broken::ChainTooLong));
    }
    let long = [(BUFFER, 4, NEXT, 0); SIZE as usize];
    assert_eq!(packed(0, DeviceAccess::Read, &long, &[]), Err(Broken::ChainTooLong));
    let whole: Vec<_> = (0..SIZE).map(|i| (BUFFER, 4, if i + 1 < SIZE { NEXT } else { 0 })).collect();
    assert_eq!(both(0, DeviceAccess::Read, &whole), each(Ok(vec![(BUFFER, 4); SIZE.into()])));
}

#[test]
fn lines_12_and_15_buffers_of_the_wrong_direction() {
    for flags in [[WRITE, 0], [0, WRITE], [WRITE, WRITE]] {
        let chain = [(BUFFER, 4, flags[0] | NEXT), (BUFFER, 4, flags[1])];
        assert_eq!(both(0, DeviceAccess::Read, &chain), each(Err(Broken::DeviceAccess)), "{flags:?}");
    }
    for flags in [[WRITE, 0], [0, WRITE], [0, 0]] {
        let chain = [(BUFFER, 4, flags[0] | NEXT), (BUFFER, 4, flags[1])];
        assert_eq!(both(0, DeviceAccess::Write, &chain), each(Err(Broken::DeviceAccess)), "{flags:?}");
    }
    assert_eq!(both(0, DeviceAccess::Write, &[(BUFFER, 4, 0)]), each(Err(Broken::DeviceAccess)));
}

#[test]
fn line_12_lengths() {
    // A length of 0 is valid at any address.
    let chain = [(0, 0, NEXT), (BUFFER, 4, NEXT), (u64::MAX, 0, 0)];
    assert_eq!(both(0, DeviceAccess::Read, &chain), each(Ok(vec![(BUFFER, 4)])));
    assert_eq!(both(0, DeviceAccess::Read, &[(0, 0, 0)]), each(Ok(vec![])));
    for (address, len) in
        [(BUFFER, u32::MAX), (BUFFER, 1 << 31), (u64::MAX, 1), (u64::MAX - 2, u32::MAX), (0, u32::MAX)]
    {
        let wrong = each(Err(Broken::Address(address, len)));
        assert_eq!(both(0, DeviceAccess::Read, &[(address, len, 0)]), wrong, "{address:#x} {len:#x}");
    }
}

/// Each piece is valid, but the sum does not fit in 32 bits.
#[test]
fn line_12_sums_that_overflow() {
    const LARGE: u64 = 1 << 32;
    let len = 0x80_0000;
    let count = (1_u64 << 32) / u64::from(len);
    let large = || {
        let mut guest = Guest::new(1 << 10, INDIRECT_DESC);
        guest.add_region(LARGE, u64::from(len));
        guest
    };
    let mut guest = large();
    for index in 0..count {
        guest.descriptor(TABLE, index, LARGE, len, NEXT, index as u16 + 1);
    }
    guest.descriptor(TABLE, count - 1, LARGE, len, 0, 0);
    guest.descriptor(MEMORY, 0, TABLE, count as u32 * 16, INDIRECT, 0);
    guest.offer(0);
    assert_eq!(burst(&guest, &mut guest.split(), DeviceAccess::Read), Err(Broken::LengthOverflow));
    let guest = large();
    (0..count).for_each(|index| guest.packed_descriptor(TABLE, index, LARGE, len, 0, 0));
    guest.offer_packed(&[(TABLE, count as u32 * 16, INDIRECT, 0)]);
    assert_eq!(burst(&guest, &mut guest.packed(), DeviceAccess::Read), Err(Broken::LengthOverflow));
}

#[test]
fn line_13_addresses() {
    for (address, len) in
        [(0, 1), (MEMORY - 1, 1), (MEMORY - 1, 2), (END, 1), (END - 1, 2), (END - 64, 65), (1 << 60, 8)]
    {
        let wrong = each(Err(Broken::Address(address, len)));
        assert_eq!(both(0, DeviceAccess::Read, &[(address, len, 0)]), wrong, "{address:#x} {len}");
        assert_eq!(both(0, DeviceAccess::Read, &[(BUFFER, 4, NEXT), (address, len, 0)]), wrong, "{address:#x} {len}");
    }
    // Up to the last byte of memory, and from one region into the next.
    for (address, len) in [(MEMORY, 1), (END - 1, 1), (END - 64, 64), (SEAM - 64, 64), (SEAM, 64)] {
        assert_eq!(both(0, DeviceAccess::Read, &[(address, len, 0)]), each(Ok(vec![(address, len)])));
    }
    for before in [1, 7, 63] {
        let across = each(Ok(vec![(SEAM - u64::from(before), before), (SEAM, 64 - before)]));
        assert_eq!(both(0, DeviceAccess::Read, &[(SEAM - u64::from(before), 64, 0)]), across);
    }
    let all = vec![(TABLE_SEAM - 8, 8), (TABLE_SEAM, (SEAM - TABLE_SEAM) as u32), (SEAM, 8)];
    let len = (SEAM - TABLE_SEAM) as u32 + 16;
    assert_eq!(both(0, DeviceAccess::Read, &[(TABLE_SEAM - 8, len, 0)]), each(Ok(all)));
}

/// The guest lets the device write over its own ring. This may only harm the guest.
#[test]
fn line_13_buffers_in_the_ring_itself() {
    fn overwrite<Q: Virtqueue>(guest: &Guest, mut queue: Q, value: u8) {
        let mut taken = ChainBatch::default();
        assert_eq!(queue.take(DeviceAccess::Write, 8, &mut taken), Ok(1));
        let len: u32 = pieces(guest, &taken.chains[0], &taken).iter().map(|(_, len)| len).sum();
        crate::device::guest::fill(&crate::device::guest::pieces(&taken.chains[0], &taken), len as usize, value);
        queue.push_used(std::iter::once(taken.chains[0].used(len)));
        queue.publish();
        for _ in 0..100 {
            taken.begin(ChainBatch::BUDGET);
            queue.arm();
            let Ok(count) = queue.take(DeviceAccess::Write, 64, &mut taken) else { break };
            assert!(count <= usize::from(SIZE));
            let chains = taken.chains.clone();
            queue.push_used(chains.iter().map(|chain| chain.used(8)));
            queue.publish();
        }
    }
    for value in [0, 1, 2, 0x80, 0xff] {
        let mut guest = Guest::new(SIZE, EVENT_IDX | INDIRECT_DESC);
        guest.descriptor(MEMORY, 0, MEMORY, (DEVICE - MEMORY) as u32 + 0x1000, WRITE, 0);
        guest.offer(0);
        overwrite(&guest, guest.split(), value);
        let guest = Guest::new(SIZE, EVENT_IDX | INDIRECT_DESC);
        guest.offer_packed(&[(MEMORY, (DEVICE - MEMORY) as u32 + 0x1000, WRITE, 0)]);
        overwrite(&guest, guest.packed(), value);
    }
}

/// Takes a chain with an indirect table, in both kinds of ring.
fn tables(features: u64, descriptor: (u64, u32, u16), table: Descriptors) -> [Result<Vec<(u64, u32)>, Broken>; 2] {
    let (address, len, flags) = descriptor;
    let (ring, behind) = ((address, len, flags, 1), (BUFFER, 4, 0, 0));
    [split(features, DeviceAccess::Read, &[ring, behind], table), packed(features, DeviceAccess::Read, &[ring], table)]
}

#[test]
fn line_14_tables() {
    let table: Vec<_> =
        (0..SIZE + 1).map(|i| (BUFFER + u64::from(i) * 64, 4, if i < 3 { NEXT } else { 0 }, i + 1)).collect();
    let right: Vec<_> = (0..4).map(|i| (BUFFER + i * 64, 4)).collect();
    assert_eq!(tables(INDIRECT_DESC, (TABLE, 64, INDIRECT), &table), each(Ok(right)));
    for len in [0, 1, 8, 15, 17, 63, 65, 16 * (u32::from(SIZE) + 1), u32::MAX, u32::MAX - 15] {
        let wrong = each(Err(Broken::BadTableLen(len)));
        assert_eq!(tables(INDIRECT_DESC, (TABLE, len, INDIRECT), &table), wrong);
    }
    // Not negotiated, followed by another descriptor, and nested.
    assert_eq!(tables(0, (TABLE, 64, INDIRECT), &table), each(Err(Broken::Table)));
    assert_eq!(tables(INDIRECT_DESC, (TABLE, 64, INDIRECT | NEXT), &table), each(Err(Broken::Table)));
    let nested = [(TABLE, 16, INDIRECT, 0)];
    assert_eq!(tables(INDIRECT_DESC, (TABLE, 16, INDIRECT), &nested), each(Err(Broken::Table)));
    // Outside of the guest's memory.
    for (address, len) in [(0, 16), (END - 16, 32), (MEMORY - 8, 16), (u64::MAX - 7, 16), (1 << 50, 128)] {
        for result in tables(INDIRECT_DESC, (address, len, INDIRECT), &table) {
            assert!(matches!(result, Err(Broken::Address(..))), "{address:#x} {len}: {result:?}");
        }
    }
    // Invalid chains inside a table, which only split rings have.
    for (next, broken) in [
        (4, Broken::BadNext(4)),
        (0xffff, Broken::BadNext(0xffff)),
        (0, Broken::ChainTooLong),
        (1, Broken::ChainTooLong),
    ] {
        let table = [(BUFFER, 4, NEXT, next), (BUFFER, 4, NEXT, next), (BUFFER, 4, NEXT, 0), (BUFFER, 4, NEXT, 0)];
        assert_eq!(split(INDIRECT_DESC, DeviceAccess::Read, &[(TABLE, 64, INDIRECT, 0)], &table), Err(broken));
    }
    // After other descriptors, in split rings (2.7.5.3.2).
    let ring = [(BUFFER, 4, NEXT, 1), (TABLE, 16, INDIRECT, 0)];
    let right = vec![(BUFFER, 4), (BUFFER + 64, 5)];
    assert_eq!(split(INDIRECT_DESC, DeviceAccess::Read, &ring, &[(BUFFER + 64, 5, 0, 0)]), Ok(right));
}

/// Tables that continue from one region into the next, at any byte.
#[test]
fn line_14_tables_in_pieces() {
    for start in [TABLE_SEAM - 32, TABLE_SEAM - 31, TABLE_SEAM - 24, TABLE_SEAM - 1, TABLE + 3] {
        let mut guest = Guest::new(SIZE, INDIRECT_DESC);
        for index in 0..4 {
            guest.descriptor(start, index, BUFFER + index, 4, if index < 3 { NEXT } else { 0 }, index as u16 + 1);
        }
        guest.descriptor(MEMORY, 0, start, 64, INDIRECT, 0);
        guest.offer(0);
        let right: Vec<_> = (0..4).map(|i| (BUFFER + i, 4)).collect();
        assert_eq!(first(&guest, guest.split(), DeviceAccess::Read), Ok(right.clone()));
        let guest = Guest::new(SIZE, INDIRECT_DESC);
        (0..4).for_each(|index| guest.packed_descriptor(start, index, BUFFER + index, 4, 0, 0));
        guest.offer_packed(&[(start, 64, INDIRECT, 0)]);
        assert_eq!(first(&guest, guest.packed(), DeviceAccess::Read), Ok(right));
    }
}

#[test]
fn line_17_events_are_any() {
    for event in (0..=u16::MAX).step_by(601).chain([1, 2, 3]) {
        let mut guest = Guest::new(SIZE, EVENT_IDX);
        guest.descriptor(MEMORY, 0, BUFFER, 4, 0, 0);
        guest.write(DRIVER + 4 + 2 * u64::from(SIZE), &event.to_le_bytes());
        guest.write(DEVICE + 4 + 8 * u64::from(SIZE), &event.to_le_bytes());
        let (mut queue, mut taken) = (guest.split(), ChainBatch::default());
        for round in 0..4 {
            guest.offer(0);
            taken.begin(ChainBatch::BUDGET);
            assert_eq!(queue.take(DeviceAccess::Read, 8, &mut taken), Ok(1));
            queue.push_used(std::iter::once(taken.chains[0].used(0)));
            assert_eq!(queue.publish(), event == round, "an interrupt at its index alone");
            assert!(!queue.arm());
            assert_eq!(guest.read_u16(DEVICE + 4 + 8 * u64::from(SIZE)), round + 1);
        }
    }
    // Without the event index, the flags decide, whenever they change.
    let mut guest = Guest::new(SIZE, 0);
    guest.descriptor(MEMORY, 0, BUFFER, 4, 0, 0);
    let (mut queue, mut taken) = (guest.split(), ChainBatch::default());
    for flags in [0_u16, 1, 0xfffe, 0xffff, 0] {
        guest.offer(0);
        guest.write(DRIVER, &flags.to_le_bytes());
        taken.begin(ChainBatch::BUDGET);
        assert_eq!(queue.take(DeviceAccess::Read, 8, &mut taken), Ok(1));
        queue.push_used(std::iter::once(taken.chains[0].used(0)));
        assert_eq!(queue.publish(), flags & 1 == 0);
    }
}

#[test]
fn line_18_flags_that_say_nothing_is_there() {
    let one = |flags| {
        let guest = Guest::new(SIZE, 0);
        guest.packed_descriptor(MEMORY, 0, BUFFER, 4, flags, 0);
        burst(&guest, &mut guest.packed(), DeviceAccess::Read).map(|chains| chains.len())
    };
    assert_eq!(one(AVAIL), Ok(1));
    // Both flags inverted, neither set, and those of the next wrap.
    for flags in [AVAIL | USED, 0, USED, USED | NEXT] {
        assert_eq!(one(flags), Ok(0), "{flags:#x}");
    }
    // The rest of a chain is not available.
    for rest in [0, USED, AVAIL | USED] {
        let guest = Guest::new(SIZE, 0);
        guest.packed_descriptor(MEMORY, 0, BUFFER, 4, AVAIL | NEXT, 0);
        guest.packed_descriptor(MEMORY, 1, BUFFER, 4, rest, 0);
        assert_eq!(burst(&guest, &mut guest.packed(), DeviceAccess::Read), Err(Broken::IncompleteChain));
    }
}

#[test]
fn line_18_numbers() {
    for id in [SIZE, 0x7fff, 0xffff] {
        assert_eq!(packed(0, DeviceAccess::Read, &[(BUFFER, 4, 0, id)], &[]), Err(Broken::BadId(id)));
        assert_eq!(
            packed(0, DeviceAccess::Read, &[(BUFFER, 4, NEXT, 0), (BUFFER, 4, 0, id)], &[]),
            Err(Broken::BadId(id))
        );
    }
    // The id in the last descriptor counts.
    let mut taken = ChainBatch::default();
    let guest = Guest::new(SIZE, 0);
    guest.offer_packed(&[(BUFFER, 4, NEXT, 7), (BUFFER, 4, NEXT, 0xffff), (BUFFER, 4, 0, 2), (BUFFER, 4, 0, 2)]);
    let mut queue = guest.packed();
    assert_eq!(queue.take(DeviceAccess::Read, 8, &mut taken), Ok(1));
    assert_eq!((taken.chains[0].id, taken.chains[0].descriptors), (2, 3));
    // The next chain has the same id while the first is still in flight.
    assert_eq!(queue.take(DeviceAccess::Read, 8, &mut taken), Err(Broken::DuplicateId(2)));
}

#[test]
fn line_18_chains_across_the_end() {
    let guest = Guest::new(5, 0);
    let mut queue = guest.packed();
    guest.offer_packed(&[(BUFFER, 4, 0, 0), (BUFFER, 4, 0, 1), (BUFFER, 4, 0, 2)]);
    assert_eq!(burst(&guest, &mut queue, DeviceAccess::Read).map(|chains| chains.len()), Ok(3));
    guest.packed_descriptor(MEMORY, 0, BUFFER, 6, USED, 3);
    for slot in [4, 3] {
        guest.packed_descriptor(MEMORY, slot, BUFFER, slot as u32, AVAIL | NEXT, 3);
    }
    assert_eq!(burst(&guest, &mut queue, DeviceAccess::Read), Ok(vec![vec![(BUFFER, 3), (BUFFER, 4), (BUFFER, 6)]]));
    // It was marked as used in the slot of its first descriptor. The next slot is 1, in the second wrap.
    assert_eq!(guest.read_u16(MEMORY + 3 * 16 + 14), AVAIL | USED);
    assert_eq!(queue.base(), 0x0001_0001);
}

#[test]
fn line_18_positions_and_sizes() {
    use ringpass_virtio::device::{Packed, Split};
    let guest = Guest::new(SIZE, 0);
    // Both at the same position; DPDK's format, which has only the first; used behind available by up to the
    // size of the ring.
    for base in [0x8000_8000, 0x0000_8000, 0x0003, 0x8003_8003, 0x8003_8005, 0x8003_0003, 0x8007_0006, 0x0001_8001] {
        assert!(guest.queue::<Packed>(base).is_ok(), "{base:#x}");
    }
    // Outside the ring; used ahead of available; behind by more than the size of the ring.
    for base in [0x0008, 0x7fff, 0x8008_8000, 0xffff_8000, 0xffff_ffff, 0x8005_8003, 0x8003_0005, 0x0001_8002] {
        assert!(guest.queue::<Packed>(base).is_err(), "{base:#x}");
    }
    for (size, split, packed) in
        [(0, false, false), (1, true, true), (3, false, true), (13, false, true), (64, true, true)]
    {
        let guest = Guest::new(size, 0);
        assert_eq!(guest.queue::<Split>(0).is_ok(), split, "{size}");
        assert_eq!(guest.queue::<Packed>(0x8000_8000).is_ok(), packed, "{size}");
    }
    for size in [0x8001, 0xffff] {
        assert!(Guest::new(size, 0).queue::<Split>(0).is_err() && Guest::new(size, 0).queue::<Packed>(0x8000).is_err());
    }
}

#[test]
fn rings_elsewhere() {
    use ringpass_virtio::device::{Packed, Split, VringConfig};
    let guest = Guest::new(SIZE, 0);
    let right = guest.setup(0x8000);
    for name in ["descriptors", "driver", "device"] {
        let place = |setup: &mut VringConfig, at| match name {
            "descriptors" => setup.descriptors = at,
            "driver" => setup.driver = at,
            _ => setup.device = at,
        };
        // Unmapped, at the end of memory, across regions, below the memory, unaligned, at the end of the
        // address space.
        for at in [0, END - 2, SEAM - 2, MEMORY - 16, MEMORY + 1, u64::MAX - 1] {
            let mut setup = right.clone();
            place(&mut setup, at.wrapping_add(crate::device::guest::USER));
            assert!(Split::new(&setup, &guest.memory).is_err(), "split, {name} at {at:#x}");
            assert!(Packed::new(&setup, &guest.memory).is_err(), "packed, {name} at {at:#x}");
        }
        let mut setup = right.clone();
        place(&mut setup, MEMORY);
        assert!(Split::new(&setup, &guest.memory).is_err(), "{name} at the guest's address");
    }
}

#[test]
fn line_19_event_suppression() {
    for flags in 0..=4_u16 {
        for offset in [0, 1, SIZE - 1, SIZE, 0x7fff, 0x8000, 0x8001, 0x8000 | SIZE, 0xffff] {
            for features in [0, EVENT_IDX] {
                let guest = Guest::new(SIZE, features);
                guest.offer_packed(&[(BUFFER, 4, 0, 0)]);
                guest.write(DRIVER, &(u32::from(offset) | u32::from(flags) << 16).to_le_bytes());
                let (mut queue, mut taken) = (guest.packed(), ChainBatch::default());
                assert_eq!(queue.take(DeviceAccess::Read, 8, &mut taken), Ok(1));
                queue.push_used(std::iter::once(taken.chains[0].used(0)));
                let interrupt = queue.publish();
                let right = match flags & 3 {
                    1 => false,
                    2 if features != 0 => offset == 0x8000,
                    _ => true,
                };
                // An offset beyond the ring has no meaning, so either result is correct.
                if flags & 3 != 2 || offset & 0x7fff < SIZE {
                    assert_eq!(interrupt, right, "{flags} {offset:#x} {features:#x}");
                }
            }
        }
    }
}

/// A guest's chains are charged by descriptors, whatever they contain: empty ones are not free.
#[test]
fn empty_descriptors_use_up_a_burst() {
    const RING: u16 = 512;
    const CHAIN: usize = 1000;
    fn bursts<Q: Virtqueue>(mut queue: Q) {
        let (mut taken, mut all) = (ChainBatch::default(), 0);
        while all < usize::from(RING) {
            taken.begin(4096);
            let mut burst = 0;
            // Take until nothing is left, as callers do.
            loop {
                taken.clear();
                match queue.take(DeviceAccess::Read, 128, &mut taken) {
                    Ok(0) => break,
                    Ok(count) => burst += count,
                    Err(broken) => panic!("{broken}"),
                }
                assert!(taken.pieces.is_empty());
                queue.push_used(taken.chains.iter().map(|chain| chain.used(0)));
                queue.publish();
            }
            assert!((1..=5).contains(&burst), "{burst} chains in a burst");
            assert!(taken.is_spent() || all + burst == usize::from(RING));
            all += burst;
        }
        assert_eq!(all, usize::from(RING), "none is lost");
    }
    let mut guest = Guest::new(2 * RING, INDIRECT_DESC);
    let len = CHAIN as u32 * 16;
    (0..CHAIN as u64).for_each(|index| {
        let next = if index + 1 < CHAIN as u64 { NEXT } else { 0 };
        guest.descriptor(TABLE, index, 0, 0, next, index as u16 + 1);
    });
    (0..RING).for_each(|id| {
        guest.descriptor(MEMORY, id.into(), TABLE, len, INDIRECT, 0);
        guest.offer(id);
    });
    bursts(guest.split());
    let guest = Guest::new(2 * RING, INDIRECT_DESC);
    (0..CHAIN as u64).for_each(|index| guest.packed_descriptor(TABLE, index, 0, 0, 0, 0));
    guest.offer_packed(&std::array::from_fn::<_, { RING as usize }, _>(|id| (TABLE, len, INDIRECT, id as u16)));
    bursts(guest.packed());
}

/// Chains that are longer than those of any driver break the queue, however large it is.
#[test]
fn chains_of_more_than_1024_descriptors() {
    const SIZE: u16 = 4096;
    for (count, long) in [(1024, false), (1025, true), (4096, true)] {
        for tables in [false, true] {
            let features = if tables { INDIRECT_DESC } else { 0 };
            let (mut split, packed) = (Guest::new(SIZE, features), Guest::new(SIZE, features));
            let more = |index: u64| if index + 1 < count { NEXT } else { 0 };
            for index in 0..count {
                let at = if tables { TABLE } else { MEMORY };
                split.descriptor(at, index, BUFFER, 4, more(index), index as u16 + 1);
                packed.packed_descriptor(TABLE, index, BUFFER, 4, 0, 0);
            }
            if tables {
                split.descriptor(MEMORY, 0, TABLE, count as u32 * 16, INDIRECT, 0);
                packed.offer_packed(&[(TABLE, count as u32 * 16, INDIRECT, 0)]);
            } else {
                let chain: Vec<_> = (0..count).map(|index| (BUFFER, 4, more(index), 0)).collect();
                packed.offer_packed(&chain);
            }
            split.offer(0);
            let expected = if long { Err(Broken::ChainTooLong) } else { Ok(1) };
            let chains = |result: Result<Vec<_>, _>| result.map(|chains: Vec<Vec<(u64, u32)>>| chains.len());
            assert_eq!(
                chains(burst(&split, &mut split.split(), DeviceAccess::Read)),
                expected,
                "split, {count}, {tables}"
            );
            assert_eq!(
                chains(burst(&packed, &mut packed.packed(), DeviceAccess::Read)),
                expected,
                "packed, {count}, {tables}"
            );
        }
    }
}
