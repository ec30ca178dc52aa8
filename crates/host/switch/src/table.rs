//! The MAC table: the port at which each station was last seen.
//!
//! The table consists of buckets of eight entries. A bucket takes two neighbouring cache lines: keys in the
//! first, ports and times in the second. Any number of threads look up and learn without locks and without
//! waiting. Each bucket is a seqlock: a writer makes the sequence odd while it changes entries, and a writer
//! that finds it odd gives up and leaves learning to the next frame. A reader uses a value only if the sequence
//! was even before and is unchanged after. If the bucket keeps changing (its writer may have been preempted),
//! the reader validates the single entry instead, so that a station in the table is found at any time.
//!
//! Stations that a control plane has placed must have room, so they have a second bucket for when the first is full.
//!
//! # Shares
//!
//! Every port has an equal share of the table. A port may use more while there is room, but the room is taken
//! back from ports above their share: see [`Table::victim`]. Open vSwitch does the same for its whole table by
//! evicting from the port with the most entries ("MAC table fairness", `lib/mac-learning.h`); here it also
//! applies within each bucket.

mod given;

use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering, fence};
use std::time::Duration;

use ringpass_memory::{Access, prefetch};
use ringpass_port::MacAddress;

use crate::buckets::{Buckets, WAYS};
use crate::config::MAX_PORTS;
use crate::frame::address;
use crate::journal::{Arrival, Journal};

/// How many times an operation is retried while another thread changes the bucket.
const MAX_RETRIES: u32 = 8;

/// A station in a VLAN. Never 0, which marks an empty entry.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct Key(u64);

impl Key {
    const PRESENT: u64 = 1 << 63;

    /// Creates a key; `mac` is the address as a 48-bit number.
    #[inline]
    pub(crate) fn new(mac: u64, vlan: u16) -> Self {
        Self(Self::PRESENT | mac << 12 | u64::from(vlan))
    }

    /// The key of an empty entry, which no frame has.
    pub(crate) const NONE: Self = Self(0);

    pub(crate) fn mac(self) -> MacAddress {
        address(self.0 << 1 >> 13)
    }

    pub(crate) fn vlan(self) -> u16 {
        (self.0 & 0xfff) as u16
    }
}

/// State of a station in 32 bits: port, flags, moves, and the second in which it was last seen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct EntryState(u32);

impl EntryState {
    /// Set for static stations, which neither move nor age.
    const FIXED: u32 = 1 << 8;
    /// Set for stations that a control plane placed here. They do not age, and move as others do.
    const GIVEN: u32 = 1 << 15;
    const MAX_MOVES: u32 = 63;

    fn new(port: usize, now: u16) -> Self {
        Self(u32::from(now) << 16 | port as u32)
    }

    fn port(self) -> usize {
        (self.0 & 0xff) as usize
    }

    fn fixed(self) -> bool {
        self.0 & Self::FIXED != 0
    }

    fn given(self) -> bool {
        self.0 & Self::GIVEN != 0
    }

    fn moves(self) -> u32 {
        self.0 >> 9 & Self::MAX_MOVES
    }

    fn with_moves(self, moves: u32) -> Self {
        Self(self.0 & !(Self::MAX_MOVES << 9) | moves.min(Self::MAX_MOVES) << 9)
    }

    /// Returns the age in seconds, which wraps after 18 hours; entries age out long before.
    fn age(self, now: u16) -> u16 {
        now.wrapping_sub((self.0 >> 16) as u16)
    }

    /// Returns the state of a station seen at its port again in a later second. One move is forgiven.
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
    /// Returns the way that holds a key, trying `start` first, where it usually is.
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

    fn seen(&self, way: usize) -> EntryState {
        EntryState(self.seen[way & (WAYS - 1)].load(Ordering::Relaxed))
    }

