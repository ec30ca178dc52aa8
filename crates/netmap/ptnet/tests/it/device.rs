//! Tests of the devices as a guest's driver sees them, with registers and CSB written directly.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use crate::common::{Server, event, mac, region, served, shared};
use proptest::prelude::*;
use ringpass_memory::{DmaRegion, ForeignMemory, Memory, RegionConfig};
use ringpass_netmap::csb::{Csb, Released};
use ringpass_netmap::{Direction, PortRing, Region, attach};
use ringpass_ptnet::{GuestPort, Memdev, Ptnet, SetHeaderLen};
use ringpass_vfio_user::{Access, CONFIG_REGION, Device, EventNotifier};

const PAGE: usize = 4096;
/// Device address of the guest's CSB.
const AT: u64 = 0x1_2345_6000;

/// A guest's memory, and the device of a port that may use it.
struct Guest {
    device: Ptnet,
    memory: Memory,
    csb: Csb,
    server: Server,
    /// A second view of the same rings, to inspect them.
    rings: Vec<PortRing>,
    _region: Region,
}

fn read(device: &mut dyn Device, at: u64) -> u32 {
    let mut out = [0; 4];
    device.read(0, at, &mut out);
    u32::from_le_bytes(out)
}

fn write(device: &mut dyn Device, at: u64, value: u32) {
    device.write(0, at, &value.to_le_bytes());
}

impl Guest {
    fn new(rings: u16, slots: u32) -> Self {
        Self::with_headers(rings, slots, None)
    }

    fn with_headers(rings: u16, slots: u32, set_header_len: Option<SetHeaderLen>) -> Self {
        let mut region = region(rings, slots);
        let (server, port, _) = served(&mut region, rings, slots);
        let port = GuestPort { set_header_len, ..port };
        let (interface, kick) = (port.interface as usize, Arc::new(|| ()) as ringpass_netmap::Notifier);
        let csb = server.csb.clone().into();
        let rings = attach(region.memory(), interface, &csb, &kick).unwrap().into_iter().flatten().collect();
        let file = DmaRegion::new(4 * PAGE, &RegionConfig::default()).unwrap();
        let memory = Memory::from(ForeignMemory::map(file.file().unwrap(), 0, 4 * PAGE).unwrap());
        let csb = Csb::new(&memory, PAGE, 2 * PAGE, 64).unwrap();
        Self { device: Ptnet::new(port), memory, csb, server, rings, _region: region }
    }

    fn map_csb(&mut self) {
        self.map(AT, (PAGE, 2 * PAGE), Access::ReadWrite);
    }

    /// Maps `len` bytes from `offset` of the memory.
    fn map(&mut self, iova: u64, (offset, len): (usize, usize), access: Access) {
        self.device.map(iova, self.memory.part(offset, len).unwrap(), access).unwrap();
    }

    fn say_where(&mut self) {
        for (at, value) in [(52, AT >> 32), (56, AT), (60, AT >> 32), (64, AT + PAGE as u64)] {
            write(&mut self.device, at, value as u32);
        }
    }

    /// Writes a command and returns its status.
    fn command(&mut self, command: u32) -> u32 {
        write(&mut self.device, 4, command);
        read(&mut self.device, 4)
    }

    fn started(rings: u16, slots: u32) -> Self {
        let mut guest = Self::new(rings, slots);
        guest.map_csb();
        guest.say_where();
        assert_eq!(guest.command(1), 0);
        guest
    }

    /// Returns the positions of a ring as the port's server sees them: `head`; `hwcur` and `hwtail`.
    fn stands(&self, entry: usize) -> (u32, (u32, u32)) {
        let positions = self.rings[entry].positions().unwrap();
        (self.rings[entry].passed(), (positions.hwcur(), positions.hwtail()))
    }

