//! A port's part of a region, for both sides: rings, the descriptors by which programs find them, and a CSB in
//! memory of its own.

use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

use ringpass_memory::{DmaRegion, Memory, RegionConfig};

use crate::csb::{Csb, ENTRY};
use crate::layout::{Interface, RING_OFFSETS, RingHeader};
use crate::{Direction, Error, Kring, Notifier, PortRing, Region, Ring};

/// Number and length of a port's rings, as Tx and Rx. At most 64 rings in all.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    /// Number of rings.
    pub rings: [u16; 2],
    /// Slots of each ring.
    pub slots: [u32; 2],
}

/// Entries of a CSB: one page for each half.
const ENTRIES: usize = 64;
const PAGE: usize = ENTRIES * ENTRY;

/// Objects that a port has allocated from a region, for the serving side.
pub struct PortMemory {
    name: String,
    shape: Shape,
    private: bool,
    /// Offset of the descriptor of all rings.
    interface: usize,
    /// Offsets of the Tx rings, the host's Tx ring, the Rx rings and the host's Rx ring.
    rings: Vec<usize>,
    csb: Arc<DmaRegion>,
}

const DIRECTIONS: [Direction; 2] = [Direction::Tx, Direction::Rx];

impl PortMemory {
    /// Allocates a port. Its rings have buffers; each direction ends with a host ring, which has none. Returns
    /// the rings to be served, Tx first. On an error nothing is allocated.
    pub fn new(
        region: &mut Region,
        name: &str,
        shape: Shape,
        private: bool,
    ) -> Result<(Self, Vec<Kring>), Box<dyn std::error::Error + Send + Sync>> {
        let (port, rings) = Self::take(region, name, shape, private, new_csb()?, [true; 2])?;
        let csb = port.mapped_csb();
        let direction = |entry| if entry < usize::from(shape.rings[0]) { Direction::Tx } else { Direction::Rx };
        let served = |(entry, ring)| Kring::new(direction(entry), ring, &csb, entry);
        let served = rings.into_iter().enumerate().map(served).collect();
        Ok((port, served))
    }

    /// Allocates both ends of a pipe. `slots` are those of the first end's Tx and Rx rings; the second end has them the
    /// other way round. No server serves them. On an error nothing is allocated.
    pub fn pipe(
        region: &mut Region,
        names: [&str; 2],
        slots: [u32; 2],
    ) -> Result<[Self; 2], Box<dyn std::error::Error + Send + Sync>> {
        let (shape, csb) = (Shape { rings: [1; 2], slots }, new_csb()?);
        let (first, _) = Self::take(region, names[0], shape, false, csb.clone(), [true, false])?;
        let second = Shape { slots: [slots[1], slots[0]], ..shape };
        match Self::take(region, names[1], second, false, csb, [true, false]) {
            Ok((second, _)) => Ok([first, second]),
            Err(error) => {
                first.release(region);
                Err(error)
            }
        }
    }

    /// Allocates rings, with buffers in each direction that is `filled`.
    fn take(
        region: &mut Region,
        name: &str,
        shape: Shape,
        private: bool,
        csb: Arc<DmaRegion>,
        filled: [bool; 2],
    ) -> Result<(Self, Vec<Ring>), Box<dyn std::error::Error + Send + Sync>> {
        let [tx, rx] = shape.rings.map(usize::from);
        // Without a ring, the number of slots means nothing.
        let invalid = |(rings, slots)| rings > 0 && !(2..=1 << 16).contains(&slots);
        if tx + rx > ENTRIES || [tx, rx].into_iter().zip(shape.slots).any(invalid) {
            return Err("a port has at most 64 rings, of 2 to 65536 slots each".into());
        }
        let name = name.to_owned();
        let interface = region.interface(&name, [tx as u32, 1, rx as u32, 1], private)?;
        let mut port = Self { name, shape, private, interface, rings: Vec::new(), csb };
        match port.fill(region, filled) {
            Ok(rings) => Ok((port, rings)),
            Err(error) => {
                port.release(region);
                Err(error.into())
            }
        }
    }

    fn fill(&mut self, region: &mut Region, filled: [bool; 2]) -> Result<Vec<Ring>, Error> {
        let mut all = Vec::new();
        let Shape { rings, slots } = self.shape;
        for (((direction, rings), slots), filled) in DIRECTIONS.into_iter().zip(rings).zip(slots).zip(filled) {
            for id in 0..=rings {
                let host = id == rings;
                let slots = if host { slots.clamp(2, 1 << 16) } else { slots };
                let (ring, offset) = region.ring(direction, id, slots, filled && !host)?;
                region.set_ring(self.interface, self.rings.len(), Some(offset));
                self.rings.push(offset);
                if !host {
                    all.push(ring);
                }
            }
        }
        Ok(all)
    }

    /// Name of the port.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Number and length of its rings.
    pub fn shape(&self) -> Shape {
        self.shape
    }

    /// Offset of the descriptor of all rings.
    pub fn interface(&self) -> usize {
        self.interface
    }

