//! Names of ports as programs and users write them.

use std::fmt;
use std::str::FromStr;

use super::{InvalidRequest, Mode, Register, register};

/// A port's name, with the rings and options that it selects.
///
/// It is `netmap:PORT` or `valeSWITCH:PORT`, whose parts consist of letters, digits and `_`. These optional parts
/// follow, in this order:
///
/// - `{PIPE` or `}PIPE` for an end of a pipe
/// - `-RING` for one ring, `^` for the host's rings, `*` for all rings and the host's, `^RING` for one of the
///   host's
/// - `/OPTIONS` and `@MEMORY`, in any order and repeatedly. Options are `R` or `T` to receive or send only, `x` for
///   exclusive use, `r` and `t` to monitor what others receive and send, `z` to monitor without a copy; the memory
///   is given by its number
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

/// Whether the text consists of letters, digits and `_`; it may be empty.
fn is_identifier(text: &str) -> bool {
    text.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_')
}

/// Bytes of the longest name of a port.
const MAX_NAME_LEN: usize = 63;
/// Numbers of rings are below this.
const MAX_RING: u16 = 0xfff;

/// Splits a text behind the digits that it begins with.
fn split_number(text: &str) -> (&str, &str) {
    text.split_at(text.bytes().take_while(u8::is_ascii_digit).count())
}

impl FromStr for PortName {
    type Err = InvalidRequest;

    fn from_str(name: &str) -> Result<Self, InvalidRequest> {
        Self::decode(name).map_err(|why| InvalidRequest::Port { name: name.into(), why })
    }
}

impl PortName {
    /// Parses a name as netmap's library does, with its checks in the same order.
    fn decode(name: &str) -> Result<Self, &'static str> {
        let is_netmap = name.starts_with("netmap");
        let start = name.strip_prefix("netmap").or(name.strip_prefix("vale"));
        let start = start.ok_or("write netmap:PORT or valeSWITCH:PORT")?;
        let (switch, rest) = start.split_once(':').ok_or("write netmap:PORT or valeSWITCH:PORT")?;
        if is_netmap && !switch.is_empty() {
            return Err("nothing stands between 'netmap' and ':'");
        }
        if !is_identifier(switch) {
            return Err("a switch is called by letters, digits and '_'");
        }
        let (own, suffix) = rest.split_at(rest.find(['-', '*', '^', '/', '@']).unwrap_or(rest.len()));
        if !own.chars().all(|one| one.is_ascii_alphanumeric() || "_.{}".contains(one)) {
            return Err("a port is called by letters, digits, '_' and '.'");
        }
        if let Some(at) = own.find(['{', '}']) {
            if own[at + 1..].is_empty() {
                return Err("a pipe has a name");
            }
            if !is_identifier(&own[at + 1..]) {
                return Err("a pipe is called by letters, digits and '_', with nothing behind it");
            }
        }
        if own.is_empty() || own.starts_with(['{', '}']) {
            return Err("the port is missing");
        }
        let port = if is_netmap { own } else { &name[..name.len() - suffix.len()] };
        if port.len() > MAX_NAME_LEN {
            return Err("the name is longer than 63 bytes");
        }
        if is_netmap && port.starts_with("vale") && !port.contains(['{', '}']) {
            return Err("write valeSWITCH:PORT");
        }
        let parsed = Self { port: port.into(), mode: Mode::AllNic, ring: 0, flags: 0, memory_id: 0 };
        parsed.with_suffix(suffix)
    }

    /// Parses what follows the port.
    fn with_suffix(mut self, suffix: &str) -> Result<Self, &'static str> {
        let ring = |text| match split_number(text) {
            ("", _) => Err("a ring is a number"),
            (number, rest) => {
                let number = number.parse().ok().filter(|number| *number < MAX_RING);
                Ok((number.ok_or("rings have numbers below 4095")?, rest))
            }
        };
        let mut rest = suffix;
        if let Some(text) = rest.strip_prefix('-') {
            self.mode = Mode::OneNic;
            (self.ring, rest) = ring(text)?;
        } else if let Some(text) = rest.strip_prefix('*') {
            (self.mode, rest) = (Mode::NicAndHost, text);
        } else if let Some(text) = rest.strip_prefix('^') {
            (self.mode, rest) = (Mode::Host, text);
            if text.starts_with(|first: char| first.is_ascii_digit()) {
                self.mode = Mode::OneHost;
                (self.ring, rest) = ring(text)?;
            }
        }
        while let Some(first) = rest.chars().next() {
            rest = match first {
                '/' => self.take_options(&rest[1..])?,
                '@' => self.take_memory(&rest[1..])?,
                _ => return Err("behind the ring stand '/' with options, and '@' with a memory"),
            };
        }
        Ok(self)
    }

    /// Adds options. Returns what follows them.
    fn take_options<'a>(&mut self, text: &'a str) -> Result<&'a str, &'static str> {
        let end = text.find('@').unwrap_or(text.len());
        if text.is_empty() {
            return Err("options follow '/'");
        }
        for option in text[..end].chars() {
            self.flags |= match option {
                'R' => register::RX_ONLY,
                'T' => register::TX_ONLY,
                'x' => register::EXCLUSIVE,
                'r' => register::MONITOR_RX,
                't' => register::MONITOR_TX,
                'z' => register::ZERO_COPY_MONITOR,
                _ => return Err("behind '/' stand R, T, x, r, t and z"),
            };
        }
        Ok(&text[end..])
    }

    /// Sets the memory. Returns what follows it.
    fn take_memory<'a>(&mut self, text: &'a str) -> Result<&'a str, &'static str> {
        let (number, rest) = split_number(text);
        let id = number.parse().ok().filter(|id| *id != 0).ok_or("a memory is a number from 1 to 65535")?;
        if ![0, id].contains(&self.memory_id) {
            return Err("two different memories");
        }
        self.memory_id = id;
        Ok(rest)
    }

    /// Returns the name of a null port, which may be any text.
    pub fn null(name: &str) -> Self {
        Self { port: format!("null:{name}"), mode: Mode::Null, ring: 0, flags: 0, memory_id: 0 }
    }

    /// Parses the name in a request's header, which has neither `netmap:` nor a suffix, except that of a pipe. A
    /// name that nobody can have is that of no port.
    pub fn in_header(name: &str) -> Result<Self, InvalidRequest> {
        let parsed = Self { port: name.into(), mode: Mode::AllNic, ring: 0, flags: 0, memory_id: 0 };
        match parsed.pipe() {
            Some((parent, pipe)) if parent.is_empty() || pipe.is_empty() => Err(InvalidRequest::Pipe(name.into())),
            None if name.is_empty() => Err(InvalidRequest::NoName),
            None if name.starts_with("vale")
                && parsed.vale().is_none_or(|(switch, own)| !is_identifier(switch) || own.is_empty()) =>
            {
                Err(InvalidRequest::Vale(name.into()))
            }
            _ => Ok(parsed),
        }
    }
}

