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

/// A station in the reference model.
#[derive(Clone, Copy)]
struct Station {
    port: usize,
    seen: u64,
    moves: u32,
}

proptest! {
    /// With no more stations than a bucket has entries, the table behaves as a map. Time wraps during the test.
    #[test]
    fn behaves_as_a_map(steps in prop::collection::vec(step(), 0..300)) {
        const MOVES: u32 = 3;
        let table = Table::new(64, MOVES);
        let mut model = HashMap::<u64, Station>::new();
        let mut time = 65_500u64;
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

    /// However many stations come, one at each port: the last one is found, all entries are right, there are
    /// never too many of them, and static ones stay.
    #[test]
    fn a_full_table_forgets_the_oldest(stations in prop::collection::vec(0..60u64, 1..400)) {
        let table = Table::new(16, 5);
        prop_assert!(table.add_static(key(1000), 63));
        for (time, &station) in stations.iter().enumerate() {
            let learned = table.learn(key(station), station as usize, time as u16);
            prop_assert!(matches!(learned, Learned::New | Learned::Known | Learned::Evicted), "{learned:?}");
            prop_assert_eq!(table.lookup(key(station)), Some(station as usize));
            prop_assert_eq!(table.lookup(key(1000)), Some(63));
            prop_assert_eq!(table.learn(key(1000), 1, time as u16), Learned::Fixed);
            let entries = table.entries(time as u16);
            prop_assert!(entries.len() <= 16);
            for entry in entries.iter().filter(|entry| entry.age.is_some()) {
                prop_assert_eq!(entry.port, usize::from(entry.mac.0[5]));
            }
            // The oldest entry is evicted, so the seven most recent stations are all there, even if they share
            // a bucket.
            let mut latest: Vec<u64> = stations[..=time].iter().rev().copied().collect();
            latest.dedup();
            let recent: Vec<u64> = latest.into_iter().take(7).collect();
            prop_assert!(recent.iter().all(|&station| table.lookup(key(station)).is_some()));
        }
    }

    /// A port above its share takes no entry from a port below, whatever other ports there are; and the count
    /// of each port's entries is exact.
    #[test]
    fn shares_are_kept(
        steps in prop::collection::vec((0..40u64, 0..4usize, 0..3u16), 1..600),
        ages in prop::collection::vec(0..9u16, 3),
    ) {
        let (table, mut now) = (Table::new(64, 127), 0);
        table.divide(4);
        let of = |entries: &[Entry], port| entries.iter().filter(|entry| entry.port == port).count();
        for (step, (station, port, seconds)) in steps.into_iter().enumerate() {
            now += seconds;
            let before = table.entries(now);
            let (had, learned) = (of(&before, port), table.learn(key(station * 4 + port as u64), port, now));
            let after = table.entries(now);
            match learned {
                Learned::Known => prop_assert_eq!(before.len(), after.len()),
                Learned::New => prop_assert_eq!(before.len() + 1, after.len()),
                // The port is at its share and has no entry of its own in the bucket.
                Learned::Full => prop_assert!(had >= 16 && before == after),
                Learned::Evicted => {
                    let mut gone = before.iter().filter(|entry| !after.iter().any(|it| it.mac == entry.mac));
                    let (loser, others) = (gone.next().unwrap().port, gone.count());
                    prop_assert_eq!(others, 0);
                    prop_assert!(loser == port || had < 16 || of(&before, loser) > 16, "{} of {} from {}", port, had, loser);
                }
                other => prop_assert!(false, "{:?}", other),
            }
            if step % 200 == 199 {
                let limit = ages[step / 200];
                table.retain(now, |_, age| age <= limit);
            }
            let entries = table.entries(now);
            for port in 0..4 {
                prop_assert_eq!(table.learned[port].load(Ordering::Relaxed) as usize, of(&entries, port));
            }
        }
    }
}

/// An attacker knows which addresses share a bucket, and stays below its share of the table.
#[test]
fn stations_aimed_at_one_bucket_evict_no_others() {
    let (table, [one, other, attacker]) = (Table::new(8192, 127), [0, 1, 2]);
    table.divide(3);
    let victims = [(key(1), one), (key(1 << 20), other)];
    for (victim, port) in victims {
        assert_eq!(table.learn(victim, port, 0), Learned::New);
        let bucket = table.place(victim).0;
        let aimed = (2..1 << 20).map(key).filter(|&key| std::ptr::eq(table.place(key).0, bucket)).take(100);
        let evicted = aimed.filter(|&key| table.learn(key, attacker, 100) == Learned::Evicted).count();
        assert!(evicted >= 92, "{evicted}");
    }
    assert_eq!(victims.map(|(victim, _)| table.lookup(victim)), [Some(one), Some(other)]);
}

/// Two ports fill one bucket: each takes entries from the other only until they are level.
#[test]
fn a_bucket_is_shared_too() {
    let table = Table::new(1, 127);
    let bucket = |station: &u64| std::ptr::eq(table.place(key(*station)).0, &table.buckets[0]);
    let stations: Vec<u64> = (0..).filter(bucket).take(200).collect();
    let (first, second) = stations.split_at(100);
    for (now, (stations, port)) in [(first, 0), (second, 1), (first, 0)].into_iter().enumerate() {
        stations.iter().for_each(|&station| assert_ne!(table.learn(key(station), port, now as u16), Learned::Full));
    }
    let held = [0, 1].map(|port| table.entries(2).iter().filter(|entry| entry.port == port).count());
    assert_eq!(held, [4, 4]);
}

/// Stations in a bucket are found even while a preempted writer is in the middle of a change.
#[test]
fn stations_are_found_while_a_writer_rests() {
    let table = Table::new(1, 5);
    assert_eq!(table.learn(key(1), 3, 0), Learned::New);
    let (bucket, _) = table.place(key(1));
    let found = bucket.write(|| {
        assert_eq!(table.learn(key(1), 4, 0), Learned::Busy);
        [table.lookup(key(1)), table.lookup(key(2))]
    });
    assert_eq!(found, Some([Some(3), None]));
    assert_eq!(table.learn(key(1), 4, 0), Learned::Moved);
    assert_eq!([3, 4].map(|port| table.learned[port].load(Ordering::Relaxed)), [0, 1]);
}

#[test]
fn vlans_are_apart() {
    let table = Table::new(8192, 5);
    let port = |vlan: u16| usize::from(vlan % 64);
    // By chance of the table's multiplier, more VLANs than a bucket has entries may meet in one.
    let learned: Vec<_> = (0..4095).map(|vlan| table.learn(Key::new(5, vlan), port(vlan), 0)).collect();
    assert!(learned.iter().all(|learned| matches!(learned, Learned::New | Learned::Evicted | Learned::Full)));
    let found: Vec<_> = (0..4095).filter(|&vlan| table.lookup(Key::new(5, vlan)).is_some()).collect();
    assert!(found.iter().all(|&vlan| table.lookup(Key::new(5, vlan)) == Some(port(vlan))));
    let new = learned.iter().filter(|&&learned| learned == Learned::New).count();
    assert_eq!((found.len(), table.entries(0).len()), (new, new));
    assert_eq!((table.lookup(Key::new(6, 0)), table.lookup(Key::new(0, 0))), (None, None));
}

#[test]
fn a_bucket_of_fixed_stations_takes_no_more() {
    let table = Table::new(1, 5);
    let fixed = (0..100).filter(|&station| table.add_static(key(station), 1)).count();
    assert_eq!(fixed, 2 * WAYS);
    let refused = (100..200).filter(|&station| table.learn(key(station), 2, 0) == Learned::Full).count();
    assert_eq!((refused, table.retain(9, |_, _| false)), (100, 2 * WAYS));
}

/// Two threads fill two buckets over and over while others look up stations: each station is found with its own
/// port.
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
    let entries = table.entries(0);
    assert!(entries.iter().all(|entry| entry.port == port(entry.mac.0[5].into())));
    for of in 0..61 {
        let held = entries.iter().filter(|entry| entry.port == of).count();
        assert_eq!(table.learned[of].load(Ordering::Relaxed) as usize, held, "stations of port {of}");
    }
}

