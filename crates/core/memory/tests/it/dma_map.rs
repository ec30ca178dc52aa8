//! The map of a device's memory against a plain table of bytes, at its limits, and at the ends of the address space.
// Miri has no shared mappings.
#![cfg(not(miri))]

use std::sync::Arc;

use crate::common::cases;
use proptest::prelude::*;
use ringpass_memory::{Access, DmaMap, DmaMapError, DmaMapFault, DmaRegion, ForeignMemory, LookupHint, Memory};
use ringpass_memory::{Packet, RegionConfig};

const PAGE: u64 = 4096;

fn region(len: usize) -> Arc<DmaRegion> {
    DmaRegion::new(len, &RegionConfig::default()).unwrap()
}

/// Returns memory as another process shares it.
fn foreign(region: &DmaRegion) -> Memory {
    ForeignMemory::map(region.file().unwrap(), 0, region.len()).unwrap().into()
}

fn insert(map: &mut DmaMap, iova: u64, memory: &Memory, len: u64) -> Result<(), DmaMapFault> {
    map.insert(iova, memory.part(0, len as usize).unwrap(), Access::ReadWrite).map_err(|error| error.reason)
}

/// Returns whether all of a range is in one mapping that may be written.
fn found(map: &DmaMap, iova: u64, len: usize) -> bool {
    map.find(iova, len, Access::ReadWrite, &mut LookupHint::default()).is_some()
}

proptest! {
    #![proptest_config(cases(200))]

    /// Compares random maps and unmaps of any bytes with a table that holds the offset and the access of each.
    #[test]
    fn maps_come_and_go(
        operations in prop::collection::vec((any::<bool>(), 0u64..256, 1u64..40, any::<bool>()), 1..60),
        iova in prop::sample::select(vec![0, (1 << 21) - 100, u64::MAX - 295]),
    ) {
        let region = region(8192);
        region_bytes(&region);
        let memory = foreign(&region);
        let (mut map, mut hint, mut oracle) = (DmaMap::default(), LookupHint::default(), [None; 296]);
        for (insert, at, len, write) in operations {
            let range = at as usize..(at + len) as usize;
            if insert {
                let access = if write { Access::ReadWrite } else { Access::Read };
                let mapped = map.insert(iova + at, memory.part(at as usize, len as usize).unwrap(), access);
                prop_assert_eq!(mapped.is_ok(), oracle[range.clone()].iter().all(Option::is_none));
                if mapped.is_ok() {
                    oracle[range].fill(Some(write));
                }
            } else {
                map.remove(iova + at, len).unwrap();
                oracle[range].fill(None);
            }
            for (at, byte) in oracle.iter().enumerate() {
                let address = iova + at as u64;
                let (read, write) = (Access::Read, Access::ReadWrite);
                let place = map.find(address, 1, read, &mut hint).map(|(memory, offset)| memory.raw(offset, 1).unwrap());
                prop_assert_eq!(place.map(|byte| byte.array(0)), byte.map(|_| Some([at as u8])));
                prop_assert_eq!(map.find(address, 1, write, &mut hint).is_some(), *byte == Some(true));
                let mut bytes = [0; 9];
                let all = oracle[at..].iter().take(9).filter(|byte| byte.is_some()).count() == 9;
                prop_assert_eq!(map.read(address, &mut bytes, &mut hint), all);
                prop_assert!(!all || bytes == std::array::from_fn(|i| (at + i) as u8));
            }
        }
    }
}

/// Writes to each byte its offset.
fn region_bytes(region: &Arc<DmaRegion>) {
    let bytes: Vec<u8> = (0..region.len()).map(|at| at as u8).collect();
    assert!(Memory::from(region.clone()).write(0, &bytes));
}

