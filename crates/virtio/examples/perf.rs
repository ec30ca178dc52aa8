#![allow(missing_docs, clippy::undocumented_unsafe_blocks)]
use ringpass_memory::*;
use ringpass_virtio::driver::*;
use std::hint::black_box;
use std::mem::MaybeUninit;
use std::sync::Arc;

trait Dev {
    fn fill(&mut self, region: &DmaRegion, n: usize, len: u32);
}
struct SplitDev {
    size: usize,
    idx: u16,
}
impl Dev for SplitDev {
    fn fill(&mut self, region: &DmaRegion, n: usize, len: u32) {
        let used = (16 * self.size + 2 * (3 + self.size)).next_multiple_of(4096);
        unsafe {
            let base = region.at(used);
            for _ in 0..n {
                let slot = self.idx as usize % self.size;
                let e = base.add(4 + 8 * slot) as *mut u32;
                *e = slot as u32;
                *e.add(1) = len;
                self.idx = self.idx.wrapping_add(1);
            }
            (base.add(2) as *mut u16).write_volatile(self.idx);
        }
    }
}
struct PackedDev {
    size: usize,
    at: usize,
    wrap: bool,
}
impl Dev for PackedDev {
    fn fill(&mut self, region: &DmaRegion, n: usize, len: u32) {
        unsafe {
            for _ in 0..n {
                let e = region.at(16 * self.at + 8) as *mut u64;
                let flags: u64 = if self.wrap { 0x8080 } else { 0 };
                e.write_volatile(len as u64 | (self.at as u64) << 32 | flags << 48);
                self.at += 1;
                if self.at == self.size {
                    self.at = 0;
                    self.wrap = !self.wrap;
                }
            }
        }
    }
}
const HEADER: usize = 12;
struct Rx<Q> {
    queue: Q,
    cache: Cache,
    faulty: u64,
    packets: u64,
    bytes: u64,
}
struct Tx<Q> {
    queue: Q,
    reclaimer: Reclaimer,
    longest: usize,
    packets: u64,
    bytes: u64,
}
impl<Q: Virtqueue> Rx<Q> {
    #[inline(always)]
    fn burst(&mut self, burst: &mut Burst) -> usize {
        let before = burst.room();
        let mut bytes = 0;
        let mut taken = 0;
        let mut faulty = 0;
        let spare = burst.spare();
        let mut places = spare.iter_mut();
        self.queue
            .take(before, |used, len| match (used.part(HEADER, len as usize), places.next()) {
                (Ok(packet), Some(place)) if packet.len() >= 14 => {
                    bytes += packet.len() as u64;
                    place.write(packet);
                    taken += 1;
                }
                (Ok(packet), _) | (Err(packet), _) => {
                    faulty += 1;
                    discard(packet)
                }
            })
            .unwrap();
        unsafe { burst.commit(taken) };
        self.packets += taken as u64;
        self.bytes += bytes;
        self.faulty += faulty;
        while self.queue.room() >= 32 {
            let room = self.queue.room();
            if self.queue.post_run(Access::Write, self.cache.buffers(room).map(Buffer::into_whole)) == 0 {
                break;
            }
        }
        if self.queue.publish().is_some() {
            black_box(1);
        }
        before - burst.room()
    }
}
impl<Q: Virtqueue> Tx<Q> {
    #[inline(always)]
    fn burst(&mut self, burst: &mut Burst) -> usize {
        let before = burst.len();
        let Self { queue, reclaimer, .. } = self;
        if queue.room() < 256 {
            queue.take(32.max(256), |used, _| used.reclaim(reclaimer)).unwrap();
        }
        let mut bytes = 0;
        let longest = self.longest;
        let run =
            burst.iter().take_while(|p| p.len() <= longest && p.headroom() >= HEADER && !p.is_chained()).map(|p| {
                bytes += p.len() as u64;
                let mut p = unsafe { std::ptr::read(p) };
                if let Some(h) = p.prepend(HEADER) {
                    h.fill(0)
                };
                p
            });
        let posted = queue.post_run(Access::Read, run);
        unsafe { burst.forget(posted) };
        if self.queue.publish().is_some() {
            black_box(1);
        }
        self.packets += before as u64;
        self.bytes += bytes;
        before - burst.len()
    }
}
#[cold]
#[inline(never)]
fn discard(p: Packet) {
    drop(p)
}
#[inline(never)]
fn measured_rx<Q: Virtqueue>(rx: &mut Rx<Q>, burst: &mut Burst) -> usize {
    black_box(rx.burst(burst))
}
#[inline(never)]
fn measured_tx<Q: Virtqueue>(tx: &mut Tx<Q>, burst: &mut Burst) -> usize {
    black_box(tx.burst(burst))
}

fn run<Q: Virtqueue>(mut rx_dev: impl Dev, mut tx_dev: impl Dev, rounds: usize, in_order: bool) {
    let size = 512u16;
    let config = Config { size, event_idx: true, in_order, indirect: 8, header: 0 };
    let pool = Mempool::new(&MempoolConfig { buffers: 4096, ..Default::default() }).unwrap();
    let new = || {
        let region: Arc<DmaRegion> = DmaRegion::new(Q::bytes(&config), &RegionConfig::default()).unwrap();
        (Q::new(&region, 0, &config).unwrap(), region)
    };
    let ((rxq, rxr), (txq, txr)) = (new(), new());
    let mut rx = Rx { queue: rxq, cache: pool.cache(), faulty: 0, packets: 0, bytes: 0 };
    let mut tx = Tx { queue: txq, reclaimer: Reclaimer::default(), longest: 1518, packets: 0, bytes: 0 };
    let mut burst = Burst::new(32);
    rx.burst(&mut burst);
    let (mut n, mut sent) = (0, 0);
    let mut best = u64::MAX;
    for _ in 0..rounds {
        rx_dev.fill(&rxr, 448, 72);
        let start = unsafe { core::arch::x86_64::_rdtsc() };
        let mut here = 0;
        while here < 448 {
            here += measured_rx(&mut rx, &mut burst);
            let s = measured_tx(&mut tx, &mut burst);
            sent += s;
            tx_dev.fill(&txr, s, 0);
        }
        n += here;
        best = best.min(unsafe { core::arch::x86_64::_rdtsc() } - start);
    }
    println!("{n} {sent} {} {}", rx.faulty, best as f64 / 448.0);
    unsafe {
        rx.queue.reclaim();
        tx.queue.reclaim();
    }
}
fn main() {
    let kind = std::env::args().nth(1).unwrap();
    let rounds = std::env::args().nth(2).unwrap().parse().unwrap();
    let s = || SplitDev { size: 512, idx: 0 };
    let p = || PackedDev { size: 512, at: 0, wrap: true };
    match kind.as_str() {
        "split" => run::<Split>(s(), s(), rounds, false),
        "packed" => run::<Packed>(p(), p(), rounds, false),
        _ => run::<Packed>(p(), p(), rounds, true),
    }
    let _: MaybeUninit<()>;
}
