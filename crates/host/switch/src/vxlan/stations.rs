//! Stations behind the other ends of a tunnel: behind which one each was last seen, or is said to be.
//!
//! A station is one word, its address and the number of its remote end. Eight words share a cache line, and the line of a
//! station follows from its address; one that a control plane has given may be in a second line, if its first is full. Any number of threads look up and learn without locks and without waiting; if two learn
//! in one line at the same moment, one of them leaves it to the next frame.

use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use crate::buckets::{Buckets, WAYS};

/// Number of a remote end.
pub(super) type RemoteId = u16;

/// A station that has not been seen for this long is forgotten, after at most twice the time. The default of IEEE 802.1D-2004,
/// table 7-5.
const AGEING: Duration = Duration::from_secs(300);
/// Most lines that one call of [`Stations::age`] looks at.
const MOST_LINES: u64 = 256;

/// A station and its remote end; 0 if there is none, as no station has the address 0.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Entry(u64);

impl Entry {
    const NONE: Self = Self(0);

    fn new(station: u64, remote: RemoteId) -> Self {
        Self(station << 16 | u64::from(remote))
    }

    fn station(self) -> u64 {
        self.0 >> 16
    }

    fn remote(self) -> RemoteId {
        self.0 as u16
    }

    /// Returns the station and its end, if there is one.
    fn known(self) -> Option<(u64, RemoteId)> {
        (self != Self::NONE).then(|| (self.station(), self.remote()))
    }
}

#[derive(Default)]
#[repr(align(64))]
struct Line([AtomicU64; WAYS]);

impl Line {
    fn entry(&self, way: usize) -> Entry {
        Entry(self.0[way % WAYS].load(Relaxed))
    }

    /// Returns the way that holds a station, and its entry. The way to try first is where it usually is.
    #[inline]
    fn find(&self, station: u64, first: usize) -> Option<(usize, Entry)> {
        (0..WAYS).map(|way| way ^ first).map(|way| (way, self.entry(way))).find(|(_, entry)| entry.station() == station)
    }

    /// Replaces an entry, unless another thread has done so.
    fn replace(&self, way: usize, before: Entry, after: Entry) -> bool {
        self.0[way].compare_exchange(before.0, after.0, Relaxed, Relaxed).is_ok()
    }

    /// Returns the way that a new station of an end takes: a free one, else one of the end with the most stations in this line,
    /// so that no end drives out the stations of others.
    fn victim(&self, first: usize, seen: u8) -> (usize, Entry) {
        let entries: [Entry; WAYS] = std::array::from_fn(|way| self.entry(way));
        if let Some((way, _)) = self.find(Entry::NONE.station(), first) {
            return (way, entries[way]);
        }
        let weight = |&way: &usize| {
            let stations = entries.iter().filter(|entry| entry.remote() == entries[way].remote()).count();
            (stations, seen >> way & 1 == 0)
        };
        let way = (0..WAYS).max_by_key(weight).unwrap_or(first);
        (way, entries[way])
    }
}

/// Returns the size of a table that has room for this many stations that are given.
pub(super) fn room(stations: usize) -> usize {
    stations + stations / 2
}

/// Place of an entry: its line, and its way in it.
type Place = (usize, usize);

/// The stations of one network.
pub(super) struct Stations {
    lines: Box<[Line]>,
    /// Stations of each line that were seen since it was last aged, a bit each.
    seen: Box<[AtomicU8]>,
    places: Buckets,
    /// Set once a station is in its second line. Before that, nobody looks there.
    uses_second: AtomicBool,
    /// Lines that were aged since the start.
    aged: AtomicU64,
}

impl Stations {
    /// Creates a table with room for at least `stations`, which is not 0.
    pub(super) fn new(stations: usize) -> Self {
        let (lines, places) = Buckets::for_entries(stations);
        Self {
            lines: (0..lines).map(|_| Line::default()).collect(),
            seen: (0..lines).map(|_| AtomicU8::new(0)).collect(),
            places,
            uses_second: AtomicBool::new(false),
            aged: AtomicU64::new(0),
        }
    }

    /// Returns the end of a station, whose address is given as a number.
    #[inline]
    pub(super) fn find(&self, station: u64) -> Option<RemoteId> {
        let (line, first) = self.places.place(station);
        match self.lines[line].find(station, first) {
            Some((_, entry)) => Some(entry.remote()),
            None => self.find_second(station),
        }
    }

