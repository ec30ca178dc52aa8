//! Tests of ports that are added and removed while the switch runs.

use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Mutex, Weak};
use std::thread;
use std::time::Duration;

use crate::common::*;
use proptest::prelude::*;
use ringpass_host_ports::cable;
use ringpass_memory::{Burst, Packet};
use ringpass_port::{MacAddress, QueuePair, RxQueue, WakeSource, Wakeable};
use ringpass_switch::{Counter, Counts, DatapathQueues, Forwarding, PortPolicy, Switch, Vlans};
use ringpass_testing::{Stop, poll_until};

#[derive(Clone, Debug)]
enum Step {
    Insert(usize),
    Remove(usize),
    Send(usize, u8),
    Round,
}

const PLACES: usize = 5;

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let place = 0..PLACES;
    let step = prop_oneof![
        3 => place.clone().prop_map(Step::Insert),
        2 => place.clone().prop_map(Step::Remove),
        6 => (place, 0..PLACES as u8 + 1).prop_map(|(from, to)| Step::Send(from, to)),
        3 => Just(Step::Round),
    ];
    prop::collection::vec(step, 1..80)
}

/// A port that is present, in the reference model.
struct There {
    far: QueuePair,
    gone: Weak<()>,
    /// Frames sent but not switched yet.
    sent: Vec<(u8, u32)>,
    /// Frames that must come out of the port.
    expected: Vec<Vec<u8>>,
    counted: u64,
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, ..Default::default() })]
    /// Compares the switch with a reference model: ports that are present get the right frames, slots keep
    /// nothing of their previous port, and queues are dropped.
    #[test]
    fn places_are_used_again(steps in steps()) {
        let (pool, mut switch) = (pool(), Switch::new(&free(), &plain(PLACES)).unwrap());
        let mut datapath = switch.datapath(&pool, 32).unwrap();
        let (mut there, mut leaving) = (BTreeMap::<usize, There>::new(), Vec::new());
        let (mut stations, mut number) = (HashMap::<u8, usize>::new(), 0);
        for step in steps.into_iter().chain([Step::Round]) {
            match step {
                Step::Insert(place) => {
                    there.entry(place).or_insert_with(|| {
                        let (share, far, gone) = port();
                        switch.insert(place, vec![share]);
                        There { far, gone, sent: Vec::new(), expected: Vec::new(), counted: 0 }
                    });
                }
                Step::Remove(place) => {
                    switch.remove(place);
                    // Frames that it sent and nobody has received are lost with it.
                    leaving.extend(there.remove(&place));
                    stations.retain(|_, at| *at != place);
                }
                Step::Send(place, to) => {
                    if let Some(port) = there.get_mut(&place) {
                        number += 1;
                        send(&mut port.far, &pool, &frame(mac(to), mac(place as u8), number));
                        port.sent.push((to, number));
                    }
                }
                Step::Round => {
                    // In the order in which the datapath polls the ports.
                    datapath.round();
                    for There { gone, .. } in leaving.drain(..) {
                        poll_until("its queues to be dropped", || gone.upgrade().is_none());
                    }
                    let all: Vec<usize> = there.keys().copied().collect();
                    let mut round: Vec<_> = there.iter_mut().map(|(&place, port)| {
                        port.counted += port.sent.len() as u64;
                        (place, std::mem::take(&mut port.sent))
                    }).collect();
                    round.retain(|(_, sent)| !sent.is_empty());
                    // The order of polling depends on the order of insertion: expect only what does not depend
                    // on it.
                    let late: Vec<u8> = round.iter().map(|(place, _)| *place as u8).collect();
                    for (place, sent) in &round {
                        for (to, number) in sent {
                            let bytes = frame(mac(*to), mac(*place as u8), *number);
                            match stations.get(to).copied() {
                                Some(at) if at == *place => {}
                                Some(at) => there.get_mut(&at).unwrap().expected.push(bytes),
                                // The station may be learned in this round. The frame reaches its port either
                                // way.
                                None if late.contains(to) && usize::from(*to) != *place => {
                                    there.get_mut(&usize::from(*to)).unwrap().expected.push(bytes);
                                }
                                None => {
                                    for other in all.iter().filter(|other| *other != place && *to != *place as u8) {
                                        there.get_mut(other).unwrap().expected.push(bytes.clone());
                                    }
                                }
                            }
                        }
                    }
                    stations.extend(round.iter().map(|(place, _)| (*place as u8, *place)));
                    for (place, port) in &mut there {
                        let came = receive(&mut port.far);
                        for bytes in std::mem::take(&mut port.expected) {
                            prop_assert!(came.contains(&bytes), "{place} misses one");
                        }
                        for bytes in &came {
                            prop_assert!(bytes[11] != *place as u8, "its own");
                        }
                        let fates = Counter::ALL.iter().take_while(|&&counter| counter != Counter::Unknown);
                        let counted: u64 = fates.map(|&counter| switch.counts(*place).of(counter)).sum();
                        prop_assert_eq!(counted, port.counted, "place {}", place);
                    }
                }
            }
            prop_assert_eq!(switch.ports_left(), there.len());
        }
        drop((there, datapath, leaving));
        poll_until("buffers to come back", || pool.outstanding(1) == 0);
    }
}

