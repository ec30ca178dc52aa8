//! Network namespaces, frames and waiting for the tests of this crate.

#![allow(dead_code)]

use std::fs::File;
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use ringpass_memory::{Burst, MAX_BATCH, Mempool, MempoolConfig};
use ringpass_port::{Port, QueuePair};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

/// A network namespace for one test, deleted with all its interfaces when dropped.
pub struct Namespace {
    pub name: String,
}

/// Returns a name of at most 15 bytes that no other test uses.
pub fn unique(prefix: &str) -> String {
    static COUNT: AtomicUsize = AtomicUsize::new(0);
    format!("{prefix}{:x}{:x}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed))
}

/// Runs a command that must succeed, and returns its output.
pub fn run(command: &[&str]) -> String {
    let output = Command::new(command[0]).args(&command[1..]).output();
    let output = output.unwrap_or_else(|error| panic!("this test needs the program {}: {error}", command[0]));
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{command:?}: {text}(tests with interfaces need root and network namespaces)");
    String::from_utf8_lossy(&output.stdout).into_owned()
}

impl Namespace {
    pub fn new() -> Self {
        let name = unique("rpt-");
        run(&["ip", "netns", "add", &name]);
        let namespace = Self { name };
        // With IPv6, the kernel would send packets of its own.
        for which in ["all", "default"] {
            let file = format!("/proc/sys/net/ipv6/conf/{which}/disable_ipv6");
            namespace.enter(|| std::fs::write(&file, "1").expect("IPv6 is switched off in a namespace"));
        }
        namespace
    }

    /// Runs `ip` in the namespace.
    pub fn ip(&self, arguments: &[&str]) -> String {
        run(&[&["ip", "-n", &self.name], arguments].concat())
    }

    /// Runs a program in the namespace.
    pub fn run(&self, command: &[&str]) -> String {
        run(&[&["ip", "netns", "exec", &self.name], command].concat())
    }

    /// Runs a closure on a thread in the namespace. Sockets opened there stay there.
    pub fn enter<R: Send>(&self, inside: impl FnOnce() -> R + Send) -> R {
        let file = File::open(format!("/run/netns/{}", self.name)).expect("the namespace has a file");
        std::thread::scope(|scope| {
            let thread = scope.spawn(|| {
                use std::os::fd::AsFd;
                move_into_link_name_space(file.as_fd(), Some(LinkNameSpaceType::Network))
                    .expect("entering a network namespace needs CAP_SYS_ADMIN");
                inside()
            });
            thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        })
    }
}

impl Drop for Namespace {
    fn drop(&mut self) {
        let _ = Command::new("ip").args(["netns", "del", &self.name]).status();
    }
}

/// Creates two namespaces joined by a veth pair, `va` in the first and `vb` in the second, both up.
pub fn veth() -> (Namespace, Namespace) {
    let (a, b) = (Namespace::new(), Namespace::new());
    a.ip(&["link", "add", "name", "va", "type", "veth", "peer", "name", "vb", "netns", &b.name]);
    a.ip(&["link", "set", "va", "up"]);
    b.ip(&["link", "set", "vb", "up"]);
    // The kernel sends through them only after it has noticed the carrier.
    for (namespace, name) in [(&a, "va"), (&b, "vb")] {
        until("the link", || namespace.ip(&["link", "show", name]).contains("state UP"));
    }
    (a, b)
}

/// Calls `done` until it returns `true`; panics after a minute.
pub fn until(what: &str, mut done: impl FnMut() -> bool) {
    let start = Instant::now();
    while !done() {
        assert!(start.elapsed() < Duration::from_secs(60), "gave up waiting for {what}");
        std::thread::yield_now();
    }
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
        until("the port to take frames", || {
            queues.tx.tx_burst(&mut burst);
            burst.is_empty()
        });
    }
}

pub fn burst(pool: &Mempool, frames: &[Vec<u8>]) -> Burst {
    let mut burst = Burst::new(MAX_BATCH);
    for frame in frames {
        let mut packet = pool.alloc().expect("the pool has a buffer");
        assert!(packet.copy_from(frame));
        burst.push(packet);
    }
    burst
}

/// Receives what is available now.
pub fn receive(queues: &mut QueuePair) -> Vec<Vec<u8>> {
    let mut burst = Burst::new(MAX_BATCH);
    let received = queues.rx.rx_burst(&mut burst);
    assert_eq!(received, burst.len());
    burst.iter().map(|packet| packet.to_vec()).collect()
}

/// Receives until there are `count` frames.
pub fn receive_exactly(queues: &mut QueuePair, count: usize) -> Vec<Vec<u8>> {
    let mut frames = Vec::new();
    until(&format!("{count} frames"), || {
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
            until("the port to take frames", || {
                to.tx_burst(&mut burst);
                burst.is_empty()
            });
        }
        std::thread::yield_now();
    }
}
