//! Filters of received frames (5.1.6.5.1 to 5.1.6.5.3).

use ringpass_memory::Packet;

/// Largest number of addresses in a list.
const ADDRESSES: usize = 64;

/// List of addresses; `None` if the driver set more than the device can hold, in which case all addresses of
/// the kind match.
type List = Option<Vec<[u8; 6]>>;

/// Filters by MAC address and by VLAN.
pub(super) struct Filter {
    pub(super) mac: [u8; 6],
    pub(super) promiscuous: bool,
    pub(super) all_multicast: bool,
    pub(super) all_unicast: bool,
    pub(super) no_multicast: bool,
    pub(super) no_unicast: bool,
    pub(super) no_broadcast: bool,
    unicast: List,
    multicast: List,
    /// Bitmap of the VLANs to receive; `None`, without CTRL_VLAN, for all.
    vlans: Option<Box<[u64; 64]>>,
}

impl Default for Filter {
    /// Receives all frames. That holds without filter features, and until the driver sets filters.
    fn default() -> Self {
        Self {
            mac: [0; 6],
            promiscuous: true,
            all_multicast: false,
            all_unicast: false,
            no_multicast: false,
            no_unicast: false,
            no_broadcast: false,
            unicast: Some(Vec::new()),
            multicast: Some(Vec::new()),
            vlans: None,
        }
    }
}

impl Filter {
    pub(super) fn reset(&mut self, mac: [u8; 6]) {
        *self = Self { mac, ..Self::default() };
    }

    /// Enables the VLAN filter, for CTRL_VLAN. Tagged frames of a VLAN pass only once the driver adds it.
    pub(super) fn filter_vlans(&mut self) -> &mut [u64; 64] {
        self.vlans.get_or_insert_with(|| Box::new([0; 64]))
    }

    /// Sets both lists from the data of MAC_TABLE_SET, each a count and its addresses. `None` if the data is
    /// malformed.
    pub(super) fn set_lists(&mut self, data: &[u8]) -> Option<()> {
        let (unicast, rest) = list(data)?;
        let (multicast, rest) = list(rest)?;
        if !rest.is_empty() {
            return None;
        }
        (self.unicast, self.multicast) = (unicast, multicast);
        Some(())
    }

    /// Returns whether the driver receives a frame.
    pub(super) fn takes(&self, packet: &Packet) -> bool {
        let Some(to) = packet.array::<6>(0) else { return false };
        if let Some([0x81, 0, high, low]) = packet.array(12)
            && let Some(vlans) = &self.vlans
        {
            let vlan = usize::from(high & 15) << 8 | usize::from(low);
            if vlans[vlan / 64] >> (vlan % 64) & 1 == 0 {
                return false;
            }
        }
        if self.promiscuous {
            return true;
        }
        let among = |list: &List| list.as_ref().is_none_or(|list| list.contains(&to));
        if to == [0xff; 6] {
            !self.no_broadcast
        } else if to[0] & 1 != 0 {
            !self.no_multicast && (self.all_multicast || among(&self.multicast))
        } else {
            !self.no_unicast && (self.all_unicast || to == self.mac || among(&self.unicast))
        }
    }
}

/// Splits a list of addresses off the front of `data`; returns it with the rest.
fn list(data: &[u8]) -> Option<(List, &[u8])> {
    let (count, rest) = data.split_first_chunk::<4>()?;
    let count = u32::from_le_bytes(*count) as usize;
    let (addresses, rest) = rest.split_at_checked(count.checked_mul(6)?)?;
    Some(((count <= ADDRESSES).then(|| addresses.as_chunks::<6>().0.to_vec()), rest))
}
