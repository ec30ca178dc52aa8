//! Driver and device on two threads at the same time.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

use ringpass_memory::{Avx2, DmaRegion, Mempool, MempoolConfig, Reclaimer, RegionConfig};
use ringpass_virtio::device::{self, ChainBatch, DeviceAccess};
use ringpass_virtio::driver::{self, Config};
use ringpass_virtio::features::{EVENT_IDX, INDIRECT_DESC};
use ringpass_virtio::layout::flags::{AVAIL, INDIRECT, NEXT, USED, WRITE};

use crate::device::book::{BUFFER, DEVICE, DRIVER, END, Guest, MEMORY, SEAM, TABLE, pieces};
use crate::device::guest;

/// Wakes the other side.
#[derive(Default)]
struct Doorbell {
    rung: Mutex<bool>,
    changed: Condvar,
}

impl Doorbell {
    fn ring(&self) {
        *self.rung.lock().unwrap() = true;
        self.changed.notify_one();
    }

    /// Sleeps until `ring` is called. Half a minute is more than the peer needs, even on a busy machine.
    fn wait(&self, who: &str) {
        let (mut rung, wait) =
            self.changed.wait_timeout_while(self.rung.lock().unwrap(), Duration::from_secs(30), |rung| !*rung).unwrap();
        assert!(!wait.timed_out(), "the {who} sleeps, and nobody wakes it");
        *rung = false;
    }
}

/// Passes packets from driver to device and back. Each side sleeps as soon as it has nothing to do.
fn nobody_sleeps_through<Q: driver::Virtqueue, D: device::CreateVirtqueue + 'static>(packed: bool, event_idx: bool) {
    const PACKETS: usize = 200_000;
    let config = Config { size: 4, event_idx, in_order: false, indirect: 0, header: 0 };
    let rings = DmaRegion::new(Q::bytes(&config), &RegionConfig::default()).unwrap();
    let pool = Mempool::new(&MempoolConfig { buffers: 1024, size: 64, ..Default::default() }).unwrap();
    let mut driver = Q::new(&rings, 0, &config).unwrap();
    let memory = guest::memory(&[(&rings, None), (pool.region(), None)]);
    let mut device = D::new(&guest::setup(packed, &config, driver.addresses()), &memory).unwrap();
    let doorbells = Arc::new((Doorbell::default(), Doorbell::default()));
    let of_device = doorbells.clone();
    let thread = std::thread::spawn(move || {
        let (mut taken, mut count) = (ChainBatch::default(), 0);
        while count < PACKETS {
            taken.begin(ChainBatch::BUDGET);
            match device.take(DeviceAccess::Read, 1 + count % 3, &mut taken).unwrap() {
                0 => {
                    if !device.arm() {
                        of_device.0.wait("device");
                    }
                    device.disarm();
                }
                some => {
                    device.push_used(taken.chains.iter().map(|chain| chain.used(0)));
                    count += some;
                    if device.publish() {
                        of_device.1.ring();
                    }
                }
            }
        }
    });
    let (mut cache, mut reclaimer, mut posted, mut back) = (pool.cache(), Reclaimer::default(), 0, 0);
    while back < PACKETS {
        let want = (1 + posted % 5).min(PACKETS - posted).min(driver.room());
        let count = driver.post_run(driver::DeviceAccess::Read, cache.packets(want));
        assert_eq!(count, want, "more buffers than descriptors and a magazine");
        posted += count;
        if driver.publish().is_some() {
            doorbells.0.ring();
        }
        back += driver.reclaim_used(Avx2::detect(), &mut reclaimer).unwrap();
        if driver.room() == 0 || posted == PACKETS && back < PACKETS {
            driver.arm();
            match driver.reclaim_used(Avx2::detect(), &mut reclaimer).unwrap() {
                0 => doorbells.1.wait("driver"),
                some => back += some,
            }
            driver.disarm();
        }
    }
    thread.join().unwrap();
    // SAFETY: the thread that used the device has ended, and the device was dropped with it.
    unsafe { driver.reclaim() };
}

