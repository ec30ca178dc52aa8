//! Violations of the rules by devices, case by case; the fuzz targets cover the rest.

use std::sync::atomic::{AtomicU16, Ordering};

use ringpass_memory::{DmaRegion, Mempool, MempoolConfig, Packet, RegionConfig};
use ringpass_virtio::driver::{Broken, Config, DeviceAccess, Packed, Split, Virtqueue};

use crate::rings::device::{Chain, Device, Kind, at};

/// Returns the result of giving back these ids, in a queue of eight with four packets posted.
fn given_back<Q: Virtqueue>(kind: Kind, in_order: bool, ids: &[u16]) -> Result<usize, Broken> {
    let config = Config { size: 8, event_idx: false, in_order, indirect: 4, header: 0 };
    let region = DmaRegion::new(Q::bytes(&config), &RegionConfig::default()).unwrap();
    let pool = Mempool::new(&MempoolConfig { buffers: 16, ..Default::default() }).unwrap();
    let mut queue = Q::new(&region, 0, &config).unwrap();
    let memory = region.iova(0)..region.iova(0) + region.len() as u64;
    let mut device = Device::new(kind, &config, queue.addresses(), memory);
    let packet = |_| {
        let mut packet: Packet = pool.alloc().unwrap();
        packet.set_len(60);
        packet
    };
    assert_eq!(queue.post_run(DeviceAccess::Write, (0..4).map(packet)), 4);
    queue.publish();
    let chains: Vec<Chain> = (0..4).map(|_| device.next().unwrap()).collect();
    let named: Vec<_> = ids.iter().map(|&id| (Chain { id, ..chains[0].clone() }, 60)).collect();
    device.give(&named, false);
    let mut count = 0;
    let result = queue.take(usize::MAX, |used, _| {
        drop(used.whole());
        count += 1;
    });
    if let Err(broken) = result {
        assert_eq!(queue.take(usize::MAX, |_, _| panic!("a broken queue gives nothing")), Err(broken));
        assert_eq!(queue.posted(), 4 - count);
    }
    // SAFETY: the device belongs to this test, which does not use it any more.
    unsafe { queue.reclaim() };
    drop(queue);
    assert_eq!(pool.outstanding(1), 0, "buffers were lost");
    result
}

fn each(in_order: bool, ids: &[u16]) -> [Result<usize, Broken>; 2] {
    [given_back::<Split>(Kind::Split, in_order, ids), given_back::<Packed>(Kind::Packed, in_order, ids)]
}

#[test]
fn in_any_order() {
    assert_eq!(each(false, &[2, 0, 3, 1]), [Ok(4); 2]);
    for (ids, wrong) in [(&[4][..], 4), (&[8], 8), (&[0xffff], 0xffff), (&[2, 2], 2), (&[0, 0], 0), (&[3, 0, 7], 7)] {
        assert_eq!(each(false, ids), [Err(Broken::NotPosted(wrong)); 2], "{ids:?}");
    }
}

#[test]
fn in_order() {
    assert_eq!(each(true, &[0, 1, 2, 3]), [Ok(4); 2]);
    for (ids, wrong) in [(&[4][..], 4), (&[7], 7), (&[8], 8), (&[0xffff], 0xffff), (&[0, 0], 0)] {
        assert_eq!(each(true, ids), [Err(Broken::NotPosted(wrong)); 2], "{ids:?}");
    }
    // In a split ring, the index tells how many packets were used.
    assert_eq!(given_back::<Split>(Kind::Split, true, &[3]), Err(Broken::NotPosted(3)));
    assert_eq!(given_back::<Packed>(Kind::Packed, true, &[3]), Ok(4));
}

#[test]
fn split_rings_whose_index_jumps() {
    let config = Config { size: 8, event_idx: false, in_order: false, indirect: 0, header: 0 };
    for jump in [1, 5, 9, 0x8000, 0xffff] {
        let region = DmaRegion::new(Split::bytes(&config), &RegionConfig::default()).unwrap();
        let mut queue = Split::new(&region, 0, &config).unwrap();
        at::<AtomicU16>(queue.addresses().device + 2).store(jump, Ordering::Release);
        assert_eq!(queue.take(usize::MAX, |_, _| panic!("nothing was posted")), Err(Broken::IndexJump(jump)));
        // SAFETY: no device uses the queue; only this test has written to it.
        unsafe { queue.reclaim() };
    }
}
