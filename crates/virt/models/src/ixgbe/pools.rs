//! Queue pools for virtual machines (VMDq) and traffic classes (DCB): selection of the pools that get a frame
//! (7.10.3), and of the queue in a pool or class (7.1.2).

use ringpass_pci::registers::RegisterFile;
use ringpass_pci::registers::ixgbe::{bits::*, *};

use super::bits::*;
use super::filter::{Cast, hash_table_hits};

/// How pool number, traffic class and RSS index form a queue number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Layout {
    /// Queues of a pool.
    per_pool: u8,
    /// Queues of a traffic class, among all queues or within a pool.
    per_class: u8,
    classes: u8,
    rss_mask: u8,
    pools: bool,
}

impl Layout {
    /// Decodes MRQC.MRQE (8.2.3.7.12).
    fn decode(mode: u32) -> Self {
        let layout =
            |pools, per_pool, per_class, classes, rss_mask| Self { per_pool, per_class, classes, rss_mask, pools };
        match mode {
            2 => layout(false, 0, 16, 8, 0),
            3 => layout(false, 0, 32, 4, 0),
            4 => layout(false, 0, 16, 8, 15),
            5 => layout(false, 0, 32, 4, 15),
            8 => layout(true, 2, 0, 1, 0),
            10 => layout(true, 4, 0, 1, 3),
            11 => layout(true, 2, 0, 1, 1),
            12 => layout(true, 8, 1, 8, 0),
            13 => layout(true, 4, 1, 4, 0),
            _ => layout(false, 0, 0, 1, 15),
        }
    }
}

/// Pools and traffic classes, decoded from their registers.
pub(super) struct Pools {
    layout: Layout,
    /// Traffic class of each user priority.
    classes: [u8; 8],
    /// Mask of the RSS index that chooses a queue, for each pool.
    rss_masks: [u8; 64],
    switch: Option<Switch>,
}

/// Selection of pools (7.10.3.3, 7.10.3.4).
struct Switch {
    addresses: Vec<(u64, u64)>,
    vlans: Vec<(u16, u64)>,
    /// Sets of pools that accept untagged frames, multicast by hash, unicast by hash, broadcast, all multicast.
    untagged: u64,
    by_multicast_hash: u64,
    by_unicast_hash: u64,
    broadcast: u64,
    multicast: u64,
    enabled: u64,
    default_pool: Option<u8>,
    replicates: bool,
    hash_shift: Option<u32>,
    multicast_hashes: [u32; 128],
    unicast_hashes: [u32; 128],
}

impl Pools {
    /// Decodes the registers; `None` if there are neither pools nor traffic classes.
    pub(super) fn decode(registers: &RegisterFile) -> Option<Self> {
        let get = |offset| registers.get(offset);
        let mode = get(MRQC.offset) & MRQC_MRQE_MASK;
        let layout = Layout::decode(mode);
        let control = get(PFVTCTL.offset);
        let switch = (control & PFVTCTL_VT_ENA != 0 && layout.pools).then(|| Switch::decode(registers, control));
        let classes = get(RTRUP2TC.offset);
        let pools = Self {
            classes: std::array::from_fn(|priority| (classes >> (3 * priority) & 7) as u8),
            rss_masks: std::array::from_fn(|pool| {
                ((1u32 << (get(PSRTYPE.at(pool).offset) >> PSRTYPE_RQPL_SHIFT)) - 1).min(0xff) as u8
            }),
            layout,
            switch,
        };
        (pools.switch.is_some() || pools.layout.classes > 1).then_some(pools)
    }

    /// Returns whether frames are switched to pools.
    pub(super) fn switches(&self) -> bool {
        self.switch.is_some()
    }

    /// Returns the pools that get a frame, a bit each.
    pub(super) fn of(&self, address: u64, cast: Cast, tag: Option<u16>, by_type: Option<u8>) -> u64 {
        self.switch.as_ref().map_or(0, |switch| switch.pools(address, cast, tag, by_type))
    }

