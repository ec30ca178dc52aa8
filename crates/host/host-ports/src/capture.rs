//! A decorator that writes all traffic of a port to a capture file.
//!
//! Each direction of each queue copies its packets into a bounded ring, and a thread drains the rings into the
//! file. If the thread falls behind, packets are not copied but counted as lost; the traffic does not wait for
//! it.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use ringpass_memory::{Burst, MAX_BATCH, Mempool, MempoolConfig, Packet};
use ringpass_port::{Error, Port, PortDecorator, QueuePair, RxDecorator, RxQueue, State, TxQueue};

use crate::buffers::SparePackets;
use crate::capture_file::{Direction, Writer, now};
use crate::ring::{Consumer, Producer, ring};

/// The port `capture,file=FILE:PORT`.
pub struct Capture {
    name: String,
    file: String,
    inner: Box<dyn Port>,
    /// The file's writer, until the queues are taken.
    writer: Option<Writer>,
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
    /// Why the capture could not be started.
    failed: Option<String>,
    /// Whether `finish` has reported lost packets.
    finished: bool,
}

#[derive(Default)]
struct Shared {
    stop: AtomicBool,
    /// Packets that are not in the file.
    lost: AtomicU64,
}

/// A copy of a packet on its way to the file.
struct CapturedPacket {
    nanos: u64,
    packet: Packet,
}

/// Largest number of copies waiting in each direction of each queue.
const RING: usize = 4096;

impl Capture {
    /// Creates the file and wraps a port whose queues have not been taken yet.
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

    /// Wraps the queues, and starts the thread that writes the file.
    fn start(&mut self, writer: Writer, queues: Vec<QueuePair>) -> Result<Vec<QueuePair>, Error> {
        let pool = Mempool::new(&MempoolConfig { buffers: (2 * queues.len()).max(1) * RING, ..Default::default() })?;
        let (shared, mut tracks) = (&self.shared, Vec::new());
        let mut track = |direction| {
            let (producer, consumer) = ring(RING);
            tracks.push((direction, consumer));
            Copier {
                buffers: SparePackets::new(&pool),
                ring: producer,
                copies: Vec::with_capacity(MAX_BATCH),
                shared: shared.clone(),
            }
        };
        let wrap = |QueuePair { rx, tx }| QueuePair {
            rx: Box::new(Rx { inner: rx, copier: track(Direction::Received) }),
            tx: Box::new(Tx { inner: tx, copier: track(Direction::Sent) }),
        };
        let queues = queues.into_iter().map(wrap).collect();
        let thread = std::thread::Builder::new().name("ringpass-capture".into()).spawn({
            let shared = shared.clone();
            move || drain(writer, tracks, &shared)
        });
        self.thread = Some(thread.map_err(|source| Error::os("a thread that writes", source))?);
        Ok(queues)
    }

    /// Returns how many packets have passed but are not in the file, because writing was too slow or failed.
    pub fn lost(&self) -> u64 {
        self.shared.lost.load(Ordering::Relaxed)
    }
}

/// Writes the copies from all rings to the file, oldest first.
fn drain(writer: Writer, mut tracks: Vec<(Direction, Consumer<CapturedPacket>)>, shared: &Shared) {
    const IDLE_SLEEP: Duration = Duration::from_micros(50);
    const MAX_IDLE_SLEEP: Duration = Duration::from_millis(2);
    let mut writer = Some(writer);
    let mut rest = IDLE_SLEEP;
    let mut flushed = true;
    // After the first error nothing more is written, but the rings are still drained. Some packets taken before
    // the error are not in the file either.
    let attempt = |writer: &mut Option<Writer>, result: Result<(), Error>| {
        if let Err(error) = result {
            tracing::error!("{error}; the capture ends here");
            let unwritten = writer.take().map_or(0, |writer| writer.unwritten().packets);
            shared.lost.fetch_add(unwritten, Ordering::Relaxed);
        }
    };
    // After the stop, only the packets that may have been waiting then are written, not all that may still
    // come.
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
            (rest, flushed) = (IDLE_SLEEP, false);
        } else if stop {
            break;
        } else if rest < MAX_IDLE_SLEEP || flushed {
            std::thread::sleep(rest);
            rest = (rest * 2).min(MAX_IDLE_SLEEP);
        } else if let Some(file) = &mut writer {
            // Idle for a while: flush, so that readers see what there is.
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
    buffers: SparePackets,
    ring: Producer<CapturedPacket>,
    /// Copies of the present burst; never grows beyond its initial capacity.
    copies: Vec<CapturedPacket>,
    shared: Arc<Shared>,
}

impl Copier {
    /// Copies as many packets as the ring has room for.
    fn copy(&mut self, packets: &[Packet]) {
        if packets.is_empty() || self.ring.is_closed() {
            return;
        }
        let nanos = now();
        let room = self.ring.room(packets.len());
        for packet in &packets[..room] {
            let Some(copy) = self.buffers.copy_of(packet) else { break };
            self.copies.push(CapturedPacket { nanos, packet: copy });
        }
    }

    /// Passes the copies of the first `passed` packets on to the thread. The other packets have not been sent,
    /// and are copied again when they are.
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

impl RxDecorator for Rx {
    fn inner(&self) -> &dyn RxQueue {
        &*self.inner
    }

    fn inner_mut(&mut self) -> &mut dyn RxQueue {
        &mut *self.inner
    }

    fn rx_burst(&mut self, burst: &mut Burst) -> usize {
        let received = self.inner.rx_burst(burst);
        let before = burst.len() - received;
        self.copier.copy(&burst[before..]);
        self.copier.publish(received);
        received
    }
}

struct Tx {
    inner: Box<dyn TxQueue>,
    copier: Copier,
}

impl TxQueue for Tx {
    fn tx_burst(&mut self, burst: &mut Burst) -> usize {
        // Copy first: sent packets are no longer accessible.
        self.copier.copy(burst);
        let sent = self.inner.tx_burst(burst);
        self.copier.publish(sent);
        sent
    }
}

impl PortDecorator for Capture {
    fn inner(&self) -> &dyn Port {
        &*self.inner
    }

    fn inner_mut(&mut self) -> &mut dyn Port {
        &mut *self.inner
    }

    fn name(&self) -> &str {
        &self.name
    }

    fn state(&mut self) -> State {
        self.failed.clone().map_or_else(|| self.inner.state(), State::Gone)
    }

    fn take_queues(&mut self) -> Vec<QueuePair> {
        let queues = self.inner.take_queues();
        let Some(writer) = self.writer.take() else { return queues };
        self.start(writer, queues).unwrap_or_else(|error| {
            self.failed = Some(format!("{}: {error}", self.name));
            Vec::new()
        })
    }

    /// Finishes the file. Packets missing from it are an error, because its readers take it as complete.
    fn finish(&mut self) -> Result<(), Error> {
        self.end();
        self.finished = true;
        let inner = self.inner.finish();
        match self.lost() {
            0 => inner,
            lost => Err(Error::Fault(format!(
                "{}: {lost} packets are not in {}, because writing was too slow or failed",
                self.name, self.file
            ))),
        }
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
    /// Writes the remaining packets and finishes the file.
    fn end(&mut self) {
        self.shared.stop.store(true, Ordering::Release);
        if let Some(thread) = self.thread.take() {
            // A panic of the thread was reported when it happened.
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