    #[inline(never)]
    fn find_second(&self, station: u64) -> Option<RemoteId> {
        if !self.uses_second.load(Relaxed) {
            return None;
        }
        let (line, first) = self.places.second(station);
        self.lines[line].find(station, first).map(|(_, entry)| entry.remote())
    }

    /// Learns that a station was seen at an end. `station` is not 0. Returns the station that had its place and that one's end, which may be
    /// itself; `None` if the place was free, or another thread learns in the same line.
    #[inline]
    pub(super) fn learn(&self, station: u64, remote: RemoteId) -> Option<(u64, RemoteId)> {
        let (line, first) = self.places.place(station);
        let (ways, seen) = (&self.lines[line], &self.seen[line]);
        let (way, before) = ways.find(station, first).unwrap_or_else(|| ways.victim(first, seen.load(Relaxed)));
        self.set((line, way), before, Entry::new(station, remote))
    }

    /// Replaces an entry that was there before, likewise.
    #[inline]
    fn set(&self, (line, way): Place, before: Entry, entry: Entry) -> Option<(u64, RemoteId)> {
        if before != entry && !self.lines[line].replace(way, before, entry) {
            return None;
        }
        let seen = &self.seen[line];
        if seen.load(Relaxed) >> way & 1 == 0 {
            seen.fetch_or(1 << way, Relaxed);
        }
        before.known()
    }

    /// Puts a station behind an end, where a control plane says it is, in one of two lines. Returns the station that had its place, likewise. No other thread may
    /// put or learn meanwhile.
    pub(super) fn put(&self, station: u64, remote: RemoteId) -> Option<(u64, RemoteId)> {
        let entry = Entry::new(station, remote);
        let (line, first) = self.places.place(station);
        if self.lines[line].find(Entry::NONE.station(), first).is_none() {
            self.uses_second.store(true, Relaxed);
        }
        let place = self.place_of(station, station).or_else(|| self.place_of(station, Entry::NONE.station()));
        match place.or_else(|| self.make_room(station)) {
            Some(place @ (line, way)) => self.set(place, self.lines[line].entry(way), entry),
            None => self.learn(station, remote),
        }
    }

    /// Returns where an entry is in the two lines of a station.
    fn place_of(&self, station: u64, entry: u64) -> Option<Place> {
        let lines = [self.places.place(station), self.places.second(station)];
        lines.into_iter().find_map(|(line, first)| Some((line, self.lines[line].find(entry, first)?.0)))
    }

    /// Moves a station that is in its first line, and one of the two of this one, into its second. Returns the place that is free now.
    fn make_room(&self, station: u64) -> Option<Place> {
        let lines = [self.places.place(station), self.places.second(station)].map(|(line, _)| line);
        lines.into_iter().flat_map(|line| (0..WAYS).map(move |way| (line, way))).find(|&(line, way)| {
            let entry = self.lines[line].entry(way);
            let (other, first) = self.places.second(entry.station());
            if self.places.place(entry.station()).0 != line {
                return false;
            }
            let Some((free, _)) = self.lines[other].find(Entry::NONE.station(), first) else { return false };
            // It is in both for a moment, so that whoever looks for it finds it: the first line comes first.
            self.set((other, free), Entry::NONE, entry);
            if self.seen[line].load(Relaxed) >> way & 1 == 0 {
                self.seen[other].fetch_and(!(1 << free), Relaxed);
            }
            self.lines[line].replace(way, entry, Entry::NONE)
        })
    }

    /// Forgets a station. Returns its end.
    pub(super) fn forget(&self, station: u64) -> Option<RemoteId> {
        let (line, way) = self.place_of(station, station)?;
        let entry = self.lines[line].entry(way);
        self.lines[line].replace(way, entry, Entry::NONE).then_some(entry.remote())
    }

    /// Returns all stations and their ends, in no particular order.
    pub(super) fn entries(&self) -> impl Iterator<Item = (u64, RemoteId)> {
        self.lines.iter().flat_map(|line| (0..WAYS).filter_map(|way| line.entry(way).known()))
    }

    /// Begins a time, at whose end stations that were not seen in it are forgotten.
    pub(super) fn begin_time(&self) {
        self.seen.iter().for_each(|seen| seen.store(0, Relaxed));
    }

    /// Forgets the stations that were not seen since [`Self::begin_time`], and passes them to `gone`.
    pub(super) fn end_time(&self, mut gone: impl FnMut(u64, RemoteId)) {
        for (line, seen) in self.lines.iter().zip(&self.seen) {
            let seen = seen.load(Relaxed);
            for way in (0..WAYS).filter(|way| seen >> way & 1 == 0) {
                let entry = line.entry(way);
                if let Some((station, remote)) = entry.known()
                    && line.replace(way, entry, Entry::NONE)
                {
                    gone(station, remote);
                }
            }
        }
    }

