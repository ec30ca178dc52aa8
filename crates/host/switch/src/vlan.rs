//! VLAN membership of ports.

/// Set of VLAN IDs, 0 to 4094.
#[derive(Clone, PartialEq, Eq)]
pub struct VlanSet(Box<[u64; 64]>);

impl VlanSet {
    /// Returns the set of these IDs, ignoring those above 4094.
    pub fn of(ids: impl IntoIterator<Item = u16>) -> Self {
        let mut set = Self(Box::new([0; 64]));
        ids.into_iter().filter(|&id| id < 4095).for_each(|id| set.0[usize::from(id / 64)] |= 1 << (id % 64));
        set
    }

    /// Returns the set of all IDs that a tag may have, 1 to 4094.
    pub fn all() -> Self {
        Self::of(1..=4094)
    }

    /// Returns whether the set contains this ID.
    pub fn has(&self, id: u16) -> bool {
        self.0.get(usize::from(id / 64)).is_some_and(|word| word >> (id % 64) & 1 != 0)
    }
}

impl std::fmt::Debug for VlanSet {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_set().entries((0..4095).filter(|&id| self.has(id))).finish()
    }
}

/// The VLANs of a port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Vlans {
    /// One VLAN, whose frames have no tag on this port. Frames with a tag are refused.
    Access(u16),
    /// Several VLANs, whose frames have a tag.
    Trunk {
        /// VLANs that may pass.
        allowed: VlanSet,
        /// The VLAN of untagged frames; `None` to refuse them. 0 is the VLAN of frames that are untagged on
        /// every port.
        native: Option<u16>,
    },
}

impl Default for Vlans {
    /// Passes all VLANs unchanged. Untagged frames form a VLAN of their own.
    fn default() -> Self {
        Self::Trunk { allowed: VlanSet::all(), native: Some(0) }
    }
}

/// An ID that no tag may have.
pub(crate) const NO_VLAN: u16 = 4095;

impl Vlans {
    /// Returns the VLAN whose frames have no tag on this port; 4095 if there is none.
    pub fn untagged(&self) -> u16 {
        match *self {
            Self::Access(id) => id,
            Self::Trunk { native, .. } => native.unwrap_or(NO_VLAN),
        }
    }

    /// Returns whether frames of this VLAN may pass.
    pub(crate) fn has(&self, id: u16) -> bool {
        match self {
            Self::Access(own) => *own == id,
            Self::Trunk { allowed, native } => allowed.has(id) || *native == Some(id),
        }
    }
}
