//! A port's part of a region, for both sides: rings, the descriptors by which programs find them, and a CSB in
//! memory of its own.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

use ringpass_memory::{DmaRegion, Memory, RegionConfig};
use serde::{Deserialize, Serialize};

use crate::csb::{Csb, ENTRY};
use crate::layout::{Interface, RING_OFFSETS, RingHeader};
use crate::pipe::NEED_KICK_OFFSET;
use crate::tap::{Follower, TapWriter};
use crate::{Direction, Error, Flags, Kring, Notifier, Offsets, PortRing, Positions, Region, Ring, Slot, Tap};

/// Number and length of a port's rings, as Tx and Rx. At most 64 rings in all, those of the host's stack included.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Shape {
    /// Number of rings.
    pub rings: [u16; 2],
    /// Slots of each ring.
    pub slots: [u32; 2],
    /// Number of rings of the host's stack, which count on from those of the port.
    pub host_rings: [u16; 2],
}

impl Shape {
    /// Returns direction and number of each ring in the order of CSB entries: Tx, Rx, host Tx, host Rx.
    pub fn each_ring(self) -> impl Iterator<Item = (Direction, u16)> {
        let own = DIRECTIONS.into_iter().zip(self.rings).map(|(direction, rings)| (direction, 0..rings));
        let host = DIRECTIONS.into_iter().zip(self.rings).zip(self.host_rings);
        let host = host.map(|((direction, rings), host)| (direction, rings..rings + host));
        own.chain(host).flat_map(|(direction, ids)| ids.map(move |id| (direction, id)))
    }

    /// Number of all rings.
    fn all_rings(self) -> usize {
        self.rings.into_iter().chain(self.host_rings).map(usize::from).sum()
    }

    /// Number of rings of the host's stack in a descriptor, where programs rely on one at least.
    fn described_host_rings(self) -> [u16; 2] {
        self.host_rings.map(|rings| rings.max(1))
    }

    /// Returns the counts of a descriptor: Tx, host Tx, Rx and host Rx rings.
    fn counts(self) -> [u32; 4] {
        let ([tx, rx], [host_tx, host_rx]) = (self.rings, self.described_host_rings());
        [tx, host_tx, rx, host_rx].map(u32::from)
    }
}

/// Entries of a CSB: one page for each half, and one for what the processes of an application share.
const ENTRIES: usize = 64;
const PAGE: usize = ENTRIES * ENTRY;
/// Bytes of the memory of a port's CSB.
pub(crate) const CSB_BYTES: usize = 3 * PAGE;
/// Entries of a pipe's CSB for each Tx ring and Rx ring of a number: two with positions, and two with kick requests.
const PIPE_ENTRIES: usize = 4;

/// Objects that a port has allocated from a region, for the serving side.
pub struct PortMemory {
    objects: PortMemoryState,
    csb: Arc<DmaRegion>,
}

/// Books of a port's objects: all that a successor of the serving process has to know, besides the region and the [CSB](PortMemory::csb).
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct PortMemoryState {
    name: String,
    shape: Shape,
    private: bool,
    /// Offset of the descriptor of all rings.
    interface: usize,
    /// Offsets of the Tx rings, the host's Tx ring, the Rx rings and the host's Rx ring.
    rings: Vec<usize>,
    /// Where frames begin in the buffers of each ring, in the order of CSB entries.
    offsets: Vec<Offsets>,
}

const DIRECTIONS: [Direction; 2] = [Direction::Tx, Direction::Rx];

impl PortMemory {
    /// Largest number of rings of a pipe, in each direction.
    pub const MAX_PIPE_RINGS: u16 = (ENTRIES / PIPE_ENTRIES) as u16;

    /// Allocates a port. Its rings have buffers. A direction without rings of the host's stack ends with an empty one, as programs
    /// rely on it. Returns the rings to be served, in the order of their CSB entries. On an error nothing is allocated.
    pub fn new(
        region: &mut Region,
        name: &str,
        shape: Shape,
        private: bool,
    ) -> Result<(Self, Vec<Kring>), Box<dyn std::error::Error + Send + Sync>> {
        let (port, rings) = Self::take(region, name, shape, private, new_csb()?, [true; 2])?;
        let csb = port.mapped_csb();
        let entries = shape.each_ring().enumerate();
        let served = |((entry, (direction, _)), ring)| Kring::new(direction, ring, &csb, entry);
        let served = entries.zip(rings).map(served).collect();
        Ok((port, served))
    }

