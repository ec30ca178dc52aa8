//! Copies of what passes queues, on their way to a capture.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use ringpass_memory::{Burst, MAX_BATCH, Packet};
use ringpass_port::{FrameFilter, RxDecorator, RxQueue, TxQueue};

use super::cells::{Cell, FrameReader, cells, stage_frame, stage_time};
use crate::capture_file::{Direction, now};
use crate::ring::{Producer, ring};

/// Cells of the ring of each direction of each queue: 4 MiB, that many short frames, or some 2,700 of 1514 bytes.
pub(super) const RING: usize = 65536;
/// Bytes at the front of a frame that filters look at: Ethernet, a VLAN tag, the longest header of IPv4 and the one of UDP.
const FILTERED: usize = 14 + 4 + 60 + 8;

/// Copies from one direction of one queue.
pub(super) type Track = (Direction, FrameReader);

/// The state of a capture that its queues and its thread share. Clones refer to the same.
#[derive(Clone)]
pub(super) struct Copies(Arc<Shared>);

struct Shared {
    /// Which packets are copied: those that one of these takes, or all if there is none.
    filters: Vec<FrameFilter>,
    stop: AtomicBool,
    /// Packets that were to be copied.
    seen: AtomicU64,
    /// Packets that are not in the file.
    lost: AtomicU64,
    /// Tracks that the draining thread does not know yet.
    new: Mutex<Vec<Track>>,
    has_new: AtomicBool,
}

impl Copies {
    /// Creates what copies of the packets that these filters take need.
    pub(super) fn new(filters: Vec<FrameFilter>) -> Self {
        Self(Arc::new(Shared {
            filters,
            stop: AtomicBool::new(false),
            seen: AtomicU64::new(0),
            lost: AtomicU64::new(0),
            new: Mutex::default(),
            has_new: AtomicBool::new(false),
        }))
    }

    /// Creates the copier of one direction of one queue.
    pub(super) fn copier(&self, direction: Direction) -> Copier {
        let (producer, consumer) = ring(RING);
        self.0.new.lock().unwrap_or_else(PoisonError::into_inner).push((direction, FrameReader::new(consumer)));
        self.0.has_new.store(true, Ordering::Release);
        Copier {
            ring: producer,
            copies: Vec::with_capacity(MAX_BATCH),
            missed: Vec::with_capacity(MAX_BATCH),
            shared: self.clone(),
        }
    }

    /// Adds the tracks that are new to these.
    pub(super) fn add_tracks(&self, tracks: &mut Vec<Track>) {
        if self.0.has_new.swap(false, Ordering::Acquire) {
            tracks.append(&mut self.0.new.lock().unwrap_or_else(PoisonError::into_inner));
        }
    }

    pub(super) fn stop(&self) {
        self.0.stop.store(true, Ordering::Release);
    }

    pub(super) fn is_stopped(&self) -> bool {
        self.0.stop.load(Ordering::Acquire)
    }

    /// Counts packets that are not in the file.
    pub(super) fn lose(&self, packets: u64) {
        self.0.lost.fetch_add(packets, Ordering::Relaxed);
    }

    /// Returns how many packets are not in the file.
    pub(super) fn lost(&self) -> u64 {
        self.0.lost.load(Ordering::Relaxed)
    }

    /// Returns how many packets were to be in the file.
    pub(super) fn seen(&self) -> u64 {
        self.0.seen.load(Ordering::Relaxed)
    }

    fn takes(&self, packet: &Packet) -> bool {
        let filters = &self.0.filters;
        if filters.is_empty() {
            return true;
        }
        let mut bytes = [0; FILTERED];
        let front = front(packet, &mut bytes);
        filters.iter().any(|filter| filter.takes(front))
    }
}

/// Copies the front of a frame, with the VLAN tag of its metadata.
fn front<'a>(packet: &Packet, bytes: &'a mut [u8; FILTERED]) -> &'a [u8] {
    let mut len = 0;
    for segment in packet.segments() {
        let here = segment.len().min(FILTERED - len);
        segment.bytes().read(0, &mut bytes[len..len + here]);
        len += here;
    }
    if let Some(tag) = packet.vlan().filter(|_| len >= 12) {
        let end = len.min(FILTERED - 4);
        bytes.copy_within(12..end, 16);
        bytes[12..14].copy_from_slice(&[0x81, 0]);
        bytes[14..16].copy_from_slice(&tag.to_be_bytes());
        len = end + 4;
    }
    &bytes[..len]
}

/// Copies the packets of one direction of one queue.
pub(super) struct Copier {
    ring: Producer<Cell>,
    /// Packets of the present burst that were copied: the place of each in it, and the number of staged cells behind its copy. Never grows beyond its
    /// initial capacity.
    copies: Vec<(usize, usize)>,
    /// Places of packets that were to be copied, without room for them; likewise.
    missed: Vec<usize>,
    shared: Copies,
}

impl Copier {
    /// Copies as many packets as the ring has room for.
    #[inline]
    fn copy(&mut self, packets: &[Packet]) {
        if packets.is_empty() || self.ring.is_closed() {
            return;
        }
        let (mut nanos, mut room) = (Some(now()), self.ring.room(RING));
        for (place, packet) in packets.iter().enumerate().filter(|(_, packet)| self.shared.takes(packet)) {
            let needed = cells(packet) + usize::from(nanos.is_some());
            if room < needed {
                self.missed.push(place);
                continue;
            }
            if let Some(nanos) = nanos.take() {
                stage_time(&mut self.ring, nanos);
            }
            room -= needed;
            if stage_frame(&mut self.ring, packet) {
                self.copies.push((place, self.ring.staged()));
            } else {
                self.missed.push(place);
            }
        }
    }

    /// Passes the copies of the first `passed` packets on to the thread. The other packets have not been sent,
    /// and are copied again when they are.
    #[inline]
    fn publish(&mut self, passed: usize) {
        let copied = self.copies.partition_point(|&(place, _)| place < passed);
        let missed = self.missed.partition_point(|&place| place < passed);
        if self.ring.staged() > 0 {
            self.ring.publish(if copied > 0 { self.copies[copied - 1].1 } else { 0 });
        }
        self.copies.clear();
        self.missed.clear();
        if missed > 0 {
            self.shared.lose(missed as u64);
        }
        if copied + missed > 0 {
            self.shared.0.seen.fetch_add((copied + missed) as u64, Ordering::Relaxed);
        }
    }
}

/// A receiving queue whose packets are copied.
pub(super) struct Rx {
    inner: Box<dyn RxQueue>,
    copier: Copier,
}

impl Rx {
    pub(super) fn new(inner: Box<dyn RxQueue>, copier: Copier) -> Self {
        Self { inner, copier }
    }

    pub(super) fn into_inner(self) -> Box<dyn RxQueue> {
        self.inner
    }
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

/// A sending queue whose packets are copied.
pub(super) struct Tx {
    inner: Box<dyn TxQueue>,
    copier: Copier,
}

impl Tx {
    pub(super) fn new(inner: Box<dyn TxQueue>, copier: Copier) -> Self {
        Self { inner, copier }
    }

    pub(super) fn into_inner(self) -> Box<dyn TxQueue> {
        self.inner
    }
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