    /// Changes entries of the bucket. Returns `None` if another thread is changing it.
    fn write<R>(&self, change: impl FnOnce() -> R) -> Option<R> {
        let before = self.sequence.load(Ordering::Relaxed);
        if before & 1 != 0
            || self.sequence.compare_exchange(before, before + 1, Ordering::Acquire, Ordering::Relaxed).is_err()
        {
            return None;
        }
        // A reader that sees any of the following stores also sees the odd sequence.
        fence(Ordering::Release);
        let result = change();
        self.sequence.store(before.wrapping_add(2), Ordering::Release);
        Some(result)
    }

    /// Returns whether the station of an entry was at this port before, where it was seen now.
    #[inline]
    fn stays(&self, way: usize, port: usize, now: u16) -> bool {
        let seen = self.seen(way);
        // If the entry has become another station's meanwhile, that station is at the same port, and only its age becomes too young.
        let stays = seen.port() == port;
        if stays && seen.age(now) != 0 && !seen.fixed() {
            self.refresh(way, seen, now);
        }
        stays
    }

    #[cold]
    fn refresh(&self, way: usize, seen: EntryState, now: u16) {
        let _ = self.seen[way].compare_exchange(seen.0, seen.refreshed(now).0, Ordering::Relaxed, Ordering::Relaxed);
    }

    /// Replaces an entry. The key is empty while the state changes, which [`Bucket::entry`] relies on.
    fn put(&self, way: usize, key: Key, seen: EntryState) {
        self.keys[way].store(Key::NONE.0, Ordering::Relaxed);
        fence(Ordering::Release);
        self.seen[way].store(seen.0, Ordering::Relaxed);
        self.keys[way].store(key.0, Ordering::Release);
    }

    /// Returns a station's state.
    #[inline]
    fn read(&self, key: Key, start: usize) -> Option<EntryState> {
        for _ in 0..MAX_RETRIES {
            let before = self.sequence.load(Ordering::Acquire);
            let seen = self.seen(self.find(key, start)?);
            fence(Ordering::Acquire);
            if before & 1 == 0 && self.sequence.load(Ordering::Relaxed) == before {
                return Some(seen);
            }
            std::hint::spin_loop();
        }
        self.entry(key, start)
    }

    /// Returns a station's state, whatever other threads do to the rest of the bucket meanwhile.
    ///
    /// The key is the same before and after the state is read, so the entry was not replaced in between, except
    /// by several changes that ended with the same station. Only the sequence would reveal those.
    #[cold]
    fn entry(&self, key: Key, start: usize) -> Option<EntryState> {
        let way = self.find(key, start)?;
        fence(Ordering::Acquire);
        let seen = self.seen(way);
        fence(Ordering::Acquire);
        self.has(way, key).then_some(seen)
    }
}

/// Result of learning a station.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Learned {
    /// The address was known at this port before.
    Known,
    /// It was added.
    New,
    /// It was added in place of another station of its bucket.
    Evicted,
    /// It moved here from another port.
    Moved,
    /// It is at another port, and has moved too often.
    Damped,
    /// It is a static station of another port.
    Fixed,
    /// Its bucket is full of stations that its port may not replace.
    Full,
    /// Another thread is changing its bucket.
    Busy,
}

/// An entry of the MAC table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry {
    /// The station's address.
    pub mac: MacAddress,
    /// Its VLAN; 0 for untagged frames.
    pub vlan: u16,
    /// The port where it was last seen.
    pub port: usize,
    /// Time since it was last seen, in whole seconds; `None` for static entries and those of a control plane.
    pub age: Option<Duration>,
}

/// The MAC table, shared by all datapaths.
pub(crate) struct Table {
    buckets: Box<[Bucket]>,
    places: Buckets,
    /// Moves that a station may make in a short time.
    moves: u32,
    /// Stations learned at each port. The counts are exact, as entries change only inside [`Bucket::write`].
    learned: [AtomicU32; MAX_PORTS],
    /// Stations that each port may have without having to make room for others.
    share: AtomicU32,
    /// Counts stations that have moved or gone, static ones that came, and what else changes where frames go.
    generation: AtomicU64,
    /// Set once a station is in its second bucket. Before that, nobody looks there.
    uses_second: AtomicBool,
    /// Present if somebody wants to know of stations that are new at a port.
    journal: OnceLock<Journal<Arrival>>,
}