    /// Allocates both ends of a pipe. `shape` is that of the first end; the second end has it the other way round. No
    /// server serves them. On an error nothing is allocated.
    pub fn pipe(
        region: &mut Region,
        names: [&str; 2],
        shape: Shape,
    ) -> Result<[Self; 2], Box<dyn std::error::Error + Send + Sync>> {
        if shape.rings.iter().any(|&rings| rings > Self::MAX_PIPE_RINGS) {
            return Err(format!("a pipe has at most {} rings a direction", Self::MAX_PIPE_RINGS).into());
        }
        let Shape { rings: [tx, rx], slots: [tx_slots, rx_slots], .. } = shape;
        let reversed = Shape { rings: [rx, tx], slots: [rx_slots, tx_slots], ..shape };
        let csb = new_csb()?;
        let (first, _) = Self::take(region, names[0], shape, false, csb.clone(), [true, false])?;
        match Self::take(region, names[1], reversed, false, csb, [true, false]) {
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
        // Without a ring, the number of slots means nothing.
        let invalid = |(rings, slots)| rings > 0 && !(2..=1 << 16).contains(&slots);
        if shape.all_rings() > ENTRIES || shape.rings.into_iter().zip(shape.slots).any(invalid) {
            return Err("a port has at most 64 rings, of 2 to 65536 slots each".into());
        }
        let name = name.to_owned();
        let interface = region.interface(&name, shape.counts(), private)?;
        let (rings, offsets) = (Vec::new(), vec![Offsets::default(); shape.all_rings()]);
        let objects = PortMemoryState { name, shape, private, interface, rings, offsets };
        let mut port = Self { objects, csb };
        match port.fill(region, filled) {
            Ok(rings) => Ok((port, rings)),
            Err(error) => {
                port.release(region);
                Err(error.into())
            }
        }
    }

    fn fill(&mut self, region: &mut Region, filled: [bool; 2]) -> Result<Vec<Ring>, Error> {
        let (mut own, mut of_host) = (Vec::new(), Vec::new());
        let Shape { rings, slots, host_rings } = self.objects.shape;
        for (way, direction) in DIRECTIONS.into_iter().enumerate() {
            let (rings, used) = (rings[way], rings[way] + host_rings[way]);
            for id in 0..rings + self.objects.shape.described_host_rings()[way] {
                let slots = if id < rings { slots[way] } else { slots[way].clamp(2, 1 << 16) };
                let (ring, offset) = region.ring(direction, id, slots, filled[way] && id < used)?;
                region.set_ring(self.objects.interface, self.objects.rings.len(), Some(offset));
                self.objects.rings.push(offset);
                if id < rings {
                    own.push(ring);
                } else if id < used {
                    of_host.push(ring);
                }
            }
        }
        own.append(&mut of_host);
        Ok(own)
    }

    /// Name of the port.
    pub fn name(&self) -> &str {
        &self.objects.name
    }

    /// Number and length of its rings.
    pub fn shape(&self) -> Shape {
        self.objects.shape
    }

    /// Offset of the descriptor of all rings.
    pub fn interface(&self) -> usize {
        self.objects.interface
    }

    /// Allocates a further descriptor, with only the rings for which `bound` returns `true` (by direction and
    /// number, in which rings of the host's stack follow those of the port). It is freed by [`Region::release_interface`].
    pub fn bind(&self, region: &mut Region, bound: impl Fn(Direction, u16) -> bool) -> Result<usize, Error> {
        let Shape { rings, host_rings, .. } = self.objects.shape;
        let interface = region.interface(&self.objects.name, self.objects.shape.counts(), self.objects.private)?;
        let places = DIRECTIONS.into_iter().enumerate().flat_map(|(way, direction)| {
            let (bound, used) = (&bound, rings[way] + host_rings[way]);
            // Programs count an empty ring of the host's, but would use it if it were bound.
            (0..rings[way] + host_rings[way].max(1)).map(move |id| id < used && bound(direction, id))
        });
        for (number, (&offset, bound)) in self.objects.rings.iter().zip(places).enumerate() {
            region.set_ring(interface, number, bound.then_some(offset));
        }
        Ok(interface)
    }

    /// Sets where frames begin in the buffers of rings: bit N of `entries` stands for entry N of the CSB. Rings that have offsets
    /// already keep them. Slots of the rings in `initial` get that offset, except those with received frames. Returns the offsets
    /// that the rings have; `None`, with nothing changed, if a ring has others that do not allow these.
    pub fn set_offsets(
        &mut self,
        region: &Region,
        entries: u64,
        asked: Offsets,
        initial: Option<(u64, u64)>,
    ) -> Option<Offsets> {
        let wanted = |entry: usize| entries & 1 << entry != 0;
        let mut known =
            self.objects.offsets.iter().enumerate().filter(|&(entry, offsets)| wanted(entry) && offsets.any());
        if !known.clone().all(|(_, offsets)| offsets.allow(asked)) {
            return None;
        }
        let granted = known.next_back().map_or(asked, |(_, offsets)| *offsets);
        let places: Vec<_> = self.places().collect();
        for (entry, (direction, place)) in places.into_iter().enumerate().filter(|&(entry, _)| wanted(entry)) {
            let offsets = if self.objects.offsets[entry].any() { self.objects.offsets[entry] } else { asked };
            self.objects.offsets[entry] = offsets;
            let ring = region.ring_at(place).expect("a ring of this port");
            ring.header().offset_mask.store(offsets.mask(), Relaxed);
            let initial = initial.filter(|(of, _)| of & 1 << entry != 0);
            for position in initial.into_iter().flat_map(|_| 0..ring.slots()) {
                let slot = ring.slot(position);
                if direction == Direction::Tx || slot.len == 0 {
                    let pointer = slot.pointer & !offsets.mask() | initial.map_or(0, |(_, initial)| initial);
                    ring.set(position, Slot { pointer, ..slot });
                }
            }
        }
        Some(granted)
    }

    /// Where frames begin in the buffers of the ring with an entry of the CSB.
    pub fn offsets(&self, entry: usize) -> Offsets {
        self.objects.offsets.get(entry).copied().unwrap_or_default()
    }

    /// Returns direction and offset of each ring in the order of CSB entries.
    fn places(&self) -> impl Iterator<Item = (Direction, usize)> {
        let host = self.objects.shape.described_host_rings();
        let [tx, _] = self.objects.shape.rings.map(usize::from);
        let behind_tx = tx + usize::from(host[0]);
        self.objects.shape.each_ring().map(move |(direction, id)| {
            let first = if direction == Direction::Tx { 0 } else { behind_tx };
            (direction, self.objects.rings[first + usize::from(id)])
        })
    }

    /// Sets whether frames are monitored that the first end of this pipe sends by a ring, or the second end.
    pub fn set_watched(&self, first_sends: bool, ring: u16, watched: bool) {
        if let Some(entry) = pipe_entry(ring.into(), first_sends) {
            self.mapped_csb().set_watched(entry + NEED_KICK_OFFSET, watched);
        }
    }

    /// The CSB, to be mapped by the other side.
    pub fn csb(&self) -> &Arc<DmaRegion> {
        &self.csb
    }

    fn mapped_csb(&self) -> Arc<Csb> {
        Arc::new(csb(&self.csb.clone().into()).expect("three pages"))
    }

    /// Returns the books of its objects.
    pub fn state(&self) -> PortMemoryState {
        self.objects.clone()
    }

    /// Goes on with the objects of a port in a region that was [resumed](Region::resume).
    ///
    /// # Errors
    /// The region has no such objects, or the CSB is too small.
    pub fn resume(region: &Region, csb: Arc<DmaRegion>, objects: PortMemoryState) -> Result<Self, &'static str> {
        let PortMemoryState { shape, interface, rings, offsets, .. } = &objects;
        let described = shape.described_host_rings();
        let all: usize = shape.rings.into_iter().chain(described).map(usize::from).sum();
        let there = rings.iter().all(|&ring| region.ring_at(ring).is_some());
        if !region.has_interface(*interface)
            || rings.len() != all
            || offsets.len() != shape.all_rings()
            || all > 2 * ENTRIES
            || !there
        {
            return Err("the rings of a port are not those of its memory");
        }
        if csb.len() < CSB_BYTES {
            return Err("the CSB of a port is too short");
        }
        Ok(Self { objects, csb })
    }