#[test]
fn ends_of_maps_and_of_all_addresses() {
    let memory = foreign(&region(8192));
    let mut map = DmaMap::default();
    insert(&mut map, PAGE, &memory, 2 * PAGE).unwrap();
    assert!(found(&map, 3 * PAGE - 64, 64) && !found(&map, 3 * PAGE - 64, 65));
    assert!(!found(&map, PAGE - 1, 64) && !found(&map, u64::MAX, 64));
    map.remove(0, 1 << 63).unwrap();
    assert!(!found(&map, PAGE, 64) && map.is_empty());
    let top = u64::MAX - PAGE + 1;
    insert(&mut map, top, &memory, PAGE).unwrap();
    assert!(found(&map, top, 64));
    assert_eq!(insert(&mut map, top, &memory, PAGE), Err(DmaMapFault::Overlap));
    assert_eq!(insert(&mut map, top, &memory, 2 * PAGE), Err(DmaMapFault::Range));
    assert_eq!(insert(&mut map, 0, &memory, 0), Err(DmaMapFault::Range));
    map.remove(0, u64::MAX).unwrap();
    assert!(found(&map, u64::MAX, 1) && !found(&map, u64::MAX - 1, 1), "the last byte is not in that range");
    map.remove(1 << 63, 1 << 63).unwrap();
    assert!(map.is_empty());
    map.remove(0, 0).unwrap();
}

/// An unmap in the middle of a mapping splits it in two.
#[test]
fn holes_do_not_make_more_maps_than_there_may_be() {
    let memory = foreign(&region(3 * PAGE as usize));
    let mut map = DmaMap::default();
    let full = DmaMap::MAX;
    (0..full as u64).for_each(|i| insert(&mut map, 3 * i * PAGE, &memory, 3 * PAGE).unwrap());
    assert_eq!(insert(&mut map, u64::MAX / PAGE * PAGE, &memory, PAGE), Err(DmaMapFault::Full));
    for i in 0..100 {
        let iova = (3 * i + 1) * PAGE;
        assert_eq!(map.remove(iova, PAGE), Err(DmaMapError { iova, len: PAGE, reason: DmaMapFault::Full }));
        assert!(map.len() == full && found(&map, iova, PAGE as usize));
    }
    // An unmap that does not increase their number is carried out, and may make room.
    map.remove(PAGE, 3 * PAGE).unwrap();
    assert_eq!(map.len(), full);
    map.remove(0, 6 * PAGE).unwrap();
    assert_eq!(map.len(), full - 2);
    map.remove(7 * PAGE, PAGE).unwrap();
    assert_eq!(map.len(), full - 1);
}

#[test]
fn a_region_is_mapped_once_and_frames_may_span_mappings() {
    let region = region(8192);
    region_bytes(&region);
    let mut map = DmaMap::default();
    map.add(&region).unwrap();
    let maps = map.len();
    map.add(&region).unwrap();
    assert_eq!(map.len(), maps);
    map.clear();
    let memory = Memory::from(region.clone());
    // Two halves of a frame, whose order in this process is the other way round.
    map.insert(64, memory.part(4096, 32).unwrap(), Access::ReadWrite).unwrap();
    map.insert(96, memory.part(0, 32).unwrap(), Access::ReadWrite).unwrap();
    let (hint, mut packet) = (&mut LookupHint::default(), frame(64));
    let bytes: Vec<u8> = (0..32).chain(0..32).collect();
    assert!(map.read_packet(64, &mut packet, hint) && packet.to_vec() == bytes);
    assert!(!map.read_packet(65, &mut packet, hint) && packet.to_vec() == [0; 64]);
    assert!(map.write(80, &[7; 32], hint));
    assert_eq!(memory.raw(4112, 16).unwrap().to_vec(), [7; 16]);
    assert_eq!(memory.raw(0, 16).unwrap().to_vec(), [7; 16]);
    assert!(!map.write(100, &[9; 32], hint));
    assert_eq!(memory.raw(4, 12).unwrap().to_vec(), [7; 12], "nothing is written");
    assert_eq!(map.pieces(64, 64, Access::ReadWrite).unwrap().len(), 2);
    assert!(map.pieces(64, 65, Access::Read).is_none());
    assert!(map.store(68, 0x0102_0304u32, hint) && map.load::<u32>(68, hint) == Some(0x0102_0304));
    assert!(!map.store(66, 1u32, hint) && map.load::<u64>(92, hint).is_none(), "not aligned, in two pieces");
}

fn frame(len: usize) -> Packet {
    let mut packet = crate::common::take(&mut crate::common::pool(1, 2048).cache(), 1).pop().unwrap();
    assert!(packet.copy_from(&vec![0xff; len]));
    packet
}