impl Table {
    /// A station not seen at its port for this many seconds may always move.
    const IDLE_SECONDS: u16 = 2;

    /// Creates a table for at least `entries` stations; `moves` is the limit that [`Learned::Damped`] enforces.
    pub(crate) fn new(entries: usize, moves: u32) -> Self {
        let (buckets, places) = Buckets::for_entries(entries);
        let buckets: Box<[_]> = (0..buckets).map(|_| Bucket::default()).collect();
        let learned = [const { AtomicU32::new(0) }; MAX_PORTS];
        let table = Self {
            buckets,
            places,
            moves: moves.min(EntryState::MAX_MOVES),
            learned,
            share: 0.into(),
            generation: 0.into(),
            uses_second: AtomicBool::new(false),
            journal: OnceLock::new(),
        };
        table.divide(1);
        table
    }

    /// Counts the changes after which a station that was known may be elsewhere.
    #[inline]
    pub(crate) fn generation(&self) -> u64 {
        self.generation.load(Ordering::Acquire)
    }

    /// Tells datapaths that frames may go elsewhere from now on.
    #[cold]
    pub(crate) fn changed(&self) {
        self.generation.fetch_add(1, Ordering::Release);
    }

    /// Divides the table into equal shares for `ports` ports.
    pub(crate) fn divide(&self, ports: usize) {
        let share = self.buckets.len() * WAYS / ports.max(1);
        self.share.store(share as u32, Ordering::Relaxed);
    }

    /// Returns the bucket of a key, and the way to try first.
    #[inline]
    fn place(&self, key: Key) -> (&Bucket, usize) {
        let (bucket, way) = self.places.place(key.0);
        (&self.buckets[bucket], way)
    }

    /// Returns the bucket of a key that a control plane has placed, if there was no room in the first one, likewise.
    fn second(&self, key: Key) -> (&Bucket, usize) {
        let (bucket, way) = self.places.second(key.0);
        (&self.buckets[bucket], way)
    }

    /// Returns whether it takes more than a processor's own caches have room for.
    #[inline]
    pub(crate) fn is_large(&self) -> bool {
        self.buckets.len() > 2048
    }

    /// Begins to fetch where a key is looked up.
    #[inline]
    pub(crate) fn prefetch(&self, key: Key) {
        let (bucket, _) = self.place(key);
        prefetch(&raw const bucket.keys, Access::Read);
        prefetch(&raw const bucket.seen, Access::Read);
    }

    /// Returns the port of a station.
    #[inline]
    pub(crate) fn lookup(&self, key: Key) -> Option<usize> {
        self.seen(key).map(EntryState::port)
    }

    /// Returns the port of a static station.
    pub(crate) fn fixed(&self, key: Key) -> Option<usize> {
        self.seen(key).filter(|seen| seen.fixed()).map(EntryState::port)
    }

    #[inline]
    fn seen(&self, key: Key) -> Option<EntryState> {
        let (bucket, start) = self.place(key);
        bucket.read(key, start).or_else(|| self.seen_second(key))
    }

    #[inline(never)]
    fn seen_second(&self, key: Key) -> Option<EntryState> {
        if !self.uses_second.load(Ordering::Acquire) {
            return None;
        }
        let (bucket, start) = self.second(key);
        bucket.read(key, start)
    }

    /// Learns that a station was seen at a port. For a station that stays, this writes at most once a second.
    #[inline]
    pub(crate) fn learn(&self, key: Key, port: usize, now: u16) -> Learned {
        let (bucket, start) = self.place(key);
        if bucket.find(key, start).is_some_and(|way| bucket.stays(way, port, now)) {
            return Learned::Known;
        }
        self.change(key, port, now)
    }

