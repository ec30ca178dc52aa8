//! Tests of both interfaces on QEMU's virtio cards, in a guest: starts queues, resets and restarts one, and
//! each time sends a frame and receives the answer. The test program itself runs in the guest too.

use std::sync::Arc;
use std::time::{Duration, Instant};

use ringpass_lab::{Builder, Guest, Iommu, Qemu, nic_address, nic_mac};
use ringpass_memory::{Addressing, DmaRegion, Mempool, MempoolConfig, PageSize, RegionConfig};
use ringpass_pci::{EventWaiter, PciDevice, addressing_of, open_pci};
use ringpass_virtio::driver::{Config, DeviceAccess, Split, Virtqueue};
use ringpass_virtio::features::{ACCESS_PLATFORM, MAC, RING_RESET, VERSION_1};
use ringpass_virtio_net::transport::{Notify, QueueSetup, Transport, find};
use rustix::thread::{CapabilitySet, capabilities, set_capabilities};

/// Boots a guest with the given cards, whose far ends answer ARP, with this program and with huge pages.
fn boot(guest: Builder, cards: &[&str]) -> Guest {
    let program = std::env::current_exe().expect("this program's file");
    let guest = cards.iter().fold(guest, |guest, card| guest.nic_with_user_network(card));
    let guest = guest.program(&program).boot();
    guest.run("echo 16 >/proc/sys/vm/nr_hugepages");
    guest
}

/// Runs a test of this file in the guest, with the given card. Returns its output.
fn inside(guest: &Guest, test: &str, card: usize) -> String {
    let program = std::env::current_exe().expect("this program's file");
    let name = program.file_name().and_then(|name| name.to_str()).expect("a name in UTF-8");
    let text = guest.run(&format!(
        "CARD={card} {name} --ignored --exact guest_transport::{test} --nocapture --test-threads 1 2>&1"
    ));
    assert!(text.contains("1 passed"), "{text}");
    println!("{text}");
    text
}

#[test]
fn cards_of_each_interface_answer() {
    for qemu in [Qemu::Newest, Qemu::V7_2] {
        let cards = [
            "virtio-net-pci,disable-modern=on",
            "virtio-net-pci,disable-legacy=off,packed=on",
            "virtio-net-pci,disable-legacy=on,queue_reset=on,modern-pio-notify=on",
        ];
        let guest = boot(Guest::new().qemu(qemu), &cards);
        let text = inside(&guest, "guest_exchanges_frames", 0);
        assert!(text.contains("legacy, I/O ports by in and out instructions"), "{text}");
        let text = inside(&guest, "guest_exchanges_frames_without_port_instructions", 0);
        assert!(text.contains("legacy, I/O ports by calls of the kernel (sysfs)"), "{text}");
        let text = inside(&guest, "guest_exchanges_frames", 1);
        assert!(text.contains("modern, registers in mapped memory\n"), "{text}");
        let text = inside(&guest, "guest_exchanges_frames", 2);
        assert!(text.contains("modern, registers in mapped memory, doorbells: I/O ports by in and out"), "{text}");
        assert!(text.contains("queue reset"), "{text}");
    }
}

#[test]
fn a_card_behind_an_iommu_interrupts() {
    let card = "virtio-net-pci,disable-legacy=on,iommu_platform=on,vectors=3";
    let guest = boot(Guest::new().iommu(Iommu::Translated), &[card]);
    guest.run(&format!(
        "modprobe vfio-pci; d=/sys/bus/pci/devices/{0}; echo vfio-pci >$d/driver_override; \
         echo {0} >$d/driver/unbind; echo {0} >/sys/bus/pci/drivers_probe",
        nic_address(0)
    ));
    let text = inside(&guest, "guest_exchanges_frames", 0);
    assert!(text.contains("modern") && text.contains("interrupted"), "{text}");
    let faults = guest.run("dmesg | grep -i 'DMAR.*fault addr' || true");
    assert_eq!(faults, "");
}

