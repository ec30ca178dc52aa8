//! Fuzz body: a guest whose buffers are lent to a NIC.
//!
//! The input drives what the guest does, what the NIC receives, and what happens to received packets. As long as
//! the guest keeps the rules, frames arrive once and in order. Whatever it does, only memory that it made available
//! is written, all lent buffers are back when a lease ends, and the next guest is served.

#[path = "shown.rs"]
mod shown;

use std::cell::RefCell;
use std::collections::VecDeque;
use std::sync::Arc;

use crate::common::mapped::Mapped;
use crate::common::{Area, Guest, bytes_of, frame};
use ringpass_memory::{Flags, Packet};
use ringpass_testing::CaseInput;
use ringpass_vhost_user::{Device, VringBase};
use ringpass_virtio::device::GuestMemory;
use ringpass_virtio::features::*;
use shown::WritableMap;

/// Descriptors of the guest's ring, number of its buffers, and actions in a case.
const SIZE: u16 = 16;
const BUFFERS: usize = 64;
const ACTIONS: usize = 48;

/// The port with its NIC and the guest's memory, created once because that takes longer than a case.
struct Harness {
    mapped: Mapped,
    guest: Guest,
    whole: Arc<GuestMemory>,
    shown: WritableMap,
}

impl Harness {
    fn new(kind: u64) -> RefCell<Self> {
        let guest = Guest::with_buffers(kind | VERSION_1 | INDIRECT_DESC, 1, SIZE, BUFFERS);
        let (whole, shown) = (guest.memory.clone(), WritableMap::new(&guest));
        RefCell::new(Self { mapped: Mapped::new(), guest, whole, shown })
    }
}

thread_local! {
    static SPLIT: RefCell<Harness> = Harness::new(0);
    static PACKED: RefCell<Harness> = Harness::new(RING_PACKED);
}

/// A guest's session.
struct QueueSession<'a> {
    mapped: &'a mut Mapped,
    guest: &'a mut Guest,
    shown: &'a mut WritableMap,
    /// Whether the guest has kept the rules so far.
    honest: bool,
    /// Longest frame that fits into each of the chains offered so far.
    shortest: usize,
    /// Packets received and not yet sent to the guest.
    held: Vec<Packet>,
    /// Frames sent and not yet seen by the guest.
    sent: VecDeque<Vec<u8>>,
    frames: usize,
}

impl<'a> QueueSession<'a> {
    fn begin(Harness { mapped, guest, whole, shown }: &'a mut Harness, features: u64) -> Self {
        guest.renew(guest.features & RING_PACKED | features);
        guest.memory = whole.clone();
        shown.forget();
        let mut run = Self {
            mapped,
            guest,
            shown,
            honest: true,
            shortest: usize::MAX,
            held: Vec::new(),
            sent: VecDeque::new(),
            frames: 0,
        };
        run.start(run.guest.first_base());
        run.device().enable(0, true);
        run
    }

    fn device(&mut self) -> &mut dyn Device {
        &mut self.mapped.rig.device
    }

    fn start(&mut self, base: VringBase) {
        self.shown.look(self.guest);
        self.guest.start(&mut self.mapped.rig.device, 0, base);
    }

    fn offer(&mut self, pieces: &[usize]) {
        self.shortest = self.shortest.min(pieces.iter().sum::<usize>() - self.guest.header());
        self.guest.offer(0, pieces);
    }

    /// Lets frames arrive at the NIC.
    fn arrive(&mut self, count: usize, len: usize) {
        self.shown.look(self.guest);
        let frames: Vec<_> = (self.frames..self.frames + count).map(|n| frame(n, len)).collect();
        self.frames += count;
        for packet in self.mapped.arrive(&frames) {
            assert!(packet.len() >= 60, "a frame that was cut");
            let lent = |packet: &Packet| packet.flags().any(Flags::LENT);
            let start = packet.as_ptr() as usize;
            assert!(!lent(&packet) || self.is_memory(start, packet.len()), "a lent buffer that is not the guest's");
            let doubled = |other: &Packet| lent(other) && other.as_ptr() as usize == start;
            assert!(!self.honest || !self.held.iter().any(doubled), "a buffer that is lent already");
            self.held.push(packet);
        }
        // Dropping packets is allowed, as the NIC drops some as well.
        self.held.truncate(64);
    }

    /// Returns whether these bytes lie in the guest's memory as it is mapped here.
    fn is_memory(&self, start: usize, len: usize) -> bool {
        self.guest.memory.regions().iter().any(|region| {
            let offset = start.wrapping_sub(region.memory.as_ptr() as usize);
            offset < region.memory.len() && len <= region.memory.len() - offset
        })
    }

    /// Sends the held packets to the guest. Returns how many it did not take.
    fn deliver(&mut self) -> usize {
        self.shown.look(self.guest);
        let frames: Vec<_> = self.held.iter().map(bytes_of).collect();
        let left = self.mapped.send(std::mem::take(&mut self.held));
        self.sent.extend(frames.into_iter().rev().skip(left).rev());
        left
    }