/// Receives a frame just when its port is removed and another port takes the slot.
struct Late {
    switch: Arc<Mutex<Switch>>,
    packet: Option<Packet>,
    next: Option<DatapathQueues>,
}

impl Wakeable for Late {
    fn wake_sources<'a>(&'a self, each: &mut dyn FnMut(WakeSource<'a>)) {
        each(WakeSource::Polled);
    }
}

impl RxQueue for Late {
    fn rx_burst(&mut self, burst: &mut Burst) -> usize {
        let Some(packet) = self.packet.take() else { return 0 };
        let mut switch = self.switch.lock().unwrap();
        switch.remove(1);
        assert!(switch.table().is_empty());
        switch.insert(1, self.next.take().into_iter().collect());
        burst.push(packet);
        1
    }
}

#[test]
fn a_port_that_went_leaves_nothing_behind() {
    let (pool, switch) = (pool(), Arc::new(Mutex::new(Switch::new(&free(), &plain(3)).unwrap())));
    let mut datapath = switch.lock().unwrap().datapath(&pool, 32).unwrap();
    let [(first, mut first_far, _), (second, mut old, _), (third, mut third_far, _), (next, mut new, _)] =
        [(); 4].map(|()| port());
    let (from, to) = (Some(packet(&pool, &frame(BROADCAST, mac(1), 1))), Some(next));
    let late = Late { switch: switch.clone(), packet: from, next: to };
    let second = DatapathQueues { rx: vec![(Box::new(late), Forwarding::Lookup)], ..second };
    for (place, share) in [first, second, third].into_iter().enumerate() {
        switch.lock().unwrap().insert(place, vec![share]);
    }
    datapath.round();
    assert_eq!([&mut first_far, &mut third_far].map(|far| receive(far).len()), [1, 1]);
    let learned = || switch.lock().unwrap().table().len();
    assert_eq!((learned(), switch.lock().unwrap().counts(1)), (1, Counts::default()), "of the new one");
    datapath.round();
    assert_eq!(learned(), 0);
    send(&mut first_far, &pool, &frame(mac(1), mac(0), 2));
    datapath.round();
    assert_eq!([&mut old, &mut new, &mut third_far].map(|far| receive(far).len()), [0, 1, 1]);
    assert_eq!(switch.lock().unwrap().counts(0).of(Counter::Unknown), 1);
}

/// An Rx queue that shows whether it is armed.
struct Arms(Arc<AtomicBool>);

impl Wakeable for Arms {
    fn arm(&mut self) {
        self.0.store(true, Relaxed);
    }

    fn disarm(&mut self) {
        self.0.store(false, Relaxed);
    }