#[test]
fn nobody_sleeps_through_on_split_rings() {
    nobody_sleeps_through::<driver::Split, device::Split>(false, false);
    nobody_sleeps_through::<driver::Split, device::Split>(false, true);
}

#[test]
fn nobody_sleeps_through_on_packed_rings() {
    nobody_sleeps_through::<driver::Packed, device::Packed>(true, false);
    nobody_sleeps_through::<driver::Packed, device::Packed>(true, true);
}

/// Ends the guest's thread when dropped, also on panic.
struct Done<'a>(&'a AtomicBool);

impl Drop for Done<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Lines 11, 12, 14 and 18: descriptors change after they were checked. A thread of the guest writes valid and
/// invalid descriptors as fast as it can, where the device reads them. All pieces that the device gets must be
/// in the guest's memory.
fn changes_under_way<Q: device::CreateVirtqueue>(features: u64, base: u32) {
    const SIZE: u16 = 8;
    let packed = base != 0;
    let guest = Guest::new(SIZE, features);
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut random = 1_u64;
            while !done.load(Ordering::Relaxed) {
                random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                let pick = |at: u32, count: u64| (random >> at) % count;
                let address = [BUFFER, SEAM - 32, TABLE, MEMORY, END - 8, 0][pick(20, 6) as usize];
                let len = [64, 32, 48, 0, 8, u32::MAX][pick(24, 6) as usize];
                let marks = if packed { [AVAIL, AVAIL, USED, USED | AVAIL][pick(28, 4) as usize] } else { 0 };
                let flags = [0, 0, WRITE, NEXT, INDIRECT, NEXT | INDIRECT][pick(32, 6) as usize] | marks;
                let (table, number) = ([MEMORY, MEMORY, TABLE][pick(36, 3) as usize], pick(40, 9) as u16);
                if packed {
                    guest.packed_descriptor(table, pick(44, SIZE.into()), address, len, flags, number);
                } else {
                    guest.descriptor(table, pick(44, SIZE.into()), address, len, flags, number);
                    guest.write(DRIVER + 4 + 2 * pick(48, SIZE.into()), &number.to_le_bytes());
                    // At most a few more than the device has given back.
                    let used = guest.read_u16(DEVICE + 2);
                    guest.write(DRIVER + 2, &used.wrapping_add(pick(52, 5) as u16).to_le_bytes());
                }
            }
        });
        let _done = Done(&done);
        let (mut queue, mut taken) = (guest.queue::<Q>(base).unwrap(), ChainBatch::default());
        let (mut chains, mut broken) = (0, 0);
        for round in 0..20_000_000 {
            if round % 1000 == 0 {
                // The guest's thread may have no processor to run on.
                std::thread::yield_now();
            }
            if round > 200_000 && chains > 1000 && broken > 1000 {
                break;
            }
            taken.begin(ChainBatch::BUDGET);
            match queue.take(DeviceAccess::Read, 8, &mut taken) {
                Ok(count) => {
                    taken.chains.iter().for_each(|chain| drop(pieces(&guest, chain, &taken)));
                    queue.push_used(taken.chains.iter().map(|chain| chain.used(0)));
                    queue.publish();
                    chains += count;
                }
                Err(_) => {
                    broken += 1;
                    queue = guest.queue(base).unwrap();
                }
            }
        }
        assert!(chains > 1000 && broken > 1000, "{chains} chains, {broken} wrong ones");
    });
}

#[test]
fn what_was_checked_changes_in_split_rings() {
    changes_under_way::<device::Split>(EVENT_IDX | INDIRECT_DESC, 0);
}

#[test]
fn what_was_checked_changes_in_packed_rings() {
    changes_under_way::<device::Packed>(EVENT_IDX | INDIRECT_DESC, 0x8000_8000);
}
