//! A port's part of a region, from both sides: rings, descriptors by which programs find them, and a CSB in memory of its
//! own.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use ringpass_memory::{DmaRegion, RegionConfig};

use crate::csb::{Csb, ENTRY};
use crate::layout::{Interface, RING_OFFSETS, RingHeader, RingOffset};
use crate::pipe::{Exchange, Receiver, Sender};
use crate::{Application, Bell, Direction, Error, Memory, PortRing, Region, Ring, Served};

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
    name: String,
    shape: Shape,
    private: bool,
    /// A descriptor of all rings.
    interface: usize,
    /// Rings to send, the host's, rings to receive, the host's.
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
        let (port, rings) = Self::take(region, name, shape, private, new_csb()?, [true; 2])?;
        let csb = port.mapped_csb();
        let direction = |entry| if entry < usize::from(shape.rings[0]) { Direction::Tx } else { Direction::Rx };
        let served = |(entry, ring)| Served::new(direction(entry), ring, &csb, entry);
        let served = rings.into_iter().enumerate().map(served).collect();
        Ok((port, served))
    }

    /// Takes both ends of a pipe, with so many slots a ring. Nobody serves them. On an error nothing is taken.
    pub fn pipe(
        region: &mut Region,
        names: [&str; 2],
        slots: u32,
    ) -> Result<[Self; 2], Box<dyn std::error::Error + Send + Sync>> {
        let (shape, csb) = (Shape { rings: [1; 2], slots: [slots; 2] }, new_csb()?);
        let (first, _) = Self::take(region, names[0], shape, false, csb.clone(), [true, false])?;
        match Self::take(region, names[1], shape, false, csb, [true, false]) {
            Ok((second, _)) => Ok([first, second]),
            Err(error) => {
                first.release(region);
                Err(error)
            }
        }
    }

    /// Takes rings, with buffers to send and to receive where said.
    fn take(
        region: &mut Region,
        name: &str,
        shape: Shape,
        private: bool,
        csb: Arc<DmaRegion>,
        filled: [bool; 2],
    ) -> Result<(Self, Vec<Ring>), Box<dyn std::error::Error + Send + Sync>> {
        let [tx, rx] = shape.rings.map(usize::from);
        if tx + rx > ENTRIES || shape.slots.iter().any(|slots| !(2..=1 << 16).contains(slots)) {
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

    /// What it is called.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// How many rings it has, and how long.
    pub fn shape(&self) -> Shape {
        self.shape
    }

    /// Where the descriptor of all rings lies.
    pub fn interface(&self) -> usize {
        self.interface
    }

    /// Takes one more descriptor, of those rings alone that are bound (of a direction, by number). To be given back by
    /// [`Region::release_interface`].
    pub fn bind(&self, region: &mut Region, bound: impl Fn(Direction, u16) -> bool) -> Result<usize, Error> {
        let [tx, rx] = self.shape.rings;
        let interface = region.interface(&self.name, [tx.into(), 1, rx.into(), 1], self.private)?;
        let places = DIRECTIONS.into_iter().zip(self.shape.rings).flat_map(|(direction, rings)| {
            let bound = &bound;
            // The host's is there for those who count, and programs that see one bound would use it.
            (0..=rings).map(move |id| id != rings && bound(direction, id))
        });
        for (number, (&offset, bound)) in self.rings.iter().zip(places).enumerate() {
            region.set_ring(interface, number, bound.then_some(offset));
        }
        Ok(interface)
    }

    /// The CSB, for the other side to map.
    pub fn csb(&self) -> &Arc<DmaRegion> {
        &self.csb
    }

    fn mapped_csb(&self) -> Arc<Csb> {
        Arc::new(csb(&self.csb.clone().into()).expect("two pages"))
    }

    /// Gives all of it back.
    pub fn release(self, region: &mut Region) {
        self.rings.into_iter().for_each(|offset| region.release_ring(offset));
        region.release_interface(self.interface);
    }
}

/// The memory of a CSB, in the first state of a pipe.
fn new_csb() -> Result<Arc<DmaRegion>, ringpass_memory::Error> {
    DmaRegion::new(2 * PAGE, &RegionConfig::default())
}

fn csb(memory: &Memory) -> Option<Csb> {
    Csb::new(memory, 0, PAGE, ENTRIES)
}

/// Rings, each with its number among those of its port, those to send first: its entry of the CSB.
type Numbered = Vec<(usize, Ring)>;

/// The rings of a descriptor, as a program finds them: to send and to receive. `None` if they do not lie in the memory.
fn rings(memory: &Memory, interface: usize) -> Option<[Numbered; 2]> {
    let cells = memory.cells::<Interface>(interface, 1)?;
    let counts = [&cells[0].tx_rings, &cells[0].host_tx_rings, &cells[0].rx_rings];
    let [tx, host_tx, rx] = counts.map(|count| count.load(Relaxed) as usize);
    if tx.checked_add(rx)? > ENTRIES || host_tx > ENTRIES {
        return None;
    }
    let ring = |number: usize| -> Option<Option<Ring>> {
        let word = memory.cells::<RingOffset>(interface.checked_add(RING_OFFSETS + 8 * number)?, 1)?;
        let offset = word[0].0.load(Relaxed) as isize;
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

/// The rings of a served port whose descriptor lies at an offset of the memory, as a program finds them: those to send, those to
/// receive. `kick` wakes the server. `None` if they do not lie in the memory.
pub fn attach(memory: &Memory, interface: usize, csb_memory: &Memory, kick: &Bell) -> Option<[Vec<PortRing>; 2]> {
    attach_each(memory, interface, csb_memory, |_| kick.clone())
}

/// As [`attach`], with another bell for each ring, by its number among those of the port: those to send first.
pub fn attach_each(
    memory: &Memory,
    interface: usize,
    csb_memory: &Memory,
    kick: impl Fn(usize) -> Bell,
) -> Option<[Vec<PortRing>; 2]> {
    let csb = Arc::new(csb(csb_memory)?);
    let served = |(entry, ring)| PortRing::Served(Application::new(ring, &csb, entry, &kick(entry)));
    Some(rings(memory, interface)?.map(|rings| rings.into_iter().map(served).collect()))
}

/// The rings of an end of a pipe, the first or the second, of which it lies at `own` in the memory and the other end
/// at `other`. `bell` wakes the other end.
pub fn attach_pipe(
    memory: &Memory,
    (own, other): (usize, usize),
    first: bool,
    csb_memory: &Memory,
    bell: &Bell,
) -> Option<[Vec<PortRing>; 2]> {
    let csb = Arc::new(csb(csb_memory)?);
    let ([sending, receiving], [from, to]) = (rings(memory, own)?, rings(memory, other)?);
    // The entry of a direction is the number of the end that sends.
    let exchange = |sender, receiver, entry: bool| {
        let entry = entry.into();
        Exchange { sender, receiver, csb: csb.clone(), entry, bell: bell.clone() }
    };
    let tx = sending.into_iter().zip(to);
    let tx = tx.map(|((_, own), (_, to))| PortRing::Sender(Sender::new(exchange(own, to, !first))));
    let rx = receiving.into_iter().zip(from);
    let rx = rx.map(|((_, own), (_, from))| PortRing::Receiver(Receiver::new(exchange(from, own, first))));
    Some([tx.collect(), rx.collect()])
}
