//! Offloads of sent frames: checksums, VLAN tags, padding (7.2.5, 7.4.5).

use ringpass_memory::Packet;
use ringpass_pci::registers::ixgbe::descriptor::*;

use super::checksum::{fold, sum};
use super::crc::{crc32, crc32c};
use super::decode::Settings;

/// Length in bytes, without CRC, to which frames are padded.
const MIN_FRAME_LEN: usize = 60;
/// Length in bytes of the two MAC addresses, after which a tag is inserted.
const ADDRESSES: usize = 12;

/// Transport protocol that a context describes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum L4 {
    #[default]
    Udp,
    Tcp,
    Sctp,
    Reserved,
}

/// A context descriptor (7.2.3.2.3).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Offload {
    pub(super) mac_len: usize,
    pub(super) ip_len: usize,
    pub(super) l4_len: usize,
    pub(super) mss: usize,
    pub(super) vlan: u16,
    pub(super) ipv4: bool,
    pub(super) l4: L4,
}

impl Offload {
    pub(super) fn decode(first: u64, second: u64) -> Self {
        Self {
            ip_len: (first & 0x1ff) as usize,
            mac_len: (first >> 9 & 0x7f) as usize,
            vlan: (first >> 16) as u16,
            ipv4: second >> 10 & 1 != 0,
            l4: [L4::Udp, L4::Tcp, L4::Sctp, L4::Reserved][(second >> 11 & 3) as usize],
            l4_len: (second >> 40 & 0xff) as usize,
            mss: (second >> 48) as usize,
        }
    }

    /// Returns the offset of the TCP, UDP or SCTP header.
    pub(super) fn l4_at(&self) -> usize {
        self.mac_len + self.ip_len
    }

    /// Fills in the checksums that a descriptor requests; `None` if they are not inside the frame. The driver
    /// has put the sum of the pseudo-header into the field of TCP or UDP, and 0 into the others.
    pub(super) fn fill_checksums(&self, frame: &mut [u8], command: u64) -> Option<()> {
        self.fill_ipv4_checksum(frame, command)?;
        if command & TX_TXSM != 0 {
            match self.l4 {
                L4::Tcp | L4::Udp => self.fill_l4_checksum(frame, 0)?,
                L4::Sctp => {
                    let packet = frame.get_mut(self.l4_at()..).filter(|packet| packet.len() >= 12)?;
                    let checksum = crc32c(&[&packet[..8], &[0; 4], &packet[12..]]);
                    packet[8..12].copy_from_slice(&checksum.to_le_bytes());
                }
                L4::Reserved => return None,
            }
        }
        Some(())
    }

    pub(super) fn fill_ipv4_checksum(&self, frame: &mut [u8], command: u64) -> Option<()> {
        let asked = command & TX_IXSM != 0 && self.ipv4;
        if asked { insert(frame, self.mac_len..self.l4_at(), self.mac_len + 10, 0) } else { Some(()) }
    }

    /// Fills in the checksum of TCP or UDP; `more` is a part of the pseudo-header that the driver left out.
    pub(super) fn fill_l4_checksum(&self, frame: &mut [u8], more: u64) -> Option<()> {
        let at = self.l4_at() + if self.l4 == L4::Tcp { 16 } else { 6 };
        insert(frame, self.l4_at()..frame.len(), at, more)?;
        // In UDP 0 means "no checksum"; 0xffff is the same number in one's complement.
        if self.l4 == L4::Udp && frame[at..at + 2] == [0, 0] {
            put(frame, at, 0xffff);
        }
        Some(())
    }
}

/// Writes the checksum of a range, plus `more`, at `at`. The bytes already there are part of the sum.
fn insert(frame: &mut [u8], range: std::ops::Range<usize>, at: usize, more: u64) -> Option<()> {
    let inside = range.start <= at && at + 2 <= range.end;
    let checksum = !fold(sum(frame.get(range).filter(|_| inside)?) + more);
    frame[at..at + 2].copy_from_slice(&checksum.to_ne_bytes());
    Some(())
}

/// Writes the checksum from `start` on at `at`, as a legacy descriptor requests (7.2.3.2.1).
pub(super) fn insert_legacy(frame: &mut [u8], start: usize, at: usize) -> Option<()> {
    let checksum = !fold(sum(frame.get(start..)?));
    frame.get_mut(at..at + 2)?.copy_from_slice(&checksum.to_ne_bytes());
    Some(())
}

/// Writes a 16-bit number to a header.
pub(super) fn put(frame: &mut [u8], at: usize, value: u16) {
    frame[at..at + 2].copy_from_slice(&value.to_be_bytes());
}

/// Copies a frame, with a tag if there is one, into a packet that has room for it.
pub(super) fn copy_tagged(packet: &mut Packet, frame: &[u8], tag: Option<[u8; 4]>) {
    let tag = tag.as_ref().map_or(&[][..], |tag| tag);
    let at = ADDRESSES.min(frame.len());
    packet.set_len(frame.len() + tag.len());
    packet.write(0, &frame[..at]);
    packet.write(at, tag);
    packet.write(at + tag.len(), &frame[at..]);
}

/// Returns the bytes of a VLAN tag.
pub(super) fn tag(settings: &Settings, control: u16) -> [u8; 4] {
    let ([a, b], [c, d]) = (settings.vlan_type.to_be_bytes(), control.to_be_bytes());
    [a, b, c, d]
}

/// Completes a frame: appends or checks CRC and padding. The wire carries frames without CRC, so a CRC made by
/// the driver is removed. Returns `false` if the frame cannot be sent.
pub(super) fn complete(packet: &mut Packet, command: u64, settings: &Settings) -> bool {
    if command & TX_IFCS == 0 || !settings.append_crc {
        // The driver wrote the CRC itself.
        let frame = packet.to_vec();
        let Some((data, crc)) = frame.split_last_chunk().filter(|(data, _)| !data.is_empty()) else { return false };
        if crc32(data).to_le_bytes() != *crc {
            return false;
        }
        packet.set_len(data.len());
    } else if settings.pad && packet.len() < MIN_FRAME_LEN {
        let len = packet.len();
        packet.set_len(MIN_FRAME_LEN);
        packet.write(len, &[0; MIN_FRAME_LEN][len..]);
    }
    true
}