    /// Checks that the device no longer accesses the CSB, whatever happens.
    fn untouched(&mut self) {
        let word = 0xdead_beef;
        for entry in 0..64 {
            self.csb.write_atok(entry, word, word, word);
            self.csb.write_ktoa(entry, word, word);
            self.csb.set_kern_need_kick(entry, false);
        }
        let before = self.stands(0);
        self.device.sync_rings();
        self.device.arm();
        self.device.sync_rings();
        self.device.disarm();
        for entry in 0..64 {
            assert_eq!(self.csb.read_atok(entry), Released { head: word, cur: word, sync_flags: word });
            assert_eq!(self.csb.read_ktoa(entry), (word, word));
            assert!(!self.csb.kern_needs_kick(entry));
        }
        assert_eq!(self.stands(0), before, "nothing was passed on");
        assert!(!self.device.is_serving());
    }
}

#[test]
fn registers_lie_where_netmaps_driver_looks() {
    let mut guest = Guest::new(2, 32);
    let device = &mut guest.device;
    for (at, value) in [(8, 0x00aa_bb09), (12, 0x0200), (28, 2), (32, 2), (36, 32), (40, 32), (48, 3)] {
        assert_eq!(read(device, at), value, "{at}");
    }
    assert_eq!(mac(9).0, [2, 0, 0, 0xaa, 0xbb, 9]);
    // The driver requests features and a header, which this port cannot have.
    for at in [0, 44] {
        write(device, at, 12);
        assert_eq!(read(device, at), 0, "{at}");
    }
    let interface = read(device, 24) as usize;
    let region = &guest._region;
    let name = region.memory().cells::<ringpass_netmap::layout::Interface>(interface, 1).unwrap();
    assert_eq!(name[0].name[0].load(Relaxed), b'v');
    // Tx rings, host Tx ring, Rx rings, host Rx ring: there are no host rings for programs.
    let rings = region.memory().cells::<std::sync::atomic::AtomicU64>(interface + 56, 6).unwrap();
    assert_eq!([0, 1, 2, 3, 4, 5].map(|ring| rings[ring].load(Relaxed) != 0), [true, true, false, true, true, false]);
    assert_eq!((device.vectors(), device.region(0).size, device.region(1).size), (4, 4096, 0));
    let mut id = [0; 4];
    device.read(CONFIG_REGION, 0, &mut id);
    assert_eq!(id, [0x36, 0x1b, 0x0d, 0]);
}

/// A port whose frames can have headers of 12 bytes.
#[test]
fn headers_are_those_that_the_port_accepts() {
    let lengths = Arc::new(std::sync::Mutex::new(Vec::new()));
    let asked = lengths.clone();
    let set = move |len: u32| {
        asked.lock().unwrap().push(len);
        [0, 12].contains(&len)
    };
    let mut guest = Guest::with_headers(2, 32, Some(Box::new(set)));
    let device = &mut guest.device;
    write(device, 44, 12);
    assert_eq!(read(device, 44), 0, "without the feature");
    write(device, 0, u32::MAX);
    assert_eq!(read(device, 0), 1, "one feature is there");
    for (value, is) in [(12, 12), (12, 12), (11, 12), (u32::MAX, 12), (0, 0), (12, 12)] {
        write(device, 44, value);
        assert_eq!(read(device, 44), is, "{value}");
    }
    assert_eq!(*lengths.lock().unwrap(), [12, 11, u32::MAX, 0, 12], "only changes reach the port");
    device.reset();
    assert_eq!([0, 44].map(|at| read(device, at)), [0, 0]);
    assert_eq!(lengths.lock().unwrap().last(), Some(&0), "the next guest has none");
}

