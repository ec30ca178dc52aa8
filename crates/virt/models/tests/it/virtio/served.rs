//! The model behind its PCI configuration space, as another process sees it.

use ringpass_models::virtio::{Interface, VfioUserFunction, VirtioCard, VirtioConfig};
use ringpass_vfio_user::{CONFIG_REGION, Device};

/// Offset of the capability that gives access to the BARs: BAR, offset, length, data.
const WINDOW: u64 = 0xb0;

fn served(interface: Interface) -> VfioUserFunction {
    VfioUserFunction::new(VirtioCard::new(&VirtioConfig { interface, ..VirtioConfig::default() }))
}

fn read(served: &mut VfioUserFunction, region: u32, offset: u64, len: usize) -> u64 {
    let mut bytes = [0; 8];
    served.read(region, offset, &mut bytes[..len]);
    u64::from_le_bytes(bytes)
}

#[test]
fn registers_are_reached_by_bar_and_by_configuration_space() {
    let mut served = served(Interface::Transitional);
    assert_eq!([0, 2, 4, 1].map(|bar| served.region(bar).size), [64, 0x4000, 0x4000, 0]);
    assert_eq!(read(&mut served, 4, 18, 2), 3, "queues");
    assert_eq!(read(&mut served, 0, 12, 2), 256, "the size of a legacy queue");
    served.write(4, 20, &[3]);
    for (offset, len, expected) in [(18, 2, 3), (20, 1, 3)] {
        served.write(CONFIG_REGION, WINDOW + 4, &[4]);
        served.write(CONFIG_REGION, WINDOW + 8, &u32::to_le_bytes(offset));
        served.write(CONFIG_REGION, WINDOW + 12, &u32::to_le_bytes(len));
        assert_eq!(read(&mut served, CONFIG_REGION, WINDOW + 16, len as usize), expected);
    }
    served.write(CONFIG_REGION, WINDOW + 16, &[7]);
    assert_eq!(read(&mut served, 4, 20, 1), 7);
    for (bar, offset, len) in
        [(4, 0x3fff, 2), (4, 0x4000, 1), (1, 0, 1), (9, 0, 4), (4, 1, 2), (4, 0, 3), (4, u32::MAX, 4)]
    {
        served.write(CONFIG_REGION, WINDOW + 4, &[bar]);
        served.write(CONFIG_REGION, WINDOW + 8, &offset.to_le_bytes());
        served.write(CONFIG_REGION, WINDOW + 12, &u32::to_le_bytes(len));
        read(&mut served, CONFIG_REGION, WINDOW + 16, 4);
        served.write(CONFIG_REGION, WINDOW + 16, &[0; 4]);
    }
    assert_eq!(read(&mut served, 4, 20, 1), 7, "nowhere, nothing is reached");
    served.reset();
    assert_eq!(read(&mut served, 4, 20, 1), 0);
    assert_eq!(read(&mut served, CONFIG_REGION, WINDOW + 8, 8), 0);
}

#[test]
fn clients_may_access_registers_in_any_piece() {
    let mut served = served(Interface::Modern);
    served.write(4, 32, &0x1234_5678_9abc_def0u64.to_le_bytes());
    assert_eq!(read(&mut served, 4, 32, 8), 0x1234_5678_9abc_def0);
    assert_eq!(read(&mut served, 4, 0x2000, 8) & 0xffff_ffff_ffff, 0x0141_10f4_1a02);
    assert_eq!(read(&mut served, 4, 0x2001, 3), 0x10_f41a);
    served.write(4, 0x3ffd, &[1, 2, 3]);
    assert_eq!(served.region(0).size, 0);
}
