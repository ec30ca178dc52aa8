//! A table of entries that age, such as the flows of a network function.

use std::hash::{BuildHasher, Hash};
use std::time::{Duration, Instant};

use hashbrown::hash_table::Entry as Place;
use hashbrown::{DefaultHashBuilder, HashTable};

/// Entries by key, of which those that nobody has used for a while can be removed, the oldest first. All memory is allocated at
/// the start; every operation takes constant time.
///
/// ```
/// use std::time::{Duration, Instant};
///
/// use ringpass::FlowTable;
///
/// let (mut flows, start) = (FlowTable::new(1000, Duration::from_secs(60)), Instant::now());
/// let at = |seconds| start + Duration::from_secs(seconds);
/// flows.insert("a", 1, at(0)).expect("room");
/// flows.insert("b", 2, at(0)).expect("room");
/// *flows.get(&"b", at(50)).expect("an entry") += 1;
/// assert_eq!(flows.expire(at(70)), Some(("a", 1)));
/// assert_eq!(flows.expire(at(70)), None, "the other one was used 20 seconds ago");
/// assert_eq!(flows.expire(at(120)), Some(("b", 3)));
/// ```
///
/// A thread reads the time once a round, as [`Worker::now`](crate::Worker::now) does, and removes what is too old when a
/// [`Timer`](crate::Timer) says so.
pub struct FlowTable<K, V> {
    /// Indices of `entries`, by key.
    index: HashTable<u32>,
    hasher: DefaultHashBuilder,
    entries: Vec<Entry<K, V>>,
    /// First of the entries that are not in use, which are linked by `newer`.
    free: u32,
    /// Ends of the list of entries in use, by time.
    oldest: u32,
    newest: u32,
    lifetime: Duration,
    /// Uses within this time after a recorded one are not recorded, so that most uses write nothing.
    precision: Duration,
}

struct Entry<K, V> {
    /// `None` if it is not in use.
    content: Option<(K, V)>,
    /// Uses up to this time are not recorded.
    recorded_until: Instant,
    older: u32,
    newer: u32,
}

/// End of a list.
const NONE: u32 = u32::MAX;

impl<K: Hash + Eq, V> FlowTable<K, V> {
    /// Creates an empty table for up to `capacity` entries, at most 2^31. An entry expires once it has not been used for
    /// `lifetime`, or up to a sixteenth longer.
    pub fn new(capacity: usize, lifetime: Duration) -> Self {
        let capacity = capacity.min(1 << 31);
        let now = Instant::now();
        let entry = |index: usize| Entry {
            content: None,
            recorded_until: now,
            older: NONE,
            newer: if index + 1 < capacity { index as u32 + 1 } else { NONE },
        };
        Self {
            index: HashTable::with_capacity(capacity),
            hasher: DefaultHashBuilder::default(),
            entries: (0..capacity).map(entry).collect(),
            free: if capacity > 0 { 0 } else { NONE },
            oldest: NONE,
            newest: NONE,
            lifetime,
            precision: lifetime / 16,
        }
    }

    /// Returns the number of entries.
    pub fn len(&self) -> usize {
        self.index.len()
    }

    /// Returns whether there are no entries.
    pub fn is_empty(&self) -> bool {
        self.index.is_empty()
    }

    /// Returns the value of an entry, which counts as a use of it at the time `now`.
    #[inline]
    pub fn get(&mut self, key: &K, now: Instant) -> Option<&mut V> {
        let Self { index, hasher, entries, .. } = self;
        let at = *index.find(hasher.hash_one(key), |&at| has_key(entries, at, key))?;
        if now > self.entries[at as usize].recorded_until {
            self.unlink(at);
            self.link(at, now);
        }
        self.entries[at as usize].content.as_mut().map(|(_, value)| value)
    }

    /// Adds an entry, or replaces the value of one, and returns its value. That counts as a use at the time `now`, which must
    /// not be before that of other uses. `None` if there is no room.
    pub fn insert(&mut self, key: K, value: V, now: Instant) -> Option<&mut V> {
        let Self { index, hasher, entries, free, .. } = self;
        let hash = |at: &u32| entries[*at as usize].content.as_ref().map_or(0, |(key, _)| hasher.hash_one(key));
        let at = match index.entry(hasher.hash_one(&key), |&at| has_key(entries, at, &key), hash) {
            Place::Occupied(place) => *place.get(),
            Place::Vacant(_) if *free == NONE => return None,
            Place::Vacant(place) => *place.insert(*free).get(),
        };
        if at == self.free {
            self.free = self.entries[at as usize].newer;
        } else {
            self.unlink(at);
        }
        self.link(at, now);
        let (_, value) = self.entries[at as usize].content.insert((key, value));
        Some(value)
    }

    /// Removes an entry and returns its value.
    pub fn remove(&mut self, key: &K) -> Option<V> {
        let Self { index, hasher, entries, .. } = self;
        let place = index.find_entry(hasher.hash_one(key), |&at| has_key(entries, at, key)).ok()?;
        let (at, _) = place.remove();
        self.release(at).map(|(_, value)| value)
    }

