//! Tells the lies of a card's configuration, on their occasions.

use std::ops::Deref;
use std::sync::Arc;
use std::sync::atomic::{AtomicU16, AtomicU64, Ordering};

use ringpass_memory::Burst;
use ringpass_port::Queues;

use super::device::{BURST, Device, NEEDS_RESET};
use super::lies::{Lie, Lies};
use crate::dma::Hint;
use crate::lies::Teller;

/// Rounds that the link stays down.
const DOWN: u64 = 1000;

/// A card's lies; shared by its parts.
pub(super) struct Liar {
    teller: Teller<Lie>,
    /// What was given back last.
    last: AtomicU16,
    /// The frames that there were in the last round.
    seen: AtomicU64,
    /// Rounds until the link comes up again.
    down: AtomicU64,
}

impl Deref for Liar {
    type Target = Teller<Lie>;

    fn deref(&self) -> &Teller<Lie> {
        &self.teller
    }
}

impl Liar {
    /// `None` for an honest card.
    pub(super) fn new(lies: &Lies) -> Option<Arc<Self>> {
        let (seen, down) = (AtomicU64::new(0), AtomicU64::new(0));
        let liar = Self { teller: Teller::new(lies), last: AtomicU16::new(0), seen, down };
        lies.any().then(|| Arc::new(liar))
    }

    /// What is said of a chain that is given back in a queue of so many descriptors.
    pub(super) fn used(&self, id: u16, written: u32, size: u16) -> (u32, u32) {
        let last = self.last.swap(id, Ordering::Relaxed);
        let random = self.random() as u32;
        let said = if self.tells(Lie::IdWild) {
            [u32::from(size), 0xffff_ffff, u32::from(id) | 0x1_0000, random | u32::from(size)][random as usize >> 8 & 3]
        } else if self.tells(Lie::IdTwice) {
            last.into()
        } else if self.tells(Lie::IdFree) {
            (u32::from(id) + u32::from(size) / 2) % u32::from(size)
        } else if self.tells(Lie::IdMidChain) {
            (u32::from(id) + 1) % u32::from(size)
        } else {
            id.into()
        };
        let len = if self.tells(Lie::LengthLong) {
            [written + 0x1_0000, 0xffff_ffff, 0x8000_0000, written + 0x7fff][random as usize >> 4 & 3]
        } else if self.tells(Lie::LengthZero) {
            0
        } else {
            written
        };
        (said, len)
    }

    /// What is said of where a frame lies: the number of buffers.
    pub(super) fn buffers(&self, count: u16) -> u16 {
        if self.tells(Lie::BuffersZero) {
            0
        } else if self.tells(Lie::BuffersMany) {
            0xffff
        } else {
            count
        }
    }

    /// Spoils a received frame's header.
    pub(super) fn header(&self, header: &mut [u8]) {
        if self.tells(Lie::HeaderWild) {
            let random = self.random().to_le_bytes();
            let [flags, kind, ..] = random;
            header[0] = [1, 2, 3, flags][usize::from(flags) & 3];
            header[1] = [0, 1, 4, 3, 0x81, kind][usize::from(kind) % 6];
            header[2..10].copy_from_slice(&self.random().to_le_bytes());
        }
    }
}

impl Device {
    pub(super) fn is_removed(&self) -> bool {
        self.liar.as_ref().is_some_and(|liar| liar.holds(Lie::Removed))
    }

    /// Whether something is so only because the card lies.
    pub(super) fn pretends(&self, lie: Lie) -> bool {
        self.liar.as_ref().is_some_and(|liar| liar.holds(lie))
    }

    pub(super) fn tells(&self, lie: Lie) -> bool {
        self.liar.as_ref().is_some_and(|liar| liar.tells(lie))
    }

    /// Whether a round is due although nothing has happened.
    pub(super) fn lies_on(&self) -> bool {
        self.liar
            .as_ref()
            .is_some_and(|liar| liar.down.load(Ordering::Relaxed) > 0 || liar.lies.when(Lie::InterruptStorm).is_some())
    }

    /// The lies of a round; the frames that a card that has gone takes from the wire, in place of the round.
    #[cold]
    pub(super) fn lie(&mut self, wire: &mut Queues) -> Option<usize> {
        let liar = self.liar.clone()?;
        self.counters.lies = liar.told();
        if self.is_removed() {
            return Some(wire.rx.rx_burst(&mut Burst::new(BURST)));
        }
        let frames = liar.frames();
        let moved = frames > liar.seen.swap(frames, Ordering::Relaxed);
        match liar.down.load(Ordering::Relaxed) {
            0 if moved && self.link_up && liar.tells(Lie::LinkFlap) => {
                liar.down.store(DOWN, Ordering::Relaxed);
                self.set_link(false);
            }
            0 => {}
            rounds => {
                liar.down.store(rounds - 1, Ordering::Relaxed);
                if rounds == 1 {
                    self.set_link(true);
                }
            }
        }
        if moved && liar.tells(Lie::ConfigChanges) {
            self.mac =
                [liar.random(), liar.random()].map(u64::to_le_bytes).concat()[..6].try_into().expect("six bytes");
            self.mtu = liar.random() as u16;
            self.pairs_said = liar.random() as u16;
            self.changed();
        }
        if moved && liar.tells(Lie::NeedsReset) {
            self.status |= NEEDS_RESET;
            self.changed();
        }
        if liar.tells(Lie::InterruptStorm) {
            self.interrupts.storm();
        }
        if moved && liar.tells(Lie::DmaOutside) && !self.dma.write(liar.lies.address, &[0xa5; 16], &mut Hint::default())
        {
            self.counters.dma_faults += 1;
        }
        None
    }
}
