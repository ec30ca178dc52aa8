//! Tells FRR of this host's stations and their addresses: a frame of each, in the bridge of its network.

use std::collections::HashMap;
use std::os::fd::OwnedFd;

use ringpass_host_ports::TapFiles;
use ringpass_port::{Error, MacAddress, PortConfig};
use ringpass_switch::vxlan::{Address, announcement};
use rustix::io::Errno;

use crate::devices::Device;

/// The TAPs of all networks.
pub(crate) struct Announcer {
    /// By network.
    taps: HashMap<u32, OwnedFd>,
}

/// Bridges learn from frames to this address and do not pass them on (IEEE 802.1Q, table 8-1).
const NEAREST_BRIDGE: [u8; 6] = [0x01, 0x80, 0xc2, 0, 0, 0x0e];
/// Ethertype of LLDP, to whose address this is; nobody reads the rest.
const ETHERTYPE: [u8; 2] = [0x88, 0xcc];
const LEN: usize = 60;

impl Announcer {
    /// Opens the TAPs.
    ///
    /// # Errors
    /// One is not there and may not be made, another program has it, or it is no TAP.
    pub(crate) fn open(vnis: &[u32]) -> Result<Self, Error> {
        let tap = |&vni: &u32| {
            let files = TapFiles::open(&Device::Tap.name(vni), &PortConfig::default())?;
            let tun = files.into_descriptors().pop().ok_or_else(|| Error::Config("a TAP without a queue".into()))?;
            Ok((vni, tun))
        };
        Ok(Self { taps: vnis.iter().map(tap).collect::<Result<_, Error>>()? })
    }

    /// Says that a station is here.
    pub(crate) fn announce(&self, vni: u32, mac: MacAddress) -> Result<(), Errno> {
        let mut frame = [0; LEN];
        frame[..6].copy_from_slice(&NEAREST_BRIDGE);
        frame[6..12].copy_from_slice(&mac.0);
        frame[12..14].copy_from_slice(&ETHERTYPE);
        self.write(vni, &frame)
    }

    /// Says that a station here has an IP address. The kernel notes that for the bridge, where FRR reads it.
    pub(crate) fn announce_address(&self, Address { vni, ip, mac, .. }: Address) -> Result<(), Errno> {
        self.write(vni, &announcement(mac, ip))
    }

    fn write(&self, vni: u32, frame: &[u8]) -> Result<(), Errno> {
        self.taps.get(&vni).map_or(Ok(()), |tap| rustix::io::write(tap, frame).map(drop))
    }
}
