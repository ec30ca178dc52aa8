//! ARP over Ethernet for IPv4 (RFC 826): 28 bytes behind the Ethernet header.

use std::net::Ipv4Addr;

use ringpass_memory::RawBytes;

/// Length of the frame in bytes, without padding.
pub(super) const LEN: usize = 14 + 28;

pub(super) const ETHERTYPE: [u8; 2] = [0x08, 0x06];
/// Hardware type Ethernet, protocol type IPv4, and the lengths of their addresses.
const KIND: [u8; 6] = [0, 1, 8, 0, 6, 4];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Operation {
    Request = 1,
    Reply = 2,
}

/// The fields of an ARP packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Arp {
    pub(super) operation: Operation,
    pub(super) sender: ([u8; 6], Ipv4Addr),
    pub(super) target: ([u8; 6], Ipv4Addr),
}

impl Arp {
    /// Parses a frame; `None` if it is anything else, or the sender's hardware address is a group's or zeros.
    pub(super) fn parse<'a>(frame: impl Into<RawBytes<'a>>) -> Option<Self> {
        let frame: [u8; LEN] = frame.into().array(0)?;
        let mac = |at: usize| -> [u8; 6] { *frame[at..].first_chunk().expect("inside the frame") };
        let ip = |at: usize| Ipv4Addr::from(*frame[at..].first_chunk::<4>().expect("inside the frame"));
        let operation = match frame[20..22] {
            [0, 1] => Operation::Request,
            [0, 2] => Operation::Reply,
            _ => return None,
        };
        let sender = (mac(22), ip(28));
        let known = frame[12..14] == ETHERTYPE && frame[14..20] == KIND && sender.0[0] & 1 == 0 && sender.0 != [0; 6];
        known.then_some(Self { operation, sender, target: (mac(32), ip(38)) })
    }

    /// Returns the frame: a request is broadcast, a reply goes to the target.
    pub(super) fn frame(&self) -> Vec<u8> {
        let to = if self.operation == Operation::Request { [0xff; 6] } else { self.target.0 };
        let parts: [&[u8]; 9] = [
            &to,
            &self.sender.0,
            &ETHERTYPE,
            &KIND,
            &[0, self.operation as u8],
            &self.sender.0,
            &self.sender.1.octets(),
            &self.target.0,
            &self.target.1.octets(),
        ];
        parts.concat()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_are_read_as_they_were_written_and_as_others_read_them() {
        let (sender, target) = (([2, 0, 0, 0, 0, 1], [10, 0, 0, 1].into()), ([2, 0, 0, 0, 0, 2], [10, 0, 0, 2].into()));
        for operation in [Operation::Request, Operation::Reply] {
            let arp = Arp { operation, sender, target };
            let frame = arp.frame();
            assert_eq!(Arp::parse(&frame[..]), Some(arp));
            let parsed = etherparse::SlicedPacket::from_ethernet(&frame).unwrap();
            let Some(etherparse::NetSlice::Arp(theirs)) = parsed.net else { panic!("{parsed:?}") };
            assert_eq!(theirs.operation(), etherparse::ArpOperation(operation as u16));
            assert_eq!((theirs.sender_protocol_addr(), theirs.target_hw_addr()), (&[10, 0, 0, 1][..], &target.0[..]));
            for len in 0..LEN {
                assert_eq!(Arp::parse(&frame[..len]), None);
            }
            for (at, wrong) in [(13, 0), (15, 2), (16, 9), (18, 5), (19, 6), (21, 3), (22, 1)] {
                let mut frame = frame.clone();
                frame[at] = wrong;
                assert_eq!(Arp::parse(&frame[..]), None, "{at}");
            }
        }
    }
}
