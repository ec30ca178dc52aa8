//! Tests of back-ends that violate the protocol: opening the port fails, or the port ends, with a one-line reason;
//! nothing blocks for ever and no descriptor leaks.

use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use crate::common::*;
use ringpass_lab::wait_until;
use ringpass_memory::Burst;
use ringpass_port::{Port, PortConfig, State};
use ringpass_vhost_user::{Command, HEADER, Header, Kind, Request};
use ringpass_virtio::features::{MQ, RING_PACKED, VERSION_1};
use ringpass_virtio_user::VirtioUser;

/// Falsifications of a back-end's reply.
#[derive(Clone, Copy, Debug)]
enum Lie {
    OtherCommand,
    NoReply,
    Version,
    Short,
    Long,
    Huge,
    Empty,
    Twice,
    MoreDescriptors,
    FewerDescriptors,
    Close,
    CloseInside,
    Refuse,
    Noise,
}

const LIES: [Lie; 14] = [
    Lie::OtherCommand,
    Lie::NoReply,
    Lie::Version,
    Lie::Short,
    Lie::Long,
    Lie::Huge,
    Lie::Empty,
    Lie::Twice,
    Lie::MoreDescriptors,
    Lie::FewerDescriptors,
    Lie::Close,
    Lie::CloseInside,
    Lie::Refuse,
    Lie::Noise,
];

/// Falsifies an honest reply; `None` if the session is to be closed instead.
fn tell(lie: Lie, mut answer: Answer) -> Option<Answer> {
    let bytes = &mut answer.bytes;
    let field = |at: usize, value: u32, bytes: &mut Vec<u8>| bytes[at..at + 4].copy_from_slice(&value.to_ne_bytes());
    let size = (bytes.len() - HEADER) as u32;
    match lie {
        Lie::OtherCommand => field(0, 33, bytes),
        Lie::NoReply => field(4, 1, bytes),
        Lie::Version => field(4, 6, bytes),
        Lie::Short => {
            field(8, size - 1, bytes);
            bytes.pop();
        }
        Lie::Long => {
            field(8, size + 1, bytes);
            bytes.push(0);
        }
        Lie::Huge => field(8, u32::MAX, bytes),
        Lie::Empty => {
            field(8, 0, bytes);
            bytes.truncate(HEADER);
        }
        Lie::Twice => bytes.extend_from_within(..),
        Lie::MoreDescriptors => answer.fds += 1,
        Lie::FewerDescriptors if answer.fds > 0 => answer.fds = 0,
        Lie::FewerDescriptors => answer.fds = 16,
        Lie::Close => return None,
        Lie::CloseInside => bytes.truncate(HEADER + 3),
        // No features, no queues or no area; or a negative acknowledgement.
        Lie::Refuse if size == 8 => {
            let number = u64::from(bytes[HEADER..].iter().all(|&byte| byte == 0));
            bytes[HEADER..].copy_from_slice(&number.to_ne_bytes());
        }
        Lie::Refuse => bytes[HEADER..].fill(0xff),
        Lie::Noise => bytes.iter_mut().for_each(|byte| *byte = byte.wrapping_mul(31).wrapping_add(7)),
    }
    Some(answer)
}

/// Opens a port whose back-end falsifies reply number `at`. Returns the command of that reply and the result of
/// opening; `None` if there are fewer replies.
fn lied_to(at: usize, lie: Lie) -> Option<(Command, Result<(), String>)> {
    let (place, pool) = (Place::new(), pool());
    std::thread::scope(|scope| {
        let peer = scope.spawn(|| {
            let mut peer = place.accept();
            let (mut answers, mut lied_about) = (0, None);
            while let Some((request, kind, _)) = peer.request() {
                let Some(answer) = peer.honest(&request, kind) else { continue };
                answers += 1;
                if answers != at + 1 {
                    peer.answer(answer);
                    continue;
                }
                lied_about = Some(request.command());
                match tell(lie, answer) {
                    Some(answer) => peer.answer(answer),
                    None => break,
                }
                if matches!(lie, Lie::CloseInside) {
                    break;
                }
            }
            lied_about
        });
        let start = Instant::now();
        let opened = VirtioUser::open("card", &place.config, &PortConfig::default(), &pool).map(drop);
        assert!(start.elapsed() < Duration::from_secs(30), "{lie:?} at {at} took {:?}", start.elapsed());
        peer.join().unwrap().map(|command| (command, opened.map_err(|error| error.to_string())))
    })
}

