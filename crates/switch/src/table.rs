//! The MAC table: which port a station was last seen at.
//!
//! Buckets of eight entries, each bucket in two neighbouring cache lines: keys in the first, ports and times in the
//! second. Any number of threads look up and learn without locks or waiting. Whoever changes what is in a bucket makes
//! its sequence odd meanwhile; whoever fails to is too late, and leaves it to the next frame. A reader believes a value
//! only if the sequence was even and is the same after. If the bucket keeps changing (its writer may have been preempted),
//! the reader checks the entry alone, so that a station in the table is found at any time.
//!
//! # Shares
//!
//! Every port has an equal share of the table. Ports may use more as long as there is room, but the room is taken back
//! from whoever has too much: see [`Table::victim`]. Open vSwitch does the same for its whole table, by evicting from the
//! port with the most entries ("MAC table fairness", `lib/mac-learning.h`); here it holds in each bucket, too.

use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};
use std::time::Duration;

use ringpass_port::MacAddress;

use crate::config::MAX_PORTS;

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

    /// Replaces an entry. The key is absent while the rest changes: see [`Bucket::entry`].
    fn put(&self, way: usize, key: Key, seen: Seen) {
        self.keys[way].store(Key::NONE.0, Ordering::Relaxed);
        fence(Ordering::Release);
        self.seen[way].store(seen.0, Ordering::Relaxed);
        self.keys[way].store(key.0, Ordering::Release);
    }

    /// What is known of a station, whatever happens to the rest of the bucket at the same time.
    ///
    /// The key is the same before and after, so nothing was put in its place in between, except by several changes that
    /// ended with the same station; the sequence would have shown those.
    #[cold]
    fn entry(&self, key: Key, start: usize) -> Option<Seen> {
        let way = self.find(key, start)?;
        fence(Ordering::Acquire);
        let seen = self.seen(way);
        fence(Ordering::Acquire);
        self.has(way, key).then_some(seen)
    }
}

/// What became of a station that was seen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Learned {
    /// It was known at this port.
    Known,
    /// It is now.
    New,
    /// It is now; another station in its bucket had to go.
    Evicted,
    /// It was at another port.
    Moved,
    /// It is at another port, and has moved too often.
    Damped,
    /// It is at another port by configuration.
    Fixed,
    /// Its bucket is full of stations that its port may not replace.
    Full,
    /// Another thread is changing its bucket.
    Busy,
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
    /// Stations learned at each port. Exact: entries change only in [`Bucket::write`].
    learned: [AtomicU32; MAX_PORTS],
    /// Stations that each port may have without having to make room for others.
    share: AtomicU32,
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
        let buckets: Box<[_]> = (0..buckets).map(|_| Bucket::default()).collect();
        let learned = [const { AtomicU32::new(0) }; MAX_PORTS];
        let table = Self { buckets, multiplier, shift, moves: moves.min(Seen::MOST_MOVES), learned, share: 0.into() };
        table.divide(1);
        table
    }

    /// Divides the table among `ports` ports, in equal shares.
    pub(crate) fn divide(&self, ports: usize) {
        let share = self.buckets.len() * WAYS / ports.max(1);
        self.share.store(share as u32, Ordering::Relaxed);
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
        bucket.entry(key, start)
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
            None => self.insert(bucket, start, key, port, now),
        };
        bucket.write(change).unwrap_or(Learned::Busy)
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
        self.learned[seen.port()].fetch_sub(1, Ordering::Relaxed);
        self.learned[port].fetch_add(1, Ordering::Relaxed);
        Learned::Moved
    }

    fn insert(&self, bucket: &Bucket, start: usize, key: Key, port: usize, now: u16) -> Learned {
        let (way, learned) = match bucket.find(Key::NONE, start) {
            Some(way) => (way, Learned::New),
            None => match self.victim(bucket, port, now) {
                Some(way) => {
                    self.learned[bucket.seen(way).port()].fetch_sub(1, Ordering::Relaxed);
                    (way, Learned::Evicted)
                }
                None => return Learned::Full,
            },
        };
        bucket.put(way, key, Seen::new(port, now));
        self.learned[port].fetch_add(1, Ordering::Relaxed);
        learned
    }

    /// Which entry of a full bucket makes room for a new station of a port; `None` if there is none that may.
    ///
    /// It is the oldest entry of the port that has the most in this bucket, where any port above its share of the table
    /// counts as having more than all ports below. The new station's port is such a port itself if it has more, with the new
    /// station, than the others. So a port above its share replaces only its own stations and those of its like, and one
    /// below its share never has to give up more than brings it level with another, even in a bucket that somebody aims at.
    fn victim(&self, bucket: &Bucket, port: usize, now: u16) -> Option<usize> {
        let share = self.share.load(Ordering::Relaxed);
        let seen: [Seen; WAYS] = std::array::from_fn(|way| bucket.seen(way));
        let weight = |of: usize, more: u32| {
            let here = seen.iter().filter(|seen| seen.port() == of && !seen.fixed()).count();
            let above = self.learned[of].load(Ordering::Relaxed) + more > share;
            here + more as usize + if above { WAYS } else { 0 }
        };
        let learned = (0..WAYS).filter(|&way| !seen[way].fixed());
        let own = learned.clone().filter(|&way| seen[way].port() == port).max_by_key(|&way| seen[way].age(now));
        let others = learned.filter(|&way| seen[way].port() != port);
        let most = others.map(|way| (weight(seen[way].port(), 0), seen[way].age(now), way)).max();
        match (most, weight(port, 1)) {
            // The first one of a port below its share in this bucket.
            (Some((.., way)), 1) => Some(way),
            (Some((has, _, way)), wants) if has > wants => Some(way),
            _ => own,
        }
    }

    /// Puts a station at a port for good; `false` if its bucket is full. Called before anything is learned.
    pub(crate) fn fix(&self, key: Key, port: usize) -> bool {
        let (bucket, start) = self.place(key);
        let fixed = Seen(Seen::new(port, 0).0 | Seen::FIXED);
        let put = || {
            let way = bucket.find(key, start).or_else(|| bucket.find(Key::NONE, start));
            way.map(|way| bucket.put(way, key, fixed)).is_some()
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
            let forget = || {
                for way in (0..WAYS).filter(|&way| stale(way)) {
                    self.learned[bucket.seen(way).port()].fetch_sub(1, Ordering::Relaxed);
                    bucket.put(way, Key::NONE, Seen(0));
                }
            };
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
