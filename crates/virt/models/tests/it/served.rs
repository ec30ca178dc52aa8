//! The model served to another process (here another thread), as our vfio-user client and QEMU see it.

use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use ringpass_memory::{Burst, DmaRegion, ForeignMemory, Mempool, MempoolConfig, RegionConfig};
use ringpass_models::ixgbe::{Card, CardConfig, VfioUserFunction};
use ringpass_pci::registers::ixgbe::*;
use ringpass_pci::{DeviceId, PciDevice, VfioUser};
use ringpass_port::{QueuePair, RxQueue, WakeSource, Wakeable};
use ringpass_testing::{Sink, memfd};
use ringpass_vfio_user::{Access, CONFIG_REGION, Client, ConnectionLost, Ended, Event, Listener, MSIX, Server};
use rustix::fs::ftruncate;

const LIMIT: Duration = Duration::from_secs(60);

/// Serves a NIC while a client runs on another thread. Returns what the client returned, and the NIC.
fn during<R: Send>(client: impl FnOnce(&Path) -> R + Send) -> (R, Arc<Card>) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("card");
    let card = Card::new(&CardConfig::default());
    let mut server = Server::new(Listener::bind(&path).unwrap(), VfioUserFunction::new(card.clone()));
    let result = std::thread::scope(|scope| {
        let thread = scope.spawn(|| client(&path));
        while !thread.is_finished() {
            server.poll_once(&mut |event| assert!(!matches!(event, Event::Failed(_)), "{event:?}"));
            std::thread::yield_now();
        }
        thread.join().unwrap()
    });
    (result, card)
}

fn config(client: &mut Client, offset: u64) -> u32 {
    let mut bytes = [0; 4];
    client.read(CONFIG_REGION, offset, &mut bytes).unwrap();
    u32::from_le_bytes(bytes)
}

#[test]
fn configuration_space() {
    during(|path| {
        let mut client = Client::connect(path, LIMIT).unwrap();
        assert_eq!(config(&mut client, 0), 0x10fb_8086);
        assert_eq!(config(&mut client, 8), 0x0200_0001, "an Ethernet controller");
        // Where drivers of the family expect them: MSI-X with 64 vectors in BAR 4, PCI Express with a function
        // reset.
        assert_eq!(config(&mut client, 0x70) & 0x7ff_00ff, 0x3f_0011);
        assert_eq!((config(&mut client, 0x74), config(&mut client, 0x78)), (4, 0x2004));
        assert_eq!(config(&mut client, 0xa0) & 0xff, 0x10);
        assert_ne!(config(&mut client, 0xa4) & 1 << 28, 0);
        let sizes = [0, 1, 2, 3, 4, 5, 6, 7, 8].map(|index| client.region_info(index).unwrap().0.size);
        assert_eq!(sizes, [128 << 10, 0, 0, 0, 16 << 10, 0, 0, 4096, 0]);
        assert_eq!(client.irq_info(MSIX).unwrap().count, 64);
    });
}

#[test]
fn registers_by_messages() {
    during(|path| {
        let mut client = Client::connect(path, LIMIT).unwrap();
        let mut read = |offset: u64, len: usize| {
            let mut bytes = vec![0; len];
            client.read(0, offset, &mut bytes).unwrap();
            bytes
        };
        let address = read(RAL.at(0).offset.into(), 8);
        assert_eq!(address[..6], CardConfig::default().mac.0);
        // Parts of registers, and accesses across two.
        assert_eq!(read(u64::from(RAL.at(0).offset) + 1, 2), address[1..3]);
        assert_eq!(read(u64::from(RAL.at(0).offset) + 3, 3), address[3..6]);
        assert_eq!(read(0, 4096).len(), 4096);
        assert_eq!(read((128 << 10) - 1, 1), [0]);
        let mta = u64::from(MTA.at(0).offset);
        client.write(0, mta, &[1, 2, 3, 4, 5, 6, 7, 8]).unwrap();
        client.write(0, mta + 1, &[9]).unwrap(); // partial writes are ignored
        client.write(0, mta + 4, &[9, 9]).unwrap();
        let mut bytes = [0; 8];
        client.read(0, mta, &mut bytes).unwrap();
        assert_eq!(bytes, [1, 2, 3, 4, 5, 6, 7, 8]);
        // A function level reset, by its bit and by message: the state is as after power-on.
        for by_message in [false, true] {
            client.write(0, mta, &[1; 8]).unwrap();
            client.write(CONFIG_REGION, 4, &[0x06, 0]).unwrap();
            if by_message {
                client.reset().unwrap()
            } else {
                client.write(CONFIG_REGION, 0xa8, &[0, 0x80]).unwrap()
            }
            client.read(0, mta, &mut bytes).unwrap();
            assert_eq!((bytes, config(&mut client, 4) & 6), ([0; 8], 0));
        }
    });
}

