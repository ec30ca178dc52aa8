//! A port's part of a region, from both sides: a descriptor with its rings, and a CSB in memory of its own.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use ringpass_memory::{DmaRegion, RegionConfig};

use crate::csb::{Csb, ENTRY};
use crate::layout::{Interface, RING_OFFSETS, RingOffset};
use crate::{Application, Direction, Error, Memory, Region, Ring, Served};

/// How many rings of which length a port has, to send and to receive. At most 64 together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    /// Rings.
    pub rings: [u16; 2],
    /// Slots of each.
    pub slots: [u32; 2],
}

/// Entries of a CSB: a page for each side.
const ENTRIES: usize = 64;
const PAGE: usize = ENTRIES * ENTRY;

/// What a port has taken of a region, as whoever serves it knows it.
pub struct PortMemory {
    interface: usize,
    rings: Vec<usize>,
    csb: Arc<DmaRegion>,
}

const DIRECTIONS: [Direction; 2] = [Direction::Tx, Direction::Rx];

impl PortMemory {
    /// Takes it. Rings have buffers; behind those of each direction comes one of the host's, without. Returns the rings to
    /// be served, those to send first. On an error nothing is taken.
    pub fn new(
        region: &mut Region,
        name: &str,
        shape: Shape,
        private: bool,
    ) -> Result<(Self, Vec<Served>), Box<dyn std::error::Error + Send + Sync>> {
        let [tx, rx] = shape.rings.map(usize::from);
        if tx + rx > ENTRIES || shape.slots.iter().any(|slots| !(2..=1 << 16).contains(slots)) {
            return Err("a port has at most 64 rings, of 2 to 65536 slots each".into());
        }
        let file = DmaRegion::new(2 * PAGE, &RegionConfig::default())?;
        let csb = Arc::new(csb(&file.clone().into()).expect("two pages"));
        let interface = region.interface(name, [tx as u32, 1, rx as u32, 1], private)?;
        let mut port = Self { interface, rings: Vec::new(), csb: file };
        match port.fill(region, shape, &csb) {
            Ok(served) => Ok((port, served)),
            Err(error) => {
                port.release(region);
                Err(error.into())
            }
        }
    }

    fn fill(&mut self, region: &mut Region, shape: Shape, csb: &Arc<Csb>) -> Result<Vec<Served>, Error> {
        let mut served = Vec::new();
        for ((direction, rings), slots) in DIRECTIONS.into_iter().zip(shape.rings).zip(shape.slots) {
            for id in 0..=rings {
                let host = id == rings;
                let (ring, offset) = region.ring(direction, id, slots, !host)?;
                region.set_ring(self.interface, self.rings.len(), Some(offset));
                self.rings.push(offset);
                if !host {
                    served.push(Served::new(direction, ring, csb, served.len()));
                }
            }
        }
        Ok(served)
    }

    /// Where the descriptor lies.
    pub fn interface(&self) -> usize {
        self.interface
    }

    /// The CSB, for the other side to map.
    pub fn csb(&self) -> &Arc<DmaRegion> {
        &self.csb
    }

    /// Gives all of it back.
    pub fn release(self, region: &mut Region) {
        self.rings.into_iter().for_each(|offset| region.release_ring(offset));
        region.release_interface(self.interface);
    }
}

fn csb(memory: &Memory) -> Option<Csb> {
    Csb::new(memory, 0, PAGE, ENTRIES)
}

/// The rings of a port whose descriptor lies at an offset of the memory, as an application finds them: those to send first.
/// `None` if they do not lie in the memory.
pub fn attach(memory: &Memory, interface: usize, csb_memory: &Memory) -> Option<Vec<Application>> {
    let csb = Arc::new(csb(csb_memory)?);
    let cells = memory.cells::<Interface>(interface, 1)?;
    let counts = [&cells[0].tx_rings, &cells[0].host_tx_rings, &cells[0].rx_rings, &cells[0].host_rx_rings];
    let [tx, host_tx, rx, _] = counts.map(|count| count.load(Relaxed) as usize);
    if tx.checked_add(rx)? > ENTRIES || host_tx > ENTRIES {
        return None;
    }
    let places = (0..tx).map(|ring| (Direction::Tx, ring));
    let places = places.chain((0..rx).map(|ring| (Direction::Rx, tx + host_tx + ring)));
    let ring = |(entry, (direction, number)): (usize, (Direction, usize))| {
        let word = memory.cells::<RingOffset>(interface.checked_add(RING_OFFSETS + 8 * number)?, 1)?;
        let offset = interface.checked_add_signed(word[0].0.load(Relaxed) as isize)?;
        let slots = memory.cells::<crate::layout::RingHeader>(offset, 1)?[0].slots.load(Relaxed);
        let ring = Ring::new(memory, offset, slots).filter(|_| slots >= 2)?;
        Some(Application::new(direction, ring, &csb, entry))
    };
    places.enumerate().map(ring).collect()
}