#[test]
fn a_lie_anywhere_is_one_line() {
    for lie in LIES {
        let before = descriptors();
        let mut at = 0;
        while let Some((command, result)) = lied_to(at, lie) {
            // When the port is dropped, nobody reads the error; and an offer of no protocol features can be honest.
            let end = command == Command::GetVringBase;
            let honest = matches!(lie, Lie::Refuse) && command == Command::GetProtocolFeatures;
            match result {
                Err(text) => assert!(!text.contains('\n') && text.len() > 10, "{lie:?} to {command}: {text}"),
                // The duplicate follows the last reply that is waited for.
                Ok(()) => assert!(end || honest || matches!(lie, Lie::Twice), "{lie:?} to {command} was believed"),
            }
            at += 1;
        }
        assert!(at >= 3, "{lie:?}: {at} answers");
        // Memory that a back-end may still use stays mapped; at most one descriptor per region stays open.
        let left = descriptors() - before;
        assert!(left <= 2 * at, "{left} descriptors are left of {at} ports");
    }
}

#[test]
fn a_back_end_that_says_nothing_is_given_up() {
    let (place, pool) = (Place::new(), pool());
    let start = Instant::now();
    let error = VirtioUser::open("card", &place.config, &PortConfig::default(), &pool).err().unwrap().to_string();
    assert!(error.contains("does not answer in time"), "{error}");
    assert!(start.elapsed() < Duration::from_secs(60));
}

#[test]
fn a_back_end_that_trickles_is_given_up() {
    let (place, pool) = (Place::new(), pool());
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut peer = place.accept();
            while let Some((request, kind, _)) = peer.request() {
                if let Some(answer) = peer.honest(&request, kind) {
                    std::thread::sleep(Duration::from_secs(6));
                    peer.answer(answer);
                }
            }
        });
        let start = Instant::now();
        let error = VirtioUser::open("card", &place.config, &PortConfig::default(), &pool).err().unwrap().to_string();
        assert!(error.contains("in time") && start.elapsed() < Duration::from_secs(60), "{error}");
    });
}

/// Opens a port with an honest back-end, then runs `work` with both.
fn meet<R>(port: &PortConfig, work: impl FnOnce(VirtioUser, Peer, &Place) -> R) -> R {
    let (place, pool) = (Place::new(), pool());
    std::thread::scope(|scope| {
        let peer = scope.spawn(|| {
            let mut peer = place.accept();
            assert!(peer.bring_up());
            peer
        });
        let opened = VirtioUser::open("card", &place.config, port, &pool).unwrap_or_else(|error| panic!("{error}"));
        work(opened, peer.join().unwrap(), &place)
    })
}

fn gone(port: &mut VirtioUser) -> String {
    let mut why = None;
    wait_until("the port's end", || {
        if let State::Gone(text) = port.state() {
            why = Some(text);
        }
        why.is_some()
    });
    let why = why.unwrap();
    assert!(!why.contains('\n') && why.starts_with("card: "), "{why}");
    why
}

#[test]
fn a_back_end_that_speaks_unasked_is_left_and_another_is_met() {
    meet(&PortConfig::default(), |mut port, mut peer, place| {
        let _queues = port.take_queues();
        assert!(port.link().up);
        let header = Header { command: Command::GetFeatures as u32, kind: Kind::Reply, size: 0 };
        peer.answer(Answer { bytes: header.to_bytes().into(), fds: 3 });
        wait_until("the link's end", || !port.link().up);
        let mut next = place.accept();
        assert!(next.bring_up());
        // The second back-end receives the area of the first.
        assert_eq!((peer.inflight, next.inflight), (1, 0));
        wait_until("the link", || port.link().up);
        assert!(port.extended().contains(&("reconnects", 1)));
        std::thread::scope(|scope| {
            scope.spawn(|| next.serve_out());
            drop(port);
            drop(_queues);
        });
    });
}

