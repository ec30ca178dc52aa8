//! Configuration of a NIC.

use ringpass_port::{Link, MacAddress};

use super::lies::Lies;

/// Configuration of a [`Card`](super::Card).
#[derive(Clone, Copy, Debug)]
pub struct CardConfig {
    /// PCI device id.
    pub device: u16,
    /// MAC address in the EEPROM.
    pub mac: MacAddress,
    /// Initial state of the link. Its speed never changes.
    pub link: Link,
    /// Lies that the NIC tells.
    pub lies: Lies,
}

impl Default for CardConfig {
    fn default() -> Self {
        let mac = MacAddress([0x02, 0x82, 0x59, 0x90, 0, 1]);
        Self { device: 0x10fb, mac, link: Link { up: true, mbps: 10_000 }, lies: Lies::default() }
    }
}
