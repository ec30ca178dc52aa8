//! The MAC table: which port a station was last seen at.
//!
//! Buckets of eight entries, each bucket in two neighbouring cache lines: keys in the first, ports and times in the
//! second. Any number of threads look up and learn without locks or waiting. Whoever changes what is in a bucket makes
//! its sequence odd meanwhile; whoever fails to is too late, and leaves it to the next frame. A reader believes a value
//! only if the sequence was even and is the same after.

use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};
use std::time::Duration;

use ringpass_port::MacAddress;

const WAYS: usize = 8;

/// How often somebody looks again while a bucket changes under him.
const PATIENCE: u32 = 8;

/// A station in a VLAN. Never 0, which is an empty place.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct Key(u64);

impl Key {
    const PRESENT: u64 = 1 << 63;

    /// `mac` is the address as a number of 48 bits.
    #[inline]
    pub(crate) fn new(mac: u64, vlan: u16) -> Self {
        Self(Self::PRESENT | mac << 12 | u64::from(vlan))
    }

    /// What no frame has.
    pub(crate) const NONE: Self = Self(0);

    fn mac(self) -> MacAddress {
        let [_, _, bytes @ ..] = (self.0 << 1 >> 13).to_be_bytes();
        MacAddress(bytes)
    }
}

/// What is known of a station, in 32 bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Seen(u32);

impl Seen {
    const FIXED: u32 = 1 << 8;
    const MOST_MOVES: u32 = 127;

    fn new(port: usize, now: u16) -> Self {
        Self(u32::from(now) << 16 | port as u32)
    }

    fn port(self) -> usize {
        (self.0 & 0xff) as usize
    }

    fn fixed(self) -> bool {
        self.0 & Self::FIXED != 0
    }

    fn moves(self) -> u32 {
        self.0 >> 9 & Self::MOST_MOVES
    }

    fn with_moves(self, moves: u32) -> Self {
        Self(self.0 & !(Self::MOST_MOVES << 9) | moves.min(Self::MOST_MOVES) << 9)
    }

    /// Seconds; they wrap after 18 hours, long before which an entry has aged.
    fn age(self, now: u16) -> u16 {
        now.wrapping_sub((self.0 >> 16) as u16)
    }

    /// Seen again at its port, in a later second: a move is forgiven.
    fn refreshed(self, now: u16) -> Self {
        Self(u32::from(now) << 16 | self.0 & 0xffff).with_moves(self.moves().saturating_sub(1))
    }
}

#[repr(align(128))]
#[derive(Default)]
struct Bucket {
    keys: [AtomicU64; WAYS],
    seen: [AtomicU32; WAYS],
    sequence: AtomicU32,
}

impl Bucket {
    /// Where a key lies, looked for from `start` on, where it is most often.
    #[inline]
    fn find(&self, key: Key, start: usize) -> Option<usize> {
        if self.has(start, key) { Some(start) } else { self.find_elsewhere(key, start) }
    }

    #[inline(never)]
    fn find_elsewhere(&self, key: Key, start: usize) -> Option<usize> {
        (1..WAYS).map(|way| way ^ start).find(|&way| self.has(way, key))
    }

    #[inline]
    fn has(&self, way: usize, key: Key) -> bool {
        self.keys[way & (WAYS - 1)].load(Ordering::Relaxed) == key.0
    }

    fn seen(&self, way: usize) -> Seen {
        Seen(self.seen[way & (WAYS - 1)].load(Ordering::Relaxed))
    }

    /// Changes what is in the bucket, unless another thread does just now.
    fn write<R>(&self, change: impl FnOnce() -> R) -> Option<R> {
        let before = self.sequence.load(Ordering::Relaxed);
        if before & 1 != 0
            || self.sequence.compare_exchange(before, before + 1, Ordering::Acquire, Ordering::Relaxed).is_err()
        {
            return None;
        }
        // A reader that sees any of what follows sees the odd sequence too.
        fence(Ordering::Release);
        let result = change();
        self.sequence.store(before.wrapping_add(2), Ordering::Release);
        Some(result)
    }