    /// Forgets stations that have been silent, in the lines whose turn it is at this time since the start.
    pub(super) fn age(&self, now: Duration) {
        let lines = self.lines.len() as u64;
        let due = (now.as_millis() as u64).saturating_mul(lines) / AGEING.as_millis() as u64;
        let aged = self.aged.load(Relaxed);
        if due <= aged {
            return;
        }
        // After a long pause the lines that have missed a turn keep their stations for longer.
        let first = aged.max(due.saturating_sub(lines));
        let until = due.min(first + MOST_LINES);
        if self.aged.compare_exchange(aged, until, Relaxed, Relaxed).is_err() {
            return;
        }
        for line in (first..until).map(|line| (line % lines) as usize) {
            let seen = self.seen[line].swap(0, Relaxed);
            for way in (0..WAYS).filter(|way| seen >> way & 1 == 0) {
                let entry = self.lines[line].entry(way);
                self.lines[line].replace(way, entry, Entry::NONE);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Lets the table age as if called all the time up to this moment.
    fn age_until(stations: &Stations, moment: Duration) {
        (0..stations.lines.len()).for_each(|_| stations.age(moment));
    }

    #[test]
    fn stations_are_found_where_they_were_last_seen() {
        let stations = Stations::new(1 << 16);
        for station in 1..=1000 {
            stations.learn(station, (station % 7) as RemoteId);
        }
        assert!((1..=1000).all(|station| stations.find(station) == Some((station % 7) as RemoteId)));
        assert_eq!(stations.find(5000), None);
        (0..1000).for_each(|move_to| _ = stations.learn(5, move_to));
        assert_eq!(stations.find(5), Some(999));
    }

    /// Random addresses, of which some lines get more than they have room for.
    #[test]
    fn what_is_given_has_room() {
        let mut random = ringpass_testing::Random::new(7);
        let addresses: Vec<u64> = (0..100_000).map(|_| random.next()).collect();
        for most in [3000, 25_000, 87_000, 100_000] {
            let stations = Stations::new(room(most));
            let end = |number: usize| (number % 4000) as RemoteId;
            for (number, &address) in addresses[..most].iter().enumerate() {
                assert_eq!(stations.put(address, end(number)), None, "{number} of {most}");
            }
            let all = |end: &dyn Fn(usize) -> Option<RemoteId>| {
                addresses[..most].iter().enumerate().all(|(number, &address)| stations.find(address) == end(number))
            };
            assert!(all(&|number| Some(end(number))));
            // They move, half of them are said again, and the other half goes.
            stations.begin_time();
            for (number, &address) in addresses[..most].iter().enumerate().filter(|(number, _)| number % 2 == 0) {
                assert_eq!(stations.put(address, 1), Some((address, end(number))));
            }
            let mut gone = 0;
            stations.end_time(|_, _| gone += 1);
            assert_eq!(gone, most / 2);
            assert!(all(&|number| (number % 2 == 0).then_some(1)));
            assert!(addresses[..most].iter().step_by(2).all(|&address| stations.forget(address) == Some(1)));
            assert_eq!(stations.entries().count(), 0);
        }
    }

    #[test]
    fn silent_stations_are_forgotten_and_others_stay() {
        let stations = Stations::new(1 << 16);
        (1..=500).for_each(|station| _ = stations.learn(station, 3));
        age_until(&stations, AGEING);
        (1..=250).for_each(|station| _ = stations.learn(station, 3));
        assert!((1..=500).all(|station| stations.find(station).is_some()), "seen within the time");
        age_until(&stations, 2 * AGEING);
        assert!((1..=500).all(|station| stations.find(station).is_some() == (station <= 250)));
        age_until(&stations, 30 * AGEING);
        assert!((1..=500).all(|station| stations.find(station).is_none()), "after a pause too");
    }

    #[test]
    fn an_end_that_floods_does_not_drive_out_the_stations_of_others() {
        let stations = Stations::new(256);
        (1..=32).for_each(|station| _ = stations.learn(station, 1));
        let kept: Vec<u64> = (1..=32).filter(|&station| stations.find(station) == Some(1)).collect();
        assert!(kept.len() > 24);
        (1000..100_000).for_each(|station| _ = stations.learn(station, 2));
        let left = kept.iter().filter(|&&station| stations.find(station) == Some(1)).count();
        assert!(left > kept.len() * 3 / 4, "{left} of {}", kept.len());
    }
}