#[test]
fn the_bus() {
    let (bus, _card) = during(|path| {
        let bus = VfioUser::open(path).unwrap();
        assert_eq!(bus.id(), DeviceId { vendor: 0x8086, device: 0x10fb });
        let window = bus.window().unwrap();
        // A doorbell accesses the register by another path; for both halves of the queues.
        for queue in [0, 1, 63, 64, 127] {
            window.doorbell(RDT.at(queue)).ring(queue as u32 + 1);
            window.doorbell(TDT.at(queue)).ring(queue as u32 + 2);
            assert_eq!(window.read(RDT.at(queue)), queue as u32 + 1);
            assert_eq!(window.read(TDT.at(queue)), queue as u32 + 2);
        }
        let region = DmaRegion::new(64 << 10, &RegionConfig::default()).unwrap();
        bus.map(&region).unwrap();
        assert!(bus.map(&region).is_err(), "twice");
        bus.set_bus_master(true).unwrap();
        bus.set_bus_master(false).unwrap();
        let events = bus.interrupts(3).unwrap();
        assert_eq!(events.len(), 3);
        bus
    });
    // The server is gone, like a NIC that was unplugged.
    let window = bus.window().unwrap();
    assert_eq!(window.read(STATUS), u32::MAX);
    window.write(CTRL, 0);
    window.doorbell(RDT.at(0)).ring(7);
    assert!(bus.set_bus_master(true).is_err());
    assert!(bus.map(&DmaRegion::new(4096, &RegionConfig::default()).unwrap()).is_err());
    let start = Instant::now();
    (0..1000).for_each(|_| assert_eq!(window.read(STATUS), u32::MAX));
    assert!(start.elapsed() < LIMIT, "gone for good, and not waited for");
}

/// A wire that delivers frames without end.
struct Endless(Mempool);

impl Wakeable for Endless {
    fn wake_sources<'a>(&'a self, each: &mut dyn FnMut(WakeSource<'a>)) {
        each(WakeSource::Polled);
    }
}

impl RxQueue for Endless {
    fn rx_burst(&mut self, burst: &mut Burst) -> usize {
        let frame = [&[0xff; 6][..], &[2; 6], &[8, 0], &[0; 86]].concat();
        let before = burst.len();
        for mut packet in std::iter::from_fn(|| self.0.alloc()).take(burst.room()) {
            assert!(packet.copy_from(&frame));
            burst.push(packet);
        }
        burst.len() - before
    }
}

const IOVA: u64 = 0x10_0000;
const MEMORY: u64 = 1 << 20;
const RING: u32 = 128;

/// Receives into memory of its own, as fast as the NIC writes, until `meanwhile` returns true. `meanwhile` gets
/// the number of frames received.
fn receive(path: &Path, mut meanwhile: impl FnMut(u32, &mut Client, &OwnedFd) -> bool) {
    let file = memfd(MEMORY);
    let memory = ForeignMemory::map(file.as_fd(), 0, MEMORY as usize).unwrap();
    let mut client = Client::connect(path, LIMIT).unwrap();
    client.dma_map(IOVA, MEMORY, (file.as_fd(), 0), Access::ReadWrite).unwrap();
    client.write(CONFIG_REGION, 4, &[0x06, 0]).unwrap();
    let post = || {
        for i in 0..u64::from(RING) {
            // SAFETY: `i < RING`, so the descriptor is in the ring, the first 2 KiB of the mapping, which lives
            // until the end of this function. The mapping is page-aligned, so the descriptor is aligned.
            unsafe { memory.as_ptr().cast::<[u64; 2]>().add(i as usize).write_volatile([IOVA + 4096 * (i + 1), 0]) };
        }
    };
    let offset = |reg: u32| u64::from(reg);
    let set = |client: &mut Client, reg: u64, value: u32| client.write(0, reg, &value.to_le_bytes());
    post();
    let one_buffer = 1 << 25 | 2;
    for (reg, value) in [
        (FCTRL.offset, 0x700),
        (RDBAL.at(0).offset, IOVA as u32),
        (RDLEN.at(0).offset, RING * 16),
        (SRRCTL.at(0).offset, one_buffer),
        (RXDCTL.at(0).offset, 1 << 25),
        (RDT.at(0).offset, RING - 1),
        (RXCTRL.offset, 1),
    ] {
        set(&mut client, offset(reg), value).unwrap();
    }
    let (start, mut before, mut received) = (Instant::now(), 0, 0);
    loop {
        assert!(start.elapsed() < LIMIT, "no end after {received} frames");
        let mut head = [0; 4];
        let Ok(()) = client.read(0, offset(RDH.at(0).offset), &mut head) else { return };
        let head = u32::from_le_bytes(head);
        received += head.wrapping_sub(before) % RING;
        before = head;
        post();
        let tail = (head + RING - 1) % RING;
        if set(&mut client, offset(RDT.at(0).offset), tail).is_err() || meanwhile(received, &mut client, &file) {
            return;
        }
    }
}