    /// Returns the rings to be served from these positions on, in the order of their CSB entries.
    ///
    /// # Errors
    /// Rings have no such positions.
    pub fn serve_from(&self, region: &Region, positions: &[Positions]) -> Result<Vec<Kring>, &'static str> {
        let csb = self.mapped_csb();
        let rings = self.places().zip(positions).zip(&self.objects.offsets).enumerate();
        let served = rings.map(|(entry, (((direction, offset), &positions), &offsets))| {
            Kring::resume((direction, region.ring_again(offset)?), (&csb, entry), positions, offsets)
        });
        let served: Option<Vec<Kring>> = served.collect();
        let all = served.filter(|served| served.len() == self.objects.shape.all_rings());
        all.ok_or("a ring does not have the positions that it was left at")
    }

    /// Frees all of it.
    pub fn release(self, region: &mut Region) {
        region.release_rings(&self.objects.rings);
        region.release_interface(self.objects.interface);
    }
}

/// Creates the memory of a CSB; zeros are the initial state of a pipe.
fn new_csb() -> Result<Arc<DmaRegion>, ringpass_memory::Error> {
    DmaRegion::new(CSB_BYTES, &RegionConfig::default())
}

fn csb(memory: &Memory) -> Option<Csb> {
    Some(Csb::new(memory, 0, PAGE, ENTRIES)?.with_shared(memory, 2 * PAGE))
}

