//! Steering frames to queues: pools by MAC address and VLAN (VMDq, 7.10.3), and 5-tuple filters (7.1.2.5).
//!
//! With [`Spread::Steered`] each queue of the port is the first of the two queues in a pool of its own.

use std::net::Ipv4Addr;

use ringpass_pci::registers::Window;
use ringpass_pci::registers::ixgbe::{bits::*, *};
use ringpass_port::{Error, MacAddress, PortConfig, Protocol, Rule, Spread};

/// Queues per pool, with 64 pools (7.1.2.2).
const POOL_QUEUES: usize = 2;

/// Enables pools selected by MAC address (4.6.10.1). Only the pools of the port's queues receive; frames that
/// match no address go to the first pool.
fn enable_pools(window: &Window, queues: usize) {
    window.write(MRQC, MRQC_MRQE_VMDQ);
    window.write(MTQC, MTQC_VT_ENA | MTQC_64_POOLS);
    window.write(PFVTCTL, PFVTCTL_VT_ENA);
    window.write(PFVFRE.at(0), (1 << queues) - 1);
    window.write(PFVFTE.at(0), (1 << queues) - 1);
    window.write(PFVML2FLT.at(0), PFVML2FLT_AUPE | PFVML2FLT_BAM | PFVML2FLT_MPE);
    // Each register of the array covers 32 pools. The card's own address belongs to the first pool.
    (0..256).for_each(|half| window.write(MPSAR.at(half), u32::from(half == 0)));
    for pool in 1..queues {
        window.write(PFVML2FLT.at(pool), PFVML2FLT_AUPE);
    }
}

/// How frames are spread over the queues, and the filters in use.
pub(crate) struct Steering {
    spread: Spread,
    queues: usize,
    /// Filters in use: receive addresses beyond the card's own, VLANs, tuples.
    addresses: usize,
    vlans: usize,
    tuples: usize,
}

impl Steering {
    /// Filters that the card has: receive addresses beyond its own, VLANs, tuples.
    const ADDRESSES: usize = 127;
    const VLANS: usize = 64;
    const TUPLES: usize = 128;

    /// Enables pools if the port's queues are steered to.
    pub(crate) fn start(window: &Window, config: &PortConfig) -> Self {
        let PortConfig { spread, queues, .. } = *config;
        if spread == Spread::Steered {
            enable_pools(window, queues);
        }
        Self { spread, queues, addresses: 0, vlans: 0, tuples: 0 }
    }

    /// Returns the card's number of a queue of the port.
    pub(crate) fn hw_queue(&self, queue: usize) -> usize {
        if self.spread == Spread::Steered { queue * POOL_QUEUES } else { queue }
    }

    /// Steers the frames that match a rule to a queue of the port.
    pub(crate) fn add(&mut self, window: &Window, rule: &Rule, queue: usize) -> Result<(), Error> {
        let full = |what| Err(Error::Unsupported(format!("no {what} filter of the card is left")));
        match *rule {
            _ if queue >= self.queues => {
                Err(Error::Config(format!("there is no queue {queue}; the last is {}", self.queues - 1)))
            }
            Rule::Address { .. } if self.spread != Spread::Steered => {
                Err(Error::Config("steering by address needs pools; open the port with --spread steered".into()))
            }
            Rule::Address { vlan: Some(4096..), .. } => Err(Error::Config("VLAN ids go from 0 to 4095".into())),
            Rule::Address { .. } if self.addresses == Self::ADDRESSES => full("address"),
            Rule::Address { vlan: Some(_), .. } if self.vlans == Self::VLANS => full("VLAN"),
            Rule::Address { mac, vlan } => {
                self.addresses += 1;
                if let Some(id) = vlan {
                    steer_vlan(window, self.vlans, id, queue);
                    self.vlans += 1;
                }
                steer_address(window, self.addresses, mac, queue);
                Ok(())
            }
            Rule::Tuple { .. } if self.tuples == Self::TUPLES => full("tuple"),
            Rule::Tuple { protocol, source, destination, source_port, destination_port } => {
                let ports = (source_port, destination_port);
                steer_tuple(window, self.tuples, protocol, (source, destination), ports, self.hw_queue(queue));
                self.tuples += 1;
                Ok(())
            }
        }
    }
}

/// Writes a receive address (8.2.3.7.8, 8.2.3.7.9) and its pool (8.2.3.7.10).
fn steer_address(window: &Window, entry: usize, MacAddress([a, b, c, d, e, f]): MacAddress, pool: usize) {
    window.write(MPSAR.at(2 * entry), 1 << pool);
    window.write(RAL.at(entry), u32::from_le_bytes([a, b, c, d]));
    window.write(RAH.at(entry), u32::from_le_bytes([e, f, 0, 0]) | RAH_AV);
}

/// Adds a VLAN to a pool (8.2.3.27), so that its frames reach the pool. The global VLAN filter accepts all
/// VLANs, so other frames go where they went before.
fn steer_vlan(window: &Window, entry: usize, id: u16, pool: usize) {
    (0..128).for_each(|word| window.write(VFTA.at(word), u32::MAX));
    window.write(PFVLVFB.at(2 * entry), 1 << pool);
    window.write(PFVLVF.at(entry), u32::from(id) | PFVLVF_VI_EN);
    window.clear(PFVML2FLT.at(pool), PFVML2FLT_AUPE);
    window.set(VLNCTRL, VLNCTRL_VFE);
}

/// Writes a 5-tuple filter (8.2.3.7.16 to 8.2.3.7.20). A set mask bit excludes its field from the comparison.
fn steer_tuple(
    window: &Window,
    entry: usize,
    protocol: Option<Protocol>,
    (source, destination): (Option<Ipv4Addr>, Option<Ipv4Addr>),
    (source_port, destination_port): (Option<u16>, Option<u16>),
    hw_queue: usize,
) {
    let address = |address: Option<Ipv4Addr>| address.map_or(0, |address| u32::from_le_bytes(address.octets()));
    let port = |port: Option<u16>| u32::from(port.unwrap_or(0).swap_bytes());
    let mask = |missing: bool, bit| if missing { bit } else { 0 };
    window.write(SAQF.at(entry), address(source));
    window.write(DAQF.at(entry), address(destination));
    window.write(SDPQF.at(entry), port(source_port) | port(destination_port) << 16);
    window.write(L34TIMIR.at(entry), L34TIMIR_RESERVED | (hw_queue as u32) << 21);
    let protocol = match protocol {
        Some(Protocol::Tcp) => FTQF_TCP,
        Some(Protocol::Udp) => FTQF_UDP,
        Some(Protocol::Sctp) => FTQF_SCTP,
        None => FTQF_MASK_PROTOCOL,
    };
    let masks = mask(source.is_none(), FTQF_MASK_SOURCE)
        | mask(destination.is_none(), FTQF_MASK_DESTINATION)
        | mask(source_port.is_none(), FTQF_MASK_SOURCE_PORT)
        | mask(destination_port.is_none(), FTQF_MASK_DESTINATION_PORT);
    window.write(FTQF.at(entry), protocol | masks | FTQF_PRIORITY_1 | FTQF_MASK_POOL | FTQF_ENABLE);
}
