//! Messages between a process that has attached a program and one that opens a port by it. Both run the same version of Ringpass, so
//! that there are no others to be understood.

use std::array::from_fn;
use std::time::Duration;

use ringpass_port::MacAddress;

use super::socket::Umem;
use super::{Wanted, Ways, hints};

/// A new version of these messages has a new number here.
const MAGIC: u32 = 0x5044_5802;
/// Most queues: as many descriptors as a message carries.
pub(super) const MAX_QUEUES: usize = 16;
/// Sizes of a ring.
const RINGS: std::ops::RangeInclusive<u32> = 64..=8192;

/// Asks for sockets on a memory file, which comes with it.
pub(super) struct Ask {
    pub(super) queues: u32,
    pub(super) rings: [u32; 2],
    /// Length of the memory in bytes.
    pub(super) len: u64,
    pub(super) chunk: u32,
    /// What the memory is like; see [`Umem`].
    pub(super) flags: u32,
    /// Whether checksums of frames to be sent are left to the kernel or the card.
    pub(super) checksums: bool,
}

impl Ask {
    pub(super) const LEN: usize = 9 * 4;

    pub(super) fn new(wanted: &Wanted) -> Self {
        let Wanted { umem, queues, rings, checksums, .. } = *wanted;
        let (chunk, flags) = (umem.chunk(), umem.flags());
        Self { queues: queues as u32, rings, len: umem.len(), chunk, flags, checksums }
    }

    pub(super) fn bytes(&self) -> Vec<u8> {
        let Self { queues, rings: [rx, tx], len, chunk, flags, checksums } = *self;
        let words = [MAGIC, queues, rx, tx, len as u32, (len >> 32) as u32, chunk, flags, checksums.into()];
        words.map(u32::to_le_bytes).concat()
    }

    /// Reads an untrusted message. The memory is to be at `start`.
    ///
    /// # Errors
    /// What is wrong with it.
    pub(super) fn parse(bytes: &[u8; Self::LEN]) -> Result<Self, &'static str> {
        let [magic, queues, rx, tx, low, high, chunk, flags, checksums] = words(bytes);
        if magic != MAGIC {
            return Err("another version of Ringpass; run the same on both sides");
        }
        let fits = |ring: u32| ring.is_power_of_two() && RINGS.contains(&ring);
        if !(1..=MAX_QUEUES as u32).contains(&queues) || !fits(rx) || !fits(tx) {
            return Err("1 to 16 queues, with rings of 64 to 8192 entries, a power of two");
        }
        let (len, checksums) = (u64::from(low) | u64::from(high) << 32, checksums != 0);
        Ok(Self { queues, rings: [rx, tx], len, chunk, flags, checksums })
    }

    /// What is wanted, with the memory at `start`.
    ///
    /// # Errors
    /// What is wrong with the memory's form.
    pub(super) fn wanted(&self, start: u64) -> Result<Wanted, &'static str> {
        let umem = Umem::of_peer(start, self.len, self.chunk, self.flags)?;
        // The peer waits, and asks again.
        let Self { queues, rings, checksums, .. } = *self;
        Ok(Wanted {
            umem,
            queues: queues as usize,
            rings,
            patience: Duration::ZERO,
            hints: hints::Wanted::default(),
            checksums,
        })
    }
}

/// The answer to [`Ask`]; the sockets come with it.
pub(super) struct Answer {
    pub(super) mac: MacAddress,
    pub(super) mtu: u32,
    pub(super) is_running: bool,
    pub(super) ways: Ways,
    pub(super) verdict: Verdict,
}

/// What becomes of a question, with text for users.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    /// There are sockets; notes on the interface, in lines.
    Granted(String),
    /// Another process has them.
    Busy(String),
    /// There are none.
    Refused(String),
}

impl Answer {
    pub(super) const LEN: usize = 2048;
    const HEADER: usize = 7 * 4;

    /// An answer without sockets.
    pub(super) fn without_sockets(verdict: Verdict) -> Self {
        Self { mac: MacAddress([0; 6]), mtu: 0, is_running: false, ways: Ways::default(), verdict }
    }

    pub(super) fn bytes(&self) -> Vec<u8> {
        let (kind, text) = match &self.verdict {
            Verdict::Granted(notes) => (1, notes),
            Verdict::Busy(why) => (2, why),
            Verdict::Refused(why) => (3, why),
        };
        let end = (0..=text.len().min(Self::LEN - Self::HEADER)).rev().find(|end| text.is_char_boundary(*end));
        let end = end.unwrap_or_default();
        let [a, b, c, d, e, f] = self.mac.0;
        let (high, low) = (u32::from_be_bytes([0, 0, a, b]), u32::from_be_bytes([c, d, e, f]));
        let words = [
            kind,
            end as u32,
            high,
            low,
            self.mtu,
            u32::from(self.is_running),
            u32::from(self.ways.busy_poll) | u32::from(self.ways.hints) << 1 | u32::from(self.ways.checksums) << 2,
        ];
        let mut bytes = words.map(u32::to_le_bytes).concat();
        bytes.extend(&text.as_bytes()[..end]);
        bytes.resize(Self::LEN, 0);
        bytes
    }

