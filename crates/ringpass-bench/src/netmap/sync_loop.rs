//! The cost of a loop that synchronises the rings, as a hypervisor's back-end has it: an application on one core, whose positions are in a
//! CSB of its own, and on the other core the loop and the pipe's far end. Beside it the same without a loop.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use hdrhistogram::Histogram;
use ringpass::{Error, cycles};
use ringpass_cli::bridge::open;
use ringpass_memory::{DmaRegion, Memory, RegionConfig};
use ringpass_netmap::csb::Csb;
use ringpass_netmap::request::Register;
use ringpass_netmap::{Flags, PortRing, Relay, Slot, SyncLoop};
use serde::Serialize;

use super::rig::Rig;
use super::{Medium, Sample};

/// Side that synchronises the rings of the application.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Syncs {
    /// The application.
    Direct,
    /// A loop on the other core.
    Loop,
}

/// Bytes of a frame, without CRC.
const SIZE: u16 = 60;
/// Slots of each ring.
const SLOTS: u32 = 2048;
/// Longest wait for a frame.
const LIMIT: Duration = Duration::from_secs(5);

/// The application's side.
struct Application<'a> {
    tx: &'a PortRing,
    rx: &'a PortRing,
    /// With a loop: the CSB, and the application's `head` in each ring.
    csb: Option<(&'a Csb, [u32; 2])>,
}

impl Application<'_> {
    /// Sends up to `most` frames, of one slot each. Returns their number.
    fn send(&mut self, most: u32) -> Result<u32, Error> {
        let ring = self.tx.ring();
        let (head, own) = match &self.csb {
            None => (self.tx.position(0), self.tx.own()),
            Some((csb, [head, _])) => (*head, distance(*head, csb.read_ktoa(0).1)),
        };
        let count = own.min(most);
        for position in (0..count).map(|n| (head + n) % SLOTS) {
            ring.set(position, Slot { len: SIZE, flags: Flags::default(), ..ring.slot(position) });
        }
        match &mut self.csb {
            None => {
                self.tx.release_slots(count);
                self.tx.sync().map_err(failed)?;
            }
            Some((csb, [head, _])) => {
                *head = (*head + count) % SLOTS;
                csb.write_atok(0, *head, *head, 0);
            }
        }
        Ok(count)
    }

    /// Releases all frames that have arrived. Returns their number.
    fn receive(&mut self) -> Result<u32, Error> {
        match &mut self.csb {
            None => {
                self.rx.sync().map_err(failed)?;
                let own = self.rx.own();
                self.rx.release_slots(own);
                Ok(own)
            }
            Some((csb, [_, head])) => {
                let tail = csb.read_ktoa(1).1;
                let own = distance(*head, tail);
                if own > 0 {
                    *head = tail;
                    csb.write_atok(1, tail, tail, 0);
                }
                Ok(own)
            }
        }
    }
}

/// Number of slots from one position to another.
fn distance(from: u32, to: u32) -> u32 {
    (to + SLOTS - from) % SLOTS
}

fn failed(error: impl ToString) -> Error {
    Error::Fault(error.to_string())
}

/// Measures round trips of single frames, and how many frames pass in batches.
pub fn measure(rig: &Rig, syncs: Syncs, batch: u32, time: Duration) -> Result<Sample, Error> {
    let cores = rig.cores;
    let names = Medium::Pipe.ports();
    let asked = Register { slots: [SLOTS; 2], ..Register::default() };
    let [near, far] = names.map(|name| open(name, Some(rig.socket()), asked.clone()));
    let (near, far) = (near?, far?);
    let memory = Memory::from(DmaRegion::new(2 * 4096, &RegionConfig::default()).map_err(failed)?);
    let csb = Arc::new(Csb::new(&memory, 0, 4096, 2).expect("two pages"));
    for (entry, ring) in near.tx().iter().chain(near.rx()).enumerate() {
        Relay::new(ring, entry).begin(&csb).map_err(failed)?;
    }
    let over = AtomicBool::new(false);
    // Whether the far end sends frames back.
    let returns = AtomicBool::new(true);
    let arrived = AtomicU64::new(0);
    let other_core = || -> Result<(), Error> {
        core_affinity::set_for_current(cores[1]);
        let mut rings = SyncLoop::new(near.tx(), near.rx(), &csb);
        let (tx, rx) = (&far.tx()[0], &far.rx()[0]);
        while !over.load(Relaxed) {
            for _ in 0..64 {
                if syncs == Syncs::Loop {
                    rings.round(|_, _| (), |_| ());
                }
                rx.sync().map_err(failed)?;
                let own = rx.own();
                rx.release_slots(own);
                if returns.load(Relaxed) && own > 0 {
                    tx.sync().map_err(failed)?;
                    tx.release_slots(own.min(tx.own()));
                    tx.sync().map_err(failed)?;
                }
                arrived.fetch_add(own.into(), Relaxed);
            }
        }
        Ok(())
    };
    let application = || -> Result<Sample, Error> {
        core_affinity::set_for_current(cores[0]);
        let csb = (syncs == Syncs::Loop).then_some((&*csb, [0; 2]));
        let mut application = Application { tx: &near.tx()[0], rx: &near.rx()[0], csb };
        let rtt = round_trips(&mut application, time / 2)?;
        returns.store(false, Relaxed);
        let (before, start) = (arrived.load(Relaxed), Instant::now());
        while start.elapsed() < time / 2 {
            for _ in 0..32 {
                if application.send(batch)? == 0 {
                    std::hint::spin_loop();
                }
            }
        }
        let packets = arrived.load(Relaxed) - before;
        Ok(Sample { rtt, mpps: packets as f64 / start.elapsed().as_secs_f64() / 1e6, ..Sample::default() })
    };
    std::thread::scope(|scope| {
        let other = scope.spawn(other_core);
        let measured = scope.spawn(application).join();
        over.store(true, Relaxed);
        other.join().expect("no panic")?;
        measured.expect("no panic")
    })
}

/// Returns the shortest, average and median round trip of a frame in µs.
fn round_trips(application: &mut Application<'_>, time: Duration) -> Result<[f64; 3], Error> {
    let mut times = Histogram::<u64>::new_with_max(100_000_000_000, 3).expect("three digits");
    let (start, per_us) = (Instant::now(), crate::tsc::frequency() / 1e6);
    while times.is_empty() || start.elapsed() < time {
        let sent = cycles();
        let mut waits = 0_u64;
        while application.send(1)? == 0 {}
        while application.receive()? == 0 {
            waits += 1;
            if waits.is_multiple_of(1 << 16) && start.elapsed() > time + LIMIT {
                return Err(Error::Gone("a frame did not come back".into()));
            }
        }
        times.saturating_record(cycles() - sent);
    }
    Ok([times.min() as f64, times.mean(), times.value_at_quantile(0.5) as f64].map(|time| time / per_us))
}
