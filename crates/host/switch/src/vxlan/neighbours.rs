//! Hardware addresses of neighbours: asked for and said by ARP for IPv4, by neighbor discovery for IPv6.

use std::net::IpAddr;

use ringpass_memory::RawBytes;

use super::arp::{Arp, Operation};
use super::nd::{self, Nd};

/// Hardware address and IP address of a station.
pub(super) type Neighbour = ([u8; 6], IpAddr);

/// The message for this end in a frame about neighbours.
pub(super) struct Heard {
    /// Present if a station says its addresses.
    pub(super) neighbour: Option<Neighbour>,
    /// Present if this end is to answer: the frame.
    pub(super) answer: Option<Vec<u8>>,
}

impl Heard {
    /// Parses a frame; `None` if it is about something else, or for somebody else.
    pub(super) fn parse<'a>(frame: impl Into<RawBytes<'a>>, own: Neighbour) -> Option<Self> {
        match own.1 {
            IpAddr::V4(address) => {
                let Arp { operation, sender, target } = Arp::parse(frame)?;
                let reply = Arp { operation: Operation::Reply, sender: (own.0, address), target: sender };
                let answer = (operation == Operation::Request).then(|| reply.frame());
                (target.1 == address).then_some(Self { neighbour: Some((sender.0, sender.1.into())), answer })
            }
            IpAddr::V6(address) => match Nd::parse(frame)? {
                Nd::Solicitation { from, answer_to, hardware, target } => {
                    let neighbour = hardware.map(|hardware| (hardware, from.into()));
                    let answer = nd::advertisement((own.0, address), (hardware.unwrap_or(answer_to), from));
                    (target == address).then_some(Self { neighbour, answer: Some(answer) })
                }
                Nd::Advertisement { target, hardware } => {
                    Some(Self { neighbour: Some((hardware, target.into())), answer: None })
                }
            },
        }
    }
}

/// Returns a frame that asks for the hardware address of an IP address of the same family.
pub(super) fn question(own: Neighbour, target: IpAddr) -> Option<Vec<u8>> {
    match (own.1, target) {
        (IpAddr::V4(address), IpAddr::V4(target)) => {
            let (sender, target) = ((own.0, address), ([0; 6], target));
            Some(Arp { operation: Operation::Request, sender, target }.frame())
        }
        (IpAddr::V6(address), IpAddr::V6(target)) => Some(nd::solicitation((own.0, address), target)),
        _ => None,
    }
}
