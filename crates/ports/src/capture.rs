//! A decorator that writes all that passes a port to a capture file.
//!
//! Each direction of each queue copies its packets into a bounded ring; a thread drains the rings into the file. When
//! that thread falls behind, copies are left out and counted; the traffic does not wait for it.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use ringpass_memory::{Burst, Lending, MAX_BATCH, Mempool, MempoolConfig, Packet};
use ringpass_port::{Error, Link, MacAddress, Port, Queues, Rule, RxQueue, State, Stats, TxQueue, Wake, Wakeable};

use crate::buffers::Buffers;
use crate::capture_file::{Direction, Writer, now};
use crate::ring::{Consumer, Producer, ring};

/// `capture,file=FILE:PORT`.
pub struct Capture {
    name: String,
    file: String,
    inner: Box<dyn Port>,
    /// Until the queues are taken.
    writer: Option<Writer>,
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
    /// Why nothing is copied.
    failed: Option<String>,
    /// What was lost has been told.
    finished: bool,
}

#[derive(Default)]
struct Shared {
    stop: AtomicBool,
    /// Packets that are not in the file.
    lost: AtomicU64,
}

/// A copy of a packet on its way to the file.
struct Copy {
    nanos: u64,
    packet: Packet,
}

/// Copies waiting in each direction of each queue at most.
const RING: usize = 4096;

impl Capture {
    /// Makes the file and wraps a port whose queues were not taken yet.
    pub fn wrap(inner: Box<dyn Port>, file: &Path) -> Result<Self, Error> {
        let name = format!("capture:{}", inner.name());
        let (writer, shared) = (Some(Writer::create(file)?), Arc::default());
        Ok(Self {
            name,
            file: file.display().to_string(),
            inner,
            writer,
            shared,
            thread: None,
            failed: None,
            finished: false,
        })
    }

    /// Wraps the queues, and starts the thread that writes.
    fn start(&mut self, writer: Writer, queues: Vec<Queues>) -> Result<Vec<Queues>, Error> {
        let pool = Mempool::new(&MempoolConfig { buffers: (2 * queues.len()).max(1) * RING, ..Default::default() })?;
        let (shared, mut tracks) = (&self.shared, Vec::new());
        let mut track = |direction| {
            let (producer, consumer) = ring(RING);
            tracks.push((direction, consumer));
            Copier {
                buffers: Buffers::new(&pool),
                ring: producer,
                copies: Vec::with_capacity(MAX_BATCH),
                shared: shared.clone(),
            }
        };
        let wrap = |Queues { rx, tx }| Queues {
            rx: Box::new(Rx { inner: rx, copier: track(Direction::Received) }),
            tx: Box::new(Tx { inner: tx, copier: track(Direction::Sent) }),
        };
        let queues = queues.into_iter().map(wrap).collect();
        let thread = std::thread::Builder::new().name("ringpass-capture".into()).spawn({
            let shared = shared.clone();
            move || drain(writer, tracks, &shared)
        });
        self.thread = Some(thread.map_err(|source| Error::Os { what: "a thread that writes".into(), source })?);
        Ok(queues)
    }

    /// Packets that passed and are not in the file, because writing it was too slow or failed.
    pub fn lost(&self) -> u64 {
        self.shared.lost.load(Ordering::Relaxed)
    }
}

/// Writes the copies of all tracks to the file, the oldest first.
fn drain(writer: Writer, mut tracks: Vec<(Direction, Consumer<Copy>)>, shared: &Shared) {
    const REST: Duration = Duration::from_micros(50);
    const LONGEST_REST: Duration = Duration::from_millis(2);
    let (mut writer, mut rest, mut flushed) = (Some(writer), REST, true);
    // The first error ends the writing, but not the draining. Some of what was taken before is not in the file either.
    let attempt = |writer: &mut Option<Writer>, result: Result<(), Error>| {
        if let Err(error) = result {
            tracing::error!("{error}; the capture ends here");
            let unwritten = writer.take().map_or(0, |writer| writer.unwritten().packets);
            shared.lost.fetch_add(unwritten, Ordering::Relaxed);
        }
    };
    // After the end, what was waiting then is written, and not what may still come.
    let mut left = tracks.len() * RING;
    loop {
        let stop = shared.stop.load(Ordering::Acquire);
        if stop {
            let Some(fewer) = left.checked_sub(1) else { break };
            left = fewer;
        }
        let oldest = tracks.iter_mut().filter_map(|(direction, ring)| Some((ring.peek()?.nanos, *direction, ring)));
        if let Some((nanos, direction, ring)) = oldest.min_by_key(|&(nanos, ..)| nanos) {
            let copy = ring.take(1).next();
            match (copy, &mut writer) {
                (Some(copy), Some(file)) => {
                    let result = file.write_packet(nanos, direction, &copy.packet, usize::MAX);
                    attempt(&mut writer, result);
                }
                _ => drop(shared.lost.fetch_add(1, Ordering::Relaxed)),
            }
            (rest, flushed) = (REST, false);
        } else if stop {
            break;
        } else if rest < LONGEST_REST || flushed {
            std::thread::sleep(rest);
            rest = (rest * 2).min(LONGEST_REST);
        } else if let Some(file) = &mut writer {
            // Nothing has come for a while: show what there is.
            let result = file.flush();
            attempt(&mut writer, result);
            flushed = true;
        } else {
            flushed = true;
        }
    }
    let result = writer.as_mut().map_or(Ok(()), Writer::flush);
    attempt(&mut writer, result);
}

