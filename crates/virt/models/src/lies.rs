//! Fault injection: devices that lie to their driver as configured. Drivers must survive every lie. Each model
//! has its own kinds of lies.

use std::fmt;
use std::marker::PhantomData;
use std::str::FromStr;
use std::sync::atomic::{AtomicU64, Ordering};

/// Largest number of kinds of lies that a model has.
const KINDS: usize = 32;
/// Steps that the link stays down in a flap.
const FLAP_STEPS: u64 = 1000;

/// Kind of lie that a model can tell.
pub trait Kind: Copy + PartialEq + fmt::Debug + 'static {
    /// All kinds.
    const ALL: &'static [Self];
    /// The kind that takes an address.
    const ADDRESS: Self;
    /// The kind that sends all interrupt messages in each step.
    const STORM: Self;
    /// Name that stands for several kinds, and these kinds.
    const GROUP: (&'static str, &'static [Self]);

    /// Returns the name used in a configuration.
    fn name(self) -> &'static str;

    /// Returns the index of this kind in [`ALL`](Self::ALL).
    fn index(self) -> usize;
}

/// Occasions on which a lie is told, counted from 1. An occasion is a frame of the lie's direction or an
/// interrupt message; for a lie about a lasting condition it is a frame of either direction. A lie whose first
/// occasion is 0 or 1 is told from the start.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct When {
    /// First occasion.
    pub first: u64,
    /// Last occasion, inclusive.
    pub last: u64,
    /// Probability on each occasion, from 0 to 1.
    pub chance: f64,
}

impl Default for When {
    fn default() -> Self {
        Self { first: 0, last: u64::MAX, chance: 1.0 }
    }
}

/// Lies that a device tells, and when. Equal lies with an equal seed are told on the same occasions.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Lies<K> {
    pub(crate) when: [Option<When>; KINDS],
    /// Seed of the random numbers for lies that are told by chance.
    pub seed: u64,
    /// I/O virtual address that the lie with an address writes to.
    pub address: u64,
    pub(crate) kind: PhantomData<K>,
}

impl<K> Default for Lies<K> {
    fn default() -> Self {
        Self { when: [None; KINDS], seed: 1, address: 0, kind: PhantomData }
    }
}

impl<K: Kind> Lies<K> {
    /// Adds a lie, or replaces its occasions.
    #[must_use]
    pub fn with(mut self, lie: K, when: When) -> Self {
        self.when[lie.index()] = Some(when);
        self
    }

    /// Returns the occasions of a lie, or `None` if it is never told.
    pub fn when(&self, lie: K) -> Option<When> {
        self.when[lie.index()]
    }

    /// Returns whether there is any lie.
    pub fn any(&self) -> bool {
        self.when.iter().any(Option::is_some)
    }

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
        let kind = Self::named(name);
        let kinds = if name == K::GROUP.0 { K::GROUP.1 } else { kind.map_or(&[][..], std::slice::from_ref) };
        if kinds.is_empty() {
            let names: Vec<&str> = K::ALL.iter().map(|lie| lie.name()).collect();
            return Err(format!("'{name}' is not a lie; there are {}, {}, seed", names.join(", "), K::GROUP.0));
        }
        match value {
            Some(value) if kinds == [K::ADDRESS] => self.address = number(text, value)?,
            None if kinds == [K::ADDRESS] => return Err(format!("'{text}' needs an address: {name}=0xdead0000")),
            Some(_) => return Err(format!("'{text}' takes no value; only {} and seed do", K::ADDRESS.name())),
            None => {}
        }
        Ok(kinds.iter().fold(self, |lies, &lie| lies.with(lie, when)))
    }

    /// Returns the kind with this name. Not inlined: folded into its caller, it takes the compiler half an
    /// hour.
    #[inline(never)]
    fn named(name: &str) -> Option<&'static K> {
        K::ALL.iter().find(|lie| lie.name() == name)
    }
}

/// Parses `KIND[@FIRST[-LAST]][%CHANCE][=ADDRESS]`. Several lies are joined with `+`, as in
/// `no-eop@100-100+removed@5000`, `length-long%0.01+seed=7` or `dma-outside@10=0xdead0000`. `never-ready`
/// stands for several kinds.
impl<K: Kind> FromStr for Lies<K> {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        text.split('+').try_fold(Self::default(), |lies, part| lies.and(part))
    }
}

fn number(text: &str, value: &str) -> Result<u64, String> {
    let parsed = value.strip_prefix("0x").map_or_else(|| value.parse(), |digits| u64::from_str_radix(digits, 16));
    parsed.map_err(|_| format!("'{value}' in '{text}' is not a number"))
}

/// Prints the form that [`FromStr`] parses.
impl<K: Kind> fmt::Display for Lies<K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for &lie in K::ALL {
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
            if lie == K::ADDRESS {
                write!(f, "={:#x}", self.address)?;
            }
            write!(f, "+")?;
        }
        write!(f, "seed={}", self.seed)
    }
}

