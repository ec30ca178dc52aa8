//! Hosts of passed-through ports: the two ends of a pipe, and a port whose server echoes frames.
#![allow(dead_code, reason = "each test uses a part of it")]

use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use ringpass_memory::{DmaRegion, RegionConfig};
use ringpass_netmap::{Flags, Kring, Notifier, Pools, PortMemory, PortRing, Region, Shape, Slot, attach, attach_pipe};
use ringpass_port::MacAddress;
use ringpass_ptnet::{Counters, GuestPort, Passthrough, SharedRegion};
pub use ringpass_testing::event;
use ringpass_vfio_user::{Event, EventWaiter, Listener};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

/// Returns a notifier that signals an eventfd.
pub fn notifier(event: &OwnedFd) -> Notifier {
    let event = event.try_clone().unwrap();
    Arc::new(move || _ = rustix::io::write(&event, &1u64.to_ne_bytes()))
}

/// Creates a region with room for two ports of `rings` rings per direction.
pub fn region(rings: u16, slots: u32) -> Region {
    let rings = usize::from(rings) + 1;
    let ring_bytes = 4 * rings * (256 + 16 * slots as usize + 64);
    let buffers = 4 * rings as u32 * slots + 2;
    let pools = Pools { interfaces: 4, ring_bytes, buffers, buffer_size: 2048 };
    Region::new(pools, &RegionConfig::default()).unwrap_or_else(|error| panic!("{error}"))
}

/// Returns the memory of a region, with a number.
pub fn shared(region: &Region, id: u16) -> SharedRegion {
    let file = region.file().unwrap().try_clone_to_owned().unwrap();
    SharedRegion { file, memory: region.memory().clone(), pools: *region.pools(), id }
}

/// Returns test MAC address number `n`.
pub fn mac(n: u8) -> MacAddress {
    MacAddress([2, 0, 0, 0xaa, 0xbb, n])
}

/// A port that is passed through, served on its own thread. Its device is at `PATH`, the memory's at `PATH.mem`.
pub struct Host {
    pub path: PathBuf,
    pub counters: Arc<Counters>,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<Vec<String>>>,
}

impl Host {
    pub fn new(folder: &Path, name: &str, memory: SharedRegion, port: GuestPort, kick: OwnedFd) -> Self {
        let path = folder.join(name);
        let memory_path = folder.join(format!("{name}.mem"));
        let listeners = [&memory_path, &path].map(|path| Listener::bind(path).unwrap());
        let kick = EventWaiter::on(kick).unwrap();
        let mut passthrough = Passthrough::new(memory, port, kick, listeners).unwrap();
        let (counters, stop) = (passthrough.counters().clone(), Arc::new(AtomicBool::new(false)));
        let its = stop.clone();
        let thread = std::thread::spawn(move || {
            let mut ends = Vec::new();
            passthrough.serve(|| !its.load(Ordering::Relaxed), &mut |device, event| {
                if let Event::Refused(why) = &event {
                    eprintln!("{device:?}: refused: {why}");
                }
                if let Event::Ended(why) = event {
                    ends.push(format!("{device:?}: {why}"));
                }
            });
            passthrough.end();
            ends
        });
        Self { path, counters, stop, thread: Some(thread) }
    }

    /// Ends serving. Returns why sessions have ended.
    pub fn end(mut self) -> Vec<String> {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.take().unwrap().join().unwrap()
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let result = thread.join();
            assert!(result.is_ok() || std::thread::panicking(), "the host has panicked");
        }
    }
}

/// Creates the two ends of a pipe in one region, each with the eventfd that wakes it.
pub fn pipe(region: &mut Region, slots: u32) -> [(PortMemory, [Vec<PortRing>; 2], OwnedFd); 2] {
    let ends = PortMemory::pipe(region, ["p{0", "p}0"], Shape { rings: [1; 2], slots: [slots; 2], host_rings: [0; 2] })
        .unwrap_or_else(|error| panic!("{error}"));
    let events = [event(), event()];
    let [first, second] = &ends;
    let csb = first.csb().clone().into();
    let rings = |own: &PortMemory, other: &PortMemory, first: bool| {
        let other_notifier = notifier(&events[usize::from(first)]);
        attach_pipe(region.memory(), (own.interface(), other.interface()), first, &csb, &other_notifier, None).unwrap()
    };
    let rings = [rings(first, second, true), rings(second, first, false)];
    let parts = ends.into_iter().zip(rings).zip(events).map(|((end, rings), event)| (end, rings, event));
    parts.collect::<Vec<_>>().try_into().unwrap_or_else(|_| unreachable!("two"))
}

