//! Ways of the flows that a datapath has seen last, so that their packets need no look at VLANs and table.
//!
//! A way is that of a header at a port: of frames without a tag, from a station that is known at that port, to one that is known at
//! another. It holds until anything changes that it depends on ([`Epoch`]), for a second at most, so that the table learns who is still
//! there.

use std::hash::{BuildHasher, RandomState};

use crate::frame::RawHeader;

/// State that ways depend on besides their headers. All of it changes rarely.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct Epoch {
    /// Changes of the table, and of what ports may do.
    pub(crate) generation: u64,
    /// Ports that are up, one bit each.
    pub(crate) up: u64,
    /// Ports of the datapath, one bit each.
    pub(crate) present: u64,
    /// The second.
    pub(crate) now: u16,
}

#[derive(Clone, Copy)]
#[repr(align(32))]
struct Flow {
    header: RawHeader,
    /// Number of the epoch and of the port.
    tag: u64,
    way: Way,
}

/// Fate of a packet in the switch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Way(u8);

impl Way {
    /// Nothing, or something that has to be looked up elsewhere.
    pub(crate) const OTHER: Self = Self(0xff);
    /// A tag is added for the port.
    const TAGGED: u8 = 0x80;

    /// To this port, unchanged if that takes it `as_is`.
    #[inline]
    pub(crate) fn to(port: usize, as_is: bool) -> Self {
        Self(port as u8 | if as_is { 0 } else { Self::TAGGED })
    }

    /// The port that the packet goes to unchanged.
    #[inline]
    pub(crate) fn as_is(self) -> Option<usize> {
        (self.0 < Self::TAGGED).then_some(self.0.into())
    }

    /// Returns the way of all of these, if it is one.
    #[inline]
    pub(crate) fn of_all(ways: &[Self]) -> Option<Self> {
        let first = *ways.first()?;
        let differs = ways.iter().fold(0, |differs, way| differs | way.0 ^ first.0);
        (differs == 0).then_some(first)
    }

    /// The port that the packet goes to, tagged or not; not to be asked of [`OTHER`](Self::OTHER).
    #[inline]
    pub(crate) fn port(self) -> usize {
        (self.0 & !Self::TAGGED).into()
    }
}

/// Two flows, the newer one first.
#[derive(Clone, Copy)]
#[repr(align(64))]
struct Line([Flow; 2]);

/// The flows, two of which share a cache line.
pub(crate) struct Flows {
    lines: Box<[Line]>,
    /// Selects a line by a hash.
    mask: usize,
    /// Random, so that nobody can choose addresses that share a line.
    secret: [u64; 2],
    epoch: Epoch,
    /// Number of the epoch; never 0.
    number: u64,
    /// Set when many packets of the last burst belonged to no known flow.
    pub(crate) cold: bool,
    /// Flows that came up while it was cold.
    offered: u32,
}

/// Part of the flows that are remembered while most packets belong to unknown ones: there are too many for all.
const SOME: u32 = 8;

/// Lines for each port, and for all at least. Flows of which three share a line are slow.
const LINES_OF_PORT: usize = 256;
const LINES: usize = 1024;

/// Bits of a tag for the port.
const PORT_BITS: u32 = 6;

impl Flows {
    /// Creates an empty set for the flows of this many ports.
    pub(crate) fn new(ports: usize) -> Self {
        let none = Flow { header: RawHeader::NONE, tag: 0, way: Way::OTHER };
        let lines = vec![Line([none; 2]); (LINES_OF_PORT * ports).max(LINES).next_power_of_two()].into_boxed_slice();
        let mask = lines.len() - 1;
        let random = RandomState::new();
        let epoch = Epoch { generation: 0, up: 0, present: 0, now: 0 };
        Self {
            lines,
            mask,
            secret: [1, 2].map(|number| random.hash_one(number)),
            epoch,
            number: 1,
            cold: false,
            offered: 0,
        }
    }

    /// Forgets all ways if something has changed.
    #[inline]
    pub(crate) fn begin(&mut self, epoch: Epoch) {
        if self.epoch != epoch {
            self.epoch = epoch;
            self.forget();
        }
    }

    /// Forgets all ways.
    #[cold]
    pub(crate) fn forget(&mut self) {
        self.number += 1;
    }

    /// Returns the tag of the flows of a port.
    #[inline]
    pub(crate) fn tag(&self, port: usize) -> u64 {
        self.number << PORT_BITS | port as u64
    }

    #[inline]
    fn line(&self, header: RawHeader) -> usize {
        header.hash(self.secret) as usize & self.mask
    }

    /// Returns the way of a header's flow; [`OTHER`](Way::OTHER) if it is not known.
    #[inline]
    pub(crate) fn find(&self, header: RawHeader, tag: u64) -> Way {
        let is = |flow: &Flow| flow.tag == tag && flow.header == header;
        match &self.lines[self.line(header)] {
            Line([flow, _]) if is(flow) => flow.way,
            Line([_, flow]) if is(flow) => flow.way,
            _ => Way::OTHER,
        }
    }

    /// Returns whether the next flow is worth remembering.
    #[inline]
    pub(crate) fn wants_more(&mut self) -> bool {
        self.offered = self.offered.wrapping_add(1);
        !self.cold || self.offered.is_multiple_of(SOME)
    }

    /// Remembers the way of a header.
    #[inline]
    pub(crate) fn put(&mut self, header: RawHeader, tag: u64, way: Way) {
        let line = self.line(header);
        let Line(flows) = &mut self.lines[line];
        *flows = [Flow { header, tag, way }, flows[0]];
    }
}
