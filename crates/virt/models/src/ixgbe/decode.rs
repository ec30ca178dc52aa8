//! Register settings in the form that the packet path needs. Decoded again when a register that they depend on
//! is written.

use ringpass_pci::registers::RegisterFile;
use ringpass_pci::registers::ixgbe::{bits::*, *};

use super::bits::*;
use super::director;
use super::filter::Filter;
use super::limits::QUEUES;
use super::pools::Pools;
use super::rss::Rss;
use super::steering::Steering;

/// Settings of the whole NIC.
pub(super) struct Settings {
    pub(super) receive: bool,
    pub(super) transmit: bool,
    pub(super) loopback: bool,
    /// Longest frame in bytes, without CRC and VLAN tag.
    pub(super) longest: usize,
    pub(super) check_length: bool,
    pub(super) strip_crc: bool,
    pub(super) append_crc: bool,
    pub(super) pad: bool,
    /// Size of the Rx packet buffer in bytes.
    pub(super) packet_buffer: usize,
    pub(super) filter: Filter,
    pub(super) rss: Option<Rss>,
    pub(super) pools: Option<Pools>,
    pub(super) steering: Option<Steering>,
    pub(super) director: Option<director::Settings>,
    /// Tx queues that may send, a bit each.
    pub(super) tx_queues: u128,
    /// Rx queues that strip the VLAN tag, a bit each.
    pub(super) strip_vlan: u128,
    /// Untagged frames are delivered unchanged, to a queue that RSS alone chooses.
    pub(super) plain: bool,
    /// Checksums of IPv4 fragments are reported (7.1.11.3).
    pub(super) report_fragments: bool,
    pub(super) segmentation: SegmentFlags,
    /// EtherType of inserted VLAN tags.
    pub(super) vlan_type: u16,
}

/// Masks of the TCP header's flags in the first, the middle and the last segment (8.2.3.9.3, 8.2.3.9.4).
#[derive(Clone, Copy)]
pub(super) struct SegmentFlags {
    pub(super) first: u16,
    pub(super) middle: u16,
    pub(super) last: u16,
}

impl SegmentFlags {
    fn decode(low: u32, high: u32) -> Self {
        Self { first: low as u16 & 0xfff, middle: (low >> 16) as u16 & 0xfff, last: high as u16 & 0xfff }
    }
}

const CRC: usize = 4;
/// Longest frame without jumbo frames in bytes, with CRC (8.2.3.22.13).
const STANDARD_FRAME_LEN: usize = 1518;

impl Settings {
    pub(super) fn decode(registers: &RegisterFile) -> Self {
        let get = |offset| registers.get(offset);
        let core = get(HLREG0.offset);
        let jumbo = get(MAXFRS.offset) as usize >> 16;
        let mut settings = Self {
            receive: get(RXCTRL.offset) & RXCTRL_RXEN != 0,
            transmit: get(DMATXCTL.offset) & DMATXCTL_TE != 0 && get(RTTDCS.offset) & RTTDCS_ARBDIS == 0,
            loopback: core & HLREG0_LPBK != 0,
            longest: if core & HLREG0_JUMBOEN != 0 { jumbo.saturating_sub(CRC) } else { STANDARD_FRAME_LEN - CRC },
            check_length: core & HLREG0_RXLNGTHERREN != 0,
            strip_crc: core & HLREG0_RXCRCSTRP != 0,
            append_crc: core & HLREG0_TXCRCEN != 0,
            pad: core & HLREG0_TXPADEN != 0,
            packet_buffer: ((get(RXPBSIZE.at(0).offset) >> RXPBSIZE_SHIFT & 0x3ff) as usize) << 10,
            filter: Filter::decode(registers),
            rss: Rss::decode(registers),
            pools: Pools::decode(registers),
            steering: Steering::decode(registers),
            director: director::Settings::decode(registers),
            tx_queues: tx_queues(get(MTQC.offset), [get(PFVFTE.at(0).offset), get(PFVFTE.at(1).offset)]),
            strip_vlan: (0..QUEUES)
                .filter(|&queue| get(RXDCTL.at(queue).offset) & RXDCTL_VME != 0)
                .fold(0, |set, queue| set | 1 << queue),
            report_fragments: get(RXCSUM.offset) & (RXCSUM_PCSD | RXCSUM_IPPCSE) == RXCSUM_IPPCSE,
            segmentation: SegmentFlags::decode(get(DTXTCPFLGL.offset), get(DTXTCPFLGH.offset)),
            vlan_type: (get(DMATXCTL.offset) >> 16) as u16,
            plain: false,
        };
        let splits = |queue| {
            let kind = get(SRRCTL.at(queue).offset) & SRRCTL_DESCTYPE_MASK;
            matches!(kind, SRRCTL_DESCTYPE_SPLIT | SRRCTL_DESCTYPE_SPLIT_ALWAYS)
        };
        settings.plain = settings.strip_crc
            && !settings.report_fragments
            && settings.pools.is_none()
            && settings.steering.is_none()
            && settings.director.is_none()
            && !(0..QUEUES).any(splits);
        settings
    }

