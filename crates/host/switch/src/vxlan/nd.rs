//! Neighbor discovery over Ethernet for IPv6 (RFC 4861): solicitations and advertisements of one address.

use std::net::Ipv6Addr;

use ringpass_memory::RawBytes;
use ringpass_port::Sum;

/// Places of the IPv6 header and of the message behind it; length of a message, and of an option with a hardware address.
const IP: usize = 14;
const MESSAGE: usize = IP + 40;
const MESSAGE_LEN: usize = 24;
const OPTION_LEN: usize = 8;

pub(super) const ETHERTYPE: [u8; 2] = [0x86, 0xdd];
const SOLICITATION: u8 = 135;
const ADVERTISEMENT: u8 = 136;
/// Options with a hardware address: that of who sends a solicitation, and that of the target of an advertisement.
const SOURCE_ADDRESS: u8 = 1;
const TARGET_ADDRESS: u8 = 2;
/// Most options that are looked at.
const MAX_OPTIONS: usize = 8;

/// A message about an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Nd {
    /// The station with the address `from`, from which the frame came to `answer_to`, asks for the hardware address of `target`.
    /// It may say its own; who does not have an address yet asks from `::`.
    Solicitation { from: Ipv6Addr, answer_to: [u8; 6], hardware: Option<[u8; 6]>, target: Ipv6Addr },
    /// `target` has this hardware address.
    Advertisement { target: Ipv6Addr, hardware: [u8; 6] },
}

impl Nd {
    /// Parses a frame; `None` if it is anything else, or wrong (RFC 4861, 7.1).
    pub(super) fn parse<'a>(frame: impl Into<RawBytes<'a>>) -> Option<Self> {
        let frame = frame.into();
        let head: [u8; MESSAGE + MESSAGE_LEN] = frame.array(0)?;
        let address = |at: usize| Ipv6Addr::from(*head[at..].first_chunk::<16>().expect("inside the headers"));
        let len = usize::from(u16::from_be_bytes([head[IP + 4], head[IP + 5]]));
        // ICMPv6 with the hop limit 255, which no router lets pass.
        if head[12..14] != ETHERTYPE || head[IP] >> 4 != 6 || head[IP + 6..IP + 8] != [58, 255] {
            return None;
        }
        if len < MESSAGE_LEN || MESSAGE + len > frame.len() || sum(frame, len).folded() != [0xff; 2] {
            return None;
        }
        let (from, target) = (address(IP + 8), address(MESSAGE + 8));
        match [head[MESSAGE], head[MESSAGE + 1]] {
            _ if target.is_multicast() => None,
            [SOLICITATION, 0] => {
                let (answer_to, hardware) = (*head[6..].first_chunk()?, option(frame, len, SOURCE_ADDRESS));
                let wrong = answer_to[0] & 1 != 0 || from.is_multicast() || from.is_unspecified() && hardware.is_some();
                (!wrong).then_some(Self::Solicitation { from, answer_to, hardware, target })
            }
            [ADVERTISEMENT, 0] => Some(Self::Advertisement { target, hardware: option(frame, len, TARGET_ADDRESS)? }),
            _ => None,
        }
    }
}

/// Hardware address and address of an end.
type End = ([u8; 6], Ipv6Addr);

/// Returns a frame in which this end asks for the hardware address of `target`.
pub(super) fn solicitation(own: End, target: Ipv6Addr) -> Vec<u8> {
    let [.., a, b, c] = target.octets();
    // The target's solicited-node address (RFC 4291, 2.7.1), and the group of that (RFC 2464, 7).
    let group = Ipv6Addr::from([0xff, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0xff, a, b, c]);
    message(own, ([0x33, 0x33, 0xff, a, b, c], group), [SOLICITATION, 0], (SOURCE_ADDRESS, target))
}