    #[cold]
    fn change(&self, key: Key, port: usize, now: u16) -> Learned {
        let (mut bucket, mut start) = self.place(key);
        let (second, second_start) = self.second(key);
        if self.uses_second.load(Ordering::Acquire)
            && bucket.find(key, start).is_none()
            && let Some(way) = second.find(key, second_start)
        {
            if second.stays(way, port, now) {
                return Learned::Known;
            }
            (bucket, start) = (second, second_start);
        }
        let change = || match bucket.find(key, start) {
            Some(way) => self.move_to(bucket, way, port, now),
            None => self.insert(bucket, start, key, port, now),
        };
        let learned = bucket.write(change).unwrap_or(Learned::Busy);
        if let (Learned::New | Learned::Evicted | Learned::Moved, Some(journal)) = (learned, self.journal.get()) {
            journal.record(Arrival { mac: key.mac(), vlan: key.vlan(), port });
        }
        learned
    }

    /// Lets a journal record stations that are new at a port from here on. Returns `false` if there is one already.
    pub(crate) fn record(&self, journal: Journal<Arrival>) -> bool {
        self.journal.set(journal).is_ok()
    }

    fn move_to(&self, bucket: &Bucket, way: usize, port: usize, now: u16) -> Learned {
        let seen = bucket.seen(way);
        if seen.port() == port {
            return Learned::Known;
        }
        if seen.fixed() {
            return Learned::Fixed;
        }
        if seen.moves() >= self.moves && seen.age(now) < Self::IDLE_SECONDS {
            return Learned::Damped;
        }
        bucket.seen[way].store(EntryState::new(port, now).with_moves(seen.moves() + 1).0, Ordering::Relaxed);
        self.learned[seen.port()].fetch_sub(1, Ordering::Relaxed);
        self.learned[port].fetch_add(1, Ordering::Relaxed);
        self.changed();
        Learned::Moved
    }

    fn insert(&self, bucket: &Bucket, start: usize, key: Key, port: usize, now: u16) -> Learned {
        let (way, learned) = match bucket.find(Key::NONE, start) {
            Some(way) => (way, Learned::New),
            None => match self.victim(bucket, port, now) {
                Some(way) => {
                    self.learned[bucket.seen(way).port()].fetch_sub(1, Ordering::Relaxed);
                    self.changed();
                    (way, Learned::Evicted)
                }
                None => return Learned::Full,
            },
        };
        bucket.put(way, key, EntryState::new(port, now));
        self.learned[port].fetch_add(1, Ordering::Relaxed);
        learned
    }

