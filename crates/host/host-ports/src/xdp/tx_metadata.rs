//! What the kernel or the card is to do with a frame to be sent: metadata in front of it (Linux 6.8, networking/xsk-tx-metadata,
//! `struct xsk_tx_metadata`).

use ringpass_memory::{L4, Packet};
use rustix::net::xdp::XdpDescOptions;

/// Bytes in front of each frame, kept free if the socket's memory was registered with metadata.
pub(super) const LEN: usize = 24;

/// Option of a descriptor whose frame has metadata (`XDP_TX_METADATA`).
pub(super) const PRESENT: XdpDescOptions = XdpDescOptions::from_bits_retain(1 << 1);

/// Request to complete a checksum (`XDP_TXMD_FLAGS_CHECKSUM`).
const CHECKSUM: u64 = 1 << 1;

/// Writes the request for a packet's checksum in front of it. Returns `false`, and no frame may be sent, if the checksum's field is outside of its
/// first buffer: the kernel would refuse it.
pub(super) fn request_checksum(packet: &mut Packet) -> bool {
    let Some(headers) = packet.headers() else { return false };
    let offset: usize = match headers.protocol {
        L4::Tcp => 16,
        L4::Udp => 6,
    };
    let start = headers.l4_start();
    let is_inside = start + offset + 2 <= packet.len() && start <= usize::from(u16::MAX);
    if !is_inside || !packet.prepend(LEN) {
        return false;
    }
    // Start of what is summed, place of the field from there; what else may be requested is not.
    let request = start as u64 | (offset as u64) << 16;
    for (at, word) in [CHECKSUM, request, 0].into_iter().enumerate() {
        packet.write(8 * at, &word.to_ne_bytes());
    }
    packet.trim_front(LEN)
}
