//! Headers in front of the frames of a port (`NETMAP_REQ_PORT_HDR_SET`): those of virtio-net, by which a program requests checksums
//! and segmentation, and learns of them.

use ringpass_memory::{Burst, MAX_BATCH, Packet};
use ringpass_netmap::run::MIN_FRAME_LEN;
use ringpass_port::Offloads;
use ringpass_virtio::net_header;

/// Lengths that a header can have: none, that of virtio-net, and that with a number of merged buffers.
pub(crate) const LENGTHS: [usize; 3] = [0, net_header::LEN, MAX_LEN];
/// Bytes of the longer header.
const MAX_LEN: usize = net_header::LEN + 2;

/// What programs may request in a header.
const OFFLOADS: Offloads = Offloads { checksum: true, hash: false, vlan: false, tso: true };

/// Returns the header of a packet, of which shorter ones are the start. The number of merged buffers is 1, as each frame has its
/// slots.
pub(super) fn of(packet: &Packet) -> [u8; MAX_LEN] {
    let mut header = [0; MAX_LEN];
    header[..net_header::LEN].copy_from_slice(&net_header::encode(packet));
    header[net_header::LEN] = 1;
    header
}

/// Takes the headers off the packets that were received since the burst had `before`; what they request, the packets request.
/// Returns the number of packets that were dropped, as their header does not match.
#[cold]
pub(super) fn take_off(burst: &mut Burst, before: usize, header_len: usize) -> usize {
    let mut packets = Burst::new(MAX_BATCH);
    while burst.len() > before {
        burst.pop().into_iter().for_each(|packet| packets.push(packet));
    }
    let received = packets.len();
    packets.retain(|packet| accept(packet, header_len));
    let dropped = received - packets.len();
    while let Some(packet) = packets.pop() {
        burst.push(packet);
    }
    dropped
}

fn accept(packet: &mut Packet, header_len: usize) -> bool {
    let header = packet.array::<{ net_header::LEN }>(0);
    let is_frame = packet.total_len() >= header_len + MIN_FRAME_LEN && packet.trim_front(header_len);
    header.is_some_and(|header| is_frame && net_header::apply(&header, 0, packet, OFFLOADS))
}
