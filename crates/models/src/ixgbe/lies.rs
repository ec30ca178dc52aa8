//! A card that lies, as its configuration says: what a driver must survive.

use std::fmt;
use std::str::FromStr;

macro_rules! kinds {
    ($($kind:ident $name:literal $doc:literal;)*) => {
        /// What a card lies about.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum Lie { $(#[doc = $doc] $kind,)* }

        impl Lie {
            /// All of them.
            pub const ALL: &[Self] = &[$(Self::$kind,)*];

            /// Its name in a configuration.
            pub fn name(self) -> &'static str {
                match self { $(Self::$kind => $name,)* }
            }

            /// The lie of that name. Kept apart: folded into its caller, it takes the compiler half an hour.
            #[inline(never)]
            fn named(name: &str) -> Option<&'static Self> {
                Self::ALL.iter().find(|lie| lie.name() == name)
            }
        }
    };
}

kinds! {
    LengthLong "length-long" "Rx: a length beyond the buffer.";
    LengthZero "length-zero" "Rx: a length of 0.";
    NoData "no-data" "Rx: DD is set, and nothing was written to the buffer.";
    NoEop "no-eop" "Rx: the frame never ends.";
    OutOfOrder "out-of-order" "Rx: the descriptor behind the next one is written back first.";
    DdCleared "dd-cleared" "Rx: DD is taken back when the next frame comes.";
    RxStuck "rx-stuck" "Rx: no frame is delivered.";
    TxStuck "tx-stuck" "Tx: no frame is sent, none reported.";
    WrongHead "wrong-head" "Tx: the head that is written back is not the head.";
    Removed "removed" "The card has gone: registers read 0xffffffff, writes and memory do nothing.";
    EepromNever "eeprom-never" "The EEPROM is never ready.";
    ResetNever "reset-never" "A reset is never done.";
    InitNever "init-never" "The DMA's initialisation is never done.";
    EnableNever "enable-never" "No queue is ever enabled, as far as its register says.";
    DisableNever "disable-never" "No queue is ever disabled.";
    MasterNever "master-never" "The card never stops to be master.";
    LinkFlap "link-flap" "The link goes down for a while.";
    InterruptLost "interrupt-lost" "A message is not sent.";
    InterruptStorm "interrupt-storm" "All messages are sent in each round.";
    DmaOutside "dma-outside" "Rx: memory is written to at an address of the configuration.";
}

/// The lies that make a card never ready.
const NEVER_READY: [Lie; 4] = [Lie::EepromNever, Lie::ResetNever, Lie::InitNever, Lie::EnableNever];
const KINDS: usize = Lie::ALL.len();

/// When a lie is told. Occasions are counted from 1: the frames of the direction, the messages, or, for what is always
/// so, the frames of both directions; a lie from 0 or 1 on is told from the start.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct When {
    /// The first occasion,
    pub first: u64,
    /// and the last.
    pub last: u64,
    /// The probability on each of them.
    pub chance: f64,
}

impl Default for When {
    fn default() -> Self {
        Self { first: 0, last: u64::MAX, chance: 1.0 }
    }
}

/// What a card lies about, and when. The same lies with the same seed are told on the same occasions.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Lies {
    when: [Option<When>; KINDS],
    /// Makes the lies that are told by chance.
    pub seed: u64,
    /// Where [`Lie::DmaOutside`] writes.
    pub address: u64,
}

impl Default for Lies {
    fn default() -> Self {
        Self { when: [None; KINDS], seed: 1, address: 0 }
    }
}

impl Lies {
    /// One more.
    #[must_use]
    pub fn with(mut self, lie: Lie, when: When) -> Self {
        self.when[lie as usize] = Some(when);
        self
    }

    /// When a lie is told, if at all.
    pub fn when(&self, lie: Lie) -> Option<When> {
        self.when[lie as usize]
    }

    /// Whether there are any.
    pub fn any(&self) -> bool {
        self.when.iter().any(Option::is_some)
    }
}

/// `KIND[@FIRST[-LAST]][%CHANCE][=ADDRESS]`, several with `+` between them, such as `no-eop@100-100+removed@5000` or
/// `length-long%0.01+seed=7` or `dma-outside@10=0xdead0000`; `never-ready` stands for four of them.
impl FromStr for Lies {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        text.split('+').try_fold(Self::default(), |lies, part| lies.and(part))
    }
}