    /// Allocates a further descriptor, with only the rings for which `bound` returns `true` (by direction and
    /// number). It is freed by [`Region::release_interface`].
    pub fn bind(&self, region: &mut Region, bound: impl Fn(Direction, u16) -> bool) -> Result<usize, Error> {
        let [tx, rx] = self.shape.rings;
        let interface = region.interface(&self.name, [tx.into(), 1, rx.into(), 1], self.private)?;
        let places = DIRECTIONS.into_iter().zip(self.shape.rings).flat_map(|(direction, rings)| {
            let bound = &bound;
            // Programs count the host's ring, but would use it if it were bound.
            (0..=rings).map(move |id| id != rings && bound(direction, id))
        });
        for (number, (&offset, bound)) in self.rings.iter().zip(places).enumerate() {
            region.set_ring(interface, number, bound.then_some(offset));
        }
        Ok(interface)
    }

    /// The CSB, to be mapped by the other side.
    pub fn csb(&self) -> &Arc<DmaRegion> {
        &self.csb
    }

    fn mapped_csb(&self) -> Arc<Csb> {
        Arc::new(csb(&self.csb.clone().into()).expect("two pages"))
    }

    /// Frees all of it.
    pub fn release(self, region: &mut Region) {
        region.release_rings(&self.rings);
        region.release_interface(self.interface);
    }
}

/// Creates the memory of a CSB; zeros are the initial state of a pipe.
fn new_csb() -> Result<Arc<DmaRegion>, ringpass_memory::Error> {
    DmaRegion::new(2 * PAGE, &RegionConfig::default())
}

fn csb(memory: &Memory) -> Option<Csb> {
    Csb::new(memory, 0, PAGE, ENTRIES)
}

/// Rings with their CSB entries. An entry is the ring's number among those of the port, Tx first.
type Numbered = Vec<(usize, Ring)>;

/// Returns the rings of a descriptor, Tx and Rx, as a program finds them; `None` if they are not all inside the
/// memory.
fn rings(memory: &Memory, interface: usize) -> Option<[Numbered; 2]> {
    let cells = memory.cells::<Interface>(interface, 1)?;
    let counts = [&cells[0].tx_rings, &cells[0].host_tx_rings, &cells[0].rx_rings];
    let [tx, host_tx, rx] = counts.map(|count| count.load(Relaxed) as usize);
    if tx.checked_add(rx)? > ENTRIES || host_tx > ENTRIES {
        return None;
    }
    let ring = |number: usize| -> Option<Option<Ring>> {
        let word = memory.cells::<AtomicU64>(interface.checked_add(RING_OFFSETS + 8 * number)?, 1)?;
        let offset = word[0].load(Relaxed) as isize;
        if offset == 0 {
            return Some(None);
        }
        let offset = interface.checked_add_signed(offset)?;
        let slots = memory.cells::<RingHeader>(offset, 1)?[0].slots.load(Relaxed);
        Ring::new(memory, offset, slots).filter(|_| slots >= 2).map(Some)
    };
    let mut all = [Numbered::new(), Numbered::new()];
    for (entry, number) in (0..tx).map(|id| (id, id)).chain((tx..tx + rx).map(|entry| (entry, entry + host_tx))) {
        all[usize::from(entry >= tx)].extend(ring(number)?.map(|ring| (entry, ring)));
    }
    Some(all)
}

/// Returns the Tx and Rx rings of a served port whose descriptor is at offset `interface`, as a program finds
/// them; `None` if they are not all inside the memory. `kick` wakes the server.
pub fn attach(memory: &Memory, interface: usize, csb_memory: &Memory, kick: &Notifier) -> Option<[Vec<PortRing>; 2]> {
    attach_each(memory, interface, csb_memory, |_| kick.clone())
}

/// Like [`attach`], with a notifier for each ring, by its number among those of the port, Tx first.
pub fn attach_each(
    memory: &Memory,
    interface: usize,
    csb_memory: &Memory,
    kick: impl Fn(usize) -> Notifier,
) -> Option<[Vec<PortRing>; 2]> {
    let csb = Arc::new(csb(csb_memory)?);
    let served = |(entry, ring)| PortRing::served(ring, &csb, entry, &kick(entry));
    Some(rings(memory, interface)?.map(|rings| rings.into_iter().map(served).collect()))
}

/// Returns the Tx and Rx rings of the first or second end of a pipe, whose descriptor is at offset `own`; that
/// of the other end is at `other`. `notify` wakes the other end.
pub fn attach_pipe(
    memory: &Memory,
    (own, other): (usize, usize),
    first: bool,
    csb_memory: &Memory,
    notify: &Notifier,
) -> Option<[Vec<PortRing>; 2]> {
    let csb = Arc::new(csb(csb_memory)?);
    let ([sending, receiving], [from, to]) = (rings(memory, own)?, rings(memory, other)?);
    // The entry of a direction is the index of the end that sends.
    let tx = sending.into_iter().zip(to);
    let tx = tx.map(|((_, own), (_, to))| PortRing::sender([own, to], &csb, usize::from(!first), notify));
    let rx = receiving.into_iter().zip(from);
    let rx = rx.map(|((_, own), (_, from))| PortRing::receiver([from, own], &csb, usize::from(first), notify));
    Some([tx.collect(), rx.collect()])
}