    #[cold]
    fn refresh(&self, way: usize, seen: Seen, now: u16) {
        let _ = self.seen[way].compare_exchange(seen.0, seen.refreshed(now).0, Ordering::Relaxed, Ordering::Relaxed);
    }

    fn put(&self, way: usize, key: Key, seen: Seen) {
        self.keys[way].store(key.0, Ordering::Relaxed);
        self.seen[way].store(seen.0, Ordering::Relaxed);
    }
}

/// What became of a station that was seen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Learned {
    /// It was known at this port.
    Known,
    /// It is now.
    New,
    /// As above; the station that was seen longest ago in its bucket had to go.
    Evicted,
    /// It was at another port.
    Moved,
    /// It is at another port, and has moved too often.
    Damped,
    /// It is at another port by configuration.
    Fixed,
    /// There is no place for it, or another thread is at work there.
    Not,
}

/// An entry, as it is shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry {
    /// The station.
    pub mac: MacAddress,
    /// Its VLAN; 0 for frames without one.
    pub vlan: u16,
    /// Where it is.
    pub port: usize,
    /// When it was seen last, to the second; `None` if it is there by configuration.
    pub age: Option<Duration>,
}

/// See the module.
pub(crate) struct Table {
    buckets: Box<[Bucket]>,
    multiplier: u64,
    /// Of a key's hash, so that the bucket and where in it to look first are left.
    shift: u32,
    /// Moves that a station may make in a short time.
    moves: u32,
}

impl Table {
    /// A station that was not seen at its port for so many seconds may move in any case.
    const SILENCE: u16 = 2;

    /// With room for `entries` and somewhat more.
    pub(crate) fn new(entries: usize, moves: u32) -> Self {
        let buckets = entries.div_ceil(WAYS).next_power_of_two().max(2);
        // Random, so that nobody can choose addresses that fall into one bucket.
        let multiplier = RandomState::new().hash_one(entries) | 1;
        let shift = 64 - (buckets * WAYS).trailing_zeros();
        let buckets = (0..buckets).map(|_| Bucket::default()).collect();
        Self { buckets, multiplier, shift, moves: moves.min(Seen::MOST_MOVES) }
    }

    /// The bucket of a key, and where in it to look first.
    #[inline]
    fn place(&self, key: Key) -> (&Bucket, usize) {
        let place = (key.0.wrapping_mul(self.multiplier) >> (self.shift & 63)) as usize;
        (&self.buckets[place / WAYS], place % WAYS)
    }

    /// The port of a station.
    #[inline]
    pub(crate) fn lookup(&self, key: Key) -> Option<usize> {
        self.seen(key).map(Seen::port)
    }

    /// The port of a station that is there by configuration.
    pub(crate) fn fixed(&self, key: Key) -> Option<usize> {
        self.seen(key).filter(|seen| seen.fixed()).map(Seen::port)
    }

    #[inline]
    fn seen(&self, key: Key) -> Option<Seen> {
        let (bucket, start) = self.place(key);
        for _ in 0..PATIENCE {
            let before = bucket.sequence.load(Ordering::Acquire);
            let seen = bucket.seen(bucket.find(key, start)?);
            fence(Ordering::Acquire);
            if before & 1 == 0 && bucket.sequence.load(Ordering::Relaxed) == before {
                return Some(seen);
            }
            std::hint::spin_loop();
        }
        None
    }

    /// A station was seen at a port. Writes once a second at most for a station that stays.
    #[inline]
    pub(crate) fn learn(&self, key: Key, port: usize, now: u16) -> Learned {
        let (bucket, start) = self.place(key);
        if let Some(way) = bucket.find(key, start) {
            let seen = bucket.seen(way);
            // Should the place be another station's by now, then one of the same port: it looks younger than it is.
            if seen.port() == port {
                if seen.age(now) != 0 && !seen.fixed() {
                    bucket.refresh(way, seen, now);
                }
                return Learned::Known;
            }
        }
        self.change(bucket, start, key, port, now)
    }

