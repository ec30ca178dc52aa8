//! Fuzz bodies: netmap's requests, and its rings with an arbitrary program, server or other end of a pipe.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use ringpass_memory::{DmaRegion, Memory, RegionConfig};
use ringpass_netmap::csb::Csb;
use ringpass_netmap::protocol::{Reply, Request};
use ringpass_netmap::request::{
    AskedMemory, AskedOffsets, Header, LegacyRequest, Mode, NewPort, PortName, Register, ValePolling, register,
};
use ringpass_netmap::{Direction, Kring, Notifier, Pools, PortRing, Region, Ring, Slot, SyncLoop};

/// Runs one case of requests. The first byte selects the kind of structure that the rest is parsed as.
pub fn requests(data: &[u8]) {
    let Some((&kind, data)) = data.split_first() else { return };
    match kind % 8 {
        0 => {
            if let Some(Ok(header)) = data.first_chunk().map(Header::parse) {
                assert!(header.name.len() < 64);
            }
        }
        1 => {
            if let Some(bytes) = data.first_chunk()
                && let Ok(register) = Register::parse(bytes)
            {
                let again = register.bytes();
                // In between lies padding, which is not kept.
                assert!(again[..44] == bytes[..44] && again[48..] == bytes[48..], "the same again");
            }
        }
        2 => {
            if let Some(bytes) = data.first_chunk()
                && let Ok(request) = LegacyRequest::parse(bytes)
            {
                let again = LegacyRequest::parse(&request.bytes()).expect("what was put together");
                assert!(again.register == request.register && again.name == request.name);
            }
        }
        4 => {
            if let Some(bytes) = data.first_chunk() {
                assert_eq!(NewPort::parse(&NewPort::parse(bytes).bytes()), NewPort::parse(bytes));
                assert_eq!(ValePolling::parse(&ValePolling::parse(bytes).bytes()), ValePolling::parse(bytes));
            }
        }
        5 => {
            if let Some((bytes, pointer)) = data.split_first_chunk()
                && let asked = AskedOffsets::parse(bytes)
                && let Ok(offsets) = asked.offsets(2048)
            {
                let pointer = pointer.iter().fold(0, |pointer, &byte| pointer << 8 | u64::from(byte));
                assert!(offsets.at(pointer) <= offsets.max() && offsets.max() <= 2048 && asked.initial <= 2048);
                assert_eq!(asked.granted(offsets).offsets(2048), Ok(offsets), "what was granted");
            }
        }
        6 => {
            if let Some(bytes) = data.first_chunk()
                && let asked = AskedMemory::parse(bytes)
                && let Some(pools) = asked.fitting()
            {
                assert!(pools.bytes() as u64 <= asked.size.next_multiple_of(4096));
            }
        }
        7 => {
            if let Some(request) = data.first_chunk().map(Request::parse) {
                assert_eq!(request.bytes(), data[..Request::LEN]);
                let _ = (request.as_status(), request.as_offsets(), request.as_external(), request.cookie());
            }
            if let Some(reply) = Reply::parse(data) {
                assert_eq!(Reply::parse(&reply.bytes()), Some(reply));
            }
        }
        _ => {
            if let Ok(text) = std::str::from_utf8(data)
                && let Ok(name) = text.parse::<PortName>()
            {
                assert!(name.port.len() < 64 && !name.port.is_empty());
                assert!(name.vale().is_some() || name.to_string().starts_with("netmap:"));
                assert!(written(&name).parse() == Ok(name), "the same again");
            }
        }
    }
}

/// Writes a name with all that it selects.
fn written(name: &PortName) -> String {
    let PortName { mode, ring, flags, memory_id, .. } = *name;
    let rings = match mode {
        Mode::OneNic => format!("-{ring}"),
        Mode::Host => "^".into(),
        Mode::OneHost => format!("^{ring}"),
        Mode::NicAndHost => "*".into(),
        _ => String::new(),
    };
    let options = [
        ('x', register::EXCLUSIVE),
        ('R', register::RX_ONLY),
        ('T', register::TX_ONLY),
        ('r', register::MONITOR_RX),
        ('t', register::MONITOR_TX),
        ('z', register::ZERO_COPY_MONITOR),
    ];
    let options: String = options.into_iter().filter(|(_, flag)| flags & flag != 0).map(|(option, _)| option).collect();
    let options = if options.is_empty() { options } else { format!("/{options}") };
    let memory = if memory_id == 0 { String::new() } else { format!("@{memory_id}") };
    format!("{name}{rings}{options}{memory}")
}

/// Creates a region with a ring.
fn ring(direction: Direction, slots: u32) -> (Region, Ring, usize) {
    let pools = Pools { interfaces: 1, ring_bytes: 4096, buffers: 200, buffer_size: 64 };
    let mut region = Region::new(pools, &RegionConfig::default()).unwrap_or_else(|error| panic!("{error}"));
    let (ring, offset) = region.ring(direction, 0, slots, true).unwrap();
    (region, ring, offset)
}

/// Splits a case into steps of four bytes: an action and two numbers; bytes above 250 stand for numbers far out of
/// range.
fn steps(data: &[u8]) -> impl Iterator<Item = (u8, u32, u32)> + '_ {
    let number = |byte: u8| if byte > 250 { u32::MAX - u32::from(byte - 250) * 0x1111 } else { byte.into() };
    data.chunks_exact(4).take(500).map(move |step| (step[0], number(step[1]), number(step[2])))
}