#[test]
fn the_memory_says_what_lies_in_it() {
    let mut region = region(2, 32);
    let second = [0, 1].map(|_| region.interface("x", [1; 4], true).unwrap())[1];
    let (_, ring) = region.ring(Direction::Tx, 0, 32, true).unwrap();
    let (pools, len) = (*region.pools(), region.bytes());
    let mut device = Memdev::new(shared(&region, 0x1234));
    for (at, value) in
        [(0, len), (4, 0), (8, 0x1234), (64, 0), (68, 4), (72, second), (76, ring), (80, 1), (88, pools.buffers_at())]
    {
        assert_eq!(read(&mut device, at) as usize, value, "{at}");
    }
    assert_eq!([92, 96].map(|at| read(&mut device, at)), [pools.buffers, pools.buffer_size]);
    write(&mut device, 8, 7);
    assert_eq!(read(&mut device, 8), 0x1234);
    let memory = device.region(1);
    assert!(memory.size.is_power_of_two() && memory.size >= len as u64 && !len.is_power_of_two());
    let mapping = memory.mapping.unwrap();
    assert_eq!(mapping.areas.iter().map(|area| (area.offset, area.size)).collect::<Vec<_>>(), [(0, len as u64)]);
    // Access by messages also works, up to the end of the memory.
    device.write(1, len as u64 - 2, &[5, 6, 7, 8]);
    let mut out = [9; 5];
    device.read(1, len as u64 - 3, &mut out);
    assert_eq!(out, [0, 5, 6, 0, 0]);
    device.write(1, memory_size(&device) - 1, &[1]);
    device.read(1, memory_size(&device) - 1, &mut out[..1]);
    assert_eq!(out[0], 0);
}

fn memory_size(device: &Memdev) -> u64 {
    device.region(1).size
}

#[test]
fn a_guest_starts_stops_and_the_next_one_goes_on() {
    let mut guest = Guest::new(1, 16);
    guest.say_where();
    assert_ne!(guest.command(1), 0, "there is no such memory");
    guest.map_csb();
    assert_eq!((guest.command(1), guest.command(1)), (0, 0), "and once more");
    assert_eq!(guest.csb.read_atok(0), Released::default());
    assert_eq!([0, 1].map(|entry| guest.csb.read_ktoa(entry)), [(0, 15), (0, 0)]);
    // Five slots are sent, of which the server consumes three.
    guest.csb.write_atok(0, 5, 5, 0);
    assert_eq!(guest.device.sync_rings(), 0, "passed on, and nothing is different yet");
    assert_eq!(guest.stands(0), (5, (0, 15)));
    guest.server.served[0].advance_hwcur(3);
    guest.server.served[0].advance_hwtail(2);
    guest.server.served[0].publish();
    assert_eq!(guest.device.sync_rings(), 2, "slots by which the port's side has moved");
    assert_eq!(guest.csb.read_ktoa(0), (3, 1));
    // Positions written right before the command are passed on.
    guest.csb.write_atok(0, 7, 9, 0);
    assert_eq!((guest.command(2), guest.command(2)), (0, 0));
    guest.untouched();
    assert_eq!(guest.stands(0), (7, (3, 1)));
    assert_eq!(guest.command(1), 0);
    assert_eq!(guest.csb.read_atok(0), Released { head: 7, cur: 7, sync_flags: 0 });
    assert_eq!(guest.csb.read_ktoa(0), (3, 1));
    assert_ne!(guest.command(77), 0, "no such command");
    assert_eq!(guest.device.counters().get().creates, 3);
}

#[test]
fn whatever_ends_it_ends_it_at_once() {
    let mut config = [0; 2];
    let ends: [fn(&mut Guest); 5] = [
        |guest| guest.device.reset(),
        |guest| guest.device.unmap(AT, PAGE as u64).unwrap(),
        |guest| guest.device.unmap(0, 1 << 63).unwrap(),
        // Turn off bus mastering, which was on.
        |guest| guest.device.write(CONFIG_REGION, 4, &[2, 0]),
        // Power state D3 and back.
        |guest| {
            guest.device.write(CONFIG_REGION, 0x44, &[3, 0]);
            guest.device.write(CONFIG_REGION, 0x44, &[0, 0]);
        },
    ];
    for end in ends {
        let mut guest = Guest::started(1, 16);
        guest.device.write(CONFIG_REGION, 4, &[6, 0]);
        guest.device.read(CONFIG_REGION, 4, &mut config);
        assert!(config[0] == 6 && guest.device.is_serving());
        guest.csb.write_atok(0, 5, 5, 0);
        guest.device.sync_rings();
        end(&mut guest);
        guest.untouched();
        assert_eq!(guest.stands(0), (5, (0, 15)));
    }
}

