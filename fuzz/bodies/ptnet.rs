//! Fuzz body: the devices of netmap's passthrough, with registers in any order and of any width, CSB values of all
//! sides, memory that is mapped and unmapped, and a port with an arbitrary server.

use std::sync::Arc;

use ringpass_memory::{Access, DmaRegion, ForeignMemory, Memory, RegionConfig};
use ringpass_netmap::csb::Csb;
use ringpass_netmap::{Kring, Notifier, Pools, PortMemory, Region, Shape, attach};
use ringpass_port::MacAddress;
use ringpass_ptnet::{GuestPort, Memdev, Ptnet, SharedRegion};
use ringpass_vfio_user::{CONFIG_REGION, Device};

const PAGE: usize = 4096;
/// Number of pages of the guest's memory, which are mapped from device address [`AT`] on.
const PAGES: usize = 4;
const AT: u64 = 0xffff_e000;
const SLOTS: u32 = 8;

/// A guest, its memory, and the port's server.
struct Harness {
    device: Ptnet,
    memdev: Memdev,
    memory: Memory,
    /// The guest's memory as CSB entries.
    words: Csb,
    /// Whether each page from [`AT`] on is mapped.
    mapped: [bool; 2 * PAGES],
    served: Vec<Kring>,
    /// The CSB between the port's server and its program.
    csb: Csb,
}

impl Harness {
    fn new(rings: u16) -> Self {
        let pools = Pools { interfaces: 1, ring_bytes: 8192, buffers: 100, buffer_size: 64 };
        let mut region = Region::new(pools, &RegionConfig::default()).unwrap_or_else(|error| panic!("{error}"));
        let shape = Shape { rings: [rings; 2], slots: [SLOTS; 2], host_rings: [0; 2] };
        let (port, served) = PortMemory::new(&mut region, "p", shape, true).unwrap_or_else(|error| panic!("{error}"));
        let csb: Memory = port.csb().clone().into();
        let rings = attach(region.memory(), port.interface(), &csb, &(Arc::new(|| ()) as Notifier)).unwrap();
        let file = region.file().expect("memory that is shared").try_clone_to_owned().expect("a descriptor");
        let memdev = Memdev::new(SharedRegion { file, memory: region.memory().clone(), pools, id: 5 });
        let guest_port = GuestPort {
            interface: port.interface() as u32,
            rings,
            mac: MacAddress([2; 6]),
            memory_id: 5,
            set_header_len: Some(Box::new(|len| len == 12)),
        };
        let file = DmaRegion::new(PAGES * PAGE, &RegionConfig::default()).unwrap();
        let memory = ForeignMemory::map(file.file().expect("memory that is shared"), 0, PAGES * PAGE).unwrap();
        let memory = Memory::from(memory);
        let words = Csb::new(&memory, 0, 2 * PAGE, 2 * PAGE / 64).unwrap();
        let csb = Csb::new(&csb, 0, PAGE, 64).unwrap();
        Self { device: Ptnet::new(guest_port), memdev, memory, words, mapped: [false; 2 * PAGES], served, csb }
    }

    /// Returns a copy of the guest's memory.
    fn snapshot(&self) -> Vec<u8> {
        let mut bytes = vec![0; PAGES * PAGE];
        assert!(self.memory.read(0, &mut bytes));
        bytes
    }

    /// Accesses a device within one of its regions, as a session guarantees.
    fn access(&mut self, write: bool, place: u16, len: u8, value: u32) {
        let region = [0, 0, 0, CONFIG_REGION, 2, 1, 6, 8][usize::from(place >> 13)];
        let (device, port): (&mut dyn Device, _) =
            if len & 0x80 == 0 { (&mut self.device, true) } else { (&mut self.memdev, false) };
        let size = device.region(region).size;
        let offset = u64::from(place & 0xfff).min(size);
        let len = u64::from(len & 0x1f).min(size - offset) as usize;
        let mut bytes = [value.to_le_bytes(); 8].concat();
        if write && size > 0 {
            device.write(region, offset, &bytes[..len]);
        } else if size > 0 {
            device.read(region, offset, &mut bytes[..len]);
        }
        assert!(port || region != 2 || size == 0);
    }

