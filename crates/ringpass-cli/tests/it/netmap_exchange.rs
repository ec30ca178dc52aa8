//! Buffers of cards that are exchanged with programs: exact frames, bridges and pipes without a copy, and
//! kills.

use std::collections::HashMap;
use std::time::Duration;

use crate::common::guest::answered;
use crate::common::netmap::{Netmapd, frame, number, put, receive, send};
use crate::common::{Namespace, Random, unique, wait_until};
use ringpass_netmap::{Flags, Slot};

/// Frames of every length, by both rings of a card: each frame comes back unchanged, and no slot keeps its
/// buffer.
#[test]
fn frames_pass_without_a_copy_byte_for_byte() {
    const FRAMES: u64 = 3000;
    let tap = unique("nn");
    let port = format!("x=model:tap:{tap}");
    let netmapd = Netmapd::new(&["--hugepages", "off", "--queues", "2", "--port", &port]);
    netmapd.namespace.run(&["ip", "link", "set", &tap, "up"]);
    let mine = netmapd.open("netmap:x");
    assert_eq!((mine.granted().memory_id, netmapd.native()["status"]["exchanges"].as_bool()), (2, Some(true)));
    let echo = netmapd.spawn(&["echo", &format!("packet:{tap}")]);
    // IPv4 and UDP from different ports, so that the card spreads the frames over its queues.
    let made = |number: u64, len: usize| {
        let mut frame = frame(2, 1, number);
        frame.resize(len, 0);
        let mut random = Random::new(number | 1);
        frame[22..].iter_mut().for_each(|byte| *byte = random.below(256) as u8);
        let header = [0x08, 0, 0x45, 0, 0, (len - 14) as u8, 0, 0, 0, 0, 64, 17, 0, 0, 198, 18, 0, 1, 198, 18, 0, 2];
        frame[12..12 + header.len()].copy_from_slice(&header);
        frame[16..18].copy_from_slice(&((len - 14) as u16).to_be_bytes());
        frame[34..42].copy_from_slice(&[number as u8, 1, 0, 9, 0, 0, 0, 0]);
        frame[42..50].copy_from_slice(&number.to_le_bytes());
        frame
    };
    let number = |frame: &[u8]| u64::from_le_bytes(frame[42..50].try_into().expect("eight bytes"));
    let (mut random, mut seen, mut changed) = (Random::new(3), HashMap::new(), [0; 2]);
    let sends = |number: u64, frame: &[u8]| {
        let ring = &mine.tx()[(number % 2) as usize];
        let (position, buffer) = put(&mine, ring, frame);
        ring.sync().unwrap();
        (ring, position, buffer)
    };
    let mut receive = |seen: &mut HashMap<u64, Vec<u8>>| {
        for ring in mine.rx() {
            ring.sync().unwrap();
            let own = ring.own();
            for position in ring.first(own) {
                let (slot, mut bytes) = (ring.ring().slot(position), vec![0; 2048]);
                let len = mine.buffers().read(slot, &mut bytes).expect("a frame");
                bytes.truncate(len);
                if bytes[12..14] == [8, 0] && bytes[36..38] == [0, 9] {
                    assert!(slot.flags.any(Flags::BUFFER_CHANGED), "{slot:?}");
                    changed[usize::from(bytes[34] % 2)] += 1;
                    seen.insert(number(&bytes), bytes);
                }
            }
            ring.release_slots(own);
            ring.sync().unwrap();
        }
    };
    // Until the echo program has started.
    wait_until("an echo", || {
        sends(u64::MAX, &made(u64::MAX, 60));
        std::thread::sleep(Duration::from_millis(20));
        receive(&mut seen);
        !seen.is_empty()
    });
    // In small groups, because a card drops frames for which it has no room.
    for first in (0..FRAMES).step_by(50) {
        let sent: Vec<_> = (first..first + 50)
            .map(|n| {
                let mut frame = made(n, if n % 4 == 0 { 60 } else { 60 + random.below(1455) as usize });
                let (ring, position, buffer) = sends(n, &frame);
                // The echo program swaps the addresses.
                frame[..12].rotate_left(6);
                (n, frame, ring, position, buffer)
            })
            .collect();
        wait_until("the echoes", || {
            receive(&mut seen);
            sent.iter().all(|(n, ..)| seen.contains_key(n))
        });
        for (n, went, ring, position, buffer) in sent {
            let came = seen.remove(&n).expect("all came");
            assert!(came == went, "frame {n}: {came:x?} instead of {went:x?}");
            assert_ne!(ring.ring().slot(position).buffer, buffer, "the card has the slot's buffer");
        }
    }
    assert!(changed.iter().all(|&ring| ring > 100), "{changed:?}");
    let counters = netmapd.native()["programs"]["counters"].clone();
    assert!((0..2).all(|ring| counters[ring]["bad_slots"] == 0 && counters[ring]["resets"] == 0), "{counters}");
    drop(mine);
    wait_until("the end of what it had", || netmapd.all_free());
    echo.signal("INT");
    echo.wait(Duration::from_secs(10));
    netmapd.end();
}