/// Memory mapped again at the same address continues to be used.
#[test]
fn memory_that_comes_back() {
    let mut guest = Guest::started(1, 16);
    guest.device.unmap(AT, PAGE as u64).unwrap();
    guest.csb.write_atok(0, 5, 5, 0);
    guest.device.sync_rings();
    assert_eq!(guest.stands(0).0, 0);
    guest.map(AT, (PAGE, PAGE), Access::Read);
    assert!(!guest.device.is_serving(), "to be read only");
    guest.device.unmap(AT, PAGE as u64).unwrap();
    guest.map(AT, (PAGE, PAGE), Access::ReadWrite);
    guest.device.sync_rings();
    assert_eq!(guest.stands(0).0, 5);
}

#[test]
fn a_word_that_cannot_be_is_counted_and_stays_with_the_guest() {
    let mut guest = Guest::started(1, 16);
    for (n, (head, cur)) in [(16, 16), (3, 2), (u32::MAX, 0), (0, 15 + 1)].into_iter().enumerate() {
        guest.csb.write_atok(0, head, cur, 0);
        assert_eq!((guest.device.sync_rings(), guest.device.sync_rings()), (0, 0));
        assert_eq!((guest.device.counters().get().invalid_positions, guest.stands(0)), (n as u64 + 1, (0, (0, 15))));
    }
    guest.csb.write_atok(0, 4, 8, 0);
    guest.device.sync_rings();
    assert_eq!(guest.stands(0).0, 4);
}

/// Returns whether an eventfd was signalled, and resets it.
fn rung(event: &OwnedFd) -> bool {
    rustix::io::read(event, &mut [0; 8]).is_ok()
}

#[test]
fn interrupts_and_kicks_only_where_enabled() {
    let mut guest = Guest::started(1, 16);
    let events = [event(), event()];
    for (vector, event) in (0..).zip(&events) {
        guest.device.set_vector(vector, Some(EventNotifier::new(event.try_clone().unwrap()).unwrap()));
    }
    assert!(events.iter().all(rung), "something may have happened before");
    let receive = |guest: &mut Guest| {
        guest.server.served[1].advance_hwtail(1);
        guest.server.served[1].publish();
        guest.device.sync_rings();
    };
    receive(&mut guest);
    assert!(!events.iter().any(rung), "nobody asked");
    guest.csb.set_appl_need_kick(1, true);
    receive(&mut guest);
    receive(&mut guest);
    assert_eq!(events.each_ref().map(rung), [false, true]);
    guest.device.sync_rings();
    assert!(!rung(&events[1]), "nothing has come");
    // Before a sleep, the device wants kicks and asks its port's server to notify.
    assert!(!guest.csb.kern_needs_kick(0) && !guest.server.served[0].publish());
    guest.device.arm();
    assert!(guest.csb.kern_needs_kick(0) && guest.server.served[0].publish());
    guest.device.disarm();
    assert!(!guest.csb.kern_needs_kick(0) && !guest.server.served[0].publish());
    guest.device.arm();
    guest.command(2);
    assert!(!guest.server.served[0].publish(), "nobody is there to be woken");
    write(&mut guest.device, 128, 0);
    assert_eq!((guest.device.counters().get().kicks, guest.device.counters().get().interrupts), (1, 2));
}

