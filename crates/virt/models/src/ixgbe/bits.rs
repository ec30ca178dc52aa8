//! Register bits that only a model needs, in addition to those that drivers use.

/// CTRL (8.2.3.1.1): PCIe master disable.
pub(super) const CTRL_MASTER_DISABLE: u32 = 1 << 2;
/// STATUS (8.2.3.1.2): link up.
pub(super) const STATUS_LINK_UP: u32 = 1 << 7;
/// STATUS: PCIe master enable status.
pub(super) const STATUS_MASTER_ENABLE: u32 = 1 << 19;
/// EERD (8.2.3.2.2): address of the word.
pub(super) const EERD_ADDRESS_SHIFT: u32 = 2;
/// EERD: the word read.
pub(super) const EERD_DATA_SHIFT: u32 = 16;
/// SWSM (8.2.3.4.11): semaphore between drivers.
pub(super) const SWSM_SMBI: u32 = 1 << 0;
/// AUTOC (8.2.3.22.19): backplane with auto-negotiation.
pub(super) const AUTOC_LMS_KX4_KX_KR: u32 = 0x8000;
/// HLREG0 (8.2.3.22.8): report frames whose length field does not match.
pub(super) const HLREG0_RXLNGTHERREN: u32 = 1 << 27;
/// MCSTCTRL (8.2.3.7.3): selects the bits of the address that are hashed.
pub(super) const MCSTCTRL_MO_MASK: u32 = 0b11;
/// VLNCTRL (8.2.3.7.2): value that the CFI bit must have.
pub(super) const VLNCTRL_CFI: u32 = 1 << 28;
/// VLNCTRL: check the CFI bit.
pub(super) const VLNCTRL_CFIEN: u32 = 1 << 29;
/// MRQC (8.2.3.7.12): multiple queues mode.
pub(super) const MRQC_MRQE_MASK: u32 = 0xf;
/// MRQC: modes with RSS: alone, in 8 and 4 traffic classes, in 32 and 64 pools.
pub(super) const MRQC_MODES_WITH_RSS: [u32; 5] = [1, 4, 5, 10, 11];
/// SRRCTL (8.2.3.8.7): descriptor format.
pub(super) const SRRCTL_DESCTYPE_MASK: u32 = 0b111 << 25;
/// SRRCTL: legacy descriptors.
pub(super) const SRRCTL_DESCTYPE_LEGACY: u32 = 0b000 << 25;
/// SRRCTL: headers have a buffer of their own.
pub(super) const SRRCTL_DESCTYPE_SPLIT: u32 = 0b010 << 25;
/// SRRCTL: the header's buffer is always used.
pub(super) const SRRCTL_DESCTYPE_SPLIT_ALWAYS: u32 = 0b101 << 25;
/// SRRCTL: size of a header's buffer, in units of 64 bytes.
pub(super) const SRRCTL_BSIZEHEADER_SHIFT: u32 = 8;
/// RXDCTL (8.2.3.8.6), X540 and later: longest frame of the queue, if the length is limited.
pub(super) const RXDCTL_RLPML_MASK: u32 = 0x3fff;
/// RXDCTL: the frame length of the queue is limited.
pub(super) const RXDCTL_RLPML_EN: u32 = 1 << 15;
/// PSRTYPE (8.2.3.7.4): split after these headers.
pub(super) const PSRTYPE_TCP: u32 = 1 << 4;
pub(super) const PSRTYPE_UDP: u32 = 1 << 5;
pub(super) const PSRTYPE_IPV4: u32 = 1 << 8;
pub(super) const PSRTYPE_IPV6: u32 = 1 << 9;
pub(super) const PSRTYPE_L2: u32 = 1 << 12;
/// PSRTYPE: number of bits of the RSS index that choose a queue of the pool.
pub(super) const PSRTYPE_RQPL_SHIFT: u32 = 29;
/// FDIRCTRL (8.2.3.21): the table is ready.
pub(super) const FDIRCTRL_INIT_DONE: u32 = 1 << 3;
/// FDIRCTRL: perfect match.
pub(super) const FDIRCTRL_PERFECT: u32 = 1 << 4;
/// FDIRCTRL: report what matched, in place of the RSS hash.
pub(super) const FDIRCTRL_REPORT: u32 = 1 << 5;
/// FDIRCTRL: report that for all frames.
pub(super) const FDIRCTRL_REPORT_ALWAYS: u32 = 1 << 7;
/// FDIRCMD (8.2.3.21): command; reads 0 when done.
pub(super) const FDIRCMD_CMD_MASK: u32 = 0b11;
pub(super) const FDIRCMD_ADD: u32 = 0b01;
pub(super) const FDIRCMD_REMOVE: u32 = 0b10;
pub(super) const FDIRCMD_QUERY: u32 = 0b11;
/// FDIRCMD: the queried filter exists.
pub(super) const FDIRCMD_FILTER_VALID: u32 = 1 << 2;
/// FDIRCMD: replace an existing filter.
pub(super) const FDIRCMD_FILTER_UPDATE: u32 = 1 << 3;
/// FDIRCMD: clear the heads of the table's lists.
pub(super) const FDIRCMD_CLEARHT: u32 = 1 << 8;
/// FDIRCMD: frames go to the drop queue.
pub(super) const FDIRCMD_DROP: u32 = 1 << 9;
/// FDIRCMD: the filter has a queue.
pub(super) const FDIRCMD_QUEUE_EN: u32 = 1 << 15;
/// FDIRM (8.2.3.21): fields that a perfect match ignores.
pub(super) const FDIRM_VLANID: u32 = 1 << 0;
pub(super) const FDIRM_VLANP: u32 = 1 << 1;
pub(super) const FDIRM_POOL: u32 = 1 << 2;
pub(super) const FDIRM_L4P: u32 = 1 << 3;
pub(super) const FDIRM_FLEX: u32 = 1 << 4;
/// MTQC (8.2.3.9): traffic classes.
pub(super) const MTQC_RT_ENA: u32 = 1 << 0;
/// PFVTCTL: frames for no pool are dropped.
pub(super) const PFVTCTL_DIS_DEF_POOL: u32 = 1 << 29;
/// PFVTCTL: frames may go to several pools.
pub(super) const PFVTCTL_RPL_EN: u32 = 1 << 30;
/// PFVML2FLT: a pool accepts multicast by the multicast table.
pub(super) const PFVML2FLT_ROMPE: u32 = 1 << 25;
/// PFVML2FLT: a pool accepts unicast by the unicast table.
pub(super) const PFVML2FLT_ROPE: u32 = 1 << 26;
/// RXPBSIZE (8.2.3.8.9): size in KiB.
pub(super) const RXPBSIZE_SHIFT: u32 = 10;

