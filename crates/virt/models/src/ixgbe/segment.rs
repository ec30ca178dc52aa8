//! TCP and UDP segmentation (7.2.4): one long packet of the driver becomes many frames.

use ringpass_memory::Burst;
use ringpass_pci::registers::ixgbe::descriptor::*;

use super::checksum::word;
use super::limits::MAX_FRAME_LEN;
use super::offload::{L4, Offload, complete, copy_tagged, put};
use super::tx_context::Context;

/// A packet that is being segmented. Its bytes are in the ring that fetched them.
pub(super) struct Segments {
    offload: Offload,
    command: u64,
    tag: Option<[u8; 4]>,
    /// Length of the headers in bytes; payload bytes sent so far; segments sent so far.
    header: usize,
    sent: usize,
    count: u16,
}

impl Segments {
    /// Prepares a packet; `None` if it does not match its context.
    pub(super) fn new(bytes: &[u8], command: u64, offload: Offload, tag: Option<[u8; 4]>) -> Option<Self> {
        let header = offload.l4_at() + offload.l4_len;
        let (ip, l4) = (bytes.get(offload.mac_len..)?, bytes.get(offload.l4_at()..)?);
        let l4_shortest = match offload.l4 {
            L4::Tcp => 20,
            L4::Udp => 8,
            L4::Sctp | L4::Reserved => return None,
        };
        let ip_shortest = if offload.ipv4 { 20 } else { 40 };
        let payload = bytes.len().checked_sub(header)?;
        let fits = offload.mac_len >= 14
            && offload.ip_len >= ip_shortest
            && offload.l4_len >= l4_shortest
            && ip.len() >= ip_shortest
            && l4.len() >= l4_shortest
            && offload.mss > 0
            && header + offload.mss.min(payload) + 4 <= MAX_FRAME_LEN - 4
            && payload == (command >> TX_PAYLEN_SHIFT) as usize;
        fits.then_some(Self { offload, command, tag, header, sent: 0, count: 0 })
    }

    /// Emits as many segments as there is room for; returns whether the last one was emitted.
    pub(super) fn emit(&mut self, bytes: &[u8], out: &mut Burst, context: &mut Context) -> bool {
        loop {
            if out.room() == 0 {
                return false;
            }
            let rest = &bytes[self.header + self.sent..];
            let part = &rest[..rest.len().min(self.offload.mss)];
            let is_last = part.len() == rest.len();
            self.one(bytes, part, is_last, out, context);
            self.sent += part.len();
            self.count = self.count.wrapping_add(1);
            if is_last {
                return true;
            }
        }
    }

    /// Makes one frame (7.2.4.7).
    fn one(&self, bytes: &[u8], part: &[u8], is_last: bool, out: &mut Burst, context: &mut Context) {
        let len = self.header + part.len();
        let Some(mut packet) = context.buffers.alloc(len + 4) else {
            context.counters.tx_no_buffer += 1;
            return;
        };
        let Self { offload, command, .. } = *self;
        let (ip, l4) = (offload.mac_len, offload.l4_at());
        context.segment.clear();
        context.segment.extend_from_slice(&bytes[..self.header]);
        context.segment.extend_from_slice(part);
        let frame = &mut context.segment[..];
        let l4_total = offload.l4_len + part.len();
        if offload.ipv4 {
            put(frame, ip + 2, (offload.ip_len + l4_total) as u16);
            let identification = u16::from_be_bytes([frame[ip + 4], frame[ip + 5]]);
            put(frame, ip + 4, identification.wrapping_add(self.count));
        } else {
            put(frame, ip + 4, (offload.ip_len - 40 + l4_total) as u16);
        }
        if offload.l4 == L4::Tcp {
            let sequence: [u8; 4] = frame[l4 + 4..l4 + 8].try_into().expect("four bytes");
            let sequence = u32::from_be_bytes(sequence).wrapping_add(self.sent as u32);
            frame[l4 + 4..l4 + 8].copy_from_slice(&sequence.to_be_bytes());
            let masks = context.settings.segmentation;
            let mask = match (self.count == 0 && self.sent == 0, is_last) {
                // A packet with a single segment keeps its flags.
                (true, true) => 0xfff,
                (true, false) => masks.first,
                (false, false) => masks.middle,
                (false, true) => masks.last,
            };
            let flags = u16::from_be_bytes([frame[l4 + 12], frame[l4 + 13]]);
            put(frame, l4 + 12, flags & (mask | 0xf000));
        } else {
            put(frame, l4 + 4, l4_total as u16);
        }
        // The driver's sum of the pseudo-header does not include the length, which differs between segments.
        let ipv4 = offload.fill_ipv4_checksum(frame, command);
        let filled = ipv4.and_then(|()| match command & TX_TXSM {
            0 => Some(()),
            _ => offload.fill_l4_checksum(frame, word(l4_total as u16)),
        });
        copy_tagged(&mut packet, frame, self.tag);
        if filled.is_some() && complete(&mut packet, command, context.settings) {
            out.push(packet);
        } else {
            context.counters.tx_malformed += 1;
        }
    }
}
