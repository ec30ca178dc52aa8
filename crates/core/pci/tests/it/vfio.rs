//! VFIO in a guest, on a network card that QEMU makes (igb), used by an ordinary user. The tests themselves
//! also run in the guest.

use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use ringpass_lab::{Builder, Guest, Iommu};
use ringpass_memory::{Addressing, DmaRegion, RegionConfig};
use ringpass_pci::registers::{DMA, RO, RW, Reg, WO, Window};
use ringpass_pci::{DeviceId, EventWaiter, PciDevice, Vfio, addressing_of, open_pci};

const CARD: &str = "0000:01:00.0";

/// Returns a guest with an IOMMU, the card, and this program.
fn builder() -> Builder {
    let program = std::env::current_exe().expect("this program's file");
    Guest::new()
        .iommu(Iommu::Translated)
        .device("pcie-root-port,id=slot1,chassis=1")
        .device("igb,bus=slot1")
        .program(&program)
}

/// Runs a test of this file in the guest, as `user`, with a limit on locked memory in KiB. Returns what it
/// printed.
fn inside(guest: &Guest, user: &str, memlock: u32, test: &str) -> String {
    let program = std::env::current_exe().expect("this program's file");
    let name = program.file_name().and_then(|name| name.to_str()).expect("a name in UTF-8");
    guest.run(&format!(
        "ulimit -l {memlock}; su {user} -c '{name} --ignored --exact vfio::{test} --nocapture --test-threads 1'"
    ))
}

/// Binds the card to vfio-pci.
fn bind(guest: &Guest) {
    guest.run(&format!(
        "modprobe vfio-pci; echo vfio-pci >/sys/bus/pci/devices/{CARD}/driver_override; \
         echo {CARD} >/sys/bus/pci/drivers_probe"
    ));
}

/// Gives the card's group to the user.
fn chown(guest: &Guest) {
    guest.run(&format!("chown user /dev/vfio/$(basename $(readlink /sys/bus/pci/devices/{CARD}/iommu_group))"));
}

#[test]
fn an_ordinary_user_drives_a_card() {
    let guest = builder().boot();
    let refused = |user, test| inside(&guest, user, 8192, test);

    // Meet the obstacles one after the other; each error names its remedy.
    assert!(refused("user", "guest_is_refused").contains("driver_override"));
    bind(&guest);
    assert!(refused("user", "guest_is_refused").contains("chown $USER /dev/vfio/"));
    chown(&guest);
    let text = inside(&guest, "user", 64, "guest_maps_too_much");
    assert!(text.contains("the limit is 64 KiB") && text.contains("ulimit -l"), "{text}");

    let before = faults(&guest).len();
    let text = inside(&guest, "user", 8192, "guest_drives_the_card");
    assert!(text.contains("1 passed"), "{text}");
    assert_eq!(faults(&guest).len(), before, "{:?}", faults(&guest));

    // The card does not reach memory that it was not given, and the IOMMU reports the attempt.
    let text = inside(&guest, "user", 8192, "guest_lets_the_card_reach_too_far");
    let (_, address) = text.split_once("outside: ").expect("the address");
    let address = address.split_whitespace().next().unwrap();
    let reported = faults(&guest);
    assert!(reported.iter().any(|line| line.contains("01:00.0") && line.contains(address)), "{address}: {reported:?}");
}

#[test]
fn a_group_that_the_kernel_uses_is_refused() {
    // Behind a bridge to conventional PCI, the IOMMU cannot tell devices apart.
    let guest = Guest::new()
        .iommu(Iommu::Translated)
        .device("pcie-pci-bridge,id=bridge,addr=10")
        .device("e1000e,bus=bridge,addr=1")
        .device("e1000e,bus=bridge,addr=2")
        .program(&std::env::current_exe().expect("this program's file"))
        .boot();
    let cards = guest.run(
        "ls -d /sys/bus/pci/devices/* | while read d; do [ $(cat $d/class) = 0x020000 ] && basename $d; done; true",
    );
    let mut cards = cards.split_whitespace();
    let (first, second) = (cards.next().expect("a card"), cards.next().expect("another"));
    guest.run(&format!(
        "modprobe -a vfio-pci e1000e; for card in {first} {second}; do \
         [ -e /sys/bus/pci/devices/$card/driver ] && continue; echo $card >/sys/bus/pci/drivers_probe; done; \
         echo vfio-pci >/sys/bus/pci/devices/{first}/driver_override; \
         echo {first} >/sys/bus/pci/devices/{first}/driver/unbind; echo {first} >/sys/bus/pci/drivers_probe"
    ));
    let program = std::env::current_exe().unwrap();
    let name = program.file_name().unwrap().to_str().unwrap();
    let text = guest.run(&format!("CARD={first} {name} --ignored --exact vfio::guest_is_refused --nocapture"));
    assert!(
        text.contains("cannot tell it from other devices") && text.contains(&format!("{second} (e1000e)")),
        "{text}"
    );
}

/// Returns the faults that the IOMMU has reported.
fn faults(guest: &Guest) -> Vec<String> {
    guest.run("dmesg | grep -i 'DMAR.*fault addr' || true").lines().map(str::to_owned).collect()
}

// ---- Tests that run in the guest.