#[test]
fn the_halves_of_a_csb_may_lie_apart_and_not_across_maps() {
    let mut guest = Guest::new(1, 16);
    let (low, high) = (0x9000, 0x4_0000_0000);
    guest.map(low, (PAGE, PAGE), Access::ReadWrite);
    guest.map(high, (2 * PAGE, PAGE), Access::ReadWrite);
    let at = |guest: &mut Guest, [a, b]: [u64; 2]| {
        for (at, value) in [(52, a >> 32), (56, a), (60, b >> 32), (64, b)] {
            write(&mut guest.device, at, value as u32);
        }
        guest.command(1)
    };
    assert_eq!(at(&mut guest, [low, high]), 0);
    assert_eq!(guest.csb.read_ktoa(0), (0, 15));
    for wrong in [[low + 2, high], [low + PAGE as u64 - 64, high], [low - 64, high], [low, u64::MAX - 63], [0, 0]] {
        assert_ne!(at(&mut guest, wrong), 0, "{wrong:x?}");
        assert!(!guest.device.is_serving());
    }
}

proptest! {
    /// For arbitrary guests and servers: valid positions are passed on, invalid ones are not, and the guest sees
    /// the port's true positions.
    #[test]
    fn only_what_can_be_is_passed_on(
        slots in 2u32..20,
        steps in prop::collection::vec((0u8..8, 0usize..2, 0u32..24, 0u32..24), 1..200),
    ) {
        let mut guest = Guest::started(1, slots);
        let (mut heads, mut said) = ([0; 2], [(0, 0); 2]);
        for (what, entry, a, b) in steps {
            match what {
                0 | 1 => {
                    guest.csb.write_atok(entry, a, b, a & 3);
                    said[entry] = (a, b);
                }
                2 | 3 => {
                    let given = guest.server.served[entry].poll_released().unwrap();
                    guest.server.served[entry].advance_hwcur(given.min(a));
                    guest.server.served[entry].publish();
                }
                4 | 5 => {
                    let room = guest.server.served[entry].room();
                    guest.server.served[entry].advance_hwtail(room.min(a));
                    guest.server.served[entry].publish();
                }
                6 => {
                    // Another guest starts at the position of the last one.
                    prop_assert_eq!((guest.command(2), guest.command(1)), (0, 0));
                    for entry in 0..2 {
                        let head = heads[entry];
                        prop_assert_eq!(guest.csb.read_atok(entry), Released { head, cur: head, sync_flags: 0 });
                        said[entry] = (heads[entry], heads[entry]);
                    }
                }
                _ => {
                    guest.device.arm();
                    guest.device.sync_rings();
                    guest.device.disarm();
                }
            }
            for (entry, head) in heads.iter_mut().enumerate() {
                // Positions that are invalid now may become valid once the server has moved.
                let ((a, b), (cur, tail)) = (said[entry], guest.stands(entry).1);
                let after = |n: u32| (n + slots - cur) % slots;
                if a < slots && b < slots && after(a) <= after(b) && after(b) <= after(tail) {
                    *head = a;
                }
            }
            guest.device.sync_rings();
            for (entry, &expected) in heads.iter().enumerate() {
                let (head, told) = guest.stands(entry);
                prop_assert_eq!(guest.csb.read_ktoa(entry), told);
                prop_assert_eq!(head, expected);
            }
        }
    }
}

#[test]
fn registers_of_any_width() {
    let mut guest = Guest::started(2, 16);
    let mut out = [0; 16];
    guest.device.read(0, 29, &mut out[..9]);
    assert_eq!(out[..9], [0, 0, 0, 2, 0, 0, 0, 16, 0]);
    // Registers covered in part are not written; several at once are.
    guest.device.write(0, 5, &[2, 0, 0]);
    guest.device.write(0, 4, &[2, 0]);
    assert!(guest.device.is_serving());
    guest.device.write(0, 52, &[0; 16]);
    assert_eq!([52, 56, 60, 64].map(|at| read(&mut guest.device, at)), [0; 4]);
    assert!(guest.device.is_serving(), "until the next command");
    guest.device.write(0, 0, &[0, 0, 0, 0, 2, 0, 0, 0]);
    assert!(!guest.device.is_serving());
}
