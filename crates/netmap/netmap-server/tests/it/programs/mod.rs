//! Programs with ports of a switch. Each maps its port's memory a second time, as another process would.

#![allow(dead_code)]

use std::os::fd::OwnedFd;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::thread::JoinHandle;

use ringpass_memory::{DmaRegion, ForeignMemory, MAX_BATCH, Memory, Mempool, MempoolConfig, RegionConfig};
use ringpass_netmap::{Buffers, Flags, Notifier, Pools, PortMemory, PortRing, Region, Shape, Slot, attach};
use ringpass_netmap_server::{RingPort, ServedPort, ServedRings};
use ringpass_port::Idle;
use ringpass_switch::{Config, Datapath, DatapathQueues, Forwarding, PortPolicy, Switch};

/// A switch with one datapath.
pub struct Vale {
    pub switch: Switch,
    pub datapath: Option<Datapath>,
    pub pool: Mempool,
}

impl Vale {
    pub fn new() -> Self {
        Self::with(&MempoolConfig { buffers: 2048, ..Default::default() })
    }

    pub fn with(pool: &MempoolConfig) -> Self {
        Self::with_rules(pool, &vec![PortPolicy::default(); 8])
    }

    pub fn with_rules(pool: &MempoolConfig, rules: &[PortPolicy]) -> Self {
        let config = Config { flood: 0, moves: 127, ..Default::default() };
        let (pool, mut switch) = (Mempool::new(pool).unwrap(), Switch::new(&config, rules).unwrap());
        let datapath = Some(switch.datapath(&pool, MAX_BATCH).unwrap());
        Self { switch, datapath, pool }
    }

    /// Runs the switch until there is nothing to do.
    pub fn work(&mut self) {
        let datapath = self.datapath.as_mut().expect("not on a thread");
        while datapath.round() > 0 {}
    }

    pub fn open(&mut self, place: usize, shape: Shape) -> Program {
        self.open_with(place, shape, Pools::default())
    }

    pub fn open_with(&mut self, place: usize, shape: Shape, pools: Pools) -> Program {
        let mut region = Region::new(pools, &RegionConfig::default()).unwrap_or_else(|error| panic!("{error}"));
        let (memory, served) = PortMemory::new(&mut region, "vale0:x", shape, true).unwrap_or_else(|e| panic!("{e}"));
        let buffers = Buffers::of(region.memory(), &pools).unwrap();
        let (control, queues) = RingPort::new(ServedRings::new(served, buffers).unwrap(), &self.pool).unwrap();
        self.switch.insert(place, vec![DatapathQueues { rx: vec![(queues.rx, Forwarding::Lookup)], tx: queues.tx }]);
        let (notifier, kicks) = notifier(&control);
        let (mapped, csb) = (elsewhere(region.allocated().unwrap()), elsewhere(memory.csb()));
        let [tx, rx] = attach(&mapped, memory.interface(), &csb, &notifier).expect("rings");
        let buffers = Buffers::of(&mapped, &pools).unwrap();
        Program { control, tx, rx, buffers, csb, kicks, memory, region, notifier }
    }
}

/// A datapath on a thread of its own.
pub struct Worker {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Worker {
    pub fn new(mut datapath: Datapath) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = stop.clone();
        let work = move || {
            let mut idle = Idle::new(false);
            while !stopped.load(Relaxed) {
                let moved = datapath.round();
                idle.after(moved, &mut [&mut datapath]);
            }
        };
        Self { stop, thread: Some(std::thread::spawn(work)) }
    }
}

/// Stops the thread however the test ends.
impl Drop for Worker {
    fn drop(&mut self) {
        self.stop.store(true, Relaxed);
        let ended = self.thread.take().expect("started").join();
        assert!(ended.is_ok() || std::thread::panicking(), "the worker panicked");
    }
}

/// A pair of rings.
pub fn pair(slots: u32) -> Shape {
    Shape { rings: [1; 2], slots: [slots; 2], host_rings: [0; 2] }
}

pub struct Program {
    /// Declared first, so that the port ends before its memory.
    pub control: RingPort,
    pub tx: Vec<PortRing>,
    pub rx: Vec<PortRing>,
    /// Buffers in the program's own mapping.
    pub buffers: Buffers,
    pub csb: Memory,
    /// How often the program kicked.
    pub kicks: Arc<AtomicU64>,
    pub memory: PortMemory,
    pub region: Region,
    pub notifier: Notifier,
}