    fn map(&mut self, page: usize, from: usize, len: usize, access: Access) {
        let len = len.min(PAGES - from).min(2 * PAGES - page);
        let iova = AT + (page * PAGE) as u64;
        let pages = &mut self.mapped[page..page + len];
        if len > 0 && !pages.contains(&true) {
            pages.fill(true);
            self.device
                .map(iova, self.memory.part(from * PAGE, len * PAGE).expect("pages of the memory"), access)
                .unwrap();
        }
    }

    /// Starts the port as netmap's driver does.
    fn start(&mut self, place: u64) {
        let write = |device: &mut Ptnet, at: u64, value: u64| device.write(0, at, &(value as u32).to_le_bytes());
        for (at, iova) in [(52, place), (60, place + PAGE as u64)] {
            write(&mut self.device, at, iova >> 32);
            write(&mut self.device, at + 4, iova);
        }
        write(&mut self.device, 4, 1);
    }

    fn sync_rings(&mut self, sleep: bool) {
        let before = (!self.device.is_serving()).then(|| self.snapshot());
        if sleep {
            self.device.arm();
        }
        self.device.sync_rings();
        if sleep {
            self.device.disarm();
        }
        assert!(before.is_none_or(|before| before == self.snapshot()), "memory that it has nothing to do with");
    }
}

/// Runs one case of steps of eight bytes: an action, three small numbers and a large one.
pub fn case(data: &[u8]) {
    let Some((&shape, data)) = data.split_first() else { return };
    let mut world = Harness::new(1 + u16::from(shape & 3));
    for step in data.chunks_exact(8).take(200) {
        let (a, b, c) = (step[1], step[2], step[3]);
        let value = u32::from_le_bytes([step[4], step[5], step[6], step[7]]);
        let entry = usize::from(a) % world.served.len();
        // Prefers numbers near valid positions, which are more interesting.
        let near = |byte: u8| if byte < 0xf0 { u32::from(byte) % (SLOTS + 1) } else { value };
        match step[0] % 16 {
            0 | 1 => world.access(true, u16::from_le_bytes([b, c]), a, value),
            2 => world.access(false, u16::from_le_bytes([b, c]), a, value),
            3..=5 => world.words.write_atok(usize::from(a) % 128, near(b), near(c), value & 7),
            6 => world.words.write_ktoa(usize::from(a) % 128, near(b), near(c)),
            7 => {
                let access = if value & 7 == 0 { Access::Read } else { Access::ReadWrite };
                world.map(usize::from(a) % 8, usize::from(b) % PAGES, usize::from(c) % 5, access);
            }
            8 => {
                let (page, len) = (usize::from(a) % 8, usize::from(b) % 9);
                let end = (page + len).min(world.mapped.len());
                world.mapped[page..end].fill(false);
                world.device.unmap(AT + (page * PAGE) as u64, (len * PAGE) as u64).expect("few maps");
            }
            9 | 10 => world.sync_rings(a & 1 != 0),
            11 => {
                let served = &mut world.served[entry];
                // A program may have written anything to the server's side.
                let given = served.poll_released().unwrap_or(0);
                served.advance_hwcur(given.min(b.into()));
                served.advance_hwtail(served.room().min(c.into()));
                served.publish();
            }
            12 if a & 7 == 0 => world.csb.write_ktoa(entry, near(b), near(c)),
            12 if a & 7 == 1 => world.csb.write_atok(entry, near(b), near(c), value),
            12 => world.words.set_appl_need_kick(usize::from(a) % 128, b & 1 != 0),
            13 => world.device.set_vector(entry as u32, None),
            14 if a == 0 => world.device.reset(),
            14 => {
                world.device.write(0, 4, &2u32.to_le_bytes());
                assert!(!world.device.is_serving());
            }
            _ => {
                world.map(0, 0, 4, Access::ReadWrite);
                world.start(AT + u64::from(a & 3) * PAGE as u64 + u64::from(b & 0xc0));
            }
        }
        assert!(!world.device.is_serving() || world.mapped.contains(&true), "it serves in memory that it has not");
    }
}