/// kernel – TAP – card – bridge – card – TAP – kernel, by buffers that move from ring to ring. The bridge is
/// killed while it holds some of them.
#[test]
fn a_bridge_between_cards_exchanges_buffers() {
    let taps = [unique("nn"), unique("nn")];
    let ports = ["x", "y"].map(|name| format!("{name}=model:tap:{}", taps[usize::from(name == "y")]));
    let netmapd = Netmapd::new(&["--hugepages", "off", "--port", &ports[0], "--port", &ports[1]]);
    let ends = [Namespace::new(), Namespace::new()];
    for (number, (end, tap)) in ends.iter().zip(&taps).enumerate() {
        end.take(&netmapd.namespace, tap, &format!("198.18.0.{}/24", number + 1));
    }
    for kill in 0..3 {
        let bridge = netmapd.spawn(&["bridge", "netmap:x", "netmap:y"]);
        assert!(bridge.line().ends_with("buffers are exchanged"));
        wait_until("the first ping", || {
            let ping = ends[0].spawn(&["ping", "-c", "1", "-W", "1", "198.18.0.2"]);
            ping.wait(Duration::from_secs(10)).status == Some(0)
        });
        let pings = ends[0].run(&["ping", "-A", "-n", "-c", "200", "-s", "1400", "-w", "60", "198.18.0.2"]);
        assert!(answered(&pings, 200), "{pings}");
        let ports = netmapd.status()["ports"].clone();
        for port in 0..2 {
            let counters = &ports[port]["programs"]["counters"];
            assert!(counters["bad_slots"] == 0 && counters["rx_packets"].as_u64() >= Some(200), "{ports}");
        }
        let flood = ends[0].spawn(&["ping", "-f", "-s", "1000", "-w", "60", "198.18.0.2"]);
        std::thread::sleep(Duration::from_millis(100 + 37 * kill));
        bridge.signal("KILL");
        bridge.wait(Duration::from_secs(10));
        flood.signal("INT");
        flood.wait(Duration::from_secs(10));
        wait_until("the end of what it had", || netmapd.all_free());
    }
    netmapd.end();
}

