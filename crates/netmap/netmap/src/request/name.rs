//! Names of ports as programs and users write them.

use std::fmt;
use std::str::FromStr;

use super::{InvalidRequest, Mode, Register, register};

/// A port's name, with the rings and options that it selects.
///
/// It is `netmap:PORT` or `valeSWITCH:PORT`, where SWITCH and PIPE consist of letters, digits and `_`, and PORT of any
/// characters but those that begin an optional part. These follow, in this order:
///
/// - `{PIPE` or `}PIPE` for an end of a pipe
/// - `-RING` for one ring, `^` for the host's rings, `*` for all rings and the host's, `^RING` for one of the
///   host's
/// - `/OPTIONS` and `@MEMORY`, in any order and repeatedly. Options are `R` or `T` to receive or send only, `x` for
///   exclusive use, `r` and `t` to monitor what others receive and send, `z` to monitor without a copy; the memory
///   is given by its number
///
/// netmap's library also takes `@KEY:...` with options of a registration, which are refused here.
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
            return Err("there is something between 'netmap' and ':'; write netmap:PORT");
        }
        if !is_identifier(switch) {
            return Err("the name of a switch consists of letters, digits and '_'; write one such as vale0:PORT");
        }
        let (own, suffix) = rest.split_at(rest.find(['-', '*', '^', '/', '@']).unwrap_or(rest.len()));
        if own.contains(char::is_control) {
            return Err("the port's name has a control character; leave it out");
        }
        if let Some(at) = own.find(['{', '}']) {
            if own[at + 1..].is_empty() {
                return Err("the pipe's name is missing; write one such as x{1");
            }
            if !is_identifier(&own[at + 1..]) {
                return Err("the name of a pipe consists of letters, digits and '_'; write one such as x{1");
            }
        }
        if own.is_empty() || own.starts_with(['{', '}']) {
            return Err("the port is missing; write netmap:PORT or valeSWITCH:PORT");
        }
        let port = if is_netmap { own } else { &name[..name.len() - suffix.len()] };
        if port.len() > MAX_NAME_LEN {
            return Err("the name is longer than 63 bytes; write a shorter one");
        }
        // `netmap:vale0:a` is `vale0:a`.
        let parsed = Self::in_header(port).ok();
        let is_vale = |(switch, own): (&str, &str)| is_identifier(switch) && !own.starts_with(['{', '}']);
        let parsed = parsed.filter(|parsed| parsed.vale().is_none_or(is_vale));
        parsed.ok_or("write valeSWITCH:PORT, with letters, digits and '_' for SWITCH")?.with_suffix(suffix)
    }

    /// Parses what follows the port.
    fn with_suffix(mut self, suffix: &str) -> Result<Self, &'static str> {
        let ring = |text| match split_number(text) {
            ("", _) => Err("the number of a ring is missing; write -N, such as -0"),
            (number, rest) => {
                let number = number.parse().ok().filter(|number| *number < MAX_RING);
                Ok((number.ok_or("the number of a ring is too large; write one from 0 to 4094")?, rest))
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
                _ => return Err("only /OPTIONS and @MEMORY may follow the rings; leave the rest out"),
            };
        }
        Ok(self)
    }

    /// Adds options. Returns what follows them.
    fn take_options<'a>(&mut self, text: &'a str) -> Result<&'a str, &'static str> {
        let end = text.find('@').unwrap_or(text.len());
        if text.is_empty() {
            return Err("options are missing behind '/'; write some of R, T, x, r, t and z");
        }
        for option in text[..end].chars() {
            self.flags |= match option {
                'R' => register::RX_ONLY,
                'T' => register::TX_ONLY,
                'x' => register::EXCLUSIVE,
                'r' => register::MONITOR_RX,
                't' => register::MONITOR_TX,
                'z' => register::ZERO_COPY_MONITOR,
                _ => return Err("unknown option behind '/'; known: R, T, x, r, t and z"),
            };
        }
        Ok(&text[end..])
    }

    /// Sets the memory. Returns what follows it.
    fn take_memory<'a>(&mut self, text: &'a str) -> Result<&'a str, &'static str> {
        let (number, rest) = split_number(text);
        if number.is_empty() && !rest.is_empty() {
            return Err("options of a registration behind '@' are not there yet; write @ with the number of a memory");
        }
        let id = number
            .parse()
            .ok()
            .filter(|id| *id != 0)
            .ok_or("a memory is a number from 1 to 65535; write one such as @1")?;
        if ![0, id].contains(&self.memory_id) {
            return Err("it names two different memories; write one");
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

    /// What a name stands for: the port, the pipe, mode, ring, flags and memory.
    type Parts = (&'static str, Option<&'static str>, Mode, u16, u64, u16);

    #[test]
    fn names_are_what_netmaps_library_makes_of_them() {
        use Mode::{AllNic, Host, NicAndHost, OneHost, OneNic};
        use register::{
            EXCLUSIVE as X, MONITOR_RX as MON_RX, MONITOR_TX as MON_TX, RX_ONLY as RX, TX_ONLY as TX,
            ZERO_COPY_MONITOR as Z,
        };
        let names: &[(&str, Parts)] = &[
            ("netmap:eth0", ("eth0", None, AllNic, 0, 0, 0)),
            ("netmap:eth0.100", ("eth0.100", None, AllNic, 0, 0, 0)),
            ("netmap:eth0:1", ("eth0:1", None, AllNic, 0, 0, 0)),
            ("netmap:eth0&", ("eth0&", None, AllNic, 0, 0, 0)),
            ("netmap:14", ("14", None, AllNic, 0, 0, 0)),
            ("vale:0", ("vale:0", None, AllNic, 0, 0, 0)),
            ("vale_X9:YY_9", ("vale_X9:YY_9", None, AllNic, 0, 0, 0)),
            ("vale0:tap:x", ("vale0:tap:x", None, AllNic, 0, 0, 0)),
            ("netmap:vale0:a", ("vale0:a", None, AllNic, 0, 0, 0)),
            // Pipes.
            ("netmap:x{1", ("x{1", Some("1"), AllNic, 0, 0, 0)),
            ("netmap:x}1", ("x}1", Some("1"), AllNic, 0, 0, 0)),
            ("netmap:pipe{a_b", ("pipe{a_b", Some("a_b"), AllNic, 0, 0, 0)),
            ("netmap:pipe{in-7", ("pipe{in", Some("in"), OneNic, 7, 0, 0)),
            ("netmap:grp{0/xT@3", ("grp{0", Some("0"), AllNic, 0, X | TX, 3)),
            ("netmap:vale0{1", ("vale0{1", Some("1"), AllNic, 0, 0, 0)),
            ("vale0:a}2", ("vale0:a}2", Some("2"), AllNic, 0, 0, 0)),
            ("netmap:vale0:a{b/r", ("vale0:a{b", Some("b"), AllNic, 0, MON_RX, 0)),
            // Rings.
            ("netmap:eth0-0", ("eth0", None, OneNic, 0, 0, 0)),
            ("netmap:eth0-4094", ("eth0", None, OneNic, 4094, 0, 0)),
            ("netmap:eth0-007", ("eth0", None, OneNic, 7, 0, 0)),
            ("vale0:vm-1@2/R", ("vale0:vm", None, OneNic, 1, RX, 2)),
            ("netmap:eth0^", ("eth0", None, Host, 0, 0, 0)),
            ("vale0:a^", ("vale0:a", None, Host, 0, 0, 0)),
            ("netmap:eth0^1", ("eth0", None, OneHost, 1, 0, 0)),
            ("netmap:eth0^12/T@4", ("eth0", None, OneHost, 12, TX, 4)),
            ("netmap:eth0^/x@1", ("eth0", None, Host, 0, X, 1)),
            ("netmap:eth0*", ("eth0", None, NicAndHost, 0, 0, 0)),
            ("netmap:eth0*@1/x", ("eth0", None, NicAndHost, 0, X, 1)),
            // Options and memories.
            ("netmap:eth0/x", ("eth0", None, AllNic, 0, X, 0)),
            ("netmap:eth0/xx", ("eth0", None, AllNic, 0, X, 0)),
            ("netmap:eth0/rt", ("eth0", None, AllNic, 0, MON_RX | MON_TX, 0)),
            ("netmap:eth0/z", ("eth0", None, AllNic, 0, Z, 0)),
            ("netmap:eth0/RT", ("eth0", None, AllNic, 0, RX | TX, 0)),
            ("netmap:eth0-1/Rxz@7", ("eth0", None, OneNic, 1, RX | X | Z, 7)),
            ("netmap:eth0@2", ("eth0", None, AllNic, 0, 0, 2)),
            ("netmap:eth0@65535", ("eth0", None, AllNic, 0, 0, 65535)),
            ("netmap:eth0/@2", ("eth0", None, AllNic, 0, 0, 2)),
            ("netmap:eth0@2/R@2", ("eth0", None, AllNic, 0, RX, 2)),
            ("netmap:eth0/x@2/R", ("eth0", None, AllNic, 0, X | RX, 2)),
            ("netmap:eth0@2@2", ("eth0", None, AllNic, 0, 0, 2)),
        ];
        for &(name, (port, pipe, mode, ring, flags, memory_id)) in names {
            let parsed = parse(name);
            assert_eq!(parsed, PortName { port: port.into(), mode, ring, flags, memory_id }, "{name}");
            assert_eq!(parsed.pipe().map(|(_, pipe)| pipe), pipe, "{name}");
        }
        assert!(format!("netmap:{}", "x".repeat(64)).parse::<PortName>().is_err());
        assert!(format!("netmap:{}", "x".repeat(63)).parse::<PortName>().is_ok());
    }

    #[test]
    fn parts_of_names() {
        let all = parse("netmap:eth0-1/Rxz@7");
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
            (parse("netmap:x/T").to_string(), parse("netmap:vale0:1").to_string()),
            ("netmap:x".into(), "vale0:1".into())
        );
    }

    #[test]
    fn what_is_no_name_says_why() {
        for (name, why) in [
            ("eth0", "write netmap:PORT"),
            ("", "write netmap:PORT"),
            ("netmap", "write netmap:PORT"),
            ("vale0", "valeSWITCH:PORT"),
            ("netmap:", "missing"),
            ("vale0:", "missing"),
            ("netmap:^", "missing"),
            ("netmap:{1", "missing"),
            ("vale0:{1", "missing"),
            ("netmapXXX:eth0", "between 'netmap' and ':'"),
            ("vale-0:a", "of a switch"),
            ("vale0{1:a", "of a switch"),
            ("netmap:vale0", "valeSWITCH:PORT"),
            ("netmap:vale0:", "valeSWITCH:PORT"),
            ("netmap:vale0.1:a", "valeSWITCH:PORT"),
            ("netmap:vale0.1:a{1", "valeSWITCH:PORT"),
            ("netmap:vale0:{1", "valeSWITCH:PORT"),
            ("netmap:eth0\t", "control character"),
            ("netmap:x{", "pipe's name is missing"),
            ("netmap:x{/x", "pipe's name is missing"),
            ("netmap:x{1{2", "name of a pipe"),
            ("netmap:x{1}2", "name of a pipe"),
            ("netmap:x{1.2", "name of a pipe"),
            ("netmap:eth0-", "ring is missing"),
            ("netmap:br-lan", "ring is missing"),
            ("netmap:eth0--1", "ring is missing"),
            ("netmap:eth0-4095", "from 0 to 4094"),
            ("netmap:eth0-70000", "from 0 to 4094"),
            ("netmap:eth0^70000", "from 0 to 4094"),
            ("netmap:eth0-1-2", "only /OPTIONS and @MEMORY"),
            ("netmap:eth0-1^", "only /OPTIONS and @MEMORY"),
            ("netmap:eth0*3", "only /OPTIONS and @MEMORY"),
            ("netmap:eth0^1^", "only /OPTIONS and @MEMORY"),
            ("netmap:eth0@1-1", "only /OPTIONS and @MEMORY"),
            ("netmap:eth0/", "options are missing"),
            ("netmap:eth0/x/x", "known: R, T, x"),
            ("netmap:eth0/@2/", "options are missing"),
            ("netmap:eth0/q", "known: R, T, x"),
            ("netmap:eth0/x-1", "known: R, T, x"),
            ("netmap:eth0@", "from 1 to 65535"),
            ("netmap:eth0@0", "from 1 to 65535"),
            // netmap's library keeps the low 16 bits of these.
            ("netmap:eth0@65536", "from 1 to 65535"),
            ("netmap:eth0@x", "number of a memory"),
            ("netmap:eth0@conf:rings=2", "number of a memory"),
            ("netmap:eth0@1@opt", "number of a memory"),
            ("netmap:eth0@2/R@3", "two different memories"),
        ] {
            let error = name.parse::<PortName>().expect_err(name).to_string();
            assert!(error.contains(why) && !error.contains('\n'), "{name}: {error}");
        }
    }

    proptest::proptest! {
        /// Any text is a name or has one error.
        #[test]
        fn any_text_is_parsed(text in "(netmap:|vale:|vale0:|netmap:vale)?[a-z0-9_.:&{}^*@/RTxz-]{0,20}") {
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