/// Returns what a program kicks by, and the number of its kicks.
pub fn notifier(port: &dyn ServedPort) -> (Notifier, Arc<AtomicU64>) {
    let (kicks, kicked) = (Arc::new(AtomicU64::new(0)), port.kick().try_clone_to_owned().unwrap());
    let counter = kicks.clone();
    let notifier = Arc::new(move || {
        counter.fetch_add(1, Relaxed);
        rustix::io::write(&kicked, &1u64.to_ne_bytes()).unwrap();
    });
    (notifier, kicks)
}

/// Maps a region once more, as another process would.
pub fn elsewhere(region: &Arc<DmaRegion>) -> Memory {
    let file: OwnedFd = region.file().unwrap().try_clone_to_owned().unwrap();
    ForeignMemory::map_shared(file, 0, region.len()).unwrap().into()
}

impl Program {
    /// Puts a frame into one slot for each of its pieces, without a sync. Returns `false` if there is no room.
    pub fn put(&self, ring: usize, pieces: &[&[u8]]) -> bool {
        let ring = &self.tx[ring];
        if (ring.own() as usize) < pieces.len() {
            return false;
        }
        for (n, bytes) in (0..).zip(pieces) {
            let position = ring.position(n);
            let last = n as usize + 1 == pieces.len();
            let flags = if last { Flags::default() } else { Flags::MORE_FRAGMENTS };
            let slot = Slot { len: bytes.len() as u16, flags, ..ring.ring().slot(position) };
            let to = self.buffers.bytes(slot).expect("a buffer");
            // SAFETY: `bytes` has checked that the slot's length, which is the piece's, lies in the mapping.
            // The slot is this program's, so nobody else uses its buffer.
            unsafe { to.cast::<u8>().copy_from(NonNull::from(*bytes).cast(), bytes.len()) };
            ring.ring().set(position, slot);
        }
        ring.release_slots(pieces.len() as u32);
        true
    }

    pub fn sync(&self) {
        self.tx.iter().chain(&self.rx).for_each(|ring| ring.sync().unwrap());
    }

    /// Sends a frame in one slot.
    pub fn send(&self, frame: &[u8]) {
        assert!(self.put(0, &[frame]), "room");
        self.sync();
    }

    /// Returns the complete frames on a ring. Slots without a frame are skipped.
    pub fn receive_on(&self, ring: usize) -> Vec<Vec<u8>> {
        let ring = &self.rx[ring];
        ring.sync().unwrap();
        let (mut frames, mut frame, own) = (Vec::new(), Vec::new(), ring.own());
        let mut slots = 0;
        for n in 0..own {
            let slot = ring.ring().slot(ring.position(n));
            let from = self.buffers.bytes(slot).map_or(&[][..], |bytes| {
                // SAFETY: `bytes` has checked that the slot's length lies in the mapping. The slot is this
                // program's, so nobody writes to its buffer.
                unsafe { std::slice::from_raw_parts(bytes.cast::<u8>().as_ptr(), bytes.len()) }
            });
            frame.extend_from_slice(from);
            slots += 1;
            if !slot.flags.any(Flags::MORE_FRAGMENTS) {
                if slot.len > 0 {
                    assert_eq!(slot.flags.fragments(), slots, "each slot says how many there are");
                    frames.push(std::mem::take(&mut frame));
                }
                slots = 0;
            }
        }
        assert!(frame.is_empty(), "frames are whole");
        ring.release_slots(own);
        ring.sync().unwrap();
        frames
    }

    pub fn receive(&self) -> Vec<Vec<u8>> {
        (0..self.rx.len()).flat_map(|ring| self.receive_on(ring)).collect()
    }

    /// Ends the port. Returns how many buffers of its region are free then.
    pub fn close(self) -> usize {
        let Self { control, memory, mut region, .. } = self;
        drop(control);
        memory.release(&mut region);
        region.free_buffers()
    }
}

pub fn mac(station: u8) -> [u8; 6] {
    [2, 0, 0, 0, 0, station]
}

pub const BROADCAST: [u8; 6] = [0xff; 6];

/// Returns a frame of `len` bytes (14 or more) with varying content.
pub fn frame(to: [u8; 6], from: [u8; 6], len: usize) -> Vec<u8> {
    let rest = (14..len).map(|at| (at * 7 + at / 256) as u8);
    [&to[..], &from, &[0x88, 0xb5]].concat().into_iter().chain(rest).collect()
}