    /// Returns whether the settings depend on a register.
    pub(super) fn depend_on(id: Id) -> bool {
        use Id::*;
        matches!(
            id,
            RXCTRL
                | DMATXCTL
                | RTTDCS
                | HLREG0
                | MAXFRS
                | RXPBSIZE
                | FCTRL
                | MCSTCTRL
                | VLNCTRL
                | RAL
                | RAH
                | MTA
                | VFTA
                | MRQC
                | RSSRK
                | RETA
                | RXCSUM
                | RXDCTL
                | SRRCTL
                | DTXTCPFLGL
                | DTXTCPFLGH
                | PSRTYPE
                | ETQF
                | ETQS
                | SAQF
                | DAQF
                | SDPQF
                | FTQF
                | L34TIMIR
                | SYNQF
                | MPSAR
                | PFVTCTL
                | PFVFRE
                | PFVML2FLT
                | PFVLVF
                | PFVLVFB
                | PFUTA
                | RTRUP2TC
                | MTQC
                | PFVFTE
                | FDIRCTRL
                | FDIRHKEY
                | FDIRSKEY
                | FDIRM
                | FDIRSIP4M
                | FDIRDIP4M
                | FDIRTCPM
                | FDIRUDPM
        )
    }
}

/// Returns the Tx queues that exist according to MTQC (7.2.1.2): half of them without pools and traffic
/// classes; with pools, those of the pools that may send.
fn tx_queues(mode: u32, allowed: [u32; 2]) -> u128 {
    let per_pool = match (mode & MTQC_VT_ENA != 0, mode & MTQC_RT_ENA != 0, mode >> 2 & 3) {
        (false, false, _) => return u128::from(u64::MAX),
        (false, true, _) => return u128::MAX,
        (true, _, 1) => 2,
        (true, _, 2) => 4,
        (true, ..) => 8,
    };
    let pools = u64::from(allowed[0]) | u64::from(allowed[1]) << 32;
    (0..QUEUES).filter(|queue| pools >> (queue / per_pool) & 1 != 0).fold(0, |set, queue| set | 1 << queue)
}

/// Returns the length of a queue's ring in descriptors, given its length in bytes, if that is allowed (7.1.9,
/// 7.2.3.3).
pub(super) fn ring_len(bytes: u32) -> Option<usize> {
    let allowed = bytes > 0 && bytes.is_multiple_of(128) && bytes <= 0xF_FF80;
    allowed.then_some(bytes as usize / 16)
}

/// Returns the base address from its halves; the lowest seven bits are ignored (8.2.3.8.1, 8.2.3.9.5).
pub(super) fn ring_base(low: u32, high: u32) -> u64 {
    u64::from(high) << 32 | u64::from(low & !0x7f)
}