    /// Checks the frames that the guest has received. Skipped after the guest has corrupted its ring.
    fn collect(&mut self) {
        for frame in if self.honest { self.guest.received_full(0) } else { Vec::new() } {
            // Frames that fit into no chain are dropped.
            while self.sent.front().is_some_and(|sent| *sent != frame && sent.len() > self.shortest) {
                self.sent.pop_front();
            }
            assert!(self.sent.pop_front() == Some(frame), "frames that come once, in order, byte for byte");
        }
    }

    /// Checks the state after a lease has ended, when nothing may change any more.
    fn ended(&mut self) {
        self.collect();
        let lost = self.sent.drain(..).all(|sent| sent.len() > self.shortest);
        assert!(!self.honest || lost, "frames that were taken for the guest and did not arrive");
        self.shown.check();
    }

    /// Runs `work`, which waits for lent buffers, and repeats it if the port's time limit passes: on a busy machine
    /// the polling thread may not have run in that second.
    fn in_time<T: Send>(&mut self, work: impl Fn(&mut dyn Device) -> Result<T, String> + Sync) -> Result<T, String> {
        const TRIES: usize = 60;
        for _ in 1..TRIES {
            match self.mapped.while_polled(|device| work(device)) {
                Err(why) if why.contains("did not come back within") => {}
                result => return result,
            }
        }
        self.mapped.while_polled(|device| work(device))
    }

    fn stop(&mut self) -> VringBase {
        self.shown.look(self.guest);
        self.held.clear();
        let base = self.in_time(|device| device.stop(0)).expect("a queue that runs");
        self.ended();
        if self.guest.features & RING_PACKED != 0 {
            assert!(base >> 16 == base & 0xffff, "chains that were taken and not given back: {base:#x}");
        } else if self.honest {
            let shown = self.guest.peek(0, Area::Driver, 2);
            let left = usize::from(shown.wrapping_sub(base as u16));
            assert!(self.guest.posted(0) == left, "as many chains are with the guest as were not taken");
        }
        base
    }

    /// Stops the queue, lets frames arrive that are not for this guest, and starts the queue again.
    fn restart(&mut self) {
        let base = self.stop();
        self.arrive(2, 60);
        assert!(!self.held.iter().any(|packet| packet.flags().any(Flags::LENT)), "a buffer lent by nobody");
        assert_eq!(self.deliver(), 2.min(self.frames), "there is no queue to take them");
        self.sent.clear();
        self.shown.check();
        self.start(base);
    }

    /// Writes an arbitrary descriptor, in the slot to be made available next or in another one.
    fn corrupt_descriptor(&mut self, bytes: &mut CaseInput) {
        self.honest = false;
        let (kind, slot) = (bytes.number(1), bytes.below(SIZE.into()));
        let inside = bytes.number(2) as usize;
        let address = match kind & 3 {
            0 | 1 => self.guest.pool.region().iova(0) + (inside % self.guest.pool.region().len()) as u64,
            2 => self.guest.rings().iova(0) + (inside % self.guest.rings().len()) as u64,
            _ => bytes.number(8),
        };
        let len = if kind & 4 == 0 { 2048 } else { bytes.number(4) };
        let (flags, number) = (bytes.number(1), bytes.number(1) % 20);
        let flags = flags & 7 | (flags & 8) << 4 | (flags & 16) << 11;
        let packed = self.guest.features & RING_PACKED != 0;
        let word = if packed { len | number << 32 | flags << 48 } else { len | flags << 32 | number << 48 };
        for (at, word) in [(0, address), (8, word)] {
            (0..4)
                .for_each(|n| self.guest.poke(0, Area::Descriptors, 16 * slot + at + 2 * n, (word >> (16 * n)) as u16));
        }
        if !packed {
            let shown = self.guest.peek(0, Area::Driver, 2);
            let place = 4 + 2 * usize::from(shown % SIZE);
            self.guest.poke(0, Area::Driver, place, slot as u16);
            self.guest.poke(0, Area::Driver, 2, shown.wrapping_add(1));
        }
    }

    /// Makes more chains available than the ring can hold, or chains with invalid ids.
    fn break_ring_rules(&mut self) {
        self.held.clear();
        self.device().fault();
        let was_honest = std::mem::replace(&mut self.honest, false);
        if self.guest.features & RING_PACKED == 0 {
            let shown = self.guest.peek(0, Area::Driver, 2);
            self.guest.poke(0, Area::Driver, 2, shown.wrapping_add(2 * SIZE + 1));
            self.use_up(was_honest);
        } else {
            // With either value of the wrap counter.
            for flags in [0x82, 0x8002] {
                for slot in 0..usize::from(SIZE) {
                    self.guest.poke(0, Area::Descriptors, 16 * slot + 12, 0xffff);
                    self.guest.poke(0, Area::Descriptors, 16 * slot + 14, flags);
                }
                self.use_up(was_honest);
            }
        }
        let reported = self.device().fault().is_some();
        assert!(reported || !was_honest, "a guest that broke its ring is told of");
        self.sent.clear();
    }

