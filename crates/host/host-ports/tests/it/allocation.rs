//! The packet path of every port does not allocate.

use std::path::Path;

use crate::common::*;
use ringpass_host_ports::{Capture, Faults, Null, PacketSocket, Pcap, Tap, Xdp, cable};
use ringpass_memory::{Burst, Cache, Headers, L4, MAX_BATCH, Mempool, MempoolConfig};
use ringpass_port::{FaultsConfig, Offloads, PcapConfig, Port, PortConfig, QueuePair, XdpConfig, XdpMode};
use ringpass_testing::{CountingAllocator, allocations};

#[global_allocator]
static ALLOCATOR: CountingAllocator = CountingAllocator;

/// Sends and receives at each of the ports many times. Returns how many packets were received.
fn exercise(cache: &mut Cache, ports: &mut [&mut QueuePair]) -> usize {
    let (mut sending, mut receiving) = (Burst::new(32), Burst::new(MAX_BATCH));
    let mut round = |received: &mut usize| {
        for i in 0..ports.len() {
            if sending.is_empty() {
                cache.alloc(&mut sending);
                sending.iter_mut().for_each(|packet| {
                    packet.set_len(1000);
                    packet.write(0, &[0xff; 18]);
                });
            }
            ports[i].tx.tx_burst(&mut sending);
            for port in &mut *ports {
                *received += port.rx.rx_burst(&mut receiving);
                receiving.clear();
            }
        }
    };
    let mut received = 0;
    // Thread-locals and buffers of libraries are allocated on first use.
    (0..20).for_each(|_| round(&mut received));
    received = 0;
    assert_eq!(allocations(|| (0..500).for_each(|_| round(&mut received))), 0);
    received
}

#[test]
fn bursts_allocate_nothing() {
    let directory = tempfile::tempdir().expect("a folder for a test");
    let file = |name: &str| directory.path().join(name);
    let (pool, config) = (pool(), PortConfig::default());
    let mut cache = pool.cache();

    assert_eq!(exercise(&mut cache, &mut [&mut queues(&mut Null::open(&config))]), 0);

    let all = FaultsConfig { drop: 0.1, duplicate: 0.1, reorder: 0.1, corrupt: 0.1, seed: 1 };
    let (left, mut right) = cable("c", 256);
    let left = Faults::wrap(Box::new(left), all, &pool);
    let mut left = Capture::wrap(Box::new(left), &file("capture.pcapng")).expect("a capture");
    let received = exercise(&mut cache, &mut [&mut queues(&mut left), &mut queues(&mut right)]);
    assert!(received > 20_000, "{received}");

    for name in ["x.pcap", "x.pcapng", "x.pcap.gz", "x.pcapng.zst"] {
        let open = |config: PcapConfig| Pcap::open(&config, &PortConfig::default(), &pool).expect("a capture file");
        let output = |path: &Path| PcapConfig { output: Some(path.into()), ..Default::default() };
        exercise(&mut cache, &mut [&mut queues(&mut open(output(&file(name))))]);
        let input = PcapConfig { input: Some(file(name)), repeat: 1, ..Default::default() };
        assert!(exercise(&mut cache, &mut [&mut queues(&mut open(input))]) > 5000, "{name}");
    }

    let (a, b) = veth();
    let open = |namespace: &Namespace, name: &str| namespace.enter(|| PacketSocket::open(name, &config, &pool));
    let (mut port_a, mut port_b) = (open(&a, "va").expect("a packet socket"), open(&b, "vb").expect("a packet socket"));
    let received = exercise(&mut cache, &mut [&mut queues(&mut port_a), &mut queues(&mut port_b)]);
    assert!(received > 1000, "{received}");

    drop((port_a, port_b));
    let open_xdp = |namespace: &Namespace, name: &str, mode| {
        let address = XdpConfig { interface: name.into(), mode: Some(mode), ..XdpConfig::default() };
        namespace.enter(|| Xdp::open(&address, &config, &pool)).expect("an XDP socket")
    };
    for mode in [XdpMode::Native, XdpMode::Generic] {
        let (mut port_a, mut port_b) = (open_xdp(&a, "va", mode), open_xdp(&b, "vb", mode));
        let received = exercise(&mut cache, &mut [&mut queues(&mut port_a), &mut queues(&mut port_b)]);
        assert!(received > 1000, "{received}");
    }

    let mut tap = a.enter(|| Tap::open("rp0", &config, &pool)).expect("a TAP");
    let mut behind = open(&a, "rp0").expect("a packet socket");
    let received = exercise(&mut cache, &mut [&mut queues(&mut tap), &mut queues(&mut behind)]);
    assert!(received > 1000, "{received}");

    // Frames of several buffers, with all offloads done in software.
    let offloads = Offloads { checksum: true, hash: true, vlan: true, tso: true };
    let config = PortConfig { offloads, ..config };
    let short = Mempool::new(&MempoolConfig { size: 1100, buffers: 8192, ..Default::default() }).expect("memory");
    let mut tap = a.enter(|| Tap::open("rp1", &config, &short)).expect("a TAP");
    let mut behind = a.enter(|| PacketSocket::open("rp1", &config, &short)).expect("a packet socket");
    let received = exercise(&mut cache, &mut [&mut queues(&mut tap), &mut queues(&mut behind)]);
    assert!(received > 1000, "{received}");
    let output = PcapConfig { output: Some(file("cut.pcap")), ..Default::default() };
    let mut port = Pcap::open(&output, &config, &short).expect("a capture file");
    let (mut cut, mut burst) = (queues(&mut port), Burst::new(1));
    let allocated = allocations(|| {
        for _ in 0..50 {
            let mut packet = ringpass_port::chain([&SEGMENT[..]], || cache.take(1).next()).expect("buffers");
            packet.set_vlan(1);
            packet.request_segmentation(1000, Headers { l2: 14, l3: 20, l4: 20, protocol: L4::Tcp });
            burst.push(packet);
            assert_eq!(cut.tx.tx_burst(&mut burst), 1);
        }
    });
    assert_eq!(allocated, 0);
    // All counted packets are in the file.
    drop(cut);
    assert_eq!(port.stats().tx_packets, 50 * 9);
}

/// A TCP segment over IPv4 with 9,000 bytes of payload.
static SEGMENT: [u8; 9054] = {
    let mut frame = [0; 9054];
    (frame[12], frame[14], frame[23], frame[46]) = (8, 0x45, 6, 0x50);
    frame
};