    pub(super) fn parse(bytes: &[u8; Self::LEN]) -> Option<Self> {
        let [kind, len, high, low, mtu, is_running, ways] = words(bytes.first_chunk::<{ Self::HEADER }>()?);
        let text = bytes[Self::HEADER..].get(..len as usize)?;
        let text = String::from_utf8(text.to_vec()).ok()?;
        let ([_, _, a, b], [c, d, e, f]) = (high.to_be_bytes(), low.to_be_bytes());
        let mac = MacAddress([a, b, c, d, e, f]);
        let verdict = match kind {
            1 => Verdict::Granted(text),
            2 => Verdict::Busy(text),
            3 => Verdict::Refused(text),
            _ => return None,
        };
        let ways = Ways { busy_poll: ways & 1 != 0, hints: ways & 2 != 0, checksums: ways & 4 != 0 };
        Some(Self { mac, mtu, is_running: is_running != 0, ways, verdict })
    }
}

/// What either side tells the other later.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Tell {
    /// The interface is up and has a carrier, or not any more.
    Running(bool),
    /// It is to be in promiscuous mode, or not.
    Promiscuous(bool),
}

impl Tell {
    pub(super) const LEN: usize = 8;

    pub(super) fn bytes(self) -> Vec<u8> {
        let words = match self {
            Self::Running(on) => [1, u32::from(on)],
            Self::Promiscuous(on) => [2, u32::from(on)],
        };
        words.map(u32::to_le_bytes).concat()
    }

    pub(super) fn parse(bytes: &[u8; Self::LEN]) -> Option<Self> {
        match words(bytes) {
            [1, on] => Some(Self::Running(on != 0)),
            [2, on] => Some(Self::Promiscuous(on != 0)),
            _ => None,
        }
    }
}

fn words<const N: usize, const LEN: usize>(bytes: &[u8; LEN]) -> [u32; N] {
    const { assert!(LEN == 4 * N) };
    from_fn(|word| u32::from_le_bytes(from_fn(|byte| bytes[4 * word + byte])))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_come_back_as_they_were() {
        let ask = Ask { queues: 4, rings: [512, 1024], len: 0x1_2345_6000, chunk: 2304, flags: 5, checksums: true };
        let bytes = ask.bytes();
        let back = Ask::parse(bytes.first_chunk().unwrap()).unwrap();
        assert_eq!((back.queues, back.rings, back.len), (4, [512, 1024], 0x1_2345_6000));
        assert_eq!((back.chunk, back.flags), (2304, 5));
        assert!(back.checksums);
        let verdicts = [
            Verdict::Granted("a note\nand one more".into()),
            Verdict::Busy(String::new()),
            Verdict::Refused("no".into()),
        ];
        for verdict in verdicts {
            let ways = Ways { busy_poll: false, hints: true, checksums: true };
            let answer = Answer { mac: MacAddress([2, 1, 3, 4, 5, 6]), mtu: 9000, is_running: true, ways, verdict };
            let back = Answer::parse(answer.bytes().first_chunk().unwrap()).unwrap();
            assert_eq!((back.mac, back.mtu), (answer.mac, 9000));
            assert!(back.is_running && back.ways == ways);
            assert_eq!(back.verdict, answer.verdict);
        }
        let long = Answer::without_sockets(Verdict::Refused("é".repeat(2000)));
        let Verdict::Refused(cut) = Answer::parse(long.bytes().first_chunk().unwrap()).unwrap().verdict else {
            panic!()
        };
        assert!(cut.len() > 2000 && cut.chars().all(|char| char == 'é'));
        for tell in [Tell::Running(true), Tell::Running(false), Tell::Promiscuous(true)] {
            assert_eq!(Tell::parse(tell.bytes().first_chunk().unwrap()), Some(tell));
        }
        assert_eq!(Tell::parse(&[9; 8]), None);
    }

    #[test]
    fn wrong_questions_are_refused() {
        let right = Ask { queues: 1, rings: [64, 64], len: 1 << 20, chunk: 4096, flags: 1, checksums: false };
        let parse = |change: fn(&mut Ask)| {
            let mut ask = Ask { ..right };
            change(&mut ask);
            Ask::parse(ask.bytes().first_chunk().unwrap()).and_then(|ask| ask.wanted(1 << 30)).map(drop)
        };
        assert_eq!(parse(|_| {}), Ok(()));
        let wrong: [fn(&mut Ask); 9] = [
            |ask| ask.queues = 0,
            |ask| ask.queues = 17,
            |ask| ask.rings[0] = 65,
            |ask| ask.rings[1] = 1 << 31,
            |ask| ask.chunk = 2047,
            |ask| ask.chunk = 4097,
            |ask| ask.chunk = 3000,
            |ask| ask.len = 100,
            |ask| ask.len = (1 << 20) + 1,
        ];
        for change in wrong {
            assert!(parse(change).is_err());
        }
        let mut bytes = right.bytes();
        bytes[0] ^= 1;
        assert!(Ask::parse(bytes.first_chunk().unwrap()).is_err_and(|why| why.contains("version")));
    }
}