/// Decides when a device's lies are told. The parts of a device share it.
pub(crate) struct LieSchedule<K> {
    pub(crate) lies: Lies<K>,
    occasions: [AtomicU64; KINDS],
    /// Frames of both directions so far.
    frames: AtomicU64,
    random: AtomicU64,
    triggered: AtomicU64,
    /// Count of frames at the last call of [`has_new_frames`](Self::has_new_frames).
    seen: AtomicU64,
    /// Steps until the link comes up again.
    down: AtomicU64,
}

impl<K: Kind> LieSchedule<K> {
    /// Creates the schedule of these lies; `None` for an honest device.
    pub(crate) fn new(lies: &Lies<K>) -> Option<Self> {
        let occasions = std::array::from_fn(|_| AtomicU64::new(0));
        let random = AtomicU64::new(lies.seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
        lies.any().then(|| Self {
            lies: *lies,
            occasions,
            frames: AtomicU64::new(0),
            random,
            triggered: AtomicU64::new(0),
            seen: AtomicU64::new(0),
            down: AtomicU64::new(0),
        })
    }

    /// Returns the next random number (Marsaglia's xorshift).
    pub(crate) fn random(&self) -> u64 {
        let mut x = self.random.load(Ordering::Relaxed);
        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
        self.random.store(x, Ordering::Relaxed);
        x
    }

    /// Counts an occasion of a lie and returns whether the lie is told on it.
    pub(crate) fn triggers(&self, lie: K) -> bool {
        let Some(when) = self.lies.when(lie) else { return false };
        let occasion = self.occasions[lie.index()].fetch_add(1, Ordering::Relaxed) + 1;
        let due = (when.first..=when.last).contains(&occasion)
            && (when.chance >= 1.0 || ((self.random() >> 11) as f64) < when.chance * (1u64 << 53) as f64);
        self.triggered.fetch_add(due.into(), Ordering::Relaxed);
        due
    }

    /// Returns whether a lie about a lasting condition is in effect. Depends on the frames counted so far.
    pub(crate) fn is_active(&self, lie: K) -> bool {
        let frames = self.frames();
        // What lasts from the first frame on lasts before it, too.
        self.lies.when(lie).is_some_and(|when| (when.first <= 1 || when.first <= frames) && frames <= when.last)
    }

    /// Adds to the count of frames, of either direction.
    pub(crate) fn count(&self, frames: usize) {
        self.frames.fetch_add(frames as u64, Ordering::Relaxed);
    }

    pub(crate) fn frames(&self) -> u64 {
        self.frames.load(Ordering::Relaxed)
    }

    /// Returns whether frames were counted since the last call.
    pub(crate) fn has_new_frames(&self) -> bool {
        let frames = self.frames();
        frames > self.seen.swap(frames, Ordering::Relaxed)
    }

    /// Returns how many lies were told.
    pub(crate) fn triggered(&self) -> u64 {
        self.triggered.load(Ordering::Relaxed)
    }

    /// Returns whether a step is due although nothing has happened.
    pub(crate) fn is_step_due(&self) -> bool {
        self.down.load(Ordering::Relaxed) > 0 || self.lies.when(K::STORM).is_some()
    }

    /// Advances a flap of the link by a step. `begins` is called while there is none and returns whether one
    /// begins. Returns whether the link is up, if that changes.
    pub(crate) fn flap(&self, begins: impl FnOnce() -> bool) -> Option<bool> {
        match self.down.load(Ordering::Relaxed) {
            0 if begins() => {
                self.down.store(FLAP_STEPS, Ordering::Relaxed);
                Some(false)
            }
            0 => None,
            steps => {
                self.down.store(steps - 1, Ordering::Relaxed);
                (steps == 1).then_some(true)
            }
        }
    }
}

macro_rules! kinds {
    ($group:literal $ready:expr, $address:ident; $($kind:ident $name:literal $doc:literal;)*) => {
        /// Kind of lie that this device can tell.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum Lie { $(#[doc = $doc] $kind,)* }

        impl Lie {
            /// All kinds.
            pub const ALL: &[Self] = &[$(Self::$kind,)*];

            /// Returns the name used in a configuration.
            pub fn name(self) -> &'static str {
                match self { $(Self::$kind => $name,)* }
            }
        }

        impl crate::lies::Kind for Lie {
            const ALL: &'static [Self] = Self::ALL;
            const ADDRESS: Self = Self::$address;
            const STORM: Self = Self::InterruptStorm;
            const GROUP: (&'static str, &'static [Self]) = ($group, $ready);

            fn name(self) -> &'static str {
                self.name()
            }

            fn index(self) -> usize {
                self as usize
            }
        }
    };
}

pub(crate) use kinds;
