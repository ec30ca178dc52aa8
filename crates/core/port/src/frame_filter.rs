//! Which frames are meant, in words.

use std::str::FromStr;

use crate::MacAddress;

/// Which frames are meant: those that a port `xdp:` takes from the kernel, or that a capture has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FrameFilter {
    /// `udp:PORT`: IPv4 and IPv6 packets to this UDP port, without VLAN tags, whole ones (no fragments), in IPv6 without extension
    /// headers.
    Udp(u16),
    /// `vlan:ID`: frames whose outer VLAN tag (EtherType 0x8100 or 0x88a8) has this VLAN ID, 1 to 4094.
    Vlan(u16),
    /// `dst-mac:MAC`: frames to this address.
    DstMac(MacAddress),
    /// `ethertype:0xN`: frames with this EtherType, at least 0x0600, in front of which there is no VLAN tag.
    EtherType(u16),
}

impl FromStr for FrameFilter {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || {
            format!(
                "'{text}' is not a filter; write udp:PORT, vlan:ID (1 to 4094), dst-mac:MAC, ethertype:0xN (0x0600 to 0xffff), or all"
            )
        };
        let (kind, value) = text.split_once(':').ok_or_else(wrong)?;
        // `parse` and `from_str_radix` alone would take a sign, too.
        let decimal = || value.parse::<u16>().ok().filter(|_| !value.starts_with('+'));
        match kind {
            "udp" => decimal().map(Self::Udp),
            "vlan" => decimal().filter(|id| (1..=4094).contains(id)).map(Self::Vlan),
            "dst-mac" => return value.parse().map(Self::DstMac),
            "ethertype" => {
                let digits = value.strip_prefix("0x").filter(|digits| !digits.starts_with('+'));
                let number = digits.and_then(|digits| u16::from_str_radix(digits, 16).ok());
                number.filter(|number| *number >= 0x0600).map(Self::EtherType)
            }
            _ => None,
        }
        .ok_or_else(wrong)
    }
}

impl FrameFilter {
    /// Returns whether a frame is one of those, given its bytes from the destination address on.
    pub fn takes(&self, frame: &[u8]) -> bool {
        let number = |at: usize| Some(u16::from_be_bytes(frame.get(at..at + 2)?.try_into().ok()?));
        let ethertype = number(12);
        match *self {
            Self::Udp(port) => udp_port(frame, number) == Some(port),
            Self::Vlan(id) => {
                let tag = number(14).filter(|_| frame.len() >= 18 && matches!(ethertype, Some(0x8100 | 0x88a8)));
                tag.is_some_and(|tag| tag & 0xfff == id)
            }
            Self::DstMac(mac) => frame.len() >= 14 && frame[..6] == mac.0,
            Self::EtherType(wanted) => ethertype == Some(wanted),
        }
    }
}

/// Returns the UDP port to which a frame goes, if it has a whole UDP packet.
fn udp_port(frame: &[u8], number: impl Fn(usize) -> Option<u16>) -> Option<u16> {
    let ip = frame.get(14..)?;
    match (number(12)?, ip.first()? >> 4) {
        (0x0800, 4) => {
            let header = usize::from(ip[0] & 15) * 4;
            let is_whole = header >= 20 && number(20)? & 0x3fff == 0 && *ip.get(9)? == 17;
            (is_whole && ip.len() >= header + 8).then(|| number(14 + header + 2))?
        }
        (0x86dd, 6) => (*ip.get(6)? == 17 && ip.len() >= 48).then(|| number(56))?,
        _ => None,
    }
}