    fn wake_sources<'a>(&'a self, each: &mut dyn FnMut(WakeSource<'a>)) {
        each(WakeSource::Polled);
    }
}

impl RxQueue for Arms {
    fn rx_burst(&mut self, _: &mut Burst) -> usize {
        0
    }
}

#[test]
fn a_port_that_comes_when_all_are_armed_is_armed_too() {
    let (pool, mut switch) = (pool(), Switch::new(&free(), &plain(2)).unwrap());
    let mut datapath = switch.datapath(&pool, 32).unwrap();
    for (place, armed) in [(0, false), (1, true)] {
        if armed {
            datapath.arm();
        }
        let (share, _far, _) = port();
        let arms = Arc::new(AtomicBool::new(false));
        switch.insert(
            place,
            vec![DatapathQueues { rx: vec![(Box::new(Arms(arms.clone())), Forwarding::Lookup)], ..share }],
        );
        datapath.round();
        assert_eq!(arms.load(Relaxed), armed);
        datapath.disarm();
        assert!(!arms.load(Relaxed));
    }
}

/// Returns the policy of a port in this VLAN alone.
fn access(id: u16) -> PortPolicy {
    PortPolicy { vlans: Vlans::Access(id), ..Default::default() }
}

/// Returns a frame of a station to all.
fn hello(from: u8, number: u32) -> Vec<u8> {
    frame(BROADCAST, mac(from), number)
}

/// What a port may do is decided when it comes into a slot, whatever was there before.
#[test]
fn a_slot_gets_another_policy_between_two_ports() {
    let mut rig = Rig::new(&free(), &[access(10), access(10), access(20)]);
    rig.send(0, &[hello(0, 1)]);
    assert_eq!(rig.received(), [0, 1, 0]);
    rig.switch.remove(1);
    rig.datapath.round();
    // The next ones are in the other VLAN, one in a group of its own, one with a station that stays.
    let policies = [
        PortPolicy { isolation: Some(1), ..access(20) },
        PortPolicy { stations: vec![(MacAddress(mac(7)), None)], ..access(20) },
    ];
    for policy in policies {
        rig.switch.set_policy(1, policy).expect("a right policy");
        let (mut near, mut far) = cable("new", 1024);
        rig.switch.insert(1, vec![share(queues(&mut near), Forwarding::Lookup)]);
        rig.far[1] = queues(&mut far);
        rig.ends.extend([near, far]);
        rig.send(0, &[hello(0, 2)]);
        assert_eq!(rig.received(), [0, 0, 0], "another VLAN");
        rig.send(2, &[hello(2, 3)]);
        assert_eq!(rig.received(), [0, 1, 0]);
        rig.send(1, &[hello(1, 4)]);
        assert_eq!(rig.received(), [0, 0, 1]);
        rig.switch.remove(1);
        rig.datapath.round();
    }
    let stations = |rig: &Rig| rig.switch.table().iter().map(|entry| (entry.mac.0, entry.port)).collect::<Vec<_>>();
    assert!(stations(&rig).contains(&(mac(7), 1)), "a static station stays without its port");
    // A policy that is wrong leaves the default one, and no station of either.
    let wrong = PortPolicy { stations: vec![(MacAddress(mac(8)), None), (MacAddress(BROADCAST), None)], ..access(20) };
    assert!(rig.switch.set_policy(1, wrong).is_err());
    assert!(stations(&rig).iter().all(|station| station.1 != 1));
    // Two new ports of one group reach the third port, and not each other.
    rig.switch.remove(2);
    rig.datapath.round();
    let group = || PortPolicy { isolation: Some(5), ..access(10) };
    for port in [1, 2] {
        rig.switch.set_policy(port, group()).expect("a right policy");
        let (mut near, mut far) = cable("group", 1024);
        rig.switch.insert(port, vec![share(queues(&mut near), Forwarding::Lookup)]);
        rig.far[port] = queues(&mut far);
        rig.ends.extend([near, far]);
    }
    rig.send(1, &[hello(1, 5)]);
    assert_eq!(rig.received(), [1, 0, 0]);
    rig.send(0, &[hello(0, 6)]);
    assert_eq!(rig.received(), [0, 1, 1]);
}