/// Returns a frame in which this end, which may be a router, says its hardware address, to who has asked from `to`.
pub(super) fn advertisement(own: End, to: End, is_router: bool) -> Vec<u8> {
    const ALL_NODES: Ipv6Addr = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 1);
    /// Flags: a router says this; somebody in particular has asked; what was known before is wrong.
    const ROUTER: u8 = 0x80;
    const SOLICITED: u8 = 0x40;
    const OVERRIDE: u8 = 0x20;
    let flags = OVERRIDE | if is_router { ROUTER } else { 0 };
    if to.1.is_unspecified() {
        return message(own, ([0x33, 0x33, 0, 0, 0, 1], ALL_NODES), [ADVERTISEMENT, flags], (TARGET_ADDRESS, own.1));
    }
    message(own, to, [ADVERTISEMENT, flags | SOLICITED], (TARGET_ADDRESS, own.1))
}

/// Returns a frame with a message of a kind, with flags, about an address, with the hardware address of its sender in an option.
fn message(own: End, to: End, [kind, flags]: [u8; 2], (option, target): (u8, Ipv6Addr)) -> Vec<u8> {
    let parts: [&[u8]; 11] = [
        &to.0,
        &own.0,
        &ETHERTYPE,
        &[0x60, 0, 0, 0, 0, (MESSAGE_LEN + OPTION_LEN) as u8, 58, 255],
        &own.1.octets(),
        &to.1.octets(),
        &[kind, 0, 0, 0],
        &[flags, 0, 0, 0],
        &target.octets(),
        &[option, 1],
        &own.0,
    ];
    let mut frame = parts.concat();
    let sum = sum(frame[..].into(), MESSAGE_LEN + OPTION_LEN).checksum();
    frame[MESSAGE + 2..MESSAGE + 4].copy_from_slice(&sum);
    frame
}

/// Sums up an ICMPv6 message of this length with its pseudo header (RFC 8200, 8.1). The frame has all of it.
fn sum(frame: RawBytes, len: usize) -> Sum {
    let mut sum = Sum::default();
    sum.add(frame.range(IP + 8..MESSAGE + len));
    sum.add(&(len as u32).to_be_bytes());
    sum.add(&[0, 58]);
    sum
}