    #[cold]
    fn change(&self, bucket: &Bucket, start: usize, key: Key, port: usize, now: u16) -> Learned {
        let change = || match bucket.find(key, start) {
            Some(way) => self.move_to(bucket, way, port, now),
            None => Self::insert(bucket, start, key, Seen::new(port, now), now),
        };
        bucket.write(change).unwrap_or(Learned::Not)
    }

    fn move_to(&self, bucket: &Bucket, way: usize, port: usize, now: u16) -> Learned {
        let seen = bucket.seen(way);
        if seen.port() == port {
            return Learned::Known;
        }
        if seen.fixed() {
            return Learned::Fixed;
        }
        if seen.moves() >= self.moves && seen.age(now) < Self::SILENCE {
            return Learned::Damped;
        }
        bucket.seen[way].store(Seen::new(port, now).with_moves(seen.moves() + 1).0, Ordering::Relaxed);
        Learned::Moved
    }

    fn insert(bucket: &Bucket, start: usize, key: Key, seen: Seen, now: u16) -> Learned {
        if let Some(way) = bucket.find(Key::NONE, start) {
            bucket.put(way, key, seen);
            return Learned::New;
        }
        let learned = (0..WAYS).filter(|&way| !bucket.seen(way).fixed());
        match learned.max_by_key(|&way| bucket.seen(way).age(now)) {
            Some(way) => {
                bucket.put(way, key, seen);
                Learned::Evicted
            }
            None => Learned::Not,
        }
    }

    /// Puts a station at a port for good; `false` if the bucket is full of such.
    pub(crate) fn fix(&self, key: Key, port: usize) -> bool {
        let (bucket, start) = self.place(key);
        let fixed = Seen(Seen::new(port, 0).0 | Seen::FIXED);
        let put = || match bucket.find(key, start) {
            Some(way) => {
                bucket.put(way, key, fixed);
                true
            }
            None => Self::insert(bucket, start, key, fixed, 0) != Learned::Not,
        };
        bucket.write(put).unwrap_or(false)
    }

    /// Forgets what was learned and is not to be kept, by port and age in seconds; returns how many entries are left.
    /// Entries in a bucket that another thread is long in changing stay until the next time.
    pub(crate) fn retain(&self, now: u16, keep: impl Fn(usize, u16) -> bool) -> usize {
        let mut left = 0;
        for bucket in &self.buckets {
            let stale = |way: usize| {
                let (there, seen) = (bucket.keys[way].load(Ordering::Relaxed) != 0, bucket.seen(way));
                there && !seen.fixed() && !keep(seen.port(), seen.age(now))
            };
            let forget = || (0..WAYS).filter(|&way| stale(way)).for_each(|way| bucket.put(way, Key::NONE, Seen(0)));
            let mut tries = 0;
            while tries < PATIENCE && (0..WAYS).any(stale) && bucket.write(forget).is_none() {
                std::hint::spin_loop();
                tries += 1;
            }
            left += bucket.keys.iter().filter(|key| key.load(Ordering::Relaxed) != 0).count();
        }
        left
    }

    /// All entries, in no order; those that are just being changed may be missing.
    pub(crate) fn entries(&self, now: u16) -> Vec<Entry> {
        let mut entries = Vec::new();
        for bucket in &self.buckets {
            for way in 0..WAYS {
                let before = bucket.sequence.load(Ordering::Acquire);
                let (key, seen) = (Key(bucket.keys[way].load(Ordering::Relaxed)), bucket.seen(way));
                fence(Ordering::Acquire);
                let whole = before & 1 == 0 && bucket.sequence.load(Ordering::Relaxed) == before;
                if whole && key != Key::NONE {
                    let age = (!seen.fixed()).then(|| Duration::from_secs(seen.age(now).into()));
                    entries.push(Entry { mac: key.mac(), vlan: (key.0 & 0xfff) as u16, port: seen.port(), age });
                }
            }
        }
        entries
    }
}

#[cfg(test)]
mod tests;