    /// Removes the entry that was unused for longest, if its lifetime is over at the time `now`, and returns it. To be called
    /// until there is none; those who cannot afford many at a time call it less often.
    pub fn expire(&mut self, now: Instant) -> Option<(K, V)> {
        let at = self.oldest;
        let entry = self.entries.get(at as usize)?;
        if now <= entry.recorded_until + self.lifetime {
            return None;
        }
        let hash = entry.content.as_ref().map_or(0, |(key, _)| self.hasher.hash_one(key));
        if let Ok(place) = self.index.find_entry(hash, |&other| other == at) {
            place.remove();
        }
        self.release(at)
    }

    /// Appends an entry to the list of those in use, as the newest.
    fn link(&mut self, at: u32, now: Instant) {
        let older = std::mem::replace(&mut self.newest, at);
        match self.entries.get_mut(older as usize) {
            Some(older) => older.newer = at,
            None => self.oldest = at,
        }
        let entry = &mut self.entries[at as usize];
        entry.recorded_until = now + self.precision;
        entry.older = older;
        entry.newer = NONE;
    }

    /// Takes an entry out of the list of those in use.
    fn unlink(&mut self, at: u32) {
        let Entry { older, newer, .. } = self.entries[at as usize];
        match self.entries.get_mut(older as usize) {
            Some(older) => older.newer = newer,
            None => self.oldest = newer,
        }
        match self.entries.get_mut(newer as usize) {
            Some(newer) => newer.older = older,
            None => self.newest = older,
        }
    }

    /// Empties an entry that is no longer in the index.
    fn release(&mut self, at: u32) -> Option<(K, V)> {
        self.unlink(at);
        let entry = &mut self.entries[at as usize];
        entry.newer = std::mem::replace(&mut self.free, at);
        entry.content.take()
    }
}

#[inline]
fn has_key<K: Eq, V>(entries: &[Entry<K, V>], at: u32, key: &K) -> bool {
    entries[at as usize].content.as_ref().is_some_and(|(other, _)| other == key)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    #[derive(Clone, Debug)]
    enum Operation {
        Insert(u8, u32),
        Get(u8),
        Remove(u8),
        Expire,
        Wait(u64),
    }

    fn operations() -> impl Strategy<Value = Vec<Operation>> {
        let operation = prop_oneof![
            (0u8..12, any::<u32>()).prop_map(|(key, value)| Operation::Insert(key, value)),
            (0u8..12).prop_map(Operation::Get),
            (0u8..12).prop_map(Operation::Remove),
            Just(Operation::Expire),
            (0u64..40).prop_map(Operation::Wait),
        ];
        prop::collection::vec(operation, 0..200)
    }

    proptest! {
        /// Against an ordinary map that remembers the exact time of each use.
        #[test]
        fn it_behaves_like_a_map_whose_entries_age(operations in operations()) {
            const CAPACITY: usize = 8;
            let second = Duration::from_secs(1);
            let mut table = FlowTable::new(CAPACITY, 16 * second);
            let mut model: BTreeMap<u8, (u32, Instant)> = BTreeMap::new();
            let mut now = Instant::now();
            for operation in operations {
                match operation {
                    Operation::Insert(key, value) => {
                        let fits = model.contains_key(&key) || model.len() < CAPACITY;
                        prop_assert_eq!(table.insert(key, value, now).copied(), fits.then_some(value));
                        if fits {
                            model.insert(key, (value, now));
                        }
                    }
                    Operation::Get(key) => {
                        let expected = model.get_mut(&key).map(|(value, used)| {
                            *used = now;
                            *value
                        });
                        prop_assert_eq!(table.get(&key, now).copied(), expected);
                    }
                    Operation::Remove(key) => {
                        prop_assert_eq!(table.remove(&key), model.remove(&key).map(|(value, _)| value));
                    }
                    Operation::Expire => {
                        while let Some((key, value)) = table.expire(now) {
                            let (expected, used) = model.remove(&key).expect("it was there");
                            prop_assert_eq!(value, expected);
                            prop_assert!(now - used > 16 * second, "{:?}", now - used);
                        }
                        prop_assert!(model.values().all(|(_, used)| now - *used <= 17 * second));
                    }
                    Operation::Wait(seconds) => now += Duration::from_secs(seconds),
                }
                prop_assert_eq!((table.len(), table.is_empty()), (model.len(), model.is_empty()));
            }
        }
    }

    #[test]
    fn a_table_without_room_takes_nothing() {
        let mut table = FlowTable::new(0, Duration::from_secs(1));
        assert_eq!(table.insert(1, 1, Instant::now()), None);
        assert_eq!(table.get(&1, Instant::now()), None);
        assert_eq!(table.expire(Instant::now()), None);
    }
}
