//! Which VLANs a port has a part in.

/// Set of VLAN ids, 0 to 4095.
#[derive(Clone, PartialEq, Eq)]
pub struct VlanSet(Box<[u64; 64]>);

impl VlanSet {
    /// Of these; those above 4094 are left out.
    pub fn of(ids: impl IntoIterator<Item = u16>) -> Self {
        let mut set = Self(Box::new([0; 64]));
        ids.into_iter().filter(|&id| id < 4095).for_each(|id| set.0[usize::from(id / 64)] |= 1 << (id % 64));
        set
    }

    /// Of all ids that a tag may have, 1 to 4094.
    pub fn all() -> Self {
        Self::of(1..=4094)
    }

    /// Whether it has this one.
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
    /// One: its frames have no tag here. Frames with a tag are refused.
    Access(u16),
    /// Several: frames have a tag.
    Trunk {
        /// Those that may pass.
        allowed: VlanSet,
        /// The one whose frames have no tag; `None` to refuse such. 0 is the VLAN of frames that have none anywhere.
        native: Option<u16>,
    },
}

impl Default for Vlans {
    /// All of them as they are: frames without a tag stay among themselves.
    fn default() -> Self {
        Self::Trunk { allowed: VlanSet::all(), native: Some(0) }
    }
}

/// Not an id that a tag may have.
pub(crate) const NO_VLAN: u16 = 4095;

impl Vlans {
    /// The one whose frames have no tag here.
    pub(crate) fn untagged(&self) -> u16 {
        match *self {
            Self::Access(id) => id,
            Self::Trunk { native, .. } => native.unwrap_or(NO_VLAN),
        }
    }

    /// Whether frames of this VLAN may pass.
    pub(crate) fn has(&self, id: u16) -> bool {
        match self {
            Self::Access(own) => *own == id,
            Self::Trunk { allowed, native } => allowed.has(id) || *native == Some(id),
        }
    }
}
