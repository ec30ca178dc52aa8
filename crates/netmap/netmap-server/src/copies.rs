//! Copies of packets.

use ringpass_memory::{Burst, Cache, Packet};
use ringpass_port::copy_packet;

/// Appends copies of packets to a burst, as many as it has room and the pool has buffers for.
pub(crate) fn copy<'a>(packets: impl Iterator<Item = &'a Packet>, pool: &mut Cache, to: &mut Burst) {
    let copies = packets.take(to.room()).map_while(|packet| copy_packet(packet, pool));
    copies.for_each(|packet| to.push(packet));
}