/// Serves a NIC whose wire delivers frames without end, while a client runs. Returns why the sessions ended.
fn under_traffic(client: impl FnOnce(&Path) + Send) -> Vec<Ended> {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("card");
    let card = Card::new(&CardConfig::default());
    let mut server = Server::new(Listener::bind(&path).unwrap(), VfioUserFunction::new(card.clone()));
    let pool = Mempool::new(&MempoolConfig { buffers: 1024, ..MempoolConfig::default() }).unwrap();
    let mut wire = QueuePair { rx: Box::new(Endless(pool)), tx: Box::new(Sink) };
    let mut ends = Vec::new();
    std::thread::scope(|scope| {
        let thread = scope.spawn(|| client(&path));
        while !thread.is_finished() || server.connected() {
            card.step(&mut wire);
            server.poll_once(&mut |event| {
                if let Event::Ended(why) = event {
                    ends.push(why);
                }
            });
            std::thread::yield_now();
        }
        thread.join().unwrap();
    });
    assert!(card.counters().rx_packets > 0, "no traffic: {:?}", card.counters());
    ends
}

#[test]
fn memory_that_vanishes_under_dma() {
    let ends = under_traffic(|path| {
        receive(path, |received, _, file| {
            if received > 1000 {
                ftruncate(file, 0).unwrap();
            }
            false
        });
        // The next client is served.
        receive(path, |received, _, _| received > 1000);
    });
    assert!(matches!(ends[..], [Ended::MemoryLost, Ended::Lost(ConnectionLost::Closed)]), "{ends:?}");
}

#[test]
fn memory_that_is_taken_away_under_dma() {
    let ends = under_traffic(|path| {
        let mut rounds = 0;
        receive(path, |received, client, file| {
            // Unmaps all memory, a part of it, or only the ring, and maps it again.
            let (from, len) = [(0, MEMORY), (64 << 10, 64 << 10), (0, 4096)][rounds % 3];
            client.dma_unmap(IOVA + from, len).unwrap();
            client.dma_map(IOVA + from, len, (file.as_fd(), from), Access::ReadWrite).unwrap();
            rounds += 1;
            rounds > 100 && received > 1000
        });
    });
    assert!(matches!(ends[..], [Ended::Lost(ConnectionLost::Closed)]), "{ends:?}");
}

/// A queue arms by register writes. Its thread does not wait for a server that is stopped, whether or not
/// another thread waits for a reply.
#[test]
fn writes_do_not_wait_for_a_server_that_has_stopped() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("card");
    let mut server =
        Server::new(Listener::bind(&path).unwrap(), VfioUserFunction::new(Card::new(&CardConfig::default())));
    let [stopped, ended] = [AtomicBool::new(false), AtomicBool::new(false)];
    std::thread::scope(|scope| {
        let (server, halt, end) = (&mut server, &stopped, &ended);
        scope.spawn(move || {
            while !end.load(Ordering::Relaxed) {
                if !halt.load(Ordering::Relaxed) {
                    server.poll_once(&mut |_| {});
                }
                std::thread::sleep(Duration::from_micros(100));
            }
        });
        let end = EndOnDrop(&ended);
        let bus = VfioUser::open(&path).unwrap();
        let window = bus.window().unwrap();
        let mut fastest = LIMIT;
        for round in 0..5 {
            stopped.store(true, Ordering::Relaxed);
            // Longer than one round of the server.
            std::thread::sleep(Duration::from_millis(50));
            let reader = bus.clone();
            let waiting = scope.spawn(move || reader.window().unwrap().read(STATUS));
            std::thread::sleep(Duration::from_millis(50));
            let start = Instant::now();
            for i in 0..300 {
                window.write(RAL.at(1), 1000 * round + i);
            }
            fastest = fastest.min(start.elapsed());
            stopped.store(false, Ordering::Relaxed);
            assert_ne!(waiting.join().unwrap(), u32::MAX, "answered when the server goes on");
            assert_eq!(window.read(RAL.at(1)), 1000 * round + 299, "nothing is lost, and in order");
        }
        // The reader waits for as long as the server is stopped, 5 s at most; writes must not.
        assert!(fastest < Duration::from_secs(1), "{fastest:?}");
        drop(end);
    });
}

/// Ends the server's thread, also when an assertion fails.
struct EndOnDrop<'a>(&'a AtomicBool);

impl Drop for EndOnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}