// Intel 82576 GbE Controller Datasheet, chapter 8.
const STATUS: Reg<RO> = Reg::new("STATUS", 0x0008);
const GPIE: Reg<RW> = Reg::new("GPIE", 0x1514);
const EICS: Reg<WO> = Reg::new("EICS", 0x1520);
const EIMS: Reg<RW> = Reg::new("EIMS", 0x1524);
const TCTL: Reg<RW> = Reg::new("TCTL", 0x0400);
const TDBA: [Reg<DMA>; 2] = [Reg::new("TDBAL", 0xe000), Reg::new("TDBAH", 0xe004)];
const TDLEN: Reg<RW> = Reg::new("TDLEN", 0xe008);
const TDH: Reg<RW> = Reg::new("TDH", 0xe010);
const TDT: Reg<RW> = Reg::new("TDT", 0xe018);
const TXDCTL: Reg<RW> = Reg::new("TXDCTL", 0xe028);

const LEN: usize = 64 << 10;
const FRAME: usize = 4096;
const DONE: u64 = 1 << 32;

fn card() -> String {
    std::env::var("CARD").unwrap_or_else(|_| CARD.into())
}

#[test]
#[ignore = "runs in a guest"]
fn guest_is_refused() {
    println!("{}", Vfio::open(&card()).map(drop).expect_err("a reason"));
}

#[test]
#[ignore = "runs in a guest"]
fn guest_maps_too_much() {
    let card = Vfio::open(CARD).expect("the card");
    let region = DmaRegion::new(1 << 20, &RegionConfig::default()).expect("a region");
    println!("{}", card.map(&region).expect_err("a limit"));
    let small = DmaRegion::new(8 << 10, &RegionConfig::default()).expect("a region");
    card.map(&small).expect("room for 8 KiB: nothing is left of the first attempt");
}

/// The card with its memory and its registers.
struct Card {
    bus: std::sync::Arc<dyn PciDevice>,
    window: Window,
    region: std::sync::Arc<DmaRegion>,
}

impl Card {
    fn open() -> Self {
        assert_eq!(addressing_of(CARD), Addressing::Virtual);
        let bus = open_pci(CARD).expect("the card");
        assert_eq!(bus.id(), DeviceId { vendor: 0x8086, device: 0x10c9 });
        assert!(bus.description().contains("VFIO"), "{}", bus.description());
        let region = DmaRegion::new(LEN, &RegionConfig::default()).expect("a region");
        bus.map(&region).expect("room for the region");
        bus.map(&region).expect("a second time changes nothing");
        Self { window: bus.window().unwrap(), bus, region }
    }

    fn word(&self, offset: usize) -> &AtomicU64 {
        // SAFETY: the callers pass 0 or 8, aligned offsets inside the region, which lives as long as `self`.
        // This process reaches the word by atomics only; the card writes it by DMA, which no Rust reference
        // excludes.
        unsafe { AtomicU64::from_ptr(self.region.at(offset).cast()) }
    }

    /// Sends one frame from DMA address `frame`, with an advanced data descriptor (7.2.2.3). Returns whether
    /// the card reports within a second that it is done.
    fn sends_from(&self, frame: u64) -> bool {
        const DATA: u64 = 3 << 20 | 1 << 29 | 1 << 27 | 1 << 25 | 1 << 24; // type, DEXT, RS, IFCS, EOP
        self.word(0).store(frame, Ordering::Relaxed);
        self.word(8).store(DATA | 60 | 60 << (32 + 14), Ordering::Relaxed);
        self.window.write(TXDCTL, 0);
        // SAFETY: the descriptors are at the start of the region, which is mapped for the card. The bus keeps it
        // until the device is closed.
        unsafe { self.window.write_dma(TDBA, self.region.iova(0)) };
        self.window.write(TDLEN, 128);
        self.window.write(TDH, 0);
        self.window.write(TDT, 0);
        self.window.write(TXDCTL, 1 << 25);
        self.window.set(TCTL, 1 << 1);
        self.window.doorbell(TDT).ring(1);
        let start = Instant::now();
        while self.word(8).load(Ordering::Acquire) & DONE == 0 {
            if start.elapsed() > Duration::from_secs(1) {
                return false;
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        true
    }
}

fn fired(event: &EventWaiter) -> bool {
    rustix::io::read(event.event(), &mut [0; 8]).is_ok()
}

#[test]
#[ignore = "runs in a guest"]
fn guest_drives_the_card() {
    for _ in 0..3 {
        let card = Card::open();
        assert_ne!(card.window.read(STATUS), u32::MAX);
        // Without bus mastering the card reads nothing.
        assert!(!card.sends_from(card.region.iova(FRAME)));
        card.bus.set_bus_master(true).expect("bus mastering");
        assert!(card.sends_from(card.region.iova(FRAME)));

        let events = card.bus.interrupts(3).expect("three vectors");
        assert_eq!((events.len(), events.iter().any(fired)), (3, false));
        card.window.write(GPIE, 1 << 4); // 8.8.13: MSI-X
        card.window.write(EIMS, 0b111);
        card.window.write(EICS, 0b010);
        let start = Instant::now();
        while !fired(&events[1]) {
            assert!(start.elapsed() < Duration::from_secs(30), "no interrupt");
        }
        assert!(!fired(&events[0]) && !fired(&events[2]));
        let error = card.bus.interrupts(1000).expect_err("so many it does not have").to_string();
        assert!(error.contains("1000") && error.contains("use fewer queues"), "{error}");
        // Dropped and opened again.
    }
    assert!(Path::new("/dev/vfio/vfio").exists());
}

#[test]
#[ignore = "runs in a guest"]
fn guest_lets_the_card_reach_too_far() {
    let card = Card::open();
    card.bus.set_bus_master(true).expect("bus mastering");
    let outside = DmaRegion::new(4096, &RegionConfig::default()).expect("a region of its own");
    println!("outside: {:#x}", outside.iova(0));
    // The card can access the descriptor but not the frame.
    card.sends_from(outside.iova(0));
    assert!(card.sends_from(card.region.iova(FRAME)), "it goes on with what it may reach");
}