    /// Uses up the chains that the port has already read, until it notices the violation.
    fn use_up(&mut self, was_honest: bool) {
        for _ in 0..=SIZE {
            self.held.push(self.mapped.rig.packet(&frame(0, 60)));
            if self.deliver() == 1 {
                return;
            }
        }
        // Frames are also dropped, without a chain, if the ring was broken before or the next chain is too short.
        assert!(!was_honest, "more chains are taken than there are");
    }

    fn run_action(&mut self, bytes: &mut CaseInput) {
        match bytes.number(1) % 16 {
            0..=2 => {
                let n = bytes.number(1);
                let pieces: &[usize] =
                    [&[2048][..], &[2048], &[1600], &[12, 1600], &[500, 500, 600], &[1000]][(n >> 3) as usize % 6];
                (0..=n % 8).for_each(|_| self.offer(pieces));
            }
            3..=4 => {
                let n = bytes.number(1) as usize;
                self.arrive(1 + n % 8, [60, 200, 1000, 1514][n >> 3 & 3]);
            }
            5..=6 => {
                self.deliver();
                self.collect();
            }
            7 => {
                let n = bytes.below(8) + 1;
                let mut kept = 0..;
                self.held.retain(|_| kept.next().is_some_and(|at: usize| !at.is_multiple_of(n)));
            }
            8 => {
                let len = 60 + 6 * bytes.below(243);
                self.held.push(self.mapped.rig.packet(&frame(self.frames, len)));
            }
            9 => {
                let (which, len) = (bytes.number(1) as usize, bytes.below(256));
                let count = self.held.len().max(1);
                if let Some(packet) = self.held.get_mut(which % count) {
                    if len < 50 {
                        assert!(packet.len() < 14 + len || packet.trim_front(len));
                    } else {
                        packet.set_len(len.min(packet.len()));
                    }
                }
            }
            10 => self.corrupt_descriptor(bytes),
            11 => {
                self.honest = false;
                let (offset, value) = (bytes.number(2) as usize, bytes.number(2));
                self.guest.poke(0, Area::Descriptors, (offset % 1024) & !1, value as u16);
            }
            12 => self.restart(),
            13 => {
                let cut = bytes.number(3) as usize % self.guest.pool.region().len();
                self.shown.look(self.guest);
                self.held.clear();
                let memory = self.guest.remap(cut);
                self.in_time(|device| device.set_memory(&memory)).expect("rings that are where they were");
            }
            14 => {
                self.shown.look(self.guest);
                self.held.clear();
                self.mapped.while_polled(|device| device.enable(0, false));
                self.ended();
                self.shown.look(self.guest);
                self.device().enable(0, true);
            }
            _ => self.break_ring_rules(),
        }
    }

    /// Ends the guest's session, after stopping its queue or without.
    fn end(mut self, stopped: bool) {
        self.shown.look(self.guest);
        self.collect();
        self.held.clear();
        let fault = self.device().fault();
        assert!(!self.honest || fault.is_none(), "an honest guest is blamed: {fault:?}");
        if stopped {
            self.stop();
            self.device().disconnected("done");
        } else {
            self.mapped.while_polled(|device| device.disconnected("it died"));
            self.ended();
        }
        // Discard the frames that the NIC still holds.
        while !self.mapped.arrive(&[]).is_empty() {}
        self.shown.check();
        assert_eq!(self.mapped.card.counters().dma_faults, 0);
    }
}

/// Checks that an honest guest receives frames without a copy.
fn check_served(harness: &mut Harness) {
    let mut run = QueueSession::begin(harness, VERSION_1);
    (0..8).for_each(|_| run.offer(&[2048]));
    run.arrive(4, 100);
    assert!(run.held.len() == 4 && run.held.iter().all(|packet| packet.flags().any(Flags::LENT)));
    assert_eq!(run.deliver(), 0);
    run.collect();
    assert!(run.sent.is_empty());
    run.end(true);
}

/// Runs one case with a split ring.
pub fn split(data: &[u8]) {
    SPLIT.with_borrow_mut(|harness| case(harness, data));
}

/// Runs one case with a packed ring.
pub fn packed(data: &[u8]) {
    PACKED.with_borrow_mut(|harness| case(harness, data));
}

fn case(harness: &mut Harness, data: &[u8]) {
    let mut bytes = CaseInput::new(data);
    let flags = bytes.number(1);
    let feature = |bit: u64, feature: u64| if flags & bit != 0 { feature } else { 0 };
    let version = if flags & 8 == 0 || harness.guest.features & RING_PACKED != 0 { VERSION_1 } else { 0 };
    let features = version | feature(1, INDIRECT_DESC) | feature(2, EVENT_IDX) | feature(4, MRG_RXBUF);
    let mut run = QueueSession::begin(harness, features);
    bytes.each_action(ACTIONS, |bytes| run.run_action(bytes));
    let honest = run.honest;
    run.end(flags & 16 == 0);
    if !honest {
        check_served(harness);
    }
}