impl fmt::Display for PortName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let prefix = if self.vale().is_some() { "" } else { "netmap:" };
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

    /// The names of the port and of the pipe; `None` if it is no pipe.
    pub fn pipe(&self) -> Option<(&str, &str)> {
        let at = self.pipe_end()?;
        Some((&self.port[..at], &self.port[at + 1..]))
    }

    /// Returns whether the name is that of the first end of a pipe (`{`).
    pub fn is_first_end(&self) -> bool {
        self.pipe_end().is_some_and(|at| self.port[at..].starts_with('{'))
    }

    /// Place of the character between the names of the port and of the pipe.
    fn pipe_end(&self) -> Option<usize> {
        self.port.rfind('{').or_else(|| self.port.rfind('}'))
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
            ("netmap:eth0.100", "eth0.100", Mode::AllNic, 0),
            ("netmap:14", "14", Mode::AllNic, 0),
            ("netmap:eth0^/x@1", "eth0", Mode::Host, 0),
            ("netmap:eth0-4094", "eth0", Mode::OneNic, 4094),
            ("netmap:pipe{in-7", "pipe{in", Mode::OneNic, 7),
            ("vale:0", "vale:0", Mode::AllNic, 0),
            ("vale0:a^", "vale0:a", Mode::Host, 0),
            ("netmap:eth0^", "eth0", Mode::Host, 0),
            ("netmap:eth0^1", "eth0", Mode::OneHost, 1),
            ("netmap:eth0*", "eth0", Mode::NicAndHost, 0),
            ("netmap:x{1", "x{1", Mode::AllNic, 0),
            ("vale0:vm-1", "vale0:vm", Mode::OneNic, 1),
            ("vale0:a}2", "vale0:a}2", Mode::AllNic, 0),
        ] {
            let PortName { port: of, mode: is, ring: number, .. } = parse(name);
            assert_eq!((of.as_str(), is, number), (port, mode, ring), "{name}");
        }
        for (name, flags, memory_id) in [
            ("netmap:eth0", 0, 0),
            ("netmap:eth0/x", register::EXCLUSIVE, 0),
            ("netmap:eth0/rt", register::MONITOR_RX | register::MONITOR_TX, 0),
            ("netmap:eth0/RT", register::RX_ONLY | register::TX_ONLY, 0),
            ("netmap:eth0@2", 0, 2),
            ("netmap:eth0@2/R", register::RX_ONLY, 2),
            ("netmap:eth0@2/R@2", register::RX_ONLY, 2),
            ("netmap:eth0/@2", 0, 2),
            ("netmap:grp{0/xT@3", register::EXCLUSIVE | register::TX_ONLY, 3),
        ] {
            let PortName { flags: is, memory_id: id, .. } = parse(name);
            assert_eq!((is, id), (flags, memory_id), "{name}");
        }
        let all = parse("netmap:eth0-1/Rxz@7");
        assert_eq!((all.mode, all.ring, all.memory_id), (Mode::OneNic, 1, 7));
        assert_eq!(all.flags, register::RX_ONLY | register::EXCLUSIVE | register::ZERO_COPY_MONITOR);
        let asked = all.asked(Register { flags: register::DO_RX_POLL, slots: [64; 2], ..Register::default() });
        let Register { mode, ring, memory_id, flags, slots, .. } = asked;
        assert_eq!((mode, ring, memory_id, slots), (Mode::OneNic, 1, 7, [64; 2]));
        assert_eq!(flags, all.flags | register::DO_RX_POLL);
        assert_eq!(parse("vale0:1").vale(), Some(("vale0", "1")));
        assert_eq!(parse("netmap:x}1").pipe(), Some(("x", "1")));
        assert_eq!(parse("vale0:a{b").pipe(), Some(("vale0:a", "b")));
        assert_eq!(
            ["netmap:x}1", "vale0:a{b", "netmap:x"].map(|name| parse(name).is_first_end()),
            [false, true, false]
        );
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
            ("netmap", "netmap:PORT"),
            ("netmapXXX:eth0", "nothing stands"),
            ("vale-0:a", "a switch"),
            ("netmap:vale0:0", "a port is called"),
            ("netmap:eth0&", "a port is called"),
            ("netmap:^", "missing"),
            ("netmap:vale0", "valeSWITCH:PORT"),
            ("vale0:", "missing"),
            ("netmap:x{", "a name"),
            ("netmap:x{/x", "a name"),
            ("netmap:x{1{2", "nothing behind"),
            ("netmap:x{1}2", "nothing behind"),
            ("netmap:eth0-", "a number"),
            ("netmap:br-lan", "a number"),
            ("netmap:eth0-4095", "below 4095"),
            ("netmap:eth0-1-2", "behind the ring"),
            ("netmap:eth0*3", "behind the ring"),
            ("netmap:eth0^1^", "behind the ring"),
            ("netmap:eth0/", "options follow"),
            ("netmap:eth0/x/x", "R, T, x"),
            ("netmap:eth0@", "a memory"),
            ("netmap:eth0@0", "a memory"),
            ("netmap:eth0@opt", "a memory"),
            ("netmap:eth0@2/R@3", "two different"),
            ("netmap:eth0-70000", "number"),
            ("netmap:eth0@x", "number"),
            ("netmap:eth0/q", "R, T, x"),
            ("netmap:eth0^70000", "number"),
        ] {
            let error = name.parse::<PortName>().expect_err(name).to_string();
            assert!(error.contains(why) && !error.contains('\n'), "{name}: {error}");
        }
        assert!(format!("netmap:{}", "x".repeat(64)).parse::<PortName>().is_err());
        assert!(format!("netmap:{}", "x".repeat(63)).parse::<PortName>().is_ok());
    }

    proptest::proptest! {
        /// Any text is a name or has one error.
        #[test]
        fn any_text_is_parsed(text in "(netmap:|vale:|vale0:)?[a-z0-9_.{}^*@/RTxz-]{0,20}") {
            if let Ok(name) = text.parse::<PortName>() {
                proptest::prop_assert_eq!(PortName::in_header(&name.port).map(|parsed| parsed.port), Ok(name.port));
            }
        }
    }

    #[test]
    fn names_in_headers_are_taken_as_they_are() {
        for name in ["eth0-3", "br-lan", "x{1", "x}1", "vale0:a", "vale:1", "vale0:a{1", "x{1}2", "x^"] {
            let parsed = PortName::in_header(name).unwrap();
            assert_eq!((parsed.port.as_str(), parsed.mode, parsed.flags), (name, Mode::AllNic, 0));
        }
        assert_eq!(PortName::in_header("x{1}2").unwrap().pipe(), Some(("x", "1}2")));
        assert_eq!(PortName::in_header(""), Err(InvalidRequest::NoName));
        for name in ["{1", "x{", "x}", "}", "{"] {
            assert_eq!(PortName::in_header(name), Err(InvalidRequest::Pipe(name.into())));
        }
        for name in ["vale0", "vale0:", "vale-0:a"] {
            assert_eq!(PortName::in_header(name), Err(InvalidRequest::Vale(name.into())));
        }
    }
}
