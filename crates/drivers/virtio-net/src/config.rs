//! The device-specific configuration (VIRTIO 1.3, 5.1.4). The negotiated features determine which fields are
//! valid.

use ringpass_port::{Error, MacAddress, PortConfig};
use ringpass_virtio::features::{MAC, MQ, MTU, STATUS};

use crate::transport::Transport;

pub(crate) const MAC_AT: usize = 0;
const STATUS_AT: usize = 6;
const PAIRS_AT: usize = 8;
const MTU_AT: usize = 10;

/// Largest number of queue pairs: with one more, the control queue's number would not fit 16 bits.
const MAX_PAIRS: u16 = 0x7fff;
const LINK_UP: u16 = 1;

/// Fields of the device's configuration that the driver uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct DeviceConfig {
    pub(crate) mac: Option<MacAddress>,
    /// Whether the link is up; `true` if the device does not report it.
    pub(crate) link: bool,
    /// Largest number of queue pairs.
    pub(crate) pairs: u16,
    pub(crate) mtu: Option<u16>,
}

impl DeviceConfig {
    /// Reads the configuration. Each field is consistent in itself, but different fields may be of different
    /// moments.
    pub(crate) fn read(transport: &mut dyn Transport, features: u64) -> Result<Self, Error> {
        let mac = (features & MAC != 0).then(|| field(transport, MAC_AT)).transpose()?;
        let mut number = |feature, at| {
            let bytes = (features & feature != 0).then(|| field(transport, at)).transpose();
            bytes.map(|bytes| bytes.map(u16::from_le_bytes))
        };
        let link = number(STATUS, STATUS_AT)?.is_none_or(|status| status & LINK_UP != 0);
        let (pairs, mtu) = (number(MQ, PAIRS_AT)?.unwrap_or(1), number(MTU, MTU_AT)?);
        Ok(Self { mac: mac.map(MacAddress), link, pairs, mtu })
    }

    /// Checks that the device supports the port's configuration.
    pub(crate) fn check(&self, config: &PortConfig) -> Result<(), Error> {
        let PortConfig { mtu, queues, .. } = *config;
        if let Some(most) = self.mtu.filter(|&most| mtu > most.into()) {
            let what = format!("an MTU of {mtu}; the card has at most {most}");
            return Err(Error::Unsupported(format!("{what}: --mtu {most}, or in QEMU: host_mtu={mtu}")));
        }
        let most = self.pairs;
        if !(1..=MAX_PAIRS).contains(&most) {
            return Err(Error::Fault(format!(
                "the card says that it has {most} pairs of queues; do without: --queues 1"
            )));
        }
        if queues > most.into() {
            let what = format!("{queues} queues; the card has {most} pairs");
            return Err(Error::Unsupported(format!("{what}: --queues {most}, or in QEMU: -netdev …,queues={queues}")));
        }
        Ok(())
    }

    /// Returns what has changed since this was read, of the fields that must not change while the port is open.
    pub(crate) fn changed(&self, now: &Self) -> Option<String> {
        let text = |mac: Option<MacAddress>| mac.map_or("none".into(), |mac| mac.to_string());
        if now.mac != self.mac {
            return Some(format!("its MAC address, from {} to {}", text(self.mac), text(now.mac)));
        }
        if now.mtu != self.mtu {
            return Some(format!("its MTU, from {} to {}", self.mtu.unwrap_or(0), now.mtu.unwrap_or(0)));
        }
        (now.pairs != self.pairs).then(|| format!("its pairs of queues, from {} to {}", self.pairs, now.pairs))
    }
}

fn field<const N: usize>(transport: &mut dyn Transport, at: usize) -> Result<[u8; N], Error> {
    let mut bytes = [0; N];
    transport.read_config(at, &mut bytes).map(|()| bytes)
}
