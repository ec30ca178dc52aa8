//! Network namespaces, frames and waiting for the tests of this crate.

#![allow(dead_code)]

use std::net::{TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

pub use ringpass_lab::{Namespace, unique};
use ringpass_memory::{Burst, MAX_BATCH, Mempool, MempoolConfig};
use ringpass_port::{Port, QueuePair, chain};
use ringpass_testing::bytes_of;
pub use ringpass_testing::poll_until;

/// Creates two namespaces joined by a veth pair, `va` in the first and `vb` in the second, both up.
pub fn veth() -> (Namespace, Namespace) {
    let (a, b) = (Namespace::new(), Namespace::new());
    a.ip(&["link", "add", "name", "va", "type", "veth", "peer", "name", "vb", "netns", &b.0]);
    a.ip(&["link", "set", "va", "up"]);
    b.ip(&["link", "set", "vb", "up"]);
    // The kernel sends through them only after it has noticed the carrier.
    for (namespace, name) in [(&a, "va"), (&b, "vb")] {
        poll_until("the link", || namespace.ip(&["link", "show", name]).contains("state UP"));
    }
    (a, b)
}

pub fn pool() -> Mempool {
    Mempool::new(&MempoolConfig::default()).expect("memory for a test")
}

/// Returns the only queue pair of a port.
pub fn queues(port: &mut dyn Port) -> QueuePair {
    let mut queues = port.take_queues();
    assert_eq!(queues.len(), 1);
    queues.remove(0)
}

/// Sends all of the frames.
pub fn send(queues: &mut QueuePair, pool: &Mempool, frames: &[Vec<u8>]) {
    for some in frames.chunks(32) {
        let mut burst = burst(pool, some);
        poll_until("the port to take frames", || {
            queues.tx.tx_burst(&mut burst);
            burst.is_empty()
        });
    }
}

pub fn burst(pool: &Mempool, frames: &[Vec<u8>]) -> Burst {
    let mut burst = Burst::new(MAX_BATCH);
    for frame in frames {
        burst.push(chain([&frame[..]], || pool.alloc()).expect("the pool has buffers"));
    }
    burst
}

/// Receives what is available now.
pub fn receive(queues: &mut QueuePair) -> Vec<Vec<u8>> {
    let mut burst = Burst::new(MAX_BATCH);
    let received = queues.rx.rx_burst(&mut burst);
    assert_eq!(received, burst.len());
    burst.iter().map(bytes_of).collect()
}

/// Receives until there are `count` frames.
pub fn receive_exactly(queues: &mut QueuePair, count: usize) -> Vec<Vec<u8>> {
    let mut frames = Vec::new();
    poll_until(&format!("{count} frames"), || {
        frames.extend(receive(queues));
        frames.len() >= count
    });
    assert_eq!(frames.len(), count);
    frames
}

/// Returns a broadcast frame of an experimental EtherType, with a number and content that depends on it.
pub fn frame(number: usize, len: usize) -> Vec<u8> {
    assert!(len >= 18);
    let mut frame = vec![0xff; 6];
    frame.extend([2, 0, 0, 0, 0, 1, 0x88, 0xb5]);
    frame.extend((number as u32).to_be_bytes());
    frame.extend((18..len).map(|i| (i * 7 + number * 13) as u8));
    frame
}

/// Returns frames of many lengths.
pub fn frames(count: usize) -> Vec<Vec<u8>> {
    (0..count).map(|number| frame(number, 60 + number * 31 % 1455)).collect()
}

/// Returns the ones' complement sum (RFC 1071) of some bytes; 0xffff over data with its checksum.
pub fn sum(parts: &[&[u8]]) -> u16 {
    let bytes = parts.concat();
    let words = bytes.chunks(2).map(|word| u32::from(word[0]) << 8 | u32::from(*word.get(1).unwrap_or(&0)));
    let mut sum: u32 = words.sum();
    while sum > 0xffff {
        sum = (sum >> 16) + (sum & 0xffff);
    }
    sum as u16
}

/// Returns the ones' complement sum of an IPv4 frame's UDP or TCP part with its pseudo header; 0xffff if the
/// checksum is right.
pub fn l4_sum(frame: &[u8]) -> u16 {
    let ip = &frame[14..];
    let header = usize::from(ip[0] & 15) * 4;
    let total = usize::from(u16::from_be_bytes([ip[2], ip[3]]));
    let len = ((total - header) as u16).to_be_bytes();
    sum(&[&ip[12..20], &[0, ip[9]], &len, &ip[header..total]])
}

/// Waits for a connection, whose reads have a limit.
pub fn accept(listener: &TcpListener) -> TcpStream {
    listener.set_nonblocking(true).expect("accepting with a limit");
    let mut accepted = None;
    poll_until("a connection", || {
        accepted = listener.accept().ok();
        accepted.is_some()
    });
    let (stream, _) = accepted.expect("a connection");
    stream.set_nonblocking(false).expect("a stream that waits");
    stream.set_read_timeout(Some(Duration::from_secs(60))).expect("a timeout");
    stream
}

/// Drops this thread's capabilities.
pub fn without_capabilities() {
    use rustix::thread::{CapabilitySet, capabilities, set_capabilities};
    let mut sets = capabilities(None).expect("capabilities are read");
    sets.effective = CapabilitySet::empty();
    set_capabilities(None, sets).expect("capabilities are dropped");
}

/// Forwards packets between two queue pairs until `stop` is set.
pub fn forward(mut left: QueuePair, mut right: QueuePair, stop: &AtomicBool) {
    let mut burst = Burst::new(MAX_BATCH);
    while !stop.load(Ordering::Relaxed) {
        for (from, to) in [(&mut left.rx, &mut right.tx), (&mut right.rx, &mut left.tx)] {
            from.rx_burst(&mut burst);
            poll_until("the port to take frames", || {
                to.tx_burst(&mut burst);
                burst.is_empty()
            });
        }
        std::thread::yield_now();
    }
}