    /// Returns the entry of a full bucket that a new station of `port` replaces; `None` if it may replace none.
    ///
    /// It is the oldest entry of the port with the most entries in this bucket, where a port above its share of
    /// the table counts as having more than every port that is not. The new station's port takes part in this
    /// comparison, with the new station counted. So a port above its share replaces only its own stations and
    /// those of other ports above theirs. A port below its share never loses more than makes it level with
    /// another port, even in a bucket that somebody aims at.
    fn victim(&self, bucket: &Bucket, port: usize, now: u16) -> Option<usize> {
        let share = self.share.load(Ordering::Relaxed);
        let seen: [EntryState; WAYS] = std::array::from_fn(|way| bucket.seen(way));
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
            // The first entry in this bucket of a port that is within its share.
            (Some((.., way)), 1) => Some(way),
            (Some((has, _, way)), wants) if has > wants => Some(way),
            _ => own,
        }
    }

    /// Adds a static station of a port, in place of a learned one if need be. Returns `false` if its bucket is full of static ones.
    pub(crate) fn add_static(&self, key: Key, port: usize) -> bool {
        let (bucket, start) = self.place(key);
        let fixed = EntryState(EntryState::new(port, 0).0 | EntryState::FIXED);
        let put = || {
            let learned = || (0..WAYS).find(|&way| !bucket.seen(way).fixed());
            let way = bucket.find(key, start).or_else(|| bucket.find(Key::NONE, start)).or_else(learned);
            let Some(way) = way else { return false };
            let before = bucket.seen(way);
            if !bucket.has(way, Key::NONE) && !before.fixed() {
                self.learned[before.port()].fetch_sub(1, Ordering::Relaxed);
            }
            bucket.put(way, key, fixed);
            self.changed();
            true
        };
        self.write(bucket, put).unwrap_or(false)
    }

    /// Removes the static stations of a port. Those in a bucket that another thread takes long to change stay.
    pub(crate) fn remove_static(&self, port: usize) {
        self.remove(port, EntryState::fixed);
    }

    /// Removes all stations that a control plane placed at a port, but for those in a bucket that another thread takes long to change.
    pub(crate) fn remove_all_given(&self, port: usize) {
        self.remove(port, EntryState::given);
    }

    fn remove(&self, port: usize, kind: impl Fn(EntryState) -> bool) {
        for bucket in &self.buckets {
            let is_own = |way: usize| {
                let seen = bucket.seen(way);
                bucket.keys[way].load(Ordering::Relaxed) != 0 && kind(seen) && seen.port() == port
            };
            if (0..WAYS).any(is_own) {
                self.write(bucket, || {
                    for way in (0..WAYS).filter(|&way| is_own(way)) {
                        let learned = u32::from(!bucket.seen(way).fixed());
                        self.learned[port].fetch_sub(learned, Ordering::Relaxed);
                        bucket.put(way, Key::NONE, EntryState(0));
                    }
                    self.changed();
                });
            }
        }
    }

    /// Changes a bucket, as soon as other threads let this one; `None` if that takes long.
    fn write<R>(&self, bucket: &Bucket, change: impl Fn() -> R) -> Option<R> {
        (0..MAX_RETRIES).find_map(|_| {
            bucket.write(&change).or_else(|| {
                std::hint::spin_loop();
                None
            })
        })
    }

    /// Removes learned stations for which `keep` is false, given the port and the age in seconds. Returns how
    /// many entries are left. Entries in a bucket that another thread takes long to change stay until the next
    /// call.
    pub(crate) fn retain(&self, now: u16, keep: impl Fn(usize, u16) -> bool) -> usize {
        let mut left = 0;
        for bucket in &self.buckets {
            let stale = |way: usize| {
                let (there, seen) = (bucket.keys[way].load(Ordering::Relaxed) != 0, bucket.seen(way));
                there && !seen.fixed() && !seen.given() && !keep(seen.port(), seen.age(now))
            };
            let forget = || {
                for way in (0..WAYS).filter(|&way| stale(way)) {
                    self.learned[bucket.seen(way).port()].fetch_sub(1, Ordering::Relaxed);
                    bucket.put(way, Key::NONE, EntryState(0));
                    self.changed();
                }
            };
            let mut tries = 0;
            while tries < MAX_RETRIES && (0..WAYS).any(stale) && bucket.write(forget).is_none() {
                std::hint::spin_loop();
                tries += 1;
            }
            left += bucket.keys.iter().filter(|key| key.load(Ordering::Relaxed) != 0).count();
        }
        left
    }

    /// Returns all entries, in no particular order. Entries that are being changed may be missing.
    pub(crate) fn entries(&self, now: u16) -> Vec<Entry> {
        let mut entries = Vec::new();
        for bucket in &self.buckets {
            for way in 0..WAYS {
                let before = bucket.sequence.load(Ordering::Acquire);
                let (key, seen) = (Key(bucket.keys[way].load(Ordering::Relaxed)), bucket.seen(way));
                fence(Ordering::Acquire);
                let whole = before & 1 == 0 && bucket.sequence.load(Ordering::Relaxed) == before;
                if whole && key != Key::NONE {
                    let age = (!seen.fixed() && !seen.given()).then(|| Duration::from_secs(seen.age(now).into()));
                    entries.push(Entry { mac: key.mac(), vlan: key.vlan(), port: seen.port(), age });
                }
            }
        }
        entries
    }
}

#[cfg(test)]
mod tests;