/// Random addresses, of which some buckets get more than they have room for. Those that were placed are found all the time, while others make them move.
#[test]
fn what_a_control_plane_places_has_room() {
    const STATIONS: u64 = 87_000;
    let table = Table::new(STATIONS as usize * 3 / 2, 127);
    table.divide(2);
    let mut random = ringpass_testing::Random::new(7);
    let keys: Vec<Key> = (0..STATIONS).map(|_| Key::new(random.next(), 7)).collect();
    let placed = AtomicU32::new(0);
    std::thread::scope(|scope| {
        let reader = scope.spawn(|| {
            let mut looks = 0u64;
            while placed.load(Ordering::Acquire) < STATIONS as u32 || looks < 100_000 {
                let there = placed.load(Ordering::Acquire) as usize;
                if there > 0 {
                    looks += 1;
                    let number = (looks.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32) as usize % there;
                    assert_eq!(table.lookup(keys[number]), Some(1), "{number} of {there}");
                }
            }
        });
        for (&key, number) in keys.iter().zip(1..) {
            assert!(table.place_given(key, 1, 0), "{number}");
            placed.store(number, Ordering::Release);
        }
        reader.join().expect("all were found");
    });
    assert_eq!(table.entries(0).len(), STATIONS as usize);
    let seconds = keys.iter().filter(|&&key| table.place(key).0.find(key, 0).is_none()).count();
    assert!(seconds > 100, "{seconds} are in second buckets");
    // A frame of each, where it is and from elsewhere; then it is placed again, and removed.
    assert!(keys.iter().all(|&key| table.learn(key, 1, 1) == Learned::Known));
    assert!(keys.iter().all(|&key| table.learn(key, 0, 1) == Learned::Moved && table.lookup(key) == Some(0)));
    assert_eq!(table.entries(0).len(), STATIONS as usize);
    assert!(keys.iter().all(|&key| table.place_given(key, 1, 2)));
    keys.iter().for_each(|&key| table.remove_given(key, 1));
    assert_eq!(table.entries(0).len(), 0);
    assert_eq!([0, 1].map(|port| table.learned[port].load(Ordering::Relaxed)), [0, 0]);
}