/// Returns the hardware address in an option of a message of this length. `None` if there is none, or it is a group's or zeros.
fn option(frame: RawBytes, len: usize, kind: u8) -> Option<[u8; 6]> {
    let mut at = MESSAGE + MESSAGE_LEN;
    for _ in 0..MAX_OPTIONS {
        let [found, units] = frame.array(at).filter(|_| at + OPTION_LEN <= MESSAGE + len)?;
        if found == kind && units == 1 {
            return frame.array(at + 2).filter(|address: &[u8; 6]| address[0] & 1 == 0 && *address != [0; 6]);
        }
        if units == 0 {
            return None;
        }
        at += OPTION_LEN * usize::from(units);
    }
    None
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const LEN: usize = MESSAGE + MESSAGE_LEN + OPTION_LEN;

    proptest! {
        /// Whatever arrives, with a sum that is right, is read without harm.
        #[test]
        fn nothing_that_arrives_does_harm(
            at in prop::collection::vec((12..LEN, any::<u8>()), 0..6),
            options in prop::collection::vec(any::<u8>(), 0..80),
            more in 0..3u8,
        ) {
            let mut frame = solicitation(OWN, OTHER.1)[..MESSAGE + MESSAGE_LEN].to_vec();
            frame.extend(&options);
            frame[IP + 5] = (MESSAGE_LEN + options.len()) as u8 + more;
            let last = frame.len() - 1;
            at.iter().for_each(|&(at, value)| frame[at.min(last)] = value);
            let len = usize::from(u16::from_be_bytes([frame[IP + 4], frame[IP + 5]]));
            if len >= 4 && MESSAGE + len <= frame.len() {
                frame[MESSAGE + 2..MESSAGE + 4].fill(0);
                let sum = sum(frame[..].into(), len).checksum();
                frame[MESSAGE + 2..MESSAGE + 4].copy_from_slice(&sum);
            }
            let said = match Nd::parse(&frame[..]) {
                Some(Nd::Solicitation { hardware, .. }) => hardware,
                Some(Nd::Advertisement { hardware, .. }) => Some(hardware),
                None => None,
            };
            prop_assert!(said.is_none_or(|mac| mac[0] & 1 == 0 && frame.windows(6).any(|part| part == mac)));
        }
    }

    const OWN: End = ([2, 0, 0, 0, 0, 1], Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, 1));
    const OTHER: End = ([2, 0, 0, 0, 0, 2], Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0x12, 0x3456));

    #[test]
    fn frames_are_read_as_they_were_written_and_as_others_read_them() {
        let asked = solicitation(OWN, OTHER.1);
        let (from, hardware) = (OWN.1, Some(OWN.0));
        assert_eq!(Nd::parse(&asked[..]), Some(Nd::Solicitation { from, answer_to: OWN.0, hardware, target: OTHER.1 }));
        assert_eq!(asked[..6], [0x33, 0x33, 0xff, 0x12, 0x34, 0x56]);
        let said = advertisement(OTHER, OWN, false);
        assert_eq!(Nd::parse(&said[..]), Some(Nd::Advertisement { target: OTHER.1, hardware: OTHER.0 }));
        for (frame, kind) in [(asked, SOLICITATION), (said, ADVERTISEMENT)] {
            let parsed = etherparse::PacketHeaders::from_ethernet_slice(&frame).unwrap();
            let Some(etherparse::NetHeaders::Ipv6(ip, _)) = parsed.net else { panic!("{parsed:?}") };
            let Some(etherparse::TransportHeader::Icmpv6(icmp)) = parsed.transport else { panic!() };
            let payload = parsed.payload.slice();
            assert_eq!(icmp.checksum, icmp.icmp_type.calc_checksum(ip.source, ip.destination, payload).unwrap());
            assert_eq!((frame[MESSAGE], ip.hop_limit), (kind, 255));
            (0..LEN).for_each(|len| assert_eq!(Nd::parse(&frame[..len]), None));
            (12..LEN).for_each(|at| {
                let mut frame = frame.clone();
                frame[at] ^= 1;
                // The flow label is in no sum.
                assert!(Nd::parse(&frame[..]).is_none() || (IP + 1..IP + 4).contains(&at) || at == IP, "{at}");
            });
        }
    }

    #[test]
    fn who_has_no_address_yet_is_answered_through_all_nodes() {
        let mut asked = solicitation((OWN.0, Ipv6Addr::UNSPECIFIED), OTHER.1);
        assert_eq!(Nd::parse(&asked[..]), None, "no hardware address goes with it");
        // An option of another kind instead.
        asked[MESSAGE + MESSAGE_LEN] = 14;
        asked[MESSAGE + 2..MESSAGE + 4].fill(0);
        let sum = sum(asked[..].into(), MESSAGE_LEN + OPTION_LEN).checksum();
        asked[MESSAGE + 2..MESSAGE + 4].copy_from_slice(&sum);
        let (from, hardware) = (Ipv6Addr::UNSPECIFIED, None);
        assert_eq!(Nd::parse(&asked[..]), Some(Nd::Solicitation { from, answer_to: OWN.0, hardware, target: OTHER.1 }));
        let said = advertisement(OTHER, (OWN.0, from), false);
        assert_eq!((&said[..6], said[IP + 24]), (&[0x33, 0x33, 0, 0, 0, 1][..], 0xff));
    }

    #[test]
    fn options_that_never_end_do_not_matter() {
        let mut asked = solicitation(OWN, OTHER.1);
        asked[MESSAGE + MESSAGE_LEN + 1] = 0;
        assert_eq!(option(asked[..].into(), MESSAGE_LEN + OPTION_LEN, SOURCE_ADDRESS), None);
    }
}
