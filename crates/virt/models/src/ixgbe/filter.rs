//! Filters of received frames by MAC address and VLAN (7.1.1).

use ringpass_memory::RawBytes;
use ringpass_pci::registers::RegisterFile;
use ringpass_pci::registers::ixgbe::{bits::*, *};

use super::bits::*;

/// Type of a destination address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Cast {
    Unicast,
    Multicast,
    Broadcast,
}

impl Cast {
    #[inline]
    pub(super) fn of(address: u64) -> Self {
        match address {
            BROADCAST => Self::Broadcast,
            multicast if multicast & 1 != 0 => Self::Multicast,
            _ => Self::Unicast,
        }
    }
}

const BROADCAST: u64 = 0xffff_ffff_ffff;

/// Returns the destination address of a frame; its first byte on the wire is the lowest, as in RAL and RAH.
#[inline]
pub(super) fn destination<'a>(frame: impl Into<RawBytes<'a>>) -> u64 {
    frame.into().array(0).map_or(0, |bytes| u64::from_le_bytes(bytes) & BROADCAST)
}

/// Result for a frame that passed.
#[derive(Clone, Copy, Debug)]
pub(super) struct FilterMatch {
    /// It passed by the hash table only, so software has to check the address (PIF, 7.1.6.2).
    pub(super) inexact: bool,
}

/// The filters, decoded from their registers.
pub(super) struct Filter {
    unicast_promiscuous: bool,
    multicast_promiscuous: bool,
    broadcast: bool,
    addresses: Vec<u64>,
    /// Lowest bit of the address that is hashed, if the hash filter is on.
    hash_shift: Option<u32>,
    hashes: [u32; 128],
    /// Hash table for unicast, with pools only.
    unicast_hashes: Option<[u32; 128]>,
    vlan: Option<Vlan>,
    pub(super) vlan_type: u16,
}

struct Vlan {
    table: [u32; 128],
    /// Required value of the CFI bit, if it is checked.
    cfi: Option<bool>,
}

impl Filter {
    pub(super) fn decode(registers: &RegisterFile) -> Self {
        let get = |offset| registers.get(offset);
        let control = get(FCTRL.offset);
        let multicast = get(MCSTCTRL.offset);
        let vlan = get(VLNCTRL.offset);
        let address = |i| (get(RAL.at(i).offset), get(RAH.at(i).offset));
        let table = |array: ringpass_pci::registers::RegArray<ringpass_pci::registers::RW>| {
            std::array::from_fn(|i| get(array.at(i).offset))
        };
        Self {
            unicast_promiscuous: control & FCTRL_UPE != 0,
            multicast_promiscuous: control & FCTRL_MPE != 0,
            broadcast: control & FCTRL_BAM != 0,
            addresses: (0..128)
                .map(address)
                .filter(|(_, high)| high & RAH_AV != 0)
                .map(|(low, high)| u64::from(low) | u64::from(high & 0xffff) << 32)
                .collect(),
            hash_shift: hash_shift(multicast),
            hashes: table(MTA),
            unicast_hashes: (get(PFVTCTL.offset) & PFVTCTL_VT_ENA != 0).then(|| table(PFUTA)),
            vlan: (vlan & VLNCTRL_VFE != 0).then(|| Vlan {
                table: table(VFTA),
                cfi: (vlan & VLNCTRL_CFIEN != 0).then_some(vlan & VLNCTRL_CFI != 0),
            }),
            vlan_type: vlan as u16,
        }
    }

    /// Returns the VLAN tag of a frame (tag control information), if it has one.
    #[inline]
    pub(super) fn tag(&self, frame: &[u8]) -> Option<u16> {
        let tag: &[u8; 4] = frame.get(12..16)?.try_into().ok()?;
        (u16::from_be_bytes([tag[0], tag[1]]) == self.vlan_type).then_some(u16::from_be_bytes([tag[2], tag[3]]))
    }

    /// Checks a frame to an address; `None` if it does not pass.
    #[inline]
    pub(super) fn check(&self, address: u64, cast: Cast, tag: Option<u16>) -> Option<FilterMatch> {
        let exact = match cast {
            Cast::Unicast => self.unicast_promiscuous,
            Cast::Multicast => self.multicast_promiscuous,
            Cast::Broadcast => self.broadcast,
        };
        let passed = if exact || self.addresses.contains(&address) {
            FilterMatch { inexact: false }
        } else if self.hash_hits(address, cast) {
            FilterMatch { inexact: true }
        } else {
            return None;
        };
        match (&self.vlan, tag) {
            (Some(vlan), Some(tag)) => vlan.takes(tag).then_some(passed),
            _ => Some(passed),
        }
    }

    fn hash_hits(&self, address: u64, cast: Cast) -> bool {
        let table = match cast {
            Cast::Multicast => Some(&self.hashes),
            Cast::Unicast => self.unicast_hashes.as_ref(),
            Cast::Broadcast => None,
        };
        table.zip(self.hash_shift).is_some_and(|(table, shift)| hash_table_hits(table, shift, address))
    }
}

/// Returns the lowest bit of an address that the hash tables use, if MCSTCTRL enables them: MO 0 selects bits
/// 47:36 of the address, 1 bits 46:35, 2 bits 45:34 and 3 bits 43:32 (8.2.3.7.3).
pub(super) fn hash_shift(control: u32) -> Option<u32> {
    (control & MCSTCTRL_MFE != 0).then_some([36, 35, 34, 32][(control & MCSTCTRL_MO_MASK) as usize])
}

pub(super) fn hash_table_hits(table: &[u32; 128], shift: u32, address: u64) -> bool {
    let hash = (address >> shift) as usize & 0xfff;
    table[hash / 32] >> (hash % 32) & 1 != 0
}

impl Vlan {
    fn takes(&self, tag: u16) -> bool {
        let id = tag as usize & 0xfff;
        let cfi = tag & 0x1000 != 0;
        self.table[id / 32] >> (id % 32) & 1 != 0 && self.cfi.is_none_or(|wanted| cfi == wanted)
    }
}
