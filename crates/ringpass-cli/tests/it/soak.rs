//! A short soak: peers are killed for some seconds, to check that the harness of `make soak` works.

use std::path::Path;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use ringpass_lab::soak::{Settings, run};

#[test]
fn innocent_pairs_lose_nothing_while_peers_are_killed() {
    let (ringpass, time) = (Path::new(crate::common::RINGPASS).into(), Duration::from_secs(12));
    let settings = Settings { ringpass, time, seed: 1, judge_stalls: false };
    let summary = run(&settings, &AtomicBool::new(false), &mut |_| ()).expect("all processes start");
    eprintln!("{summary}");
    assert!(summary.failures().is_empty(), "{summary}");
    assert_eq!((summary.lost(), summary.missing()), (0, 0));
    // Each victim group has made progress, on a machine of any speed.
    assert!(summary.lanes.iter().all(|lane| lane.kills > 0), "{summary}");
    assert!(summary.innocents.iter().all(|pair| pair.returned > 1000), "{summary}");
    assert_eq!((summary.buffers.len(), summary.growth.len()), (15, 14), "{summary}");
}