/// Passes both ends of a pipe through, at `a` and at `b`. Both have memory number 7.
pub fn pipe_hosts(folder: &Path, region: &mut Region, slots: u32) -> [Host; 2] {
    let mut number = 0;
    pipe(region, slots).map(|(end, rings, event)| {
        number += 1;
        let interface = end.bind(region, |_, _| true).unwrap() as u32;
        let port = GuestPort { interface, rings, mac: mac(number), memory_id: 7, set_header_len: None };
        Host::new(folder, ["a", "b"][usize::from(number) - 1], shared(region, 7), port, event)
    })
}

/// A port's server.
pub struct Server {
    pub served: Vec<Kring>,
    /// The CSB between the server and the port's program.
    pub csb: Arc<DmaRegion>,
    pub kicked: OwnedFd,
    pub calls: OwnedFd,
}

/// Creates a served port with `rings` rings per direction: its server's side, the guest's port, and the event that
/// wakes the guest's port.
pub fn served(region: &mut Region, rings: u16, slots: u32) -> (Server, GuestPort, OwnedFd) {
    let shape = Shape { rings: [rings; 2], slots: [slots; 2], host_rings: [0; 2] };
    let (memory, served) = PortMemory::new(region, "vale0:1", shape, true).unwrap_or_else(|error| panic!("{error}"));
    let (kicked, calls) = (event(), event());
    let csb = memory.csb().clone().into();
    let attached = attach(region.memory(), memory.interface(), &csb, &notifier(&kicked)).unwrap();
    let interface = memory.bind(region, |_, _| true).unwrap() as u32;
    let port = GuestPort { interface, rings: attached, mac: mac(9), memory_id: 3, set_header_len: None };
    let wake = calls.try_clone().unwrap();
    (Server { served, csb: memory.csb().clone(), kicked, calls }, port, wake)
}

impl Server {
    /// Echoes the frames of each Tx ring to the Rx ring with the same index, by exchange of buffers. Returns how
    /// many.
    pub fn echo_once(&mut self) -> u32 {
        let half = self.served.len() / 2;
        let (tx, rx) = self.served.split_at_mut(half);
        let (mut all, mut call) = (0, false);
        for (tx, rx) in tx.iter_mut().zip(rx) {
            let released = rx.poll_released().unwrap();
            rx.advance_hwcur(released);
            let moved = tx.poll_released().unwrap().min(rx.room());
            for n in 0..moved {
                let (from, to) = (tx.hwcur_plus(n), rx.hwtail_plus(n));
                let (sent, free) = (tx.ring().slot(from), rx.ring().slot(to));
                let flags = Flags(sent.flags.0 & Flags::MORE_FRAGMENTS.0 | Flags::BUFFER_CHANGED.0);
                rx.ring().set(to, Slot { flags, ..sent });
                tx.ring().set(from, Slot { buffer: free.buffer, flags: Flags::BUFFER_CHANGED, ..Slot::default() });
            }
            tx.advance_hwcur(moved);
            tx.advance_hwtail(tx.room().min(moved));
            rx.advance_hwtail(moved);
            if moved + released > 0 {
                call |= tx.publish() | rx.publish();
            }
            all += moved + released;
        }
        if call {
            let _ = rustix::io::write(&self.calls, &1u64.to_ne_bytes());
        }
        all
    }

    /// Echoes frames on a thread until `stop` is set, sleeping while there are none.
    pub fn echo(mut self, stop: Arc<AtomicBool>) -> JoinHandle<Self> {
        std::thread::spawn(move || {
            while !stop.load(Ordering::Relaxed) {
                if self.echo_once() > 0 {
                    continue;
                }
                let idle = self.served.iter().fold(true, |idle, served| idle & served.arm(0).unwrap());
                if idle {
                    wait(&self.kicked, Duration::from_millis(100));
                }
                self.served.iter().for_each(Kring::disarm);
                let _ = rustix::io::read(&self.kicked, &mut [0; 8]);
            }
            self
        })
    }
}

/// Returns whether an eventfd is signalled within `limit`.
pub fn wait(event: &OwnedFd, limit: Duration) -> bool {
    let limit = Timespec::try_from(limit).unwrap();
    poll(&mut [PollFd::from_borrowed_fd(event.as_fd(), PollFlags::IN)], Some(&limit)).unwrap_or(0) > 0
}
