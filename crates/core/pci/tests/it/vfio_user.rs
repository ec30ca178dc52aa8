//! `PciDevice` on a device of another process whose registers are reached by messages only.

use std::path::Path;

use ringpass_pci::{PciDevice, VfioUser};
use ringpass_vfio_user::{CONFIG_REGION, ConfigSpace, Device, EventNotifier, Identity, Listener, Region, Server};

/// A device with 32 bytes at BAR 2 that records each access to them.
struct Plain {
    config: ConfigSpace,
    bytes: [u8; 32],
    accesses: Vec<(u64, usize)>,
}

impl Device for Plain {
    fn region(&self, index: u32) -> Region<'_> {
        let trapped = |size| Region { size, readable: true, writable: true, ..Region::default() };
        match index {
            2 => trapped(32),
            CONFIG_REGION => trapped(ConfigSpace::SIZE),
            _ => Region::default(),
        }
    }

    fn read(&mut self, region: u32, offset: u64, out: &mut [u8]) {
        if region == CONFIG_REGION {
            return self.config.read(offset, out);
        }
        self.accesses.push((offset, out.len()));
        out.copy_from_slice(&self.bytes[offset as usize..][..out.len()]);
    }

    fn write(&mut self, region: u32, offset: u64, data: &[u8]) {
        if region == CONFIG_REGION {
            self.config.write(offset, data);
            return;
        }
        self.accesses.push((offset, data.len()));
        self.bytes[offset as usize..][..data.len()].copy_from_slice(data);
    }

    fn vectors(&self) -> u32 {
        0
    }

    fn set_vector(&mut self, _: u32, _: Option<EventNotifier>) {}

    fn reset(&mut self) {}
}

/// Serves the device while `client` runs, and returns it afterwards.
fn during(client: impl FnOnce(&Path) + Send) -> Plain {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("card");
    let identity = Identity { vendor: 0x1af4, device: 0x1041, subsystem: (0x1af4, 1), revision: 1, class: 0x02_0000 };
    let config = ConfigSpace::new(&identity).memory_bar(2, 32).power_management(0x40);
    let device = Plain { config, bytes: [0; 32], accesses: Vec::new() };
    let mut server = Server::new(Listener::bind(&path).expect("a socket"), device);
    std::thread::scope(|scope| {
        let thread = scope.spawn(|| client(&path));
        while !thread.is_finished() {
            if server.poll_once(&mut |_| ()) == 0 {
                std::thread::yield_now();
            }
        }
        thread.join().expect("the client's end");
    });
    server.device
}

#[test]
fn registers_are_reached_by_messages_of_their_width() {
    let device = during(|path| {
        let bus = VfioUser::open(path).expect("the device");
        assert_eq!(bus.description(), "in another process, over vfio-user");
        let region = bus.region(2).expect("BAR 2");
        assert_eq!((region.len(), region.description().as_str()), (32, "registers by messages (vfio-user)"));
        region.write32(8, 0x4433_2211);
        region.write16(4, 0x6655);
        region.write8(31, 0x77);
        assert_eq!((region.read32(8), region.read16(10), region.read8(31)), (0x4433_2211, 0x4433, 0x77));

        let mut id = [0; 4];
        bus.read_config(0, &mut id).expect("the ids");
        assert_eq!(id, [0xf4, 0x1a, 0x41, 0x10]);
        assert!(bus.read_config(4096 - 3, &mut id).is_err(), "beyond the end");
        bus.set_bus_master(true).expect("bus mastering");
        let mut command = [0; 2];
        bus.read_config(4, &mut command).expect("the command register");
        assert_eq!(command, [0b110, 0], "memory and bus master; it has no I/O ports");

        for bar in [0, 3, 6, 7, usize::MAX] {
            let error = bus.region(bar).map(drop).expect_err("no such BAR").to_string();
            assert!(error.contains(&format!("no BAR {bar}")), "{error}");
        }
        let error = bus.window().map(drop).expect_err("no doorbells").to_string();
        assert!(error.contains("no doorbells in shared memory"), "{error}");
    });
    assert_eq!(device.accesses, [(8, 4), (4, 2), (31, 1), (8, 4), (10, 2), (31, 1)]);
}

#[test]
fn a_server_that_is_gone_reads_as_ones() {
    let (sender, receiver) = std::sync::mpsc::channel();
    during(move |path| {
        let bus = VfioUser::open(path).expect("the device");
        sender.send(bus.region(2).expect("BAR 2")).expect("a receiver");
    });
    let region = receiver.recv().expect("a region");
    region.write32(0, 1);
    assert_eq!((region.read8(0), region.read16(0), region.read32(0)), (u8::MAX, u16::MAX, u32::MAX));
}