impl Lies {
    #[inline(never)]
    fn and(mut self, text: &str) -> Result<Self, String> {
        let (rest, value) = text.split_once('=').map_or((text, None), |(rest, value)| (rest, Some(value)));
        let (rest, chance) = rest.split_once('%').map_or((rest, None), |(rest, chance)| (rest, Some(chance)));
        let (name, span) = rest.split_once('@').map_or((rest, None), |(name, span)| (name, Some(span)));
        if name == "seed" {
            self.seed = number(text, value.unwrap_or_default())?;
            return Ok(self);
        }
        let mut when = When::default();
        if let Some(span) = span {
            let (first, last) = span.split_once('-').map_or((span, None), |(first, last)| (first, Some(last)));
            when.first = number(text, first)?;
            when.last = last.map_or(Ok(u64::MAX), |last| number(text, last))?;
        }
        if let Some(chance) = chance {
            let chance = chance.parse().ok().filter(|chance| (0.0..=1.0).contains(chance));
            when.chance =
                chance.ok_or_else(|| format!("'{text}' has no probability behind %; write one from 0 to 1"))?;
        }
        let kind = Lie::named(name);
        let kinds = if name == "never-ready" { &NEVER_READY[..] } else { kind.map_or(&[][..], std::slice::from_ref) };
        if kinds.is_empty() {
            let names: Vec<&str> = Lie::ALL.iter().map(|lie| lie.name()).collect();
            return Err(format!("'{name}' is no lie; there are {}, never-ready, seed", names.join(", ")));
        }
        match value {
            Some(value) if kinds == [Lie::DmaOutside] => self.address = number(text, value)?,
            None if kinds == [Lie::DmaOutside] => return Err(format!("'{text}' needs an address: {name}=0xdead0000")),
            Some(_) => return Err(format!("'{text}' takes no value; only dma-outside and seed do")),
            None => {}
        }
        Ok(kinds.iter().fold(self, |lies, &lie| lies.with(lie, when)))
    }
}

fn number(text: &str, value: &str) -> Result<u64, String> {
    let parsed = value.strip_prefix("0x").map_or_else(|| value.parse(), |digits| u64::from_str_radix(digits, 16));
    parsed.map_err(|_| format!("'{value}' in '{text}' is no number"))
}

/// As it is read.
impl fmt::Display for Lies {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for &lie in Lie::ALL {
            let Some(When { first, last, chance }) = self.when(lie) else { continue };
            write!(f, "{}", lie.name())?;
            match (first, last) {
                (0, u64::MAX) => {}
                (_, u64::MAX) => write!(f, "@{first}")?,
                _ => write!(f, "@{first}-{last}")?,
            }
            if chance < 1.0 {
                write!(f, "%{chance}")?;
            }
            if lie == Lie::DmaOutside {
                write!(f, "={:#x}", self.address)?;
            }
            write!(f, "+")?;
        }
        write!(f, "seed={}", self.seed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read() {
        let lies: Lies =
            "no-eop@100-100+removed@5000+length-long%0.25+dma-outside@7=0xdead0000+seed=9".parse().unwrap();
        assert_eq!(lies.when(Lie::NoEop), Some(When { first: 100, last: 100, chance: 1.0 }));
        assert_eq!(lies.when(Lie::Removed), Some(When { first: 5000, ..When::default() }));
        assert_eq!(lies.when(Lie::LengthLong), Some(When { chance: 0.25, ..When::default() }));
        assert_eq!((lies.when(Lie::NoData), lies.address, lies.seed), (None, 0xdead_0000, 9));
        assert_eq!(lies.to_string().parse(), Ok(lies));
        for &lie in Lie::ALL {
            let lies = Lies { address: 16, ..Lies::default() }.with(lie, When::default());
            assert_eq!(
                lies.to_string().parse(),
                Ok(Lies { address: if lie == Lie::DmaOutside { 16 } else { 0 }, ..lies })
            );
        }
        assert!(NEVER_READY.iter().all(|&lie| "never-ready".parse::<Lies>().unwrap().when(lie).is_some()));
    }

    #[test]
    fn nonsense_gets_one_line() {
        for text in
            ["", "truth", "no-eop@x", "no-eop@3-", "no-eop%2", "no-eop%", "no-eop=3", "dma-outside", "seed=", "+"]
        {
            let error = text.parse::<Lies>().expect_err(text);
            assert!(!error.contains('\n') && !error.is_empty());
        }
    }
}