// ---- In the guest.

const SIZE: u16 = 256;
/// Bytes reserved for a queue; queues lie at multiples of this.
const ROOM: usize = 64 << 10;

struct Card {
    transport: Box<dyn Transport>,
    mac: [u8; 6],
    features: u64,
    events: Vec<EventWaiter>,
    pool: Mempool,
    region: Arc<DmaRegion>,
    bus: Arc<dyn PciDevice>,
}

impl Card {
    /// Performs steps 1 to 6 of 3.1.1.
    fn open() -> Self {
        let number = std::env::var("CARD").expect("a card's number").parse().expect("a number");
        let address = nic_address(number);
        let bus = open_pci(&address).expect("the card");
        let mut transport = find(&bus).expect("an interface");
        println!("{}", transport.description());
        transport.reset().expect("a reset");
        transport.set_status(1);
        transport.set_status(3);
        let wanted = MAC | VERSION_1 | ACCESS_PLATFORM | RING_RESET;
        let features = transport.features() & wanted;
        transport.accept(features);
        if !transport.is_legacy() {
            transport.set_status(3 | 8);
            assert_eq!(transport.status(), 3 | 8, "FEATURES_OK");
        }
        let mut mac = [0; 6];
        transport.read_config(0, &mut mac).expect("the MAC address");
        assert_eq!(mac.map(|byte| format!("{byte:02x}")).join(":"), nic_mac(number));
        let mut link = [0; 2];
        transport.read_config(6, &mut link).expect("the link's status");
        assert_eq!(u16::from_le_bytes(link), 1);
        assert_eq!([0, 1, 7].map(|queue| transport.queue_size(queue)), [SIZE, SIZE, 0]);

        // A card reached through sysfs needs physical addresses.
        let addressing = addressing_of(&address);
        let pages = if addressing == Addressing::Physical { PageSize::Huge2M } else { PageSize::Ordinary };
        let region = RegionConfig { pages, addressing, numa_node: None };
        let pool = Mempool::new(&MempoolConfig { buffers: 512, region, ..Default::default() }).expect("a pool");
        let region = DmaRegion::new(4 * ROOM, &region).expect("a region");
        bus.map(pool.region()).expect("the pool for the card");
        bus.map(&region).expect("the queues for the card");
        let events = bus.interrupts(2).expect("vectors");
        Self { transport, mac, features, events, pool, region, bus }
    }

    fn has(&self, feature: u64) -> bool {
        self.features & feature != 0
    }

    /// Starts a queue in the memory of slot `place`.
    fn start(&mut self, queue: u16, place: usize) -> (Split, Box<dyn Notify>) {
        let config = Config { size: SIZE, event_idx: false, in_order: false, indirect: 0, header: 0 };
        let ring = Split::new(&self.region, place * ROOM, &config).expect("a ring");
        let vector = (!self.events.is_empty()).then_some(queue);
        let setup = QueueSetup { size: SIZE, addresses: ring.addresses(), vector, notification_data: false };
        // SAFETY: the region is mapped for the card and lives until the card is reset; no other queue uses this
        // part of it.
        let notify = unsafe { self.transport.start_queue(queue, &setup) }.expect("a queue");
        (ring, notify)
    }

