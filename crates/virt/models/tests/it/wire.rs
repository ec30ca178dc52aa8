//! A scripted wire.

use ringpass_port::QueuePair;
use ringpass_testing::Wire;

/// Creates a scripted wire; returns its queues and the script.
pub fn scripted() -> (QueuePair, Wire) {
    let wire = Wire::new(256, 17_000);
    (wire.ends(), wire)
}

/// Makes a frame of `len` bytes to an address, with recognisable content.
pub fn frame(to: [u8; 6], len: usize) -> Vec<u8> {
    let header = [&to[..], &[0x02, 0, 0, 0, 0, 0xee], &[0x88, 0xb5]].concat();
    header.into_iter().chain((0..).map(|i: u32| (i * 7 + len as u32) as u8)).take(len).collect()
}
