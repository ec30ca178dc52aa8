//! Names of ports as programs and users write them.

use std::fmt;
use std::str::FromStr;

use super::{Mode, Register, register};

/// A port's name, with the rings and options that it selects.
///
/// It is `netmap:PORT` or `valeSWITCH:PORT`, followed by these optional parts:
///
/// - a suffix: `{PIPE` or `}PIPE` for an end of a pipe, `-RING` for one ring, `^` for the host's rings, `*` for
///   all rings and the host's, `^RING` for one of the host's
/// - `/OPTIONS`: `R` or `T` to receive or send only, `x` for exclusive use, `r` and `t` to monitor what others
///   receive and send, `z` to monitor without a copy
/// - `@MEMORY`: a memory by its number
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PortName {
    /// The name as it is in a request's header: without `netmap:` and without a suffix, except that of a pipe.
    pub port: String,
    /// Which rings are registered.
    pub mode: Mode,
    /// Number of the ring, in modes for a single ring.
    pub ring: u16,
    /// Flags; see the module [`register`].
    pub flags: u64,
    /// Number of the memory; 0 for any.
    pub memory_id: u16,
}

/// A name that cannot be parsed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("'{name}' is no netmap port: {why}")]
pub struct BadName {
    name: String,
    why: &'static str,
}

/// Whether the text is a number; otherwise it is part of an interface's name.
fn is_number(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit())
}

/// Bytes of the longest name of a port.
const MAX_NAME_LEN: usize = 63;

impl FromStr for PortName {
    type Err = BadName;

    fn from_str(name: &str) -> Result<Self, BadName> {
        let bad = |why| BadName { name: name.into(), why };
        let number = |text: &str| text.parse::<u16>().map_err(|_| bad("a ring or memory is a number"));
        let (rest, memory_id) = match name.split_once('@') {
            Some((rest, id)) => (rest, number(id)?),
            None => (name, 0),
        };
        let (rest, options) = rest.split_once('/').unwrap_or((rest, ""));
        let flags = options.chars().try_fold(0, |flags, option| {
            Ok(flags
                | match option {
                    'R' => register::RX_ONLY,
                    'T' => register::TX_ONLY,
                    'x' => register::EXCLUSIVE,
                    'r' => register::MONITOR_RX,
                    't' => register::MONITOR_TX,
                    'z' => register::ZERO_COPY_MONITOR,
                    _ => return Err(bad("behind '/' stand R, T, x, r, t and z")),
                })
        })?;
        let own = rest.strip_prefix("netmap:");
        let rest = own.unwrap_or(rest);
        let vale = rest.starts_with("vale");
        if own.is_none() && !vale {
            return Err(bad("write netmap:PORT or valeSWITCH:PORT"));
        }
        let (port, mode, ring) = if let Some(at) = rest.find(['{', '}']) {
            if rest[at + 1..].is_empty() || rest[at + 1..].contains(['{', '}', '^', '*']) {
                return Err(bad("a pipe has a name, and nothing behind it"));
            }
            (rest, Mode::AllNic, 0)
        } else if let Some(port) = rest.strip_suffix('*') {
            (port, Mode::NicAndHost, 0)
        } else if let Some((port, ring)) = rest.split_once('^') {
            if ring.is_empty() { (port, Mode::Host, 0) } else { (port, Mode::OneHost, number(ring)?) }
        } else if let Some((port, ring)) = rest.rsplit_once('-').filter(|&(_, ring)| !vale && is_number(ring)) {
            (port, Mode::OneNic, number(ring)?)
        } else {
            (rest, Mode::AllNic, 0)
        };
        let own = if vale { port.split_once(':').ok_or(bad("write valeSWITCH:PORT"))?.1 } else { port };
        if own.is_empty() || own.starts_with(['{', '}']) {
            return Err(bad("the port is missing"));
        }
        if port.len() > MAX_NAME_LEN || port.contains('\0') {
            return Err(bad("the name is longer than 63 bytes, or not text"));
        }
        if flags & register::RX_ONLY != 0 && flags & register::TX_ONLY != 0 {
            return Err(bad("R and T exclude each other"));
        }
        Ok(Self { port: port.into(), mode, ring, flags, memory_id })
    }
}

impl fmt::Display for PortName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let prefix = if self.port.starts_with("vale") { "" } else { "netmap:" };
        write!(f, "{prefix}{}", self.port)
    }
}