/// Rx write-back (7.1.6.2): a flow director filter matched.
pub(super) const RX_FLM: u64 = 1 << 2;
/// Rx write-back: the UDP checksum was checked.
pub(super) const RX_UDPCS: u64 = 1 << 4;
/// Rx write-back: the fragment has a UDP header with a checksum.
pub(super) const RX_UDPV: u64 = 1 << 10;
/// Rx write-back: the header does not fit into its buffer.
pub(super) const RX_HBO: u64 = 1 << 23;
/// Rx write-back, first half: RSS type that means flow director.
pub(super) const RX_RSS_TYPE_DIRECTOR: u64 = 0xf;
/// Rx write-back, first half: the packet type is the number of an EtherType filter.
pub(super) const RX_PKTTYPE_ETQF: u64 = 1 << 15;
/// Rx write-back, first half: length of the header in bytes.
pub(super) const RX_HDR_LEN_SHIFT: u32 = 21;
/// Rx write-back, first half: the header was found.
pub(super) const RX_SPH: u64 = 1 << 31;
/// Rx write-back: the address passed the multicast hash only.
pub(super) const RX_PIF: u64 = 1 << 7;
/// Tx (7.2.3.2.2), legacy: insert a checksum.
pub(super) const TX_IC: u64 = 1 << 26;
/// Tx: index of the context to use (7.2.3.2.4).
pub(super) const TX_IDX_SHIFT: u32 = 36;
/// Tx (7.2.3.2.4): type of the descriptor.
pub(super) const TX_DTYP_MASK: u64 = 0b1111 << 20;

/// Iterates over the indices of the set bits.
#[inline]
pub(super) fn set_bits(mask: u128) -> impl Iterator<Item = usize> {
    let of_half = |mut half: u64| {
        std::iter::from_fn(move || {
            let bit = half.trailing_zeros();
            half &= half.wrapping_sub(1);
            (bit < u64::BITS).then_some(bit as usize)
        })
    };
    of_half(mask as u64).chain(of_half((mask >> 64) as u64).map(|bit| bit + 64))
}