#[test]
fn a_back_end_that_comes_back_with_less_ends_the_port() {
    for (offer, parts) in [
        ((FEATURES & !RING_PACKED, PROTOCOL, 1), &["come back without packed"][..]),
        ((FEATURES & !VERSION_1, PROTOCOL, 1), &["come back without version_1"]),
        ((FEATURES, PROTOCOL, 0), &["come back with 0 pairs"]),
    ] {
        meet(&PortConfig::default(), |mut port, peer, place| {
            let _queues = port.take_queues();
            drop(peer);
            let mut next = place.accept();
            next.offer = offer;
            next.serve_out();
            let why = gone(&mut port);
            parts.iter().for_each(|part| assert!(why.contains(part), "{why}"));
        });
    }
}

#[test]
fn bad_sessions_do_not_end_the_port_and_do_not_storm() {
    meet(&PortConfig::default(), |mut port, peer, place| {
        let _queues = port.take_queues();
        drop(peer);
        let (start, before) = (Instant::now(), descriptors());
        for round in 0..4 {
            let mut bad = place.accept();
            let (request, kind, _) = bad.request().expect("a request");
            if round % 2 == 0 {
                let _ = bad.honest(&request, kind);
                bad.answer(Answer { bytes: vec![0xff; 64], fds: 5 });
            }
            drop(bad);
        }
        // The attempts are 100, 200 and 400 ms apart.
        assert!(start.elapsed() > Duration::from_millis(500), "{:?}", start.elapsed());
        assert!(descriptors() <= before + 4);
        let mut good = place.accept();
        assert!(good.bring_up());
        wait_until("the link", || port.link().up);
        assert!(matches!(port.state(), State::Running));
    });
}

#[test]
fn a_thousand_sessions_leave_nothing_open() {
    meet(&PortConfig::default(), |mut port, mut peer, place| {
        let _queues = port.take_queues();
        let mut after_ten = 0;
        for session in 0..1000 {
            drop(peer);
            peer = place.accept();
            assert!(peer.bring_up(), "session {session}");
            if session == 10 {
                after_ten = descriptors();
            }
        }
        assert!(descriptors() <= after_ten + 4, "{after_ten} descriptors have become {}", descriptors());
        wait_until("the link", || port.link().up);
        assert!(port.extended().contains(&("reconnects", 1000)), "{:?}", port.extended());
    });
}

#[test]
fn a_ring_that_is_broken_ends_the_port() {
    let (place, pool) = (Place::new(), pool());
    std::thread::scope(|scope| {
        let peer = scope.spawn(|| {
            let mut peer = place.accept();
            peer.offer.0 &= !RING_PACKED;
            assert!(peer.bring_up());
            peer
        });
        let mut port = VirtioUser::open("card", &place.config, &PortConfig::default(), &pool).unwrap();
        let mut queues = port.take_queues();
        let mut peer = peer.join().unwrap();
        // Front-end and back-end share the test's process, so the front-end's addresses are valid here.
        let used = peer.rings[0].at.expect("an address").used;
        let memory = peer.of(Command::SetMemTable);
        assert_eq!(memory.len(), 2);
        write_index(used, 0x4000);
        assert_eq!(queues[0].rx.rx_burst(&mut Burst::new(32)), 0);
        scope.spawn(move || peer.serve_out());
        let why = gone(&mut port);
        assert!(why.contains("broke the rules") && why.contains("queue 0"), "{why}");
    });
}

/// Writes the index of a used ring, as a back-end does.
#[allow(unsafe_code)]
fn write_index(used: u64, index: u16) {
    // SAFETY: `used` is the address of a used ring whose port is still alive in this process; both sides access the
    // index as an atomic, and it is aligned.
    unsafe { &*((used + 2) as usize as *const std::sync::atomic::AtomicU16) }
        .store(index, std::sync::atomic::Ordering::Release);
}