/// kernel – TAP – card – bridge – pipe – program, all in one memory: frames pass unchanged and without a copy,
/// in both directions.
#[test]
fn a_pipe_beside_a_card_exchanges_buffers_with_it() {
    let tap = unique("nn");
    let netmapd = Netmapd::new(&["--hugepages", "off", "--port", &format!("x=model:tap:{tap}")]);
    netmapd.namespace.run(&["ip", "link", "set", &tap, "up"]);
    let mine = netmapd.open("netmap:p}1@2");
    assert_eq!(mine.granted().memory_id, 2);
    let bridge = netmapd.spawn(&["bridge", "netmap:x", "netmap:p{1"]);
    assert!(bridge.line().ends_with("buffers are exchanged"));
    let echo = netmapd.spawn(&["echo", &format!("packet:{tap}")]);
    let echoes = || {
        let frames = receive(&mine, Duration::from_millis(100)).into_iter();
        frames.filter(|frame| frame[12..14] == [0x88, 0xb5]).collect::<Vec<_>>()
    };
    wait_until("an echo", || {
        send(&mine, &frame(2, 1, 0));
        mine.tx()[0].sync().unwrap();
        !echoes().is_empty()
    });
    for first in (1..1000).step_by(100) {
        (first..first + 100).for_each(|n| send(&mine, &frame(2, 1, n)));
        mine.tx()[0].sync().unwrap();
        let mut came = Vec::new();
        wait_until("the echoes", || {
            // Echoes of the first frames may be late.
            came.extend(echoes().into_iter().filter(|frame| number(frame) > 0));
            came.len() == 100
        });
        assert_eq!(came, (first..first + 100).map(|n| frame(1, 2, n)).collect::<Vec<_>>());
    }
    assert_eq!(netmapd.status()["pipes"][0]["memory"], 2);
    let refused = netmapd.spawn(&["dump", "netmap:p{1@1"]).wait(Duration::from_secs(10));
    assert!(
        refused.status == Some(1) && refused.errors.join(" ").contains("as its first program said"),
        "{:?}",
        refused.errors
    );
    for program in [bridge, echo] {
        program.signal("KILL");
        program.wait(Duration::from_secs(10));
    }
    drop(mine);
    wait_until("the end of what they had", || netmapd.all_free());
    netmapd.end();
}

/// A program writes slots that name any buffer, also twice, in both directions and both queues, under traffic:
/// the card has all its buffers at any time, and the next program finds a working port.
#[test]
fn programs_that_name_any_buffer_cost_the_card_none() {
    let tap = unique("nn");
    let netmapd = Netmapd::new(&["--hugepages", "off", "--queues", "2", "--port", &format!("x=model:tap:{tap}")]);
    netmapd.namespace.run(&["ip", "link", "set", &tap, "up"]);
    let echo = netmapd.spawn(&["echo", &format!("packet:{tap}")]);
    let mut random = Random::new(5);
    for _ in 0..5 {
        let mine = netmapd.open("netmap:x");
        let rings: Vec<_> = mine.tx().iter().chain(mine.rx()).collect();
        for _ in 0..50 {
            for _ in 0..200 {
                let ring = rings[random.below(4) as usize];
                let buffer = match random.below(4) {
                    0 => random.below(1 << 32) as u32,
                    1 => random.below(24_000) as u32,
                    _ => rings[random.below(4) as usize].ring().slot(random.below(1024) as u32).buffer,
                };
                let slot = Slot { buffer, len: 60 + random.below(3) as u16, ..Slot::default() };
                ring.ring().set(random.below(1024) as u32, slot);
            }
            // Positions stay valid: this side moves them only within its own slots.
            for ring in &rings {
                ring.sync().unwrap();
                ring.release_slots(ring.own());
                ring.sync().unwrap();
            }
        }
        wait_until("both rings' bad slots", || {
            let counters = netmapd.native()["programs"]["counters"].clone();
            (0..2).all(|ring| counters[ring]["bad_slots"].as_u64() > Some(0))
        });
        let memory = netmapd.status()["exchanged"].clone();
        assert_eq!(memory["pool"].as_u64(), memory["buffers"].as_u64().map(|all| all - 16_384), "{memory}");
        drop(mine);
        wait_until("the end of what it had", || netmapd.all_free());
    }
    let mine = netmapd.open("netmap:x");
    wait_until("an echo", || {
        send(&mine, &frame(2, 1, 7));
        mine.tx()[0].sync().unwrap();
        mine.rx().iter().for_each(|ring| ring.sync().unwrap());
        receive(&mine, Duration::from_millis(100)).contains(&frame(1, 2, 7))
    });
    drop(mine);
    echo.signal("INT");
    echo.wait(Duration::from_secs(10));
    wait_until("the end of all", || netmapd.all_free());
    netmapd.end();
}
