//! Packets and frames.

use ringpass_memory::{Mempool, Packet};
use ringpass_port::chain;

/// Returns a packet with this frame, in as many buffers as it needs.
///
/// # Panics
///
/// If the pool has too few.
pub fn packet(pool: &Mempool, frame: &[u8]) -> Packet {
    chain([frame], || pool.alloc()).expect("buffers")
}

/// Returns a packet with this frame, in buffers of up to `piece` bytes each.
///
/// # Panics
///
/// If the pool has too few, or smaller ones.
pub fn scattered(pool: &Mempool, frame: &[u8], piece: usize) -> Packet {
    let mut pieces = frame.chunks(piece).map(|bytes| {
        let mut packet = pool.alloc().expect("a buffer is left");
        assert!(packet.copy_from(bytes));
        packet
    });
    let mut packet = pieces.next().expect("a frame has bytes");
    pieces.for_each(|piece| packet.append(piece));
    packet
}

/// Returns the bytes of a packet of any number of buffers.
pub fn bytes_of(packet: &Packet) -> Vec<u8> {
    let mut bytes = vec![0; packet.total_len()];
    packet.copy_to(&mut bytes).expect("as long as the frame");
    bytes
}

/// Returns a broadcast frame of an experimental EtherType, with a number and content that depends on it.
pub fn frame(number: u32, len: usize) -> Vec<u8> {
    let header = [&[0xff; 6][..], &[2, 0, 0, 0, 0, 0xee], &[0x88, 0xb5], &number.to_be_bytes()].concat();
    header.into_iter().chain((0..).map(|i: u32| (i * 7 + i / 251 + number) as u8)).take(len).collect()
}