    /// Sends an ARP request for 10.0.2.2 and waits for the answer, and for the interrupts of both queues if
    /// there are any.
    fn exchange(&mut self, rx: &mut (Split, Box<dyn Notify>), tx: &mut (Split, Box<dyn Notify>)) {
        let header = if self.transport.is_legacy() { 10 } else { 12 };
        assert_eq!(rx.0.post_run(DeviceAccess::Write, self.pool.cache().packets(16)), 16);
        rx.0.arm();
        tx.0.arm();
        rx.1.notify(rx.0.publish().expect("a new queue is notified"));
        let mut frame = vec![0; header];
        frame.extend([0xff; 6]);
        frame.extend(self.mac);
        frame.extend([0x08, 0x06, 0, 1, 8, 0, 6, 4, 0, 1]);
        frame.extend(self.mac);
        frame.extend([10, 0, 2, 15, 0, 0, 0, 0, 0, 0, 10, 0, 2, 2]);
        let mut packet = self.pool.alloc().expect("a buffer");
        assert!(packet.copy_from(&frame));
        assert_eq!(tx.0.post_run(DeviceAccess::Read, std::iter::once(packet)), 1);
        tx.1.notify(tx.0.publish().expect("a new queue is notified"));

        let take = |queue: &mut Split| {
            let mut taken = Vec::new();
            let start = Instant::now();
            while taken.is_empty() {
                assert!(start.elapsed() < Duration::from_secs(30), "nothing came back");
                queue.take(16, |used, len| taken.push((used.whole(), len))).expect("a device that keeps the rules");
            }
            taken
        };
        let (mut answer, len) = take(&mut rx.0).pop().unwrap();
        answer.set_len(len as usize);
        let answer = answer.to_vec();
        assert_eq!(answer[header..header + 6], self.mac);
        assert_eq!(answer[header + 12..][..2], [0x08, 0x06]);
        assert_eq!(answer[header + 28..][..4], [10, 0, 2, 2], "who answers");
        assert_eq!(take(&mut tx.0).len(), 1);
        for event in &self.events {
            let start = Instant::now();
            while rustix::io::read(event.event(), &mut [0; 8]).is_err() {
                assert!(start.elapsed() < Duration::from_secs(30), "no interrupt");
            }
            println!("interrupted");
        }
    }
}

#[test]
#[ignore = "runs in a guest"]
fn guest_exchanges_frames_without_port_instructions() {
    let mut sets = capabilities(None).expect("this thread's capabilities");
    sets.effective.remove(CapabilitySet::SYS_RAWIO);
    sets.permitted.remove(CapabilitySet::SYS_RAWIO);
    set_capabilities(None, sets).expect("fewer capabilities");
    guest_exchanges_frames();
}

#[test]
#[ignore = "runs in a guest"]
fn guest_exchanges_frames() {
    let mut card = Card::open();
    card.bus.set_bus_master(true).expect("bus mastering");
    let (mut rx, mut tx) = (card.start(0, 0), card.start(1, 1));
    let driver_ok = card.transport.status() | 4;
    card.transport.set_status(driver_ok);
    card.exchange(&mut rx, &mut tx);
    let refused = card.transport.reset_queue(0);
    if card.has(RING_RESET) {
        refused.expect("a reset");
        // SAFETY: the card has just confirmed the reset of queue 0, so it no longer uses the queue.
        unsafe { rx.0.reclaim() };
        card.transport.reset_queue(1).expect("a reset");
        // SAFETY: the card has just confirmed the reset of queue 1, so it no longer uses the queue.
        unsafe { tx.0.reclaim() };
        (rx, tx) = (card.start(0, 2), card.start(1, 3));
        card.exchange(&mut rx, &mut tx);
        println!("and again after a queue reset");
    } else if card.transport.is_legacy() {
        assert!(refused.is_err());
    }
    if !card.transport.is_legacy() {
        // A vector that the card does not have.
        let setup = QueueSetup { size: SIZE, addresses: rx.0.addresses(), vector: Some(100), notification_data: false };
        // SAFETY: the addresses are those of the Rx ring, whose region is mapped for the card and lives until
        // the card is reset below.
        let error = unsafe { card.transport.start_queue(0, &setup) }.map(drop).expect_err("so many it has not");
        assert!(error.to_string().contains("vector 100"), "{error}");
    }
    card.transport.reset().expect("a reset");
    // SAFETY: the card has just confirmed its reset, so it no longer uses any queue.
    unsafe {
        rx.0.reclaim();
        tx.0.reclaim();
    }
}