/// A back-end shares kick and call eventfds with the front-end, including their flags: it fills them, empties them
/// and makes them blocking.
#[test]
fn eventfds_that_a_back_end_spoils_never_keep_the_data_path_waiting() {
    meet(&PortConfig::default(), |mut port, peer, _place| {
        let mut queues = port.take_queues();
        let kicks = peer.of(Command::SetVringKick);
        let calls = peer.of(Command::SetVringCall);
        assert_eq!((kicks.len(), calls.len()), (2, 1), "Tx rings are polled");
        for event in kicks.iter().chain(&calls) {
            rustix::io::ioctl_fionbio(event.as_fd(), false).unwrap();
        }
        let start = Instant::now();
        let pool = pool();
        for round in 0..200u32 {
            for kick in &kicks {
                rustix::io::ioctl_fionbio(kick.as_fd(), true).unwrap();
                let _ = rustix::io::write(kick, &(u64::MAX - 1).to_ne_bytes());
                rustix::io::ioctl_fionbio(kick.as_fd(), false).unwrap();
            }
            if round % 3 == 0 {
                rustix::io::write(calls[0], &1u64.to_ne_bytes()).unwrap();
            }
            let mut burst = Burst::new(1);
            let mut packet = pool.alloc().expect("a buffer");
            packet.set_len(60);
            burst.push(packet);
            queues[0].tx.tx_burst(&mut burst);
            let rx = &mut queues[0].rx;
            rx.rx_burst(&mut Burst::new(32));
            rx.arm();
            rx.disarm();
        }
        assert!(start.elapsed() < Duration::from_secs(60), "{:?}", start.elapsed());
    });
}

#[test]
fn offers_that_cannot_be_worked_with_are_refused() {
    let several = PortConfig { queues: 4, ..Default::default() };
    for (offer, features, config, parts) in [
        ((FEATURES & !VERSION_1, PROTOCOL, 1), None, PortConfig::default(), &["does not offer version_1"][..]),
        ((FEATURES & !RING_PACKED, PROTOCOL, 1), Some("packed"), PortConfig::default(), &["does not offer packed"]),
        ((FEATURES, PROTOCOL, 1), Some("speed"), PortConfig::default(), &["'speed' is not a feature"]),
        ((FEATURES, PROTOCOL, 2), None, several, &["4 queues", "has 2 pairs", "queues=2"]),
        ((FEATURES | MQ, PROTOCOL & 1 << 3, 2), None, several, &["has 1 pairs"]),
    ] {
        let (mut place, pool) = (Place::new(), pool());
        place.config.features = features.map(str::to_owned);
        let place = &place;
        std::thread::scope(|scope| {
            let wait = features != Some("speed");
            let peer = scope.spawn(move || {
                if wait {
                    let mut peer = place.accept();
                    peer.offer = offer;
                    peer.serve_out();
                }
            });
            let error = VirtioUser::open("card", &place.config, &config, &pool).err().expect("no port").to_string();
            parts.iter().for_each(|part| assert!(error.contains(part), "no '{part}' in {error}"));
            assert!(!error.contains('\n'));
            peer.join().unwrap();
        });
    }
}

#[test]
fn without_any_protocol_features_rings_start_at_once() {
    let (place, pool) = (Place::new(), pool());
    std::thread::scope(|scope| {
        let peer = scope.spawn(|| {
            let mut peer = place.accept();
            peer.offer = (VERSION_1, 0, 1);
            assert!(peer.serve(|request| matches!(request, Request::SetVringKick(ring) if ring.index == 1)));
            peer
        });
        let mut port = VirtioUser::open("card", &place.config, &PortConfig::default(), &pool).unwrap();
        let mut peer = peer.join().unwrap();
        assert!(port.link().up && peer.rings.iter().all(|ring| !ring.enabled && ring.size == 512));
        let queues = port.take_queues();
        let stopped = scope.spawn(move || {
            let mut asked = 0;
            while let Some((request, kind, _)) = peer.request() {
                asked += u32::from(matches!(request, Request::GetVringBase { .. }));
                let answer = peer.honest(&request, kind).expect("a question");
                peer.answer(answer);
            }
            asked
        });
        drop((queues, port));
        assert_eq!(stopped.join().unwrap(), 2, "each ring is stopped");
        assert_eq!(pool.outstanding(1), 0, "the buffers came back");
    });
}

/// Buffers that an unresponsive back-end may still write to are never reused.
#[test]
fn buffers_of_a_back_end_that_does_not_stop_stay_its_own() {
    let (place, pool) = (Place::new(), pool());
    std::thread::scope(|scope| {
        let peer = scope.spawn(|| {
            let mut peer = place.accept();
            assert!(peer.bring_up());
            peer
        });
        let mut port = VirtioUser::open("card", &place.config, &PortConfig::default(), &pool).unwrap();
        let mut peer = peer.join().unwrap();
        let queues = port.take_queues();
        let start = Instant::now();
        drop((queues, port));
        assert!(start.elapsed() < Duration::from_secs(60));
        assert_eq!(pool.outstanding(1), 512, "what was posted");
        while peer.request().is_some() {}
    });
}
