//! Four chains at a time and one by one: both take the same chains of the same ring, however it was written.

use proptest::prelude::*;
use ringpass_memory::Avx2;
use ringpass_virtio::device::{Broken, ChainBatch, CreateVirtqueue, DeviceAccess, Packed, Split, VringConfig};
use ringpass_virtio::layout::flags::WRITE;

use crate::device::book::{BUFFER, END, Guest, MEMORY, SEAM, pieces};

const SIZE: u16 = 32;

/// Something in which a descriptor differs from a plain one.
#[derive(Clone, Copy, Debug)]
enum Change {
    None,
    Address(u64),
    Len(u32),
    Flags(u16),
    /// The id in packed rings, the head in the available ring of split ones.
    Id(u16),
}

fn change() -> impl Strategy<Value = Change> {
    let near = |place: u64| (place - 70_000..place + 3000).prop_map(Change::Address);
    prop_oneof![
        30 => Just(Change::None),
        1 => prop_oneof![near(SEAM), near(END), near(BUFFER), any::<u64>().prop_map(Change::Address)],
        1 => prop_oneof![Just(0), Just(0x1_0000), Just(0x1_0001), Just(u32::MAX), any::<u32>()].prop_map(Change::Len),
        1 => any::<u16>().prop_map(|bit| Change::Flags(1 << (bit % 16))),
        1 => prop_oneof![0..SIZE + 2, any::<u16>()].prop_map(Change::Id),
    ]
}

/// The chains that a queue took, call by call: id, descriptors and pieces of each; and the first error.
type Taken = (Vec<Vec<(u16, u16, Vec<(u64, u32)>)>>, Option<Broken>);

/// Takes chains of the given ring in calls of `most`.
fn take<Q: CreateVirtqueue>(
    guest: &Guest,
    base: u32,
    avx2: Option<Avx2>,
    access: DeviceAccess,
    most: &[usize],
) -> Taken {
    let setup = VringConfig { avx2, ..guest.setup(base) };
    let mut queue = Q::new(&setup, &guest.memory).unwrap();
    let mut calls = Vec::new();
    for &most in most {
        let mut taken = ChainBatch::default();
        if let Err(broken) = queue.take(access, most, &mut taken) {
            return (calls, Some(broken));
        }
        let chains = taken.chains.iter();
        calls.push(chains.map(|chain| (chain.id, chain.descriptors, pieces(guest, chain, &taken))).collect());
    }
    (calls, None)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2000, ..ProptestConfig::default() })]

    #[test]
    fn takes_what_the_portable_loops_take(
        packed in any::<bool>(),
        write in any::<bool>(),
        first in 0..SIZE,
        changes in prop::collection::vec(change(), 1..usize::from(SIZE)),
        most in prop::collection::vec(1..24_usize, 1..6),
    ) {
        let Some(avx2) = Avx2::detect() else { return Ok(()) };
        let mut guest = Guest::new(SIZE, 0);
        let access = if write { DeviceAccess::Write } else { DeviceAccess::Read };
        let mut ring = Vec::new();
        for (index, change) in changes.iter().enumerate() {
            let id = (first + index as u16) % SIZE;
            let mut made = (BUFFER + u64::from(id) * 2048, 1500, if write { WRITE } else { 0 }, id);
            match *change {
                Change::None => {}
                Change::Address(address) => made.0 = address,
                Change::Len(len) => made.1 = len,
                Change::Flags(flag) => made.2 ^= flag,
                Change::Id(id) => made.3 = id,
            }
            ring.push(made);
        }
        let (vector, portable) = if packed {
            guest.offer_packed(&ring);
            let base = 0x8000_8000;
            let one_by_one = take::<Packed>(&guest, base, None, access, &most);
            (take::<Packed>(&guest, base, Some(avx2), access, &most), one_by_one)
        } else {
            for (index, &(address, len, flags, head)) in ring.iter().enumerate() {
                guest.descriptor(MEMORY, u64::from((first + index as u16) % SIZE), address, len, flags, 0);
                guest.offer(head);
            }
            (take::<Split>(&guest, 0, Some(avx2), access, &most), take::<Split>(&guest, 0, None, access, &most))
        };
        prop_assert_eq!(vector, portable);
    }
}
