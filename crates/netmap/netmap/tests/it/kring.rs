//! Both sides of a ring, the application and the server, in turns and on two threads.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, sync_channel};
use std::time::Duration;

use proptest::prelude::*;
use ringpass_memory::{DmaRegion, Memory, RegionConfig};
use ringpass_netmap::csb::Csb;
use ringpass_netmap::{Direction, Kring, Notifier, Pools, PortRing, Region, Ring, Slot, SyncError};

/// Returns both sides of a ring. The program's kicks do nothing.
fn both(direction: Direction, slots: u32) -> (PortRing, Kring, Arc<Csb>) {
    kicking(direction, slots, &(Arc::new(|| ()) as Notifier))
}

fn kicking(direction: Direction, slots: u32, kick: &Notifier) -> (PortRing, Kring, Arc<Csb>) {
    let config = RegionConfig::default();
    let mut region = Region::new(Pools::default(), &config).unwrap_or_else(|error| panic!("{error}"));
    let (ring, offset) = region.ring(direction, 0, slots, true).unwrap();
    let memory: Memory = DmaRegion::new(8192, &config).unwrap().into();
    let csb = Arc::new(Csb::new(&memory, 0, 4096, 64).unwrap());
    assert!(Csb::new(&memory, 0, 4096, 65).is_none());
    let served = Kring::new(direction, ring, &csb, 63);
    let ring = Ring::new(region.memory(), offset, slots).unwrap();
    (PortRing::served(ring, &csb, 63, kick), served, csb)
}

#[derive(Clone, Debug)]
enum Step {
    GiveUp(u32),
    Sync,
    Take(u32),
    Give(u32),
    Tell,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let n = 0..12_u32;
    let step = prop_oneof![
        n.clone().prop_map(Step::GiveUp),
        Just(Step::Sync),
        n.clone().prop_map(Step::Take),
        n.prop_map(Step::Give),
        Just(Step::Tell),
    ];
    prop::collection::vec(step, 1..200)
}

proptest! {
    /// Each slot has one owner at a time in any order of steps: what one side may access, the other has
    /// released.
    #[test]
    fn every_slot_has_one_owner(slots in 2..20_u32, tx in any::<bool>(), steps in steps()) {
        let direction = if tx { Direction::Tx } else { Direction::Rx };
        let (application, mut served, _) = both(direction, slots);
        for step in steps {
            match step {
                Step::GiveUp(n) => application.release_slots(n.min(application.own())),
                Step::Sync => prop_assert_eq!(application.sync(), Ok(())),
                Step::Take(n) => served.advance_hwcur(n.min(served.poll_released().unwrap())),
                Step::Give(n) => served.advance_hwtail(n.min(served.room())),
                Step::Tell => prop_assert!(!served.publish()),
            }
            let mut owners = vec![0; slots as usize];
            (0..application.own()).for_each(|n| owners[application.position(n) as usize] += 1);
            (0..served.poll_released().unwrap()).for_each(|n| owners[served.hwcur_plus(n) as usize] += 1);
            (0..served.room()).for_each(|n| owners[served.hwtail_plus(n) as usize] += 1);
            prop_assert!(owners.iter().all(|&owners| owners <= 1), "{:?}", owners);
            prop_assert!(owners.iter().sum::<u32>() < slots, "one is nobody's");
        }
    }
}

#[test]
fn programs_and_servers_that_lie() {
    let (application, mut served, csb) = both(Direction::Tx, 8);
    application.ring().header().head.store(9, std::sync::atomic::Ordering::Relaxed);
    assert!(matches!(application.sync(), Err(SyncError::Program { .. })));
    assert_eq!((application.ring().head_and_cur(), application.own()), ((0, 0), 7));
    application.release_slots(3);
    application.sync().unwrap();
    assert_eq!(served.poll_released(), Ok(3));
    for (cur, tail) in [(8, 7), (0, 8), (0, u32::MAX)] {
        csb.write_ktoa(63, cur, tail);
        assert_eq!(application.sync(), Err(SyncError::Peer(cur, tail)));
    }
    csb.write_ktoa(63, 3, 2);
    application.sync().unwrap();
    assert_eq!(application.own(), 7);
    for (head, cur) in [(8, 8), (2, 1), (0, 8), (u32::MAX, 3)] {
        csb.write_atok(63, head, cur, 0);
        served.poll_released().unwrap_err();
        served.arm(0).unwrap_err();
    }
    csb.write_atok(63, 3, 7, 0);
    served.advance_hwcur(served.poll_released().unwrap());
    assert_eq!(served.room(), 3);
}

fn wait(notifier: &Receiver<()>) {
    notifier.recv_timeout(Duration::from_secs(20)).expect("a wake-up");
}

/// Numbers go one way through a ring of each direction; both sides block whenever there is nothing to do.
#[test]
fn nobody_sleeps_through_a_wake_up() {
    const COUNT: u64 = 20_000;
    for slots in [2, 3, 16] {
        // Like an eventfd: signalling it twice wakes once.
        let ((kick, kicked), (call, called)) = (sync_channel(1), sync_channel(1));
        let (application, mut served, _) =
            kicking(Direction::Tx, slots, &(Arc::new(move || _ = kick.try_send(())) as Notifier));
        std::thread::scope(|scope| {
            scope.spawn(move || {
                let mut next = 0;
                while next < COUNT {
                    let n = served.poll_released().unwrap();
                    if n == 0 {
                        if served.arm(0).unwrap() {
                            wait(&kicked);
                        }
                        served.disarm();
                        continue;
                    }
                    for at in 0..n {
                        assert_eq!(served.ring().slot(served.hwcur_plus(at)).pointer, next);
                        next += 1;
                    }
                    served.advance_hwcur(n);
                    served.advance_hwtail(n);
                    if served.publish() {
                        let _ = call.try_send(());
                    }
                }
            });
            let mut next = 0;
            while next < COUNT {
                let n = application.own().min((COUNT - next) as u32);
                for at in 0..n {
                    let position = application.position(at);
                    application.ring().set(position, Slot { pointer: next, ..application.ring().slot(position) });
                    next += 1;
                }
                application.release_slots(n);
                application.sync().unwrap();
                if application.own() == 0 {
                    if application.arm().unwrap() {
                        wait(&called);
                    }
                    application.disarm();
                }
            }
        });
    }
}