/// Copies the packets of one direction of one queue.
struct Copier {
    buffers: Buffers,
    ring: Producer<Copy>,
    /// Of the burst at hand; never grows beyond what it was made for.
    copies: Vec<Copy>,
    shared: Arc<Shared>,
}

impl Copier {
    /// Copies as many packets as there is room for.
    fn copy(&mut self, packets: &[Packet]) {
        if packets.is_empty() || self.ring.is_closed() {
            return;
        }
        let nanos = now();
        let room = self.ring.room(packets.len());
        for packet in &packets[..room] {
            let Some(copy) = self.buffers.copy_of(packet) else { break };
            self.copies.push(Copy { nanos, packet: copy });
        }
    }

    /// Passes the copies of the first `passed` packets on; the others are to be copied again when they pass.
    fn publish(&mut self, passed: usize) {
        let copied = passed.min(self.copies.len());
        if copied > 0 {
            self.ring.put(self.copies.drain(..copied));
        }
        self.copies.clear();
        if copied < passed {
            self.shared.lost.fetch_add((passed - copied) as u64, Ordering::Relaxed);
        }
    }
}

struct Rx {
    inner: Box<dyn RxQueue>,
    copier: Copier,
}

#[deny(clippy::missing_trait_methods)]
impl Wakeable for Rx {
    fn arm(&mut self) {
        self.inner.arm();
    }

    fn disarm(&mut self) {
        self.inner.disarm();
    }

    fn wakes<'a>(&'a self, each: &mut dyn FnMut(Wake<'a>)) {
        self.inner.wakes(each);
    }
}

#[deny(clippy::missing_trait_methods)]
impl RxQueue for Rx {
    fn rx_burst(&mut self, burst: &mut Burst) -> usize {
        let received = self.inner.rx_burst(burst);
        let before = burst.len() - received;
        self.copier.copy(&burst[before..]);
        self.copier.publish(received);
        received
    }

    fn borrow_from(&mut self, lending: &Arc<Lending>) -> Result<(), Error> {
        self.inner.borrow_from(lending)
    }

    fn has_link(&self) -> bool {
        self.inner.has_link()
    }

    fn recorded(&self) -> &[u64] {
        self.inner.recorded()
    }
}

struct Tx {
    inner: Box<dyn TxQueue>,
    copier: Copier,
}

impl TxQueue for Tx {
    fn tx_burst(&mut self, burst: &mut Burst) -> usize {
        // Afterwards they are gone.
        self.copier.copy(burst);
        let sent = self.inner.tx_burst(burst);
        self.copier.publish(sent);
        sent
    }
}

#[deny(clippy::missing_trait_methods)]
impl Port for Capture {
    fn name(&self) -> &str {
        &self.name
    }

    fn mac(&self) -> MacAddress {
        self.inner.mac()
    }

    fn link(&mut self) -> Link {
        self.inner.link()
    }

    fn stats(&mut self) -> Stats {
        self.inner.stats()
    }

    fn state(&mut self) -> State {
        self.failed.clone().map_or_else(|| self.inner.state(), State::Gone)
    }

    fn take_queues(&mut self) -> Vec<Queues> {
        let queues = self.inner.take_queues();
        let Some(writer) = self.writer.take() else { return queues };
        self.start(writer, queues).unwrap_or_else(|error| {
            self.failed = Some(format!("{}: {error}", self.name));
            Vec::new()
        })
    }

    fn set_promiscuous(&mut self, on: bool) -> Result<(), Error> {
        self.inner.set_promiscuous(on)
    }

    fn extended(&mut self) -> Vec<(&'static str, u64)> {
        self.inner.extended()
    }

    /// Frames that are not in the file are an error: whoever reads it takes it for what has passed.
    fn finish(&mut self) -> Result<(), Error> {
        self.end();
        self.finished = true;
        let inner = self.inner.finish();
        match self.lost() {
            0 => inner,
            lost => Err(Error::Other(format!(
                "{}: {lost} packets are not in {}, because writing was too slow or failed",
                self.name, self.file
            ))),
        }
    }

    fn steer(&mut self, rule: &Rule, queue: usize) -> Result<(), Error> {
        self.inner.steer(rule, queue)
    }

    fn lending(&self, pair: usize) -> Option<Arc<Lending>> {
        self.inner.lending(pair)
    }

    fn notes(&self) -> Vec<String> {
        let lost = match self.lost() {
            0 => String::new(),
            lost => format!("; {lost} packets are not in it, because writing was too slow or failed"),
        };
        let own = format!("what passes is copied and written to {}{lost}", self.file);
        self.inner.notes().into_iter().chain([own]).collect()
    }
}

impl Capture {
    /// Writes what has passed and finishes the file.
    fn end(&mut self) {
        self.shared.stop.store(true, Ordering::Release);
        if let Some(thread) = self.thread.take() {
            // A panic there was reported there.
            let _ = thread.join();
        }
    }
}

impl Drop for Capture {
    fn drop(&mut self) {
        self.end();
        if self.lost() > 0 && !self.finished {
            tracing::warn!("{}: {} packets are not in {}", self.name, self.lost(), self.file);
        }
    }
}