    /// Returns the queue of a frame in a pool, by its traffic class and its RSS index.
    pub(super) fn queue(&self, pool: u8, tag: Option<u16>, rss: u8) -> u8 {
        let Layout { per_pool, per_class, classes, rss_mask, pools } = self.layout;
        let class = self.classes[tag.map_or(0, |tag| tag >> 13) as usize] % classes;
        let rss_mask = if pools { rss_mask & self.rss_masks[pool as usize & 63] } else { rss_mask };
        // Pools beyond the last one of the layout do not exist; their queue number wraps.
        (u32::from(pool) * u32::from(per_pool) + u32::from(class * per_class) + u32::from(rss & rss_mask)) as u8 & 0x7f
    }
}

impl Switch {
    fn decode(registers: &RegisterFile, control: u32) -> Self {
        let get = |offset| registers.get(offset);
        let pair = |array: ringpass_pci::registers::RegArray<ringpass_pci::registers::RW>, i: usize| {
            u64::from(get(array.at(2 * i).offset)) | u64::from(get(array.at(2 * i + 1).offset)) << 32
        };
        let accepting = |bit: u32| {
            (0..64).filter(|&pool| get(PFVML2FLT.at(pool).offset) & bit != 0).fold(0, |set, pool| set | 1 << pool)
        };
        let multicast = get(MCSTCTRL.offset);
        Self {
            addresses: (0..128)
                .filter(|&i| get(RAH.at(i).offset) & RAH_AV != 0)
                .map(|i| {
                    let (low, high) = (get(RAL.at(i).offset), get(RAH.at(i).offset) & 0xffff);
                    (u64::from(low) | u64::from(high) << 32, pair(MPSAR, i))
                })
                .collect(),
            vlans: (0..64)
                .filter(|&i| get(PFVLVF.at(i).offset) >> 31 != 0)
                .map(|i| (get(PFVLVF.at(i).offset) as u16 & 0xfff, pair(PFVLVFB, i)))
                .collect(),
            untagged: accepting(PFVML2FLT_AUPE),
            by_multicast_hash: accepting(PFVML2FLT_ROMPE),
            by_unicast_hash: accepting(PFVML2FLT_ROPE),
            broadcast: accepting(PFVML2FLT_BAM),
            multicast: accepting(PFVML2FLT_MPE),
            enabled: u64::from(get(PFVFRE.at(0).offset)) | u64::from(get(PFVFRE.at(1).offset)) << 32,
            default_pool: (control & PFVTCTL_DIS_DEF_POOL == 0).then_some((control >> 7 & 0x3f) as u8),
            replicates: control & PFVTCTL_RPL_EN != 0,
            hash_shift: super::filter::hash_shift(multicast),
            multicast_hashes: std::array::from_fn(|i| get(MTA.at(i).offset)),
            unicast_hashes: std::array::from_fn(|i| get(PFUTA.at(i).offset)),
        }
    }

    fn pools(&self, address: u64, cast: Cast, tag: Option<u16>, by_type: Option<u8>) -> u64 {
        if let Some(pool) = by_type {
            return 1 << pool & self.enabled;
        }
        let exact = self.addresses.iter().filter(|entry| entry.0 == address).fold(0, |set, entry| set | entry.1);
        let hits = |table| self.hash_shift.is_some_and(|shift| hash_table_hits(table, shift, address));
        let by_hash = match cast {
            // Hashes only apply to addresses that have no exact match.
            Cast::Unicast if exact == 0 && hits(&self.unicast_hashes) => self.by_unicast_hash,
            Cast::Unicast => 0,
            Cast::Broadcast => self.broadcast,
            Cast::Multicast if hits(&self.multicast_hashes) => self.multicast | self.by_multicast_hash,
            Cast::Multicast => self.multicast,
        };
        // Without replication only an exact match selects a pool, and only one.
        let chosen = if self.replicates { exact | by_hash } else { exact & exact.wrapping_neg() };
        let in_vlan = match tag {
            Some(tag) => {
                let members = self.vlans.iter().filter(|entry| entry.0 == tag & 0xfff);
                chosen & members.fold(0, |set, entry| set | entry.1)
            }
            None => chosen & self.untagged,
        };
        let pools = if in_vlan == 0 { self.default_pool.map_or(0, |pool| 1 << pool) } else { in_vlan };
        pools & self.enabled
    }
}