/// A port's policy may change while it is there.
#[test]
fn a_port_gets_another_policy_and_stays() {
    let mut rig = Rig::new(&free(), &[access(10), access(10), access(20)]);
    rig.send(1, &[hello(1, 1)]);
    assert_eq!(rig.received(), [1, 0, 0]);
    rig.switch.set_policy(1, access(20)).expect("a right policy");
    // Before the datapath follows, nothing reaches the VLAN that it has left.
    rig.send(0, &[hello(0, 2)]);
    assert_eq!(rig.received(), [0, 0, 0]);
    rig.send(1, &[hello(1, 3)]);
    assert_eq!(rig.received(), [0, 0, 1]);
    rig.send(2, &[hello(2, 4)]);
    assert_eq!(rig.received(), [0, 1, 0]);
    // A policy that is wrong changes nothing, and the stations of the one before stay.
    let at = |rig: &Rig, last| rig.switch.table().iter().any(|entry| entry.mac.0 == mac(last) && entry.age.is_none());
    let policy = PortPolicy { stations: vec![(MacAddress(mac(7)), None)], ..access(20) };
    rig.switch.set_policy(1, policy).expect("a right policy");
    let wrong = PortPolicy { stations: vec![(MacAddress(mac(8)), None), (MacAddress(BROADCAST), None)], ..access(10) };
    assert!(rig.switch.set_policy(1, wrong).is_err());
    assert!(at(&rig, 7) && !at(&rig, 8));
    rig.send(2, &[hello(2, 5)]);
    assert_eq!(rig.received(), [0, 1, 0]);
    rig.switch.set_policy(1, PortPolicy { isolation: Some(3), ..access(20) }).expect("a right policy");
    rig.switch.set_policy(2, PortPolicy { isolation: Some(3), ..access(20) }).expect("a right policy");
    assert!(!at(&rig, 7));
    rig.send(2, &[hello(2, 6)]);
    assert_eq!(rig.received(), [0, 0, 0], "one group");
}

#[test]
#[should_panic(expected = "place 1 is taken")]
fn a_place_is_filled_once() {
    let mut switch = Switch::new(&free(), &plain(2)).unwrap();
    (0..2).for_each(|_| switch.insert(1, Vec::new()));
}

#[test]
fn queues_for_a_datapath_that_is_gone_are_dropped() {
    let (pool, mut switch) = (pool(), Switch::new(&free(), &plain(2)).unwrap());
    let datapath = switch.datapath(&pool, 32).unwrap();
    let ((first, _, before), (second, _, behind)) = (port(), port());
    switch.insert(0, vec![first]);
    drop(datapath);
    switch.insert(1, vec![second]);
    assert!(before.upgrade().is_none() && behind.upgrade().is_none());
}

/// A sleeping datapath is woken by added and removed ports: sleeping alone would take 100 ms.
#[test]
fn sleepers_hear_of_ports() {
    let (pool, mut switch) = (pool(), Switch::new(&free(), &plain(2)).unwrap());
    let (datapath, stop) = (switch.datapath(&pool, 32).unwrap(), AtomicBool::new(false));
    thread::scope(|scope| {
        let _stop = Stop(&stop);
        scope.spawn(|| work(datapath, &stop));
        let (mut soon, mut took) = (0, Vec::new());
        // Not every time, as either thread may be descheduled.
        while soon < 10 {
            assert!(took.len() < 200, "{took:?}");
            let (share, _far, gone) = port();
            switch.insert(0, vec![share]);
            thread::sleep(Duration::from_millis(20));
            switch.remove(0);
            took.push(poll_until("dropped", || gone.upgrade().is_none()));
            soon += u32::from(took.last().is_some_and(|&took| took < Duration::from_millis(40)));
        }
    });
}
