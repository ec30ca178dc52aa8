//! Stations that a control plane places. They must have room, so each has two buckets, and makes room for others.

use std::sync::atomic::Ordering;

use super::{Bucket, EntryState, Key, Learned, Table};
use crate::buckets::WAYS;

impl Table {
    /// Places a station at a port for a control plane, wherever it was learned. It stays there until it is removed or seen elsewhere. Returns `false` if it
    /// is a static one, or has no room, or its bucket changes all the time.
    pub(crate) fn place_given(&self, key: Key, port: usize, now: u16) -> bool {
        let places = [self.place(key), self.second(key)];
        if places[0].0.find(Key::NONE, 0).is_none() {
            self.uses_second.store(true, Ordering::Release);
        }
        let with = |wanted: Key| places.into_iter().find(|(bucket, start)| bucket.find(wanted, *start).is_some());
        let cleared = || places.into_iter().find(|(bucket, _)| self.make_room(bucket));
        let (bucket, start) = with(key).or_else(|| with(Key::NONE)).or_else(cleared).unwrap_or(places[0]);
        let given = EntryState(EntryState::new(port, now).0 | EntryState::GIVEN);
        let put = || {
            let way = match bucket.find(key, start) {
                Some(way) if bucket.seen(way).fixed() => return false,
                Some(way) => {
                    self.learned[bucket.seen(way).port()].fetch_sub(1, Ordering::Relaxed);
                    self.learned[port].fetch_add(1, Ordering::Relaxed);
                    way
                }
                None => {
                    if matches!(self.insert(bucket, start, key, port, now), Learned::Full) {
                        return false;
                    }
                    let Some(way) = bucket.find(key, start) else { return false };
                    way
                }
            };
            bucket.seen[way].store(given.0, Ordering::Relaxed);
            self.changed();
            true
        };
        self.write(bucket, put).unwrap_or(false)
    }

    /// Moves a station that a control plane has placed, and that is in its first bucket, which is this one, into its second. Returns whether there was one.
    fn make_room(&self, bucket: &Bucket) -> bool {
        (0..WAYS).any(|way| {
            let (key, seen) = (Key(bucket.keys[way].load(Ordering::Relaxed)), bucket.seen(way));
            let (second, start) = self.second(key);
            if !seen.given() || !std::ptr::eq(self.place(key).0, bucket) {
                return false;
            }
            let copy = || {
                let Some(free) = second.find(Key::NONE, start) else { return false };
                second.put(free, key, seen);
                self.learned[seen.port()].fetch_add(1, Ordering::Relaxed);
                true
            };
            // It is in both for a moment, so that whoever looks for it finds it. If it has moved meanwhile, its next frame says so again.
            self.write(second, copy) == Some(true) && self.write(bucket, || self.clear(bucket, way, key)).is_some()
        })
    }

    /// Clears an entry, if it is still this station's.
    fn clear(&self, bucket: &Bucket, way: usize, key: Key) {
        if bucket.has(way, key) {
            self.learned[bucket.seen(way).port()].fetch_sub(1, Ordering::Relaxed);
            bucket.put(way, Key::NONE, EntryState(0));
        }
    }

    /// Removes a station that a control plane placed at a port, unless it has moved.
    pub(crate) fn remove_given(&self, key: Key, port: usize) {
        for (bucket, start) in [self.place(key), self.second(key)] {
            let is_own = |way: &usize| bucket.seen(*way).given() && bucket.seen(*way).port() == port;
            if bucket.find(key, start).as_ref().is_some_and(is_own) {
                self.write(bucket, || {
                    if let Some(way) = bucket.find(key, start).filter(is_own) {
                        self.clear(bucket, way, key);
                        self.changed();
                    }
                });
            }
        }
    }
}