impl PortName {
    /// Returns the registration that the name requests. Rings and memory come from the name, the rest from
    /// `more`; flags of both are combined.
    pub fn asked(&self, more: Register) -> Register {
        let Self { mode, ring, flags, memory_id, .. } = *self;
        Register { mode, ring, flags: flags | more.flags, memory_id, ..more }
    }

    /// The switch and the port's own name, if it is a port of a VALE switch.
    pub fn vale(&self) -> Option<(&str, &str)> {
        if self.port.starts_with("vale") { self.port.split_once(':') } else { None }
    }

    /// The names of the port and of the pipe, and whether this is the first end (`{`); `None` if it is no pipe.
    pub fn pipe(&self) -> Option<(&str, &str, bool)> {
        let at = self.port.find(['{', '}'])?;
        Some((&self.port[..at], &self.port[at + 1..], self.port[at..].starts_with('{')))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(name: &str) -> PortName {
        name.parse().unwrap_or_else(|error| panic!("{error}"))
    }

    #[test]
    fn names_say_which_rings() {
        for (name, port, mode, ring) in [
            ("netmap:eth0", "eth0", Mode::AllNic, 0),
            ("netmap:eth0-3", "eth0", Mode::OneNic, 3),
            ("netmap:br-lan", "br-lan", Mode::AllNic, 0),
            ("netmap:br-lan-2", "br-lan", Mode::OneNic, 2),
            ("netmap:eth0^", "eth0", Mode::Host, 0),
            ("netmap:eth0^1", "eth0", Mode::OneHost, 1),
            ("netmap:eth0*", "eth0", Mode::NicAndHost, 0),
            ("netmap:x{1", "x{1", Mode::AllNic, 0),
            ("vale0:vm-1", "vale0:vm-1", Mode::AllNic, 0),
            ("vale0:a}2", "vale0:a}2", Mode::AllNic, 0),
        ] {
            let PortName { port: of, mode: is, ring: number, flags, memory_id } = parse(name);
            assert_eq!((of.as_str(), is, number, flags, memory_id), (port, mode, ring, 0, 0), "{name}");
        }
        let all = parse("netmap:eth0-1/Rxz@7");
        assert_eq!((all.mode, all.ring, all.memory_id), (Mode::OneNic, 1, 7));
        assert_eq!(all.flags, register::RX_ONLY | register::EXCLUSIVE | register::ZERO_COPY_MONITOR);
        let asked = all.asked(Register { flags: register::DO_RX_POLL, slots: [64; 2], ..Register::default() });
        let Register { mode, ring, memory_id, flags, slots, .. } = asked;
        assert_eq!((mode, ring, memory_id, slots), (Mode::OneNic, 1, 7, [64; 2]));
        assert_eq!(flags, all.flags | register::DO_RX_POLL);
        assert_eq!(parse("vale0:1").vale(), Some(("vale0", "1")));
        assert_eq!(parse("netmap:x}1").pipe(), Some(("x", "1", false)));
        assert_eq!(parse("vale0:a{b").pipe(), Some(("vale0:a", "b", true)));
        assert_eq!((parse("netmap:x").vale(), parse("netmap:x").pipe()), (None, None));
        assert_eq!(
            (parse("netmap:x/T").to_string(), parse("vale0:1").to_string()),
            ("netmap:x".into(), "vale0:1".into())
        );
    }

    #[test]
    fn what_is_no_name_says_why() {
        for (name, why) in [
            ("eth0", "netmap:PORT"),
            ("", "netmap:PORT"),
            ("netmap:", "missing"),
            ("netmap:{1", "missing"),
            ("vale0", "valeSWITCH:PORT"),
            ("netmap:vale0", "valeSWITCH:PORT"),
            ("vale0:", "missing"),
            ("netmap:x{", "a name"),
            ("netmap:x{1{2", "nothing behind"),
            ("netmap:eth0-70000", "number"),
            ("netmap:eth0@x", "number"),
            ("netmap:eth0/q", "R, T, x"),
            ("netmap:eth0/RT", "exclude"),
            ("netmap:eth0^70000", "number"),
        ] {
            let error = name.parse::<PortName>().expect_err(name).to_string();
            assert!(error.contains(why) && !error.contains('\n'), "{name}: {error}");
        }
        assert!(format!("netmap:{}", "x".repeat(64)).parse::<PortName>().is_err());
    }
}