/// Runs one case with both sides of a ring, each of which may find arbitrary values.
pub fn rings(data: &[u8]) {
    let Some((&shape, data)) = data.split_first() else { return };
    let direction = if shape & 1 == 0 { Direction::Tx } else { Direction::Rx };
    let slots = 2 + u32::from(shape >> 1) % 60;
    let (region, ring, offset) = ring(direction, slots);
    let memory: Memory = DmaRegion::new(8192, &RegionConfig::default()).unwrap().into();
    let csb = Arc::new(Csb::new(&memory, 0, 4096, 1).unwrap());
    let mut served = Kring::new(direction, ring, &csb, 0);
    let ring = Ring::new(region.memory(), offset, slots).unwrap();
    let application = PortRing::served(ring, &csb, 0, &(Arc::new(|| ()) as _));
    for (what, a, b) in steps(data) {
        match what % 12 {
            0 => csb.write_atok(0, a, b, 0),
            1 => csb.write_ktoa(0, a, b),
            2 => application.ring().header().head.store(a, Relaxed),
            3 => application.ring().header().cur.store(a, Relaxed),
            4 => application.ring().set(a % slots, Slot { buffer: b, len: a as u16, ..Slot::default() }),
            5 => application.release_slots(a.min(application.own())),
            6 => _ = application.sync_with(b & 3),
            7 => _ = application.arm(),
            8 => {
                if let Ok(given) = served.poll_released() {
                    for n in 0..given.min(a) {
                        if let Some((start, len)) = region.check(served.ring().slot(served.hwcur_plus(n))) {
                            assert!(
                                region.memory().bytes(start, len).is_some() && start >= region.pools().buffers_at()
                            );
                        }
                    }
                    served.advance_hwcur(given.min(a));
                }
            }
            9 => served.advance_hwtail(a.min(served.room())),
            10 => _ = served.publish(),
            _ => _ = served.arm(b),
        }
        assert!(application.own() < slots && served.room() < slots);
    }
}

/// Runs one case with both ends of a pipe, each of which may find arbitrary values in the memory.
pub fn pipes(data: &[u8]) {
    let Some((&shape, data)) = data.split_first() else { return };
    let slots = 2 + u32::from(shape) % 60;
    let (mut region, _, sender) = ring(Direction::Tx, slots);
    let (_, receiver) = region.ring(Direction::Rx, 0, slots, false).unwrap();
    let memory: Memory = DmaRegion::new(8192, &RegionConfig::default()).unwrap().into();
    let csb = Arc::new(Csb::new(&memory, 0, 4096, 3).unwrap());
    let rings = || [sender, receiver].map(|offset| Ring::new(region.memory(), offset, slots).unwrap());
    let nobody: Notifier = Arc::new(|| ());
    let from = PortRing::sender(rings(), &csb, 0, &nobody);
    let to = PortRing::receiver(rings(), &csb, 0, &nobody);
    for (what, a, b) in steps(data) {
        let ring = if b & 1 == 0 { from.ring() } else { to.ring() };
        match what % 9 {
            0 => ring.header().head.store(a, Relaxed),
            1 => ring.header().cur.store(a, Relaxed),
            2 => ring.set(a % slots, Slot { buffer: b, flags: ringpass_netmap::Flags(a as u16), ..Slot::default() }),
            3 => csb.write_atok(0, a, b, 0),
            4 => csb.write_ktoa(0, a, b),
            5 => _ = from.sync(),
            6 => _ = to.sync(),
            7 => _ = from.arm(),
            _ => _ = to.arm(),
        }
    }
}

/// Runs one case with a loop between an application and a pipe, both of which may write any values: into the application's CSB, the pipe's,
/// and slots.
pub fn sync_loops(data: &[u8]) {
    let Some((&shape, data)) = data.split_first() else { return };
    let slots = 2 + u32::from(shape) % 60;
    let (mut region, _, sender) = ring(Direction::Tx, slots);
    let (_, receiver) = region.ring(Direction::Rx, 0, slots, false).unwrap();
    let memory = || Memory::from(DmaRegion::new(8192, &RegionConfig::default()).unwrap());
    let (of_pipe, csb) = (Arc::new(Csb::new(&memory(), 0, 4096, 4).unwrap()), Csb::new(&memory(), 0, 4096, 2).unwrap());
    let rings = || [sender, receiver].map(|offset| Ring::new(region.memory(), offset, slots).unwrap());
    let nobody: Notifier = Arc::new(|| ());
    // The pipe leads back to the application, so that it sees its own frames.
    let tx = [PortRing::sender(rings(), &of_pipe, 0, &nobody)];
    let rx = [PortRing::receiver(rings(), &of_pipe, 0, &nobody)];
    let mut rings = SyncLoop::new(&tx, &rx, &csb);
    for (what, a, b) in steps(data) {
        let entry = (b & 1) as usize;
        match what % 9 {
            0 => csb.write_atok(entry, a, b, what.into()),
            1 => csb.write_atok(entry, a % slots, a % slots, 0),
            2 => csb.write_ktoa(entry, a, b),
            3 => csb.set_appl_need_kick(entry, a & 1 != 0),
            4 => of_pipe.write_atok(0, a, b, 0),
            5 => of_pipe.write_ktoa(0, a, b),
            6 => tx[0]
                .ring()
                .set(a % slots, Slot { buffer: b, flags: ringpass_netmap::Flags(a as u16), ..Slot::default() }),
            7 => rings.request_kicks(a & 1 != 0, |direction| direction == Direction::Tx && b & 2 != 0),
            _ => {
                let mut calls = 0;
                let before = [0, 1].map(|entry| csb.read_ktoa(entry));
                rings.round(|ring, _| assert_eq!(ring.ring().slots(), slots), |entry| calls += entry + 1);
                assert!(calls <= 3, "each ring's application is called once");
                for (entry, before) in before.into_iter().enumerate() {
                    let (cur, tail) = csb.read_ktoa(entry);
                    assert!((cur, tail) == before || cur < slots && tail < slots, "positions that do not exist");
                }
            }
        }
    }
}
