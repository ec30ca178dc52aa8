use std::collections::HashMap;
use std::sync::atomic::AtomicBool;

use proptest::prelude::*;

use super::*;

fn key(station: u64) -> Key {
    Key::new(0x0200_0000_0000 | station, 7)
}

#[derive(Clone, Debug)]
enum Step {
    Learn { station: u64, port: usize },
    Wait { seconds: u16 },
    Age { limit: u16 },
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        8 => (0..6u64, 0..3usize).prop_map(|(station, port)| Step::Learn { station, port }),
        2 => (0..4u16).prop_map(|seconds| Step::Wait { seconds }),
        1 => (0..6u16).prop_map(|limit| Step::Age { limit }),
    ]
}

/// A station in the plain model.
#[derive(Clone, Copy)]
struct Station {
    port: usize,
    seen: u64,
    moves: u32,
}

proptest! {
    /// With no more stations than a bucket has places, the table is a map. Time wraps on the way.
    #[test]
    fn behaves_as_a_map(steps in prop::collection::vec(step(), 0..300)) {
        const MOVES: u32 = 3;
        let (table, mut model, mut time) = (Table::new(64, MOVES), HashMap::<u64, Station>::new(), 65_500u64);
        for step in steps {
            let now = time as u16;
            match step {
                Step::Learn { station, port } => {
                    let expected = match model.get_mut(&station) {
                        None => {
                            model.insert(station, Station { port, seen: time, moves: 0 });
                            Learned::New
                        }
                        Some(it) if it.port == port => {
                            it.moves = it.moves.saturating_sub((it.seen != time).into());
                            it.seen = time;
                            Learned::Known
                        }
                        Some(it) if it.moves >= MOVES && time - it.seen < 2 => Learned::Damped,
                        Some(it) => {
                            *it = Station { port, seen: time, moves: it.moves + 1 };
                            Learned::Moved
                        }
                    };
                    prop_assert_eq!(table.learn(key(station), port, now), expected);
                }
                Step::Wait { seconds } => time += u64::from(seconds),
                Step::Age { limit } => {
                    model.retain(|_, it| time - it.seen <= limit.into());
                    prop_assert_eq!(table.retain(now, |_, age| age <= limit), model.len());
                }
            }
            for station in 0..6 {
                prop_assert_eq!(table.lookup(key(station)), model.get(&station).map(|it| it.port));
            }
            let mut entries = table.entries(time as u16);
            entries.sort_by_key(|entry| entry.mac.0);
            let mut expected: Vec<_> = model.iter().map(|(&station, it)| Entry {
                mac: MacAddress([2, 0, 0, 0, 0, station as u8]),
                vlan: 7,
                port: it.port,
                age: Some(Duration::from_secs(time - it.seen)),
            }).collect();
            expected.sort_by_key(|entry| entry.mac.0);
            prop_assert_eq!(entries, expected);
        }
    }

    /// However many stations come: the last one is there, those that are there are right, there are never too many, and
    /// those that are fixed stay.
    #[test]
    fn a_full_table_forgets_the_oldest(stations in prop::collection::vec(0..200u64, 1..400)) {
        let table = Table::new(16, 5);
        prop_assert!(table.fix(key(1000), 63));
        for (time, &station) in stations.iter().enumerate() {
            let learned = table.learn(key(station), station as usize % 60, time as u16);
            prop_assert!(matches!(learned, Learned::New | Learned::Known | Learned::Evicted), "{learned:?}");
            prop_assert_eq!(table.lookup(key(station)), Some(station as usize % 60));
            prop_assert_eq!(table.lookup(key(1000)), Some(63));
            prop_assert_eq!(table.learn(key(1000), 1, time as u16), Learned::Fixed);
            let entries = table.entries(time as u16);
            prop_assert!(entries.len() <= 16);
            for entry in entries.iter().filter(|entry| entry.age.is_some()) {
                prop_assert_eq!(entry.port, usize::from(entry.mac.0[5]) % 60);
            }
            // The oldest goes: whoever is younger than seven others of one bucket was never in danger.
            let mut latest: Vec<u64> = stations[..=time].iter().rev().copied().collect();
            latest.dedup();
            let recent: Vec<u64> = latest.into_iter().take(7).collect();
            prop_assert!(recent.iter().all(|&station| table.lookup(key(station)).is_some()));
        }
    }
}

#[test]
fn vlans_are_apart() {
    let table = Table::new(8192, 5);
    for vlan in 0..4095 {
        assert_eq!(table.learn(Key::new(5, vlan), usize::from(vlan % 64), 0), Learned::New);
    }
    assert!((0..4095).all(|vlan| table.lookup(Key::new(5, vlan)) == Some(usize::from(vlan % 64))));
    assert_eq!(table.entries(0).len(), 4095);
    assert_eq!((table.lookup(Key::new(6, 0)), table.lookup(Key::new(0, 0))), (None, None));
}

#[test]
fn a_bucket_of_fixed_stations_takes_no_more() {
    let table = Table::new(1, 5);
    let fixed = (0..100).filter(|&station| table.fix(key(station), 1)).count();
    assert_eq!(fixed, 2 * WAYS);
    let refused = (100..200).filter(|&station| table.learn(key(station), 2, 0) == Learned::Not).count();
    assert_eq!((refused, table.retain(9, |_, _| false)), (100, 2 * WAYS));
}

/// Two threads fill two buckets over and over, while others look: whoever finds a station finds its own port.
#[test]
fn readers_never_see_the_port_of_another_station() {
    let (table, end) = (Table::new(1, 5), AtomicBool::new(false));
    let port = |station: u64| station as usize % 61;
    std::thread::scope(|scope| {
        for first in 0..2 {
            let (table, end) = (&table, &end);
            scope.spawn(move || {
                for round in 0..200_000u64 {
                    let station = (round * 7 + first) % 64;
                    table.learn(key(station), port(station), round as u16);
                }
                end.store(true, Ordering::Relaxed);
            });
        }
        scope.spawn(|| {
            let mut found = 0;
            for station in (0..64).cycle() {
                if let Some(at) = table.lookup(key(station)) {
                    assert_eq!(at, port(station));
                    found += 1;
                }
                if station == 63 && end.load(Ordering::Relaxed) {
                    break;
                }
            }
            assert!(found > 0);
        });
    });
    assert!(table.entries(0).iter().all(|entry| entry.port == port(entry.mac.0[5].into())));
}