/// Rings of a descriptor.
struct BoundRings {
    /// Number of the port's Tx rings and Rx rings, with those that the descriptor leaves out.
    own: [usize; 2],
    /// Tx rings and Rx rings, by their number among those of their direction.
    rings: [BTreeMap<usize, Ring>; 2],
}

/// Returns the rings of a descriptor as a program finds them, with these numbers of rings of the host's stack; `None` if they are
/// not all inside the memory.
fn rings(memory: &Memory, interface: usize, host_rings: [u16; 2]) -> Option<BoundRings> {
    let cells = memory.cells::<Interface>(interface, 1)?;
    let counts = [&cells[0].tx_rings, &cells[0].host_tx_rings, &cells[0].rx_rings];
    let [tx, host_tx, rx] = counts.map(|count| count.load(Relaxed) as usize);
    if tx.checked_add(rx)? > ENTRIES
        || host_tx > ENTRIES
        || host_rings.iter().any(|&rings| usize::from(rings) > ENTRIES)
    {
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
    let mut all = [BTreeMap::new(), BTreeMap::new()];
    for (way, first) in [0, tx + host_tx].into_iter().enumerate() {
        for id in 0..[tx, rx][way] + usize::from(host_rings[way]) {
            all[way].extend(ring(first + id)?.map(|ring| (id, ring)));
        }
    }
    Some(BoundRings { own: [tx, rx], rings: all })
}

/// Returns the Tx and Rx rings of a served port whose descriptor is at offset `interface`, as a program finds
/// them; `None` if they are not all inside the memory. `kick` wakes the server.
pub fn attach(memory: &Memory, interface: usize, csb_memory: &Memory, kick: &Notifier) -> Option<[Vec<PortRing>; 2]> {
    attach_each(memory, interface, [0; 2], csb_memory, |_| kick.clone())
}

/// Like [`attach`], with these numbers of rings of the host's stack, and a notifier for each ring, by the entry of the CSB.
pub fn attach_each(
    memory: &Memory,
    interface: usize,
    host_rings: [u16; 2],
    csb_memory: &Memory,
    kick: impl Fn(usize) -> Notifier,
) -> Option<[Vec<PortRing>; 2]> {
    let csb = Arc::new(csb(csb_memory)?);
    let BoundRings { own: [tx, rx], rings: [sending, receiving] } = rings(memory, interface, host_rings)?;
    // Entries are those of the Tx rings, the Rx rings, the host's Tx rings and the host's Rx rings.
    let served = |rings: BTreeMap<usize, Ring>, own: usize, [first, first_of_host]: [usize; 2]| {
        let entry = |id: usize| if id < own { first + id } else { first_of_host + id - own };
        let served =
            |(id, ring)| (entry(id) < ENTRIES).then(|| PortRing::served(ring, &csb, entry(id), &kick(entry(id))));
        rings.into_iter().map(served).collect::<Option<Vec<_>>>()
    };
    let host = tx + rx;
    Some([served(sending, tx, [0, host])?, served(receiving, rx, [tx, host + usize::from(host_rings[0])])?])
}

/// Returns the Tx and Rx rings of the first or second end of a pipe, whose descriptor is at offset `own`; that
/// of the other end, with all its rings, is at `other`. Ring N of one end belongs to ring N of the other. `notify` wakes
/// the other end. `tap` is where frames are copied to for monitors, with what wakes these.
pub fn attach_pipe(
    memory: &Memory,
    (own, other): (usize, usize),
    first: bool,
    csb_memory: &Memory,
    notify: &Notifier,
    tap: Option<(&Arc<Tap>, &Notifier)>,
) -> Option<[Vec<PortRing>; 2]> {
    let csb = Arc::new(csb(csb_memory)?);
    let [sending, receiving] = rings(memory, own, [0; 2])?.rings;
    let [mut from, mut to] = rings(memory, other, [0; 2])?.rings;
    let tx = sending.into_iter().map(|(id, own)| {
        let ring = PortRing::sender([own, to.remove(&id)?], &csb, pipe_entry(id, first)?, notify);
        let Some((tap, notify)) = tap else { return Some(ring) };
        Some(ring.with_tap(TapWriter::new(tap, tap.log(first, id)?, notify)))
    });
    let rx = receiving
        .into_iter()
        .map(|(id, own)| Some(PortRing::receiver([from.remove(&id)?, own], &csb, pipe_entry(id, !first)?, notify)));
    Some([tx.collect::<Option<_>>()?, rx.collect::<Option<_>>()?])
}

/// Returns the entry of a pipe's ring in the CSB, in the direction in which the first end sends, or the second.
fn pipe_entry(ring: usize, first_sends: bool) -> Option<usize> {
    let entry = PIPE_ENTRIES * ring + usize::from(!first_sends);
    (entry < ENTRIES).then_some(entry)
}

/// Returns the Rx rings of a monitor of a pipe, whose descriptor is at offset `interface`. It monitors the first or the second end:
/// what that sends, what it receives, or both, as `ways` says.
pub fn attach_monitor(
    memory: &Memory,
    interface: usize,
    csb_memory: &Memory,
    tap: &Arc<Tap>,
    (first, ways): (bool, [bool; 2]),
) -> Option<[Vec<PortRing>; 2]> {
    let csb = Arc::new(csb(csb_memory)?);
    let BoundRings { own: [tx, rx], rings: [_, receiving] } = rings(memory, interface, [0; 2])?;
    let ring = |(id, ring): (usize, Ring)| {
        let marks = [Flags::TX_MONITOR, Flags::default()];
        let followers = [first, !first].into_iter().zip(marks).zip(ways).filter(|(_, wanted)| *wanted);
        let followers =
            followers.map(|((first_sends, mark), _)| Some(Follower::new(tap, tap.log(first_sends, id)?, mark)));
        let followers = followers.collect::<Option<Vec<_>>>()?;
        (id < rx && tx + id < ENTRIES).then(|| PortRing::watcher(ring, (&csb, tx + id), tap, followers))
    };
    Some([Vec::new(), receiving.into_iter().map(ring).collect::<Option<_>>()?])
}
